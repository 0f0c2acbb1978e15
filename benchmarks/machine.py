"""The machine on its own beside a dict look-up and python-statemachine: `transition`, `can`, `initial`, `restore`.

python -m benchmarks.machine [--rounds 9] [--seconds 0.2]
"""

import argparse
import gc
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from statemachine import State, StateChart

from mcpfusion.machine import Machine

FLAT: dict[str, Any] = {
    "id": "invoice",
    "initial": "draft",
    "states": {
        "draft": {"on": {"SUBMIT": "review"}},
        "review": {"on": {"APPROVE": "approved", "REJECT": "draft"}},
        "approved": {"on": {"DISCHARGE": "discharged"}},
        "discharged": {"type": "final"},
    },
}
NESTED: dict[str, Any] = {
    "id": "order",
    "initial": "open",
    "states": {
        "open": {
            "initial": "cart",
            "on": {"CANCEL": "cancelled"},
            "states": {"cart": {"on": {"CHECKOUT": "address"}}, "address": {"on": {"BACK": "cart"}}},
        },
        "cancelled": {"type": "final"},
    },
}
TABLE = {("draft", "SUBMIT"): "review", ("review", "REJECT"): "draft"}
_AT_ONCE = 200


class Invoice(StateChart):
    """The flat machine, for python-statemachine."""

    draft = State(initial=True)
    review = State()
    submit = draft.to(review)
    reject = review.to(draft)


class Order(StateChart):
    """The nested machine, for python-statemachine."""

    class open(State.Compound):
        """While it can be cancelled."""

        cart = State(initial=True)
        address = State()
        checkout = cart.to(address)
        back = address.to(cart)

    cancelled = State(final=True)
    cancel = open.to(cancelled)


def _moving(machine: Machine, there: str, back: str) -> Callable[[], None]:
    first = machine.initial()

    def move() -> None:
        machine.transition(machine.transition(first, there), back)

    return move


def _look_up() -> None:
    TABLE[TABLE["draft", "SUBMIT"], "REJECT"]


def operations() -> dict[str, tuple[Callable[[], Any], int]]:
    """Return what is measured by its name: an operation, and how many of them one call carries out."""
    flat, nested = Machine(FLAT), Machine(NESTED)
    kept = {machine: json.loads(json.dumps(machine.initial().to_json())) for machine in (flat, nested)}
    at_flat, at_nested = flat.initial(), nested.initial()
    invoice, order = Invoice(), Order()

    def their_flat() -> None:
        invoice.send("submit")
        invoice.send("reject")

    def their_nested() -> None:
        order.send("checkout")
        order.send("back")

    return {
        "a dict look-up": (_look_up, 2),
        "transition, flat": (_moving(flat, "SUBMIT", "REJECT"), 2),
        "transition, nested": (_moving(nested, "CHECKOUT", "BACK"), 2),
        "can, flat": (lambda: flat.can(at_flat, "SUBMIT"), 1),
        "can, nested": (lambda: nested.can(at_nested, "CHECKOUT"), 1),
        "initial, flat": (flat.initial, 1),
        "initial, nested": (nested.initial, 1),
        "restore, flat": (lambda: flat.restore(kept[flat]), 1),
        "restore, nested": (lambda: nested.restore(kept[nested]), 1),
        "python-statemachine, flat": (their_flat, 2),
        "python-statemachine, nested": (their_nested, 2),
    }


def measure(rounds: int, seconds: float) -> dict[str, list[float]]:
    """Return the CPU seconds of each operation, one number for each round; measured in turns."""
    measured = operations()
    found: dict[str, list[float]] = {name: [] for name in measured}
    for operation, _ in measured.values():
        operation()
    gc.collect()
    gc.freeze()
    for _ in range(rounds):
        for name, (operation, each) in measured.items():
            found[name].append(_round(operation, seconds) / each)
    return found


def _round(operation: Callable[[], Any], seconds: float) -> float:
    count, start = 0, time.process_time()
    while (now := time.process_time()) - start < seconds or not count:
        for _ in range(_AT_ONCE):  # a look at the clock takes longer than a look-up
            operation()
        count += _AT_ONCE
    return (now - start) / count


def report(found: Mapping[str, list[float]]) -> None:
    """Print the medians, and the medians of the ratios to a look-up and to python-statemachine in the same round."""
    out = sys.stdout.write
    out(f"\n{'':30}{'CPU':>12}{'to a look-up':>15}{'to python-statemachine':>26}\n")
    for name, times in found.items():
        theirs = found[f"python-statemachine, {'nested' if name.endswith('nested') else 'flat'}"]
        ratios = [
            statistics.median(a / b for a, b in zip(times, other, strict=True))
            for other in (found["a dict look-up"], theirs)
        ]
        out(f"{name:30}{statistics.median(times) * 1e9:>9.0f} ns{ratios[0]:>15.1f}{ratios[1]:>26.4f}\n")
    sys.stdout.flush()


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description="The machine beside a dict look-up and python-statemachine.")
    parser.add_argument("--rounds", type=int, default=9, help="rounds for each (default: 9)")
    parser.add_argument("--seconds", type=float, default=0.2, help="length of a round (default: 0.2 s)")
    how = parser.parse_args()
    libraries = ", ".join(f"{name} {version(name)}" for name in ("mcpfusion", "python-statemachine"))
    sys.stdout.write(f"Python {platform.python_version()}, {platform.machine()}; {libraries}\n")
    report(measure(how.rounds, how.seconds))


if __name__ == "__main__":
    main()
