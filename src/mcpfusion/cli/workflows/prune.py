"""`mcpfusion workflows prune`."""

import re
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace

import click

from mcpfusion.cli.workflows import access
from mcpfusion.stores.protocol import VersionedFsmStateStore, Workflow

_PAGE = 500
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
# Before the time of any clock, so that exactly the workflows that were marked with it are removed.
_MARK = 0.0


def _seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", value.strip())
    if found is None:
        raise click.BadParameter(f"{value!r}: expected a number and s, m, h, d or w, such as 24h or 30d")
    return float(found[1]) * _UNITS[found[2]]


@dataclass(frozen=True, slots=True)
class _Removed:
    expired: int
    old: int


@click.command(short_help="Remove workflows that are over.")
@access.store_option
@click.option(
    "--expired-for",
    metavar="DURATION",
    callback=_seconds,
    default="24h",
    show_default=True,
    help="Only what expired this long ago.",
)
@click.option(
    "--older-than",
    metavar="DURATION",
    callback=_seconds,
    default=None,
    help="Also what has not moved for this long and has no call.",
)
@click.option("--state", metavar="STATE", default=None, help="With --older-than: only what stands in this state.")
@click.option("--dry-run", is_flag=True, help="Count, and remove nothing.")
@access.json_option
def prune(
    url: str, expired_for: float, older_than: float | None, state: str | None, dry_run: bool, as_json: bool
) -> None:
    """Remove the workflows that expired, and with --older-than those that nobody has moved for long.

    A running server removes what expired a day ago by itself; this is for servers that are not running, for
    other times, and for workflows that have no end. They go with their history. What a call holds, or a step
    that is in doubt, stays. Durations are a number and s, m, h, d or w.

    \b
    Examples:
      mcpfusion workflows prune --store sqlite:///invoices.db
      mcpfusion workflows prune --older-than 90d --state discharged --dry-run --store sqlite:///invoices.db

    \b
    Exit codes: 0 also when there were none, 1 the store failed, 2 wrong usage.
    """
    from mcpfusion.cli.workflows import text

    if state is not None and older_than is None:
        raise click.UsageError("--state goes with --older-than")

    async def work(store: VersionedFsmStateStore) -> _Removed:
        now = await access.now_of(store)
        before = now - expired_for
        unmoved_since = None if older_than is None else now - older_than
        count = _count if dry_run else _remove
        return await count(store, before, unmoved_since, state)

    removed = access.with_store(url, work)
    if as_json:
        text.print_json({"expired": removed.expired, "old": removed.old, "dry_run": dry_run})
        return
    done = "would be removed" if dry_run else "removed"
    old = "" if older_than is None else f", and {removed.old} that had not moved"
    click.echo(f"{removed.expired} expired{old}: {done}")


async def _count(
    store: VersionedFsmStateStore, before: float, unmoved_since: float | None, state: str | None
) -> _Removed:
    from mcpfusion.gate.records import expired

    ended = old = 0
    async with aclosing(_pages(store, None)) as pages:
        async for page in pages:
            over = [expired(record, before) for record in page]
            ended += sum(over)
            # What expired is counted once.
            old += sum(
                _is_old(record, unmoved_since, state) and not gone for record, gone in zip(page, over, strict=True)
            )
    return _Removed(ended, old)


async def _remove(
    store: VersionedFsmStateStore, before: float, unmoved_since: float | None, state: str | None
) -> _Removed:
    from mcpfusion.gate.expiry import release_abandoned

    await release_abandoned(store, before=before, pages=sys.maxsize)
    ended = await _prune_all(store, before)
    if unmoved_since is None:
        return _Removed(ended, 0)
    old = 0
    async with aclosing(_pages(store, state)) as pages:
        async for page in pages:
            for record in page:
                if _is_old(record, unmoved_since, state):
                    over = replace(record, version=record.version + 1, due=None, expires_at=_MARK)
                    # False when a call came meanwhile: then it is not old any more.
                    await store.write(over, expected_version=record.version)
            old += await _prune_all(store, _MARK + 1)
    return _Removed(ended, old)


def _is_old(record: Workflow, unmoved_since: float | None, state: str | None) -> bool:
    if unmoved_since is None or record.claim is not None or record.updated_at >= unmoved_since:
        return False
    return state is None or record.state == state


async def _prune_all(store: VersionedFsmStateStore, before: float) -> int:
    removed = 0
    while (batch := await store.prune(before=before, limit=_PAGE)) > 0:
        removed += batch
    return removed


async def _pages(store: VersionedFsmStateStore, state: str | None) -> AsyncGenerator[list[Workflow]]:
    after: tuple[str, str] | None = None
    while page := list(await store.list_workflows(state=state, after=after, limit=_PAGE)):
        after = (page[-1].scope, page[-1].handle)
        yield page
