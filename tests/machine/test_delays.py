"""Delays as data: timers in the snapshot, applied by whoever holds the clock, at the time each was due."""

import json
from typing import Any

import pytest

from mcpfusion.machine import Machine, MachineError, Snapshot, Timer

DAY = 86_400.0

APPROVAL: dict[str, Any] = {
    "id": "approval",
    "initial": "pending",
    "context": {"reminders": 0},
    "states": {
        "pending": {
            "initial": "waiting",
            "on": {"APPROVE": "approved"},
            "after": {"172800000": "escalated"},
            "states": {
                "waiting": {"after": {"86400000": {"target": "waiting", "reenter": True, "actions": "remind"}}},
            },
        },
        "approved": {"type": "final"},
        "escalated": {"after": {"grace": "closed"}, "on": {"APPROVE": "approved"}},
        "closed": {"type": "final"},
    },
}


def approval() -> Machine:
    return Machine(
        APPROVAL,
        actions={"remind": lambda context, event, params: {"reminders": context["reminders"] + 1}},
        delays={"grace": lambda context, event, params: 1000 * context["reminders"]},
    )


def catch_up(machine: Machine, snapshot: Snapshot, now: float) -> list[Snapshot]:
    steps: list[Snapshot] = []
    while (after := machine.elapse(snapshot, now)) is not snapshot:
        steps.append(after)
        snapshot = machine.restore(json.loads(json.dumps(after.to_json())))
    return steps


def test_deadlines_are_in_the_snapshot() -> None:
    machine = approval()
    snapshot = machine.initial(now=1000.0)
    assert snapshot.timers == (
        Timer("xstate.after.172800000.approval.pending", {"type": "xstate.after.172800000.approval.pending"},
              1000 + 2 * DAY),
        Timer("xstate.after.86400000.approval.pending.waiting",
              {"type": "xstate.after.86400000.approval.pending.waiting"}, 1000 + DAY),
    )  # fmt: skip
    assert machine.due(snapshot) == 1000 + DAY
    assert machine.restore(json.loads(json.dumps(snapshot.to_json()))) == snapshot
    assert machine.elapse(snapshot, 1000 + DAY - 0.001) is snapshot


def test_a_long_absence_is_caught_up_in_order_at_the_times_due() -> None:
    machine = approval()
    steps = catch_up(machine, machine.initial(now=0.0), now=30 * DAY)
    # At two days both are due: the escalation was scheduled first, and leaves the other behind.
    assert [step.state for step in steps] == ['{"pending":"waiting"}', "escalated", "closed"]
    assert [step.context["reminders"] for step in steps] == [1, 1, 1]
    assert steps[1].timers == (
        Timer(
            "xstate.after.grace.approval.escalated", {"type": "xstate.after.grace.approval.escalated"}, 2 * DAY + 1
        ),
    )
    assert steps[2].final
    assert steps[2].timers == ()


def test_leaving_a_state_takes_its_timers_away() -> None:
    machine = approval()
    assert machine.transition(machine.initial(now=0.0), "APPROVE", now=5.0).timers == ()
    assert machine.due(machine.transition(machine.initial(), "APPROVE")) is None


def test_a_timer_that_nothing_accepts_is_used_up() -> None:
    machine = Machine(
        {"initial": "a", "states": {"a": {"after": {10: {"target": "b", "guard": "no"}}}, "b": {}}},
        guards={"no": lambda context, event, params: False},
    )
    start = machine.initial(now=1.0)
    after = machine.elapse(start, 1.01)
    assert after is not start
    assert (after.state, after.timers) == ("a", ())
    assert machine.elapse(after, 99.0) is after


def test_a_clock_that_goes_back_fires_nothing() -> None:
    machine = approval()
    snapshot = machine.initial(now=1e9)
    assert machine.elapse(snapshot, 1e9 - 10 * DAY) is snapshot


def test_sums_of_decimal_fractions_do_not_miss_the_moment() -> None:
    machine = Machine({"initial": "a", "states": {"a": {"after": {100: "b"}}, "b": {"after": {200: "c"}}, "c": {}}})
    assert [step.state for step in catch_up(machine, machine.initial(now=0.0), now=0.3)] == ["b", "c"]
    assert [step.state for step in catch_up(machine, machine.initial(now=1.7e9), now=1.7e9 + 0.3)] == ["b", "c"]


def raising(*actions: Any) -> Machine:
    stop = {"type": "xstate.cancel", "id": "t"}
    return Machine(
        {
            "initial": "a",
            "states": {
                "a": {"on": {"START": {"actions": list(actions)}, "STOP": {"actions": stop},
                             "RING": {"target": "b", "guard": "loud"}}},
                "b": {},
            },
        },
        guards={"loud": lambda context, event, params: event["volume"] > 3},
        delays={"slow": 2000},
    )  # fmt: skip


def test_a_delayed_event_keeps_its_payload() -> None:
    machine = raising({"type": "xstate.raise", "event": {"type": "RING", "volume": 9}, "delay": "slow", "id": "t"})
    started = machine.transition(machine.initial(), "START", now=10.0)
    assert started.timers == (Timer("t", {"type": "RING", "volume": 9}, 12.0),)
    (rung,) = catch_up(machine, started, 12.0)
    assert rung.state == "b"


def test_cancel_and_an_id_that_is_scheduled_again() -> None:
    machine = raising({"type": "xstate.raise", "event": {"type": "RING", "volume": 9}, "delay": 1000, "id": "t"})
    started = machine.transition(machine.initial(), "START", now=10.0)
    assert machine.transition(started, "STOP", now=10.5).timers == ()
    again = machine.transition(started, "START", now=10.5)
    assert [(timer.id, timer.due) for timer in again.timers] == [("t", 11.5)]


def test_timers_without_an_id_get_one_each() -> None:
    delayed = {"type": "xstate.raise", "event": {"type": "RING", "volume": 1}, "delay": 5}
    machine = raising(delayed, delayed)
    twice = machine.transition(machine.transition(machine.initial(), "START", now=0.0), "START", now=1.0)
    assert [timer.id for timer in twice.timers] == [f"xstate.raise.{n}" for n in range(4)]
    one_less = machine.elapse(twice, 0.005)
    assert [timer.id for timer in one_less.timers] == [f"xstate.raise.{n}" for n in (1, 2, 3)]
    assert [timer.id for timer in machine.transition(one_less, "START", now=2.0).timers] == [
        f"xstate.raise.{n}" for n in (1, 2, 3, 0, 4)
    ]


def test_a_delay_of_nothing_is_due_at_once_and_not_before() -> None:
    machine = Machine({"initial": "a", "states": {"a": {"after": {0: "b"}}, "b": {}}})
    start = machine.initial(now=3.0)
    assert start.state == "a"
    assert [step.state for step in catch_up(machine, start, 3.0)] == ["b"]


@pytest.mark.parametrize("answer", ["soon", None, float("nan"), -1, True])
def test_a_delay_that_is_no_number_fails_the_step(answer: Any) -> None:
    machine = Machine(
        {"initial": "a", "states": {"a": {"on": {"GO": "b"}}, "b": {"after": {"odd": "a"}}}},
        delays={"odd": lambda context, event, params: answer},
    )
    with pytest.raises(MachineError, match="the delay 'odd' failed"):
        machine.transition(machine.initial(), "GO")
