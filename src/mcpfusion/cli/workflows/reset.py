"""`mcpfusion workflows reset`."""

import click

from mcpfusion.cli.workflows import access
from mcpfusion.stores.protocol import VersionedFsmStateStore, Workflow

_MACHINE_HELP = "The machine: a JSON or YAML config, or FILE[:OBJECT] where Python code makes the gate."


@click.command(short_help="Put a workflow back to the beginning.")
@click.argument("handle")
@access.store_option
@access.scope_option
@click.option("--machine", metavar="FILE[:OBJECT]", required=True, help=_MACHINE_HELP)
@click.option("--state", metavar="STATE", default=None, help="A state to put it to, instead of the initial one.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def reset(handle: str, url: str, scope: str | None, machine: str, state: str | None, yes: bool) -> None:
    """Put a workflow back to its machine's initial state, or to another state of it.

    A step in doubt is forgotten: what it did outside is not undone, and every step can be called again. The
    history stays, and says who reset it.

    \b
    Examples:
      mcpfusion workflows reset INV-7 --machine invoice.yaml --store sqlite:///invoices.db
      mcpfusion workflows reset INV-7 --machine server.py:gate --state review --yes --store sqlite:///i.db

    \b
    Exit codes: 1 refused, not confirmed or failed, 2 wrong usage.
    """
    from mcpfusion.cli.workflows.machine import load_machine
    from mcpfusion.machine import UnknownStateError

    loaded = load_machine(machine)
    try:
        restored = loaded.initial() if state is None else loaded.restore_state(state)
    except UnknownStateError as error:
        raise click.BadParameter(str(error), param_hint="--state") from error

    async def work(store: VersionedFsmStateStore) -> Workflow:
        from mcpfusion.gate.operator import reset

        record = await access.find(store, handle, scope)
        now = await access.now_of(store)
        snapshot = loaded.initial(now=now) if state is None else restored
        if not yes:
            click.confirm(_question(record, snapshot.state, now), abort=True, err=True)
        data = snapshot.to_json()
        return await reset(store, record, snapshot=data, operator=access.operator(), now=now)

    record = access.with_store(url, work)
    click.echo(f"{handle!r}: the workflow stands in {record.state!r}")


def _question(record: Workflow, state: str, now: float) -> str:
    from mcpfusion.cli.workflows import text

    call = text.call_text(record, now)
    held = f" ({call})" if call else ""
    scope = text.scope_text(record.scope)
    return text.safe(f"Reset {record.handle!r} of {scope} from {record.state!r}{held} to {state!r}?")
