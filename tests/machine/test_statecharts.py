"""What the vectors do not show: guards that raise, effects, names of our own, limits, and odd corners."""

import json
import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from mcpfusion.machine import Effect, Machine, MachineError, Snapshot

REVIEW: dict[str, Any] = {
    "id": "review",
    "initial": "pending",
    "states": {
        "pending": {
            "type": "parallel",
            "tags": "open",
            "onDone": "done",
            "states": {
                "legal": {"initial": "ask", "states": {"ask": {"on": {"LEGAL": "ok"}}, "ok": {"type": "final"}}},
                "money": {
                    "initial": "ask",
                    "states": {"ask": {"tags": ["payable"], "on": {"MONEY": "ok"}}, "ok": {"type": "final"}},
                },
            },
        },
        "done": {"type": "final"},
    },
}


def through_json(machine: Machine, snapshot: Snapshot) -> Snapshot:
    return machine.restore(json.loads(json.dumps(snapshot.to_json())))


def test_regions_side_by_side() -> None:
    machine = Machine(REVIEW)
    assert not machine.flat
    assert machine.states == (
        "pending", "pending.legal", "pending.legal.ask", "pending.legal.ok",
        "pending.money", "pending.money.ask", "pending.money.ok", "done",
    )  # fmt: skip
    snapshot = machine.initial()
    assert snapshot.value == {"pending": {"legal": "ask", "money": "ask"}}
    assert snapshot.state == '{"pending":{"legal":"ask","money":"ask"}}'
    assert snapshot.paths == {
        "pending", "pending.legal", "pending.legal.ask", "pending.money", "pending.money.ask",
    }  # fmt: skip
    assert snapshot.tags == ("open", "payable")
    assert machine.next_events(snapshot) == ("LEGAL", "MONEY")
    assert machine.expand("pending.*.ask") == {"pending.legal.ask", "pending.money.ask"}
    assert machine.expand("tag:payable") == {"pending.money.ask"}
    assert machine.accepting("MONEY") == {"pending.money.ask"}
    half = through_json(machine, machine.transition(snapshot, "MONEY"))
    assert half.tags == ("open",)
    done = machine.transition(half, "LEGAL")
    assert (done.value, done.status) == ("done", "done")


def test_the_states_of_a_nested_machine_have_unambiguous_paths() -> None:
    inner = {"initial": "c", "states": {"c": {"id": "own"}}}
    machine = Machine(
        {
            "id": "m",
            "initial": "a.b",
            "states": {
                "a.b": {"initial": "c", "states": {"c": {}}},
                "a": {"id": "x", "initial": "b", "states": {"b": {"id": "y", **inner}}},
                "": {"id": "z", "initial": "c", "states": {"c": {}}},
            },
        }
    )
    assert machine.states == ("a\\.b", "a\\.b.c", "a", "a.b", "a.b.c", "", ".c")
    assert machine.initial().paths == {"a\\.b", "a\\.b.c"}
    assert machine.expand("a\\.b.c") == {"a\\.b.c"}


# Guards


def test_a_guard_sees_context_event_and_params() -> None:
    seen: list[Any] = []

    def guard(context: Mapping[str, Any], event: Mapping[str, Any], params: Any) -> bool:
        seen.append((dict(context), dict(event), params))
        return True

    machine = Machine(
        {
            "initial": "a",
            "context": {"n": 1},
            "states": {"a": {"on": {"GO": {"target": "b", "guard": {"type": "g", "params": {"min": 2}}}}}, "b": {}},
        },
        guards={"g": guard},
    )
    event = {"type": "GO", "arguments": {"amount": 3}, "result": object()}
    assert machine.transition(machine.initial(), event).state == "b"
    assert seen == [({"n": 1}, event, {"min": 2})]


def test_a_guard_that_raises_denies_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def broken(context: Mapping[str, Any], event: Mapping[str, Any], params: Any) -> bool:
        return context["missing"]

    def guarded(guard: Any) -> Machine:
        config = {"initial": "a", "states": {"a": {"on": {"GO": {"target": "b", "guard": guard}}}, "b": {}}}
        return Machine(config, guards={"broken": broken, "yes": lambda c, e, p: True})

    for guard in ("broken", {"not": "broken"}, {"or": ["broken", "yes"]}, {"not": {"and": ["yes", "broken"]}}):
        caplog.clear()
        machine = guarded(guard)
        snapshot = machine.initial()
        assert not machine.can(snapshot, "GO")
        assert machine.transition(snapshot, "GO") is snapshot
        (record, *_) = caplog.records
        assert (record.name, record.levelno) == ("mcpfusion.machine", logging.ERROR)
        assert "states.a.on.GO" in record.getMessage()


def test_a_guard_that_changes_the_context_or_turns_out_to_be_async_denies(caplog: pytest.LogCaptureFixture) -> None:
    async def coroutine() -> bool:
        return True

    def changes(context: Any, event: Any, params: Any) -> bool:
        context["n"] = 2
        return True

    for guard in (changes, lambda c, e, p: coroutine()):
        machine = Machine(
            {
                "initial": "a",
                "context": {"n": 1},
                "states": {"a": {"on": {"GO": {"target": "b", "guard": "g"}}}, "b": {}},
            },
            guards={"g": guard},
        )
        snapshot = machine.initial()
        assert machine.transition(snapshot, "GO") is snapshot
        assert snapshot.context == {"n": 1}
        assert "denied" in caplog.text


def test_what_is_true_in_python_is_true() -> None:
    def machine(answer: object) -> Machine:
        config = {"initial": "a", "states": {"a": {"on": {"GO": {"target": "b", "guard": "g"}}}, "b": {}}}
        return Machine(config, guards={"g": lambda c, e, p: answer})

    for answer in (1, "x", [0]):
        assert machine(answer).can(machine(answer).initial(), "GO")
    for answer in (0, "", [], None):
        assert not machine(answer).can(machine(answer).initial(), "GO")


def test_guards_in_json() -> None:
    config = {
        "id": "m",
        "type": "parallel",
        "states": {
            "x": {"initial": "a", "states": {"a": {"on": {"X": "b"}}, "b": {"id": "xb"}}},
            "y": {
                "initial": "a",
                "states": {
                    "a": {
                        "on": {
                            "BY_ID": {"target": "b", "guard": {"stateIn": "#xb"}},
                            "BY_PATH": {"target": "b", "guard": {"stateIn": "x.b"}},
                            "BY_VALUE": {"target": "b", "guard": {"stateIn": {"x": "b", "y": "a"}}},
                            "NOT": {"target": "b", "guard": {"not": {"stateIn": "#xb"}}},
                            "BOTH": {"target": "b", "guard": {"and": ["yes", {"stateIn": "x"}, {"not": "no"}]}},
                            "EITHER": {"target": "b", "guard": {"or": ["no", {"type": "yes"}]}},
                            "NAMED": {"target": "b", "guard": "inB"},
                        }
                    },
                    "b": {},
                },
            },
        },
    }
    machine = Machine(
        config,
        guards={"yes": lambda c, e, p: True, "no": lambda c, e, p: False, "inB": {"stateIn": "#xb"}},
    )
    asked = ["BY_ID", "BY_PATH", "BY_VALUE", "NOT", "BOTH", "EITHER", "NAMED"]
    start = machine.initial()
    assert [event for event in asked if machine.can(start, event)] == ["NOT", "BOTH", "EITHER"]
    moved = machine.transition(start, "X")
    assert [event for event in asked if machine.can(moved, event)] == [
        "BY_ID", "BY_PATH", "BY_VALUE", "BOTH", "EITHER", "NAMED",
    ]  # fmt: skip


# Actions and effects


def acting(actions: Any, **implementations: Any) -> Machine:
    config = {
        "initial": "a",
        "context": {"n": 0, "items": [1]},
        "states": {"a": {"on": {"GO": {"target": "b", "actions": actions}, "NEXT": "c"}}, "b": {}, "c": {}},
    }
    return Machine(config, actions=implementations)


def test_actions_assign_what_they_return() -> None:
    machine = acting(
        ["add", {"type": "add", "params": {"by": 10}}],
        add=lambda context, event, params: {"n": context["n"] + (params or {"by": event["by"]})["by"]},
    )
    start = machine.initial()
    after = machine.transition(start, {"type": "GO", "by": 2})
    assert after.context == {"n": 12, "items": [1]}
    assert start.context["n"] == 0
    assert after.effects == ()


def test_an_action_that_returns_none_is_an_effect() -> None:
    machine = acting(
        ["mail", "count", {"type": "mail", "params": {"to": "ann"}}, {"type": "xstate.emit", "event": "SENT"},
         {"type": "xstate.log", "value": 7}],
        mail=lambda context, event, params: None,
        count=lambda context, event, params: {"n": 1},
    )  # fmt: skip
    event = {"type": "GO", "id": 4}
    after = machine.transition(machine.initial(), event)
    assert after.effects == (
        Effect("mail", None, event),
        Effect("mail", {"to": "ann"}, event),
        Effect("xstate.emit", {"event": {"type": "SENT"}}, event),
        Effect("xstate.log", {"value": 7}, event),
    )
    assert "effects" not in after.to_json()
    assert through_json(machine, after) == after
    assert through_json(machine, after).effects == ()


def test_a_step_without_a_target_that_only_has_effects_is_a_new_snapshot() -> None:
    machine = Machine(
        {"initial": "a", "states": {"a": {"on": {"PING": {"actions": "pong"}}}}},
        actions={"pong": lambda context, event, params: None},
    )
    start = machine.initial()
    after = machine.transition(start, "PING")
    assert machine.can(start, "PING")
    assert after == start
    assert after is not start
    assert [effect.type for effect in after.effects] == ["pong"]


def test_actions_in_json() -> None:
    machine = acting(
        [{"type": "xstate.assign", "assignment": {"n": 5, "items": []}}, {"type": "xstate.raise", "event": "MORE"}]
    )
    assert machine.transition(machine.initial(), "GO").context == {"n": 5, "items": []}
    named = acting(
        "several",
        several=[{"type": "xstate.assign", "assignment": {"n": 6}}, "last"],
        last={"type": "xstate.assign", "assignment": {"items": [2]}},
    )
    assert named.transition(named.initial(), "GO").context == {"n": 6, "items": [2]}


def test_an_action_that_fails_moves_nothing() -> None:
    def divides(context: Mapping[str, Any], event: Any, params: Any) -> Any:
        return {"n": 1 / context["n"]}

    for action, message in (
        (divides, "the action 'act' failed: .*zero"),
        (lambda c, e, p: 3, "must return a dict of changed keys or None, not a number"),
        (lambda c, e, p: {"n": {1}}, r"context\.n: must be JSON data, not a Python set"),
        (lambda c, e, p: {"n": float("inf")}, "inf is not JSON"),
        (lambda c, e, p: {3: 1}, "the key 3 must be a string"),
        (lambda c, e, p: c.update(n=1), "failed"),
    ):
        machine = acting("act", act=action)
        start = machine.initial()
        with pytest.raises(MachineError, match=message):
            machine.transition(start, "GO")
        assert start == machine.initial()


def test_a_context_is_not_shared_between_workflows() -> None:
    def careless(context: Mapping[str, Any], event: Any, params: Any) -> Any:
        context["items"].append(2)
        return {"items": context["items"]}

    machine = acting("careless", careless=careless)
    assert machine.transition(machine.initial(), "GO").context["items"] == [1, 2]
    assert machine.initial().context["items"] == [1]


def test_what_an_action_returns_is_copied_and_made_json() -> None:
    kept = {"inner": (1, 2)}
    machine = acting("act", act=lambda c, e, p: MappingProxyType({"items": kept}))
    after = machine.transition(machine.initial(), "GO")
    kept["inner"] = (3,)
    assert after.context["items"] == {"inner": [1, 2]}
    assert through_json(machine, after) == after


# Loops, ends, refusals


def test_a_loop_of_eventless_transitions_ends_in_an_error() -> None:
    config = {"initial": "a", "states": {"a": {"on": {"GO": "b"}}, "b": {"always": "c"}, "c": {"always": "b"}}}
    machine = Machine(config)
    with pytest.raises(MachineError, match="no rest after 1000 microsteps"):
        machine.transition(machine.initial(), "GO")
    with pytest.raises(MachineError, match="no rest after 7 microsteps"):
        Machine({**config, "initial": "b", "options": {"maxIterations": 7}}).initial()


def test_a_loop_of_raised_events_ends_in_an_error() -> None:
    raising = {"actions": {"type": "xstate.raise", "event": "GO"}}
    machine = Machine({"initial": "a", "states": {"a": {"on": {"GO": raising}}}})
    with pytest.raises(MachineError, match="no rest"):
        machine.transition(machine.initial(), "GO")


def test_an_eventless_transition_that_changes_nothing_is_taken_once() -> None:
    machine = Machine(
        {"initial": "a", "states": {"a": {"always": {"actions": "tell"}, "on": {"GO": "b"}}, "b": {}}},
        actions={"tell": lambda context, event, params: None},
    )
    assert [effect.type for effect in machine.initial().effects] == ["tell"]


def test_a_machine_that_is_done_takes_no_event_and_keeps_no_timer() -> None:
    machine = Machine(
        {
            "initial": "a",
            "output": {"ok": True},
            "after": {1000: ".a"},
            "on": {"AGAIN": ".a"},
            "states": {"a": {"on": {"GO": "z"}}, "z": {"type": "final", "on": {"BACK": "a"}}},
        }
    )
    done = machine.transition(machine.initial(now=5.0), "GO", now=6.0)
    assert (done.status, done.output, done.timers) == ("done", {"ok": True}, ())
    for event in ("AGAIN", "BACK"):
        assert machine.transition(done, event) is done
        assert not machine.can(done, event)
    assert machine.next_events(done) == ()
    assert machine.elapse(done, 1e9) is done
    assert through_json(machine, done) == done


def test_output_reaches_on_done() -> None:
    machine = Machine(
        {
            "initial": "p",
            "states": {
                "p": {
                    "initial": "a",
                    "onDone": [{"target": "big", "guard": "isBig"}, {"target": "small"}],
                    "states": {
                        "a": {"on": {"ONE": "one", "TEN": "ten"}},
                        "one": {"type": "final", "output": {"n": 1}},
                        "ten": {"type": "final", "output": {"n": 10}},
                    },
                },
                "big": {},
                "small": {},
            },
        },
        guards={"isBig": lambda context, event, params: event["output"]["n"] > 5},
    )
    assert machine.transition(machine.initial(), "TEN").state == "big"
    assert machine.transition(machine.initial(), "ONE").state == "small"


def test_history_default_of_two_regions_that_meet_keeps_one_state_per_compound() -> None:
    # The first region's history leads to where it is, and the second region's target is next to it. XState then
    # has both active; here the first region wins.
    machine = Machine(
        {
            "id": "m",
            "type": "parallel",
            "states": {
                "x": {
                    "initial": "a",
                    "states": {"a": {"on": {"E": "h"}}, "b": {}, "h": {"type": "history"}},
                },
                "y": {"initial": "a", "states": {"a": {"on": {"E": "#m.x.b"}}}},
            },
        }
    )
    assert machine.transition(machine.initial(), "E").value == {"x": "a", "y": "a"}


def test_a_parallel_state_left_through_its_own_history_is_entered_again() -> None:
    # Nothing is remembered when the transition is chosen, and everything is when it is carried out. XState then
    # leaves the parallel state and enters only what is in it.
    machine = Machine(
        {
            "id": "m",
            "initial": "p",
            "states": {
                "p": {
                    "type": "parallel",
                    "entry": "in",
                    "exit": "out",
                    "states": {"x": {"on": {"E": "h"}}, "y": {}, "h": {"type": "history", "history": "deep"}},
                }
            },
        },
        actions={"in": lambda c, e, p: None, "out": lambda c, e, p: None},
    )
    after = machine.transition(machine.initial(), "E")
    assert after.value == {"p": {"x": {}, "y": {}}}
    assert [effect.type for effect in after.effects] == ["out", "in"]
    assert through_json(machine, after) == after


def test_meta_and_equality_and_hash() -> None:
    machine = Machine({"id": "m", "initial": "a", "meta": 1, "states": {"a": {"meta": {"k": [1]}}, "b": {}}})
    snapshot = machine.initial()
    assert machine.meta(snapshot) == {"m": 1, "m.a": {"k": [1]}}
    assert len({snapshot, through_json(machine, snapshot)}) == 1
    assert repr(snapshot) == f"<Snapshot active in 'a' of {machine.fingerprint}>"
    assert repr(machine) == f"<Machine 'm' {machine.fingerprint}: 2 states>"
    with pytest.raises(AttributeError):
        snapshot.context = {}  # type: ignore[misc]


def test_a_machine_that_is_one_state() -> None:
    machine = Machine({"on": {"PING": {"actions": "pong"}}}, actions={"pong": lambda c, e, p: None})
    snapshot = machine.initial()
    assert (snapshot.value, snapshot.state, snapshot.paths, machine.states) == ({}, "{}", frozenset(), ())
    assert machine.accepting("PING") == {""}
    assert through_json(machine, machine.transition(snapshot, "PING")) == snapshot


def test_initial_actions_run_when_a_history_state_remembers_nothing() -> None:
    machine = Machine(
        {
            "initial": "off",
            "states": {
                "off": {"on": {"RESUME": "on.back", "RESUME_B": "on.other"}},
                "on": {
                    "initial": {"target": "a", "actions": "tell"},
                    "on": {"OFF": "off"},
                    "states": {
                        "a": {},
                        "b": {},
                        "back": {"type": "history"},
                        "other": {"type": "history", "target": "b"},
                    },
                },
            },
        },
        actions={"tell": lambda context, event, params: None},
    )
    first = machine.transition(machine.initial(), "RESUME")
    assert (first.state, [effect.type for effect in first.effects]) == ('{"on":"a"}', ["tell"])
    again = machine.transition(machine.transition(first, "OFF"), "RESUME")
    assert (again.state, again.effects) == ('{"on":"a"}', ())
    # A default of its own is no initial state.
    other = machine.transition(machine.initial(), "RESUME_B")
    assert (other.state, other.effects) == ('{"on":"b"}', ())
