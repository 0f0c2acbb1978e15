"""An approval as people have them: two reviewers in parallel, an escalation after two days, a payment at the end."""

from collections.abc import Callable
from typing import Any

from mcpfusion import Fusion

DAY = 86_400.0

CONFIG: dict[str, Any] = {
    "id": "approval",
    "initial": "review",
    "states": {
        "review": {
            "type": "parallel",
            "states": {
                "legal": {
                    "initial": "pending",
                    "states": {"pending": {"on": {"LEGAL_OK": "ok"}}, "ok": {"type": "final"}},
                },
                "finance": {
                    "initial": "pending",
                    "states": {"pending": {"on": {"FINANCE_OK": "ok"}}, "ok": {"type": "final"}},
                },
            },
            "onDone": "approved",
            "after": {str(int(2 * DAY * 1000)): "escalated"},
        },
        "escalated": {"on": {"RESUME": "review"}, "after": {str(int(5 * DAY * 1000)): "expired"}},
        "approved": {"tags": ["payable"], "on": {"PAY": "paid"}},
        "paid": {"type": "final"},
        "expired": {"type": "final"},
    },
}


class Clock:
    """Seconds since the epoch, as a test says."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def fusion() -> Fusion:
    """Return the tools of the approval."""
    f = Fusion("approvals")
    f.action("review.legal", describe="Approve as legal", bind_state=("review.legal.pending", "LEGAL_OK")).handle(
        done
    )
    f.action("review.finance", describe="As finance", bind_state=("review.finance.pending", "FINANCE_OK")).handle(
        done
    )
    f.action("review.resume", describe="Back to review", bind_state=("escalated", "RESUME")).handle(done)
    f.action("review.pay", describe="Pay", bind_state=("tag:payable", "PAY")).handle(done)
    f.query("review.look", describe="Look", bind_state="review.*").handle(done)
    return f


def done() -> dict[str, bool]:
    return {"done": True}


def server(store: Any, clock: Callable[[], float], config: Any = CONFIG, **fsm: Any) -> Any:
    """Return a server of the approval on a store."""
    f = fusion()
    return f.server(fsm=f.fsm(config, **fsm), store=store, state_handle_key="id", clock=clock)
