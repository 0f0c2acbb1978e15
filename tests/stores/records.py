"""Records for the tests, with every field filled unless a test says otherwise."""

from typing import Any

from mcpfusion.stores import Claim, LastStep, Step, Workflow


def claim(**fields: Any) -> Claim:
    return Claim(
        **{
            "call_id": "call-1",
            "idempotency_key": "key-1",
            "tool": "invoice_discharge",
            "event": "DISCHARGE",
            "principal": "ann",
            "digest": "d1",
            "claimed_at": 1000.5,
            "lease_until": 1060.25,
            "on_doubt": "hold",
            **fields,
        }
    )


def last(**fields: Any) -> LastStep:
    return LastStep(
        **{
            "call_id": "call-0",
            "tool": "invoice_submit",
            "digest": "d0",
            "principal": None,
            "committed_at": 999.0,
            "result": {"content": [{"type": "text", "text": "paid ✓"}], "isError": False},
            "keep_until": 1100.0,
            **fields,
        }
    )


def workflow(version: int = 1, handle: str = "INV-1", scope: str = "ann", **fields: Any) -> Workflow:
    state = fields.get("state", "draft")
    return Workflow(
        **{
            "scope": scope,
            "handle": handle,
            "id": "w1",
            "version": version,
            "steps": 1,
            "state": state,
            "snapshot": {"value": state, "context": {"n": [1, 2.5, None, True, "é"]}, "timers": []},
            "updated_at": 1000.125,
            **fields,
        }
    )


def step(handle: str = "INV-1", scope: str = "ann", **fields: Any) -> Step:
    return Step(
        **{
            "scope": scope,
            "handle": handle,
            "from_state": "draft",
            "to_state": "review",
            "event": "SUBMIT",
            "tool": "invoice_submit",
            "principal": "ann",
            "call_id": "call-1",
            "at": 1001.5,
            "outcome": "committed",
            **fields,
        }
    )
