"""`mcpfusion workflows resolve`."""

from collections.abc import Mapping
from typing import Any

import click

from mcpfusion.cli.workflows import access
from mcpfusion.stores.protocol import Claim, VersionedFsmStateStore, Workflow

_MACHINE_HELP = (
    "Needed with --done where the result decides the event: a JSON or YAML config, or FILE[:OBJECT] where "
    "Python code makes the gate."
)


@click.command(short_help="End a step that is in doubt.")
@click.argument("handle")
@click.option("--done/--not-done", "done", default=None, help="Whether the step's effect happened.")
@access.store_option
@access.scope_option
@click.option("--event", metavar="EVENT", default=None, help="With --done and --machine: the event the step sends.")
@click.option("--machine", metavar="FILE[:OBJECT]", default=None, help=_MACHINE_HELP)
def resolve(
    handle: str, done: bool | None, url: str, scope: str | None, event: str | None, machine: str | None
) -> None:
    """End a step that is in doubt: a call that began, and of which nobody knows how it ended.

    --done: its effect happened. The workflow moves as if the call had succeeded, and a repeat of the call
    does not run it again. --not-done: its effect did not happen. The workflow stays where it is, and the step
    can be called again. Find out first which it is: "mcpfusion workflows show" prints its idempotency key.

    \b
    Examples:
      mcpfusion workflows resolve INV-7 --done --store sqlite:///invoices.db
      mcpfusion workflows resolve INV-7 --not-done --store sqlite:///invoices.db
      mcpfusion workflows resolve INV-7 --done --event PART_PAID --machine server.py --store sqlite:///invoices.db

    \b
    Exit codes: 1 there is no such workflow or no step of it is in doubt, 2 wrong usage.
    """
    if done is None:
        raise click.UsageError("say how the step ended: --done or --not-done")
    if not done and (event or machine):
        raise click.UsageError("--event and --machine go with --done")

    async def work(store: VersionedFsmStateStore) -> Workflow:
        from mcpfusion.gate.operator import resolve_done, resolve_not_done

        record = await access.find(store, handle, scope)
        who, now = access.operator(), await access.now_of(store)
        if not done:
            return await resolve_not_done(store, record, operator=who, now=now)
        snapshot = _after(record, event, machine, now)
        return await resolve_done(store, record, snapshot=snapshot, operator=who, now=now, event=event)

    record = access.with_store(url, work)
    said = "done" if done else "not done"
    click.echo(f"{handle!r}: the step is {said}; the workflow stands in {record.state!r}")


def _after(record: Workflow, event: str | None, machine: str | None, now: float) -> Mapping[str, Any] | None:
    """Return the snapshot after the step: what its claim says, or what the machine makes of the event."""
    claim = record.claim
    if claim is None:
        return None
    if claim.event is not None and event not in (None, claim.event):
        raise click.ClickException(f"the step sends {claim.event!r}, not {event!r}")
    if machine is None:
        if claim.leads_to is not None:
            return claim.leads_to
        raise click.ClickException(_ask(claim))
    event = event or claim.event
    if event is None:
        raise click.ClickException(_ask(claim))
    return _move(record, event, machine, now)


def _ask(claim: Claim) -> str:
    if claim.event is None:
        return f"the result of {claim.tool!r} decides its event; say which it was: --event EVENT --machine FILE"
    return f"where {claim.event!r} leads is not kept with the step; say by which machine: --machine FILE"


def _move(record: Workflow, event: str, target: str, now: float) -> Mapping[str, Any]:
    from mcpfusion.cli.workflows.machine import load_machine
    from mcpfusion.machine import UnknownStateError

    machine = load_machine(target)
    try:
        snapshot = machine.restore(record.snapshot)
    except UnknownStateError as error:
        raise click.ClickException(str(error)) from error
    if not machine.can(snapshot, event):
        events = ", ".join(machine.next_events(snapshot)) or "none"
        raise click.ClickException(f"state {record.state!r} takes no event {event!r} (it takes: {events})")
    return machine.transition(snapshot, event, now=now).to_json()
