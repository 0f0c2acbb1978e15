"""Records for tests, with every field filled unless a test says otherwise."""

from dataclasses import replace
from typing import Any

from mcpfusion.stores import Claim, LastStep, Step, VersionedFsmStateStore, Workflow


def claim(**fields: Any) -> Claim:
    """Return a claim."""
    plain = Claim(
        call_id="call-1",
        idempotency_key="key-1",
        tool="invoice_discharge",
        event="DISCHARGE",
        principal="ann",
        digest="d1",
        claimed_at=1000.5,
        lease_until=1060.25,
        on_doubt="hold",
    )
    return replace(plain, **fields)


def last(**fields: Any) -> LastStep:
    """Return a step just committed."""
    plain = LastStep(
        call_id="call-0",
        tool="invoice_submit",
        digest="d0",
        principal=None,
        committed_at=999.0,
        result={"content": [{"type": "text", "text": "paid ✓"}], "isError": False},
        keep_until=1100.0,
    )
    return replace(plain, **fields)


def workflow(version: int = 1, handle: str = "INV-1", scope: str = "ann", **fields: Any) -> Workflow:
    """Return a workflow's record."""
    state = fields.get("state", "draft")
    plain = Workflow(
        scope=scope,
        handle=handle,
        id="w1",
        version=version,
        steps=1,
        state=state,
        snapshot={"value": state, "context": {"n": [1, 2.5, None, True, "é"]}, "timers": []},
        updated_at=1000.125,
    )
    return replace(plain, **fields)


def step(handle: str = "INV-1", scope: str = "ann", **fields: Any) -> Step:
    """Return a step of the history."""
    plain = Step(
        scope=scope,
        handle=handle,
        from_state="draft",
        to_state="review",
        event="SUBMIT",
        tool="invoice_submit",
        principal="ann",
        call_id="call-1",
        at=1001.5,
        outcome="committed",
    )
    return replace(plain, **fields)


async def add(store: VersionedFsmStateStore, *workflows: Workflow) -> None:
    """Write workflows that are not there yet."""
    for each in workflows:
        assert await store.write(each, expected_version=0)
