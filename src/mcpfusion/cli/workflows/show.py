"""`mcpfusion workflows show`."""

from collections.abc import Sequence
from typing import Any

import click

from mcpfusion.cli.workflows import access
from mcpfusion.stores.protocol import Claim, Step, VersionedFsmStateStore, Workflow
from mcpfusion.telemetry import workflow_name


@click.command(short_help="Show one workflow and its history.")
@click.argument("handle")
@access.store_option
@access.scope_option
@access.json_option
def show(handle: str, url: str, scope: str | None, as_json: bool) -> None:
    """Show one workflow: where it stands, the call that holds it, its last step and its history.

    The idempotency key of a step in doubt is what the handler gave to the system it called (a payment
    provider, say): ask there how the step ended, then say so with "mcpfusion workflows resolve".

    \b
    Examples:
      mcpfusion workflows show INV-7 --store sqlite:///invoices.db
      mcpfusion workflows show INV-7 --scope alice --store sqlite:///invoices.db --json

    \b
    Exit codes: 1 there is no such workflow, or several scopes have one; 2 wrong usage.
    """

    async def work(store: VersionedFsmStateStore) -> tuple[Workflow, Sequence[Step], float]:
        record = await access.find(store, handle, scope)
        return record, await store.history(record.scope, record.handle), await access.now_of(store)

    record, history, now = access.with_store(url, work)
    if as_json:
        _print_json(record, history, now)
    else:
        _print(record, history, now)


def _print(record: Workflow, history: Sequence[Step], now: float) -> None:
    from mcpfusion.cli.workflows import text

    fields = {
        "handle": record.handle,
        "scope": text.scope_text(record.scope),
        "state": record.state,
        "steps": str(record.steps),
        "moved": text.time_text(record.updated_at),
        "expires": "" if record.expires_at is None else text.time_text(record.expires_at),
        "id": record.id,
        "in logs": workflow_name(record.scope, record.handle),
        "version": str(record.version),
    }
    if (machine := record.snapshot.get("machine")) is not None:
        fields["machine"] = str(machine)  # the fingerprint of the definition that it was last written under
    if record.claim:
        fields["call"] = text.call_text(record, now)
        fields |= _claim_fields(record.claim)
    if record.last:
        fields["last step"] = f"{record.last.tool} at {text.time_text(record.last.committed_at)}"
        if record.last.result is not None:
            fields["result kept"] = f"until {text.time_text(record.last.keep_until)}"
    text.print_fields(fields)
    if not history:
        return
    click.echo()
    rows = [
        (
            text.time_text(step.at),
            step.from_state,
            step.event or "",
            step.to_state,
            step.tool,
            step.principal or "",
            step.outcome,
            step.call_id,
        )
        for step in history
    ]
    text.print_table(("AT", "FROM", "EVENT", "TO", "TOOL", "PRINCIPAL", "OUTCOME", "CALL ID"), rows)


def _claim_fields(claim: Claim) -> dict[str, str]:
    from mcpfusion.cli.workflows import text

    return {
        "event": claim.event or "decided by the result",
        "principal": claim.principal or "",
        "call id": claim.call_id,
        "idempotency key": claim.idempotency_key,
        "claimed": text.time_text(claim.claimed_at),
        "lease until": text.time_text(claim.lease_until),
        "on doubt": claim.on_doubt,
    }


def _print_json(record: Workflow, history: Sequence[Step], now: float) -> None:
    from mcpfusion.cli.workflows import text

    last: dict[str, Any] | None = None
    if record.last:
        last = {
            "tool": record.last.tool,
            "principal": record.last.principal,
            "call_id": record.last.call_id,
            "committed_at": text.time_text(record.last.committed_at, "milliseconds"),
            "result_kept": record.last.result is not None,
        }
    text.print_json(
        text.record_json(record, now)
        | {
            "id": record.id,
            "log_name": workflow_name(record.scope, record.handle),
            "version": record.version,
            "snapshot": record.snapshot,
            "last": last,
            "history": [text.step_json(step) for step in history],
        }
    )
