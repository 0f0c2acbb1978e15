"""What the check finds in a machine, and what it leaves alone."""

import copy
from typing import Any

import pytest

from mcpfusion.machine import Machine
from mcpfusion.machine.check import Finding, analyse
from mcpfusion.machine.reach import reachable

IMPLEMENTATIONS: Any = {
    "guards": {"g": lambda c, e, p: True, "h": lambda c, e, p: True},
    "actions": {"act": lambda c, e, p: {}},
}


def found(config: dict[str, Any]) -> dict[str, str]:
    return {finding.where: finding.code for finding in analyse(Machine(config, **IMPLEMENTATIONS))}


GOOD: dict[str, Any] = {
    "id": "loan",
    "initial": "draft",
    "states": {
        "draft": {"on": {"SUBMIT": "review"}},
        "review": {
            "type": "parallel",
            "onDone": "approved",
            "on": {"REJECT": [{"target": "draft", "guard": "g"}, {"target": "rejected"}]},
            "states": {
                "legal": {"initial": "open", "states": {"open": {"on": {"L": "ok"}}, "ok": {"type": "final"}}},
                "money": {"initial": "open", "states": {"open": {"on": {"M": "ok"}}, "ok": {"type": "final"}}},
            },
        },
        "approved": {"type": "final"},
        "rejected": {"type": "final"},
    },
}


def test_a_good_machine() -> None:
    assert found(GOOD) == {}


def test_a_finding_says_where_what_and_how() -> None:
    config = copy.deepcopy(GOOD)
    config["states"]["lost"] = {"initial": "in", "on": {"UP": "draft"}, "states": {"in": {}}}
    assert analyse(Machine(config, **IMPLEMENTATIONS)) == [
        Finding(
            "error",
            "unreachable-state",
            "states.lost",
            "the state 'lost' cannot be reached",
            "give a reachable state a transition with the target '#loan.lost', or remove the state",
        )
    ]


def test_dead_ends() -> None:
    config = copy.deepcopy(GOOD)
    config["states"]["rejected"] = {"on": {"LOOK": "rejected", "SAY": {"actions": "act"}}}
    assert found(config) == {"states.rejected": "no-way-out"}


def test_a_state_that_a_parent_leaves_is_no_dead_end_unless_it_forbids_it() -> None:
    inner: dict[str, Any] = {"initial": "a", "on": {"X": "end"}, "states": {"a": {}}}
    config: dict[str, Any] = {"initial": "p", "states": {"p": inner, "end": {"type": "final"}}}
    assert found(config) == {}
    inner["states"]["a"] = {"on": {"X": {}}}
    assert found(config) == {"states.p.states.a": "no-way-out"}
    inner["states"]["a"] = {"on": {"X": {"guard": "g"}}}
    assert found(config) == {}
    inner["states"]["a"] = {}
    inner["on"] = {}
    inner["after"] = {"5": "end"}
    assert found(config) == {}


def test_a_region_may_wait_for_another_to_leave() -> None:
    config: dict[str, Any] = {
        "initial": "p",
        "states": {
            "p": {
                "type": "parallel",
                "states": {
                    "x": {"initial": "a", "states": {"a": {"on": {"NEXT": "b"}}, "b": {}}},
                    "y": {"initial": "a", "states": {"a": {"on": {"OUT": "#(machine).end"}}}},
                },
            },
            "end": {"type": "final"},
        },
    }
    assert found(config) == {}
    config["states"]["p"]["states"]["y"]["states"]["a"]["on"] = {}
    assert found(config) == {
        "states.p.states.x.states.b": "no-way-out",
        "states.p.states.y.states.a": "no-way-out",
        "states.end": "unreachable-state",
    }


def test_a_state_that_is_done_and_nothing_follows() -> None:
    config = copy.deepcopy(GOOD)
    del config["states"]["review"]["onDone"]
    del config["states"]["review"]["on"]
    codes = found(config)
    assert codes["states.review.states.legal.states.ok"] == "no-way-out"
    assert codes["states.approved"] == "unreachable-state"
    finding = analyse(Machine(config, **IMPLEMENTATIONS))[0]
    assert "'review.legal' is done in 'review.legal.ok', and nothing follows" in finding.message
    assert "onDone" in finding.fix


def test_a_parallel_machine_is_done_in_its_regions() -> None:
    region = {"initial": "a", "states": {"a": {"on": {"E": "z"}}, "z": {"type": "final"}}}
    assert found({"type": "parallel", "states": {"x": region, "y": region}}) == {}


def test_on_done_leads_nowhere_when_nothing_is_final() -> None:
    config: dict[str, Any] = {
        "initial": "p",
        "states": {
            "p": {"initial": "a", "onDone": "end", "states": {"a": {"on": {"E": "b"}}, "b": {"on": {"E": "a"}}}},
            "end": {"type": "final"},
        },
    }
    assert found(config) == {"states.end": "unreachable-state"}


def test_history_leads_to_its_default() -> None:
    config: dict[str, Any] = {
        "initial": "off",
        "states": {
            "off": {"on": {"RESUME": "on.back"}},
            "on": {
                "initial": "a",
                "on": {"OFF": "off"},
                "states": {"a": {}, "b": {}, "back": {"type": "history", "target": "b"}},
            },
        },
    }
    assert found(config) == {"states.on.states.a": "unreachable-state"}
    machine = Machine(config)
    assert {node.path for node in reachable(machine.tree)} == {"", "off", "on", "on.b"}


@pytest.mark.parametrize(
    ("candidates", "where"),
    [
        ([{"target": "b"}, {"target": "c", "guard": "g"}], ["states.a.on.X"]),
        ([{"target": "b", "guard": "g"}, {"target": "c", "guard": "g"}], ["states.a.on.X"]),
        ([{"target": "b", "guard": "g"}, {"target": "c", "guard": "h"}, "b"], []),
        ([{"target": "b", "guard": "g"}, {"target": "c", "guard": {"type": "g", "params": 1}}], []),
    ],
)
def test_candidates_that_are_never_chosen(candidates: Any, where: list[str]) -> None:
    config = {
        "initial": "a",
        "states": {"a": {"on": {"X": candidates, "Y": "c"}}, "b": {"type": "final"}, "c": {"type": "final"}},
    }
    assert [place for place, code in found(config).items() if code == "shadowed-candidate"] == where


def always(*steps: Any, **more: Any) -> dict[str, Any]:
    keys = "abcd"
    states: dict[str, Any] = {key: {"always": step} for key, step in zip(keys, steps, strict=False)}
    return {"initial": "a", "states": {**states, "end": {"type": "final"}, **more}}


def test_eventless_loops() -> None:
    assert found(always("b", "a", end={}))["states.a.always"] == "always-loop"
    assert found(always("b", "c", "b")) | {} == {"states.b.always": "always-loop", "states.end": "unreachable-state"}
    (loop, *_) = [each for each in analyse(Machine(always("b", "a", end={}))) if each.code == "always-loop"]
    assert loop.level == "error"
    assert "'a' -> 'b' -> 'a'" in loop.message


def test_a_loop_that_guards_may_end() -> None:
    guarded: Any = {"target": "b", "guard": "g"}
    back = [{"target": "a", "guard": "h"}, {"target": "end"}]
    (loop,) = analyse(Machine(always([guarded, "end"], back), **IMPLEMENTATIONS))
    assert (loop.level, loop.code) == ("warning", "always-loop")
    assert found(always([{**guarded, "actions": "act"}, "end"], back)) == {}


def test_an_eventless_transition_that_changes_its_context_for_ever() -> None:
    assert found(always({"actions": "act"}))["states.a.always"] == "always-loop"
    assert "states.a.always" not in found(always("a"))
