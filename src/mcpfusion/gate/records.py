"""Records as the gate changes them: pure functions from one record to the next."""

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mcpfusion.machine import Snapshot
from mcpfusion.machine.snapshot import state_text
from mcpfusion.stores.protocol import Claim, LastStep, Step, Workflow


def new_record(scope: str, handle: str, snapshot: Snapshot, now: float) -> Workflow:
    """Return the record of a workflow that was never written: version 0, in the machine's initial state."""
    return Workflow(
        scope=scope,
        handle=handle,
        id=secrets.token_hex(8),
        version=0,
        steps=0,
        state=snapshot.state,
        snapshot=snapshot.to_json(),
        updated_at=now,
        due=next_timer(snapshot.to_json()),
    )


def begun_anew(record: Workflow, snapshot: Snapshot, now: float) -> Workflow:
    """Return what takes the place of an expired record: another workflow, of another id, in the initial state."""
    return replace(new_record(record.scope, record.handle, snapshot, now), version=record.version)


def dated(record: Workflow, at: float, expires_after: float | None) -> Workflow:
    """Return the record as it is written at `at`, with the time of its end.

    A workflow that has a timer does not end before the timer has gone off: that will be a write too.
    """
    if expires_after is None:
        return replace(record, expires_at=None)
    return replace(record, expires_at=max(at, next_timer(record.snapshot) or at) + expires_after)


def expired(record: Workflow, now: float) -> bool:
    """Return whether the workflow is over. One with a call in progress or to be resolved is not."""
    if record.expires_at is None or record.expires_at > now:
        return False
    return record.claim is None or free_again(record, now)


def overdue(record: Workflow, now: float) -> bool:
    """Return whether a timer should have gone off by now."""
    due = next_timer(record.snapshot)
    return due is not None and due <= now


def claimed(record: Workflow, claim: Claim) -> Workflow:
    """Return the record held by `claim`; no timer goes off while it is."""
    return replace(record, version=record.version + 1, claim=claim, due=None)


def released(record: Workflow) -> Workflow:
    """Return the record with the claim gone and the state unmoved; before its first step nothing is due of it."""
    due = next_timer(record.snapshot) if record.steps else None
    return replace(record, version=record.version + 1, claim=None, due=due)


def doubtful(record: Workflow, now: float) -> Workflow:
    """Return the record whose claim's outcome is unknown from now on."""
    assert record.claim is not None
    claim = replace(record.claim, in_doubt=True, lease_until=min(record.claim.lease_until, now))
    return replace(record, version=record.version + 1, claim=claim)


def moved(record: Workflow, snapshot: Mapping[str, Any], last: LastStep | None, now: float) -> Workflow:
    """Return the record after a committed step that leads to `snapshot`, a machine's snapshot as JSON data."""
    return replace(
        record,
        version=record.version + 1,
        steps=record.steps + 1,
        state=state_text(snapshot["value"]),
        snapshot=dict(snapshot),
        updated_at=now,
        claim=None,
        last=last,
        due=next_timer(snapshot),
    )


def next_timer(snapshot: Mapping[str, Any]) -> float | None:
    """Return when the next timer of a snapshot, given as JSON data, goes off; None without one."""
    return min((timer["due"] for timer in snapshot.get("timers", ())), default=None)


def in_doubt(record: Workflow, now: float) -> bool:
    """Return whether the record's claim is held by a call of which nobody knows how it ended."""
    claim = record.claim
    return claim is not None and (claim.in_doubt or claim.lease_until <= now)


def free_again(record: Workflow, now: float) -> bool:
    """Return whether the record's claim ended in doubt and its policy lets the step be taken again."""
    return record.claim is not None and record.claim.on_doubt == "retry" and in_doubt(record, now)


def withheld(record: Workflow | None, now: float) -> bool:
    """Return whether no step runs on the workflow until somebody has resolved the one in doubt."""
    return (
        record is not None and record.claim is not None and record.claim.on_doubt == "hold" and in_doubt(record, now)
    )


def step_of(before: Workflow, after: Workflow, claim: Claim, event: str | None, now: float) -> Step:
    """Return the history's entry for a committed step."""
    return Step(
        scope=before.scope,
        handle=before.handle,
        from_state=before.state,
        to_state=after.state,
        event=event,
        tool=claim.tool,
        principal=claim.principal,
        call_id=claim.call_id,
        at=now,
        outcome="committed",
    )
