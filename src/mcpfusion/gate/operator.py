"""What an operator does to a workflow by hand: end a step that is in doubt, or put a workflow back."""

import logging
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mcpfusion.gate import records
from mcpfusion.gate.workflows import MENUS
from mcpfusion.stores.protocol import (
    Bus,
    Claim,
    LastStep,
    Outcome,
    Step,
    StoreError,
    VersionedFsmStateStore,
    Workflow,
)
from mcpfusion.stores.relay import tell_now

_log = logging.getLogger(__name__)


class OperatorError(Exception):
    """The operation cannot be done. The message is one line, for the operator."""


def in_doubt(workflow: Workflow, now: float) -> bool:
    """Return whether a step of the workflow is in doubt at `now` (seconds since the epoch)."""
    return records.in_doubt(workflow, now)


async def resolve_done(
    store: VersionedFsmStateStore,
    workflow: Workflow,
    *,
    snapshot: Mapping[str, Any] | None,
    operator: str,
    now: float,
    event: str | None = None,
) -> Workflow:
    """End a step in doubt as done: the workflow moves to where the step leads.

    Args:
        snapshot: Where it leads, or None to take what the claim noted.
        operator: Who decides, for the history.
        event: The event that led to `snapshot`, for the history; None to take what the claim noted.

    Raises:
        OperatorError: No step is in doubt, it is not known where it leads, or the workflow changed meanwhile.
    """
    claim = _doubtful_claim(workflow, now)
    leads_to = snapshot if snapshot is not None else claim.leads_to
    if leads_to is None:
        raise OperatorError(f"where {claim.tool!r} leads depends on its result: name the machine and the event")
    last = LastStep(claim.call_id, claim.tool, claim.digest, claim.principal, now)
    after = records.moved(workflow, leads_to, last, now)
    return await _write(store, workflow, after, event or claim.event, claim.tool, operator, now, "resolved_done")


async def resolve_not_done(
    store: VersionedFsmStateStore, workflow: Workflow, *, operator: str, now: float
) -> Workflow:
    """End a step in doubt as not done: the state stays, and the step may be called again.

    Raises:
        OperatorError: No step is in doubt, or the workflow changed meanwhile.
    """
    claim = _doubtful_claim(workflow, now)
    after = records.released(workflow)
    return await _write(store, workflow, after, None, claim.tool, operator, now, "resolved_not_done")


async def reset(
    store: VersionedFsmStateStore,
    workflow: Workflow,
    *,
    snapshot: Mapping[str, Any],
    operator: str,
    now: float,
) -> Workflow:
    """Put a workflow where `snapshot` says, whatever it was doing. Its steps get new idempotency keys.

    Raises:
        OperatorError: The workflow changed meanwhile.
    """
    moved = records.moved(workflow, snapshot, None, now)
    after = replace(moved, id=secrets.token_hex(8))
    return await _write(store, workflow, after, None, "", operator, now, "reset")


def _doubtful_claim(workflow: Workflow, now: float) -> Claim:
    if workflow.claim is None:
        raise OperatorError(f"no step of workflow {workflow.handle!r} is in doubt")
    if not in_doubt(workflow, now):
        left = workflow.claim.lease_until - now
        raise OperatorError(f"{workflow.claim.tool!r} is still in progress (its lease ends in {left:.0f} s)")
    return workflow.claim


async def _write(
    store: VersionedFsmStateStore,
    before: Workflow,
    after: Workflow,
    event: str | None,
    tool: str,
    operator: str,
    now: float,
    outcome: Outcome,
) -> Workflow:
    # The gate gives it an end again with its next step, and not the one that went by while nobody had resolved it.
    after = replace(after, expires_at=None)
    step = Step(before.scope, before.handle, before.state, after.state, event, tool, operator, "", now, outcome)
    if not await store.write(after, expected_version=before.version, step=step):
        raise OperatorError(f"workflow {before.handle!r} changed meanwhile; look again")
    if isinstance(store, Bus):
        try:
            await tell_now(store, MENUS, before.scope, before.handle)
        except StoreError:  # the step is written; who listens sees it with his next list
            _log.warning("the running servers could not be told that the workflow moved")
    return after
