"""`mcpfusion workflows list`."""

import click

from mcpfusion.cli.workflows import access
from mcpfusion.stores.protocol import VersionedFsmStateStore, Workflow

_PAGE = 500


@click.command("list", short_help="List workflows.")
@access.store_option
@click.option("--scope", metavar="SCOPE", default=None, help="Only of this scope; '' is the one everybody shares.")
@click.option("--state", metavar="STATE", default=None, help="Only those that stand in this state.")
@click.option("--in-doubt", is_flag=True, help="Only those with a step of which nobody knows how it ended.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="How many at most.")
@access.json_option
def list_workflows(url: str, scope: str | None, state: str | None, in_doubt: bool, limit: int, as_json: bool) -> None:
    """List the workflows in a store, ordered by scope and handle.

    \b
    Examples:
      mcpfusion workflows list --store sqlite:///invoices.db
      mcpfusion workflows list --store sqlite:///invoices.db --state approved
      mcpfusion workflows list --store sqlite:///invoices.db --in-doubt --json

    \b
    Exit codes: 0 also when there are none, 1 the store failed, 2 wrong usage.
    """
    from mcpfusion.cli.workflows import text

    async def work(store: VersionedFsmStateStore) -> tuple[list[Workflow], float]:
        now = await access.now_of(store)
        return await _gather(store, scope, state, now if in_doubt else None, limit + 1), now

    found, now = access.with_store(url, work)
    shown = found[:limit]
    if as_json:
        text.print_json([text.record_json(record, now) for record in shown])
    elif shown:
        rows = [
            (
                record.handle,
                text.scope_text(record.scope),
                record.state,
                str(record.steps),
                text.time_text(record.updated_at),
                text.call_text(record, now),
            )
            for record in shown
        ]
        text.print_table(("HANDLE", "SCOPE", "STATE", "STEPS", "MOVED", "CALL"), rows)
    else:
        click.echo("no workflows", err=True)
    if len(found) > limit:
        click.echo(f"the first {limit}; there are more (--limit)", err=True)


async def _gather(
    store: VersionedFsmStateStore, scope: str | None, state: str | None, in_doubt_at: float | None, limit: int
) -> list[Workflow]:
    found: list[Workflow] = []
    after: tuple[str, str] | None = None
    while len(found) < limit:
        asked = min(_PAGE, limit - len(found))
        page = await store.list_workflows(scope=scope, state=state, in_doubt_at=in_doubt_at, after=after, limit=asked)
        found += page
        if len(page) < asked:
            break
        after = (page[-1].scope, page[-1].handle)
    return found
