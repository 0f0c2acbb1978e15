"""What the gate answers when it does not let a call through, in words and in data."""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from mcpfusion.actions.results import ToolResult, error_result
from mcpfusion.machine import Snapshot
from mcpfusion.stores.protocol import Claim, LastStep

WORKFLOW_META_KEY = "io.mcpfusion/workflow"
"""Key of the workflow block in a result's `_meta`."""

RETRY_AFTER = 2
"""Seconds after which a call that was refused because of the store may be sent again."""

Code = Literal[
    "FORBIDDEN",
    "CONFLICT",
    "IN_DOUBT",
    "ALREADY_DONE",
    "UNKNOWN_STATE",
    "INVALID_HANDLE",
    "UNKNOWN_HANDLE",
    "EXPIRED",
    "STORE_UNAVAILABLE",
]


def workflow_block(handle: str, snapshot: Snapshot, allowed: Sequence[str]) -> dict[str, Any]:
    """Return the block that every answer of a bound tool carries in `_meta`."""
    return {
        "handle": handle,
        "state": snapshot.value,
        "allowedActions": list(allowed),
        "final": snapshot.final,
    }


def refusal(code: Code, message: str, data: Mapping[str, Any] | None = None) -> ToolResult:
    """Return a refusal: a tool result with `isError`, the code in its text and in its structured content."""
    return error_result(code, message, dict(data or {}))


def _standing(handle: str, snapshot: Snapshot, allowed: Sequence[str]) -> dict[str, Any]:
    return {"handle": handle, "state": snapshot.value, "allowedActions": list(allowed)}


def _menu_now(allowed: Sequence[str]) -> str:
    return f"Allowed now: {', '.join(allowed)}." if allowed else "No action is allowed any more."


def forbidden(tool: str, handle: str, snapshot: Snapshot, allowed: Sequence[str]) -> ToolResult:
    """The tool is not bound to the state, or the machine does not take its event there."""
    return refusal(
        "FORBIDDEN",
        f"'{tool}' is not allowed while the workflow is in state '{snapshot.state}'. {_menu_now(allowed)}",
        _standing(handle, snapshot, allowed),
    )


def conflict(tool: str, handle: str, snapshot: Snapshot, allowed: Sequence[str], claim: Claim) -> ToolResult:
    """Another call holds the workflow and did not end within the wait."""
    return refusal(
        "CONFLICT",
        f"'{tool}' did not run: '{claim.tool}' is in progress on this workflow since {iso(claim.claimed_at)}. "
        f"Wait for its result, then look again. The workflow is in state '{snapshot.state}'. {_menu_now(allowed)}",
        {**_standing(handle, snapshot, allowed), "inProgress": claim.tool},
    )


def doubt(handle: str, snapshot: Snapshot, claim: Claim, why: str) -> ToolResult:
    """The outcome of a step is unknown. Under `hold` nothing runs on the workflow until somebody resolves it."""
    what = f"{why} Whether '{claim.tool}' (started {iso(claim.claimed_at)}) took effect is not known."
    if claim.on_doubt == "hold":
        what += (
            " Do not repeat it: an operator has to look and resolve it, and until then no step of this workflow runs."
        )
    else:
        what += " It is safe to call it again."
    data = {"inDoubt": claim.tool, "idempotencyKey": claim.idempotency_key}
    return refusal("IN_DOUBT", what, {**_standing(handle, snapshot, []), **data})


def already_done(tool: str, handle: str, snapshot: Snapshot, allowed: Sequence[str], last: LastStep) -> ToolResult:
    """The same call was committed just before; it was not run again."""
    return refusal(
        "ALREADY_DONE",
        f"this very call of '{tool}' succeeded at {iso(last.committed_at)} and was not run again. "
        f"The workflow is in state '{snapshot.state}'. {_menu_now(allowed)}",
        {**_standing(handle, snapshot, allowed), "committedAt": iso(last.committed_at)},
    )


def gone(tool: str, handle: str, expired_at: float | None, opening: Collection[str]) -> ToolResult:
    """The workflow has expired, or its handle was never minted."""
    then = f"Open a new one: {', '.join(sorted(opening))}." if opening else "Begin a new one under another handle."
    data: dict[str, Any] = {"handle": handle, "allowedActions": []}
    if expired_at is None:
        why = f"'{tool}' did not run: no workflow has this handle. It was never opened, or it expired long ago."
        return refusal("UNKNOWN_HANDLE", f"{why} {then}", data)
    why = f"'{tool}' did not run: this workflow expired at {iso(expired_at)}, and nothing runs on it any more."
    return refusal("EXPIRED", f"{why} {then}", {**data, "expiredAt": iso(expired_at)})


def unavailable() -> ToolResult:
    """The store cannot be reached; nothing ran."""
    return refusal(
        "STORE_UNAVAILABLE",
        f"unavailable: the workflow's state cannot be reached, and nothing ran. Retry after {RETRY_AFTER} s.",
        {"retryAfter": RETRY_AFTER},
    )


def unknown_state(handle: str) -> ToolResult:
    """What is stored does not fit the machine, or cannot be brought up to date; nothing ran."""
    return refusal(
        "UNKNOWN_STATE",
        "the workflow stands in a state that this server's machine does not have; nothing ran. "
        "An operator has to look at it.",
        {"handle": handle, "allowedActions": []},
    )


def iso(at: float) -> str:
    """Return a time as RFC 3339 in UTC, whole seconds."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
