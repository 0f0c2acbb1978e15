"""The workflow that the fleet serves: orders that go in circles, branch, and end."""

from dataclasses import dataclass

from mcpfusion.machine import Machine

CONFIG = {
    "id": "order",
    "initial": "draft",
    "states": {
        "draft": {"on": {"SUBMIT": "review", "DISCARD": "discarded"}},
        "review": {"on": {"APPROVE": "approved", "REJECT": "draft"}},
        "approved": {"on": {"PAY": "paid", "WITHDRAW": "draft"}},
        "paid": {"on": {"ARCHIVE": "archived", "REOPEN": "draft"}},
        "archived": {"type": "final"},
        "discarded": {"type": "final"},
    },
}
MACHINE = Machine(CONFIG)

TIME_LIMIT = 1.0
"""Seconds that a handler may take."""

LEASE = 2.5
"""Seconds that a claim lasts whose call does not end."""

CONFLICT_WAIT = 0.5


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of an order.

    Attributes:
        state: Where it is bound.
        events: What its success may send; with more than one the result decides.
        retry: A step in doubt may be taken again; otherwise it is held.
        threaded: Its handler is a plain function.
        keep: Seconds for which its result is kept.
    """

    state: str
    events: tuple[str, ...]
    retry: bool = False
    threaded: bool = False
    keep: float = 0.0


TOOLS = {
    "order.submit": Tool("draft", ("SUBMIT",), retry=True),
    "order.discard": Tool("draft", ("DISCARD",)),
    "order.approve": Tool("review", ("APPROVE",)),
    "order.reject": Tool("review", ("REJECT",), threaded=True),
    "order.decide": Tool("review", ("APPROVE", "REJECT")),
    "order.pay": Tool("approved", ("PAY",), keep=60.0),
    "order.withdraw": Tool("approved", ("WITHDRAW",), retry=True),
    "order.archive": Tool("paid", ("ARCHIVE",)),
    "order.reopen": Tool("paid", ("REOPEN",)),
}
LOOK = "order.look"
"""Bound everywhere, and moves nothing."""

TARGETS = {(state, event): to for state, spec in CONFIG["states"].items() for event, to in spec.get("on", {}).items()}
"""Where each event leads from each state."""


def menu(state: str) -> set[str]:
    """Return what is allowed in a state."""
    return {LOOK} | {name for name, tool in TOOLS.items() if tool.state == state}
