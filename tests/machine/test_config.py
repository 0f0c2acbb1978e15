"""What is refused when a machine is built, with the path of the fault and a near miss; and reading files."""

import json
from pathlib import Path
from typing import Any

import pytest

from mcpfusion.machine import Machine, MachineConfigError, read_config


def flat(**state: Any) -> dict[str, Any]:
    return {"initial": "a", "states": {"a": state, "b": {}, "approved": {}}}


FAULTS: list[tuple[Any, str]] = [
    ([], "machine: a state must be an object, not a list"),
    ({"initial": "a"}, "initial: no state 'a'"),
    ({"initial": "a", "states": []}, "states: 'states' must be an object, not a list"),
    ({"states": {"a": {}}}, "machine: needs an 'initial' state, for example 'a'"),
    ({"initial": "drat", "states": {"draft": {}}}, "initial: no state 'drat' (did you mean 'draft'?)"),
    ({"initial": {"target": "x"}, "states": {"a": {}}}, "initial.target: no state 'x'"),
    ({"initial": 3, "states": {"a": {}}}, "initial: must be the key of a state, not a number"),
    ({"initial": "a", "states": {"a": {}}, "contxt": {}}, "machine: unknown key 'contxt' (did you mean 'context'?)"),
    ({"initial": "a", "states": {"a": {}}, "context": 3}, "context: it must be an object, not a number"),
    ({"initial": "a", "states": {"a": {}}, "context": {"x": {1}}}, "context.x: must be JSON data, not a Python set"),
    ({"initial": "a", "states": {"a": {}}, "context": {"x": float("nan")}}, "context.x: nan is not JSON"),
    ({"initial": "a", "states": {"a": {}}, "context": {3: 1}}, "context: the key 3 must be a string"),
    ({"initial": "a", "states": {"a": {}}, "type": "final"}, "type: a machine cannot be a final state"),
    ({"initial": "a", "states": {"a": {}}, "id": ""}, "id: must not be empty"),
    ({"initial": "a", "states": {"a": {}}, "options": {"maxIterations": 0}}, "options.maxIterations: must be"),
    ({"initial": "a", "states": {3: {}}}, "states: the key 3 must be a string"),
    (flat(on={"APPROVE": "aproved"}), "states.a.on.APPROVE: no state 'aproved' (did you mean 'approved'?)"),
    (flat(on={"X": {"target": "bb"}}), "states.a.on.X.target: no state 'bb' (did you mean 'b'?)"),
    (flat(on={"X": ["b", {"target": "c"}]}), "states.a.on.X[1].target: no state 'c'"),
    (flat(on={"X": {"target": []}}), "states.a.on.X.target: an empty list of targets"),
    (flat(on={"X": {"target": ["b", "approved"]}}), "the targets 'b' and 'approved' cannot be active together"),
    (flat(on={"X": 3}), "states.a.on.X: a transition is a target, an object or a list of objects, not a number"),
    (flat(on={"X": {"taget": "b"}}), "states.a.on.X: unknown key 'taget' (did you mean 'target'?)"),
    (flat(on={"X": {"target": "b", "cond": "g"}}), "states.a.on.X.cond: XState v5 says 'guard'"),
    (flat(on={"X": {"target": "b", "reenter": 1}}), "states.a.on.X.reenter: must be true or false, not a number"),
    (flat(on={"X": "#nope"}), "states.a.on.X: no state '#nope'"),
    (flat(on={"X": ".b"}), "states.a.on.X: no state '.b'"),
    (flat(on={"": "b"}), "states.a.on: an event needs a name"),
    (flat(on={"a.*.b": "b"}), 'states.a.on["a.*.b"]: a wildcard may only be the last part of an event\'s name'),
    (flat(on=[]), "states.a.on: 'on' must be an object, not a list"),
    (flat(onn={}), "states.a: unknown key 'onn' (did you mean 'on'?)"),
    (flat(type="finale"), "states.a.type: must be one of atomic, compound, parallel, history, final, not 'finale'"),
    (flat(type="parallel"), "states.a: a state of type 'parallel' needs states"),
    (flat(type="final", initial="x", states={"x": {}}), "states.a: a state of type 'final' has no states"),
    (flat(target="b"), "states.a.target: only a history state has a target"),
    (flat(history="deep", type="atomic"), "states.a.history: only a state of type 'history' has it"),
    (flat(tags=[1]), "states.a.tags: must be a string or a list of strings, not a number"),
    (flat(after={"x y": "b"}), "no implementation of the delay 'x y' is given"),
    (flat(after={"-1": "b"}), 'states.a.after["-1"]: a delay is a number of milliseconds'.replace('["-1"]', ".-1")),
    (flat(after={"inf": "b"}), "states.a.after.inf: a delay is a number of milliseconds"),
    (flat(entry=3), "states.a.entry: an action is a name or an object with a 'type', not a number"),
    (flat(entry=[{"params": 1}]), "states.a.entry[0]: an action needs its name under 'type'"),
    (flat(entry="sned"), "states.a.entry: no implementation of the action 'sned' is given (did you mean 'send'?)"),
    (flat(entry={"type": "xstate.sendTo"}), "states.a.entry: the action 'xstate.sendTo' is not supported"),
    (flat(entry={"type": "xstate.raise"}), "states.a.entry.event: must be the name of an event"),
    (flat(entry={"type": "xstate.raise", "event": "X", "dely": 1}), "unknown key 'dely' (did you mean 'delay'?)"),
    (flat(entry={"type": "xstate.raise", "event": "X", "delay": "soon"}), "the delay 'soon' is given"),
    (flat(entry={"type": "xstate.raise", "event": "*"}), "states.a.entry.event: an event cannot have the name"),
    (flat(entry={"type": "xstate.cancel"}), "states.a.entry.id: must be the id of a delayed event"),
    (flat(entry={"type": "xstate.assign"}), "states.a.entry.assignment: must be an object"),
    (
        flat(on={"X": {"guard": "isAdmn"}}),
        "no implementation of the guard 'isAdmn' is given (did you mean 'isAdmin'?)",
    ),
    (flat(on={"X": {"guard": {}}}), "states.a.on.X.guard: a guard needs its name under 'type', or one of 'and'"),
    (flat(on={"X": {"guard": 3}}), "states.a.on.X.guard: a guard is a name or an object, not a number"),
    (flat(on={"X": {"guard": {"and": []}}}), "states.a.on.X.guard.and: must be a list of guards"),
    (flat(on={"X": {"guard": {"not": "nobody"}}}), "states.a.on.X.guard.not: no implementation of the guard"),
    (flat(on={"X": {"guard": {"not": "isAdmin", "or": []}}}), "stands alone in its object"),
    (flat(on={"X": {"guard": {"stateIn": "bb"}}}), "states.a.on.X.guard.stateIn: no state 'bb'"),
    (flat(on={"X": {"guard": {"stateIn": {"bb": {}}}}}), "states.a.on.X.guard.stateIn: no state 'bb'"),
    (flat(on={"X": {"guard": {"type": "isAdmin", "param": 1}}}), "unknown key 'param' (did you mean 'params'?)"),
    (flat(invoke={"src": "pay"}), "states.a.invoke: invoked actors are not supported"),
    (flat(entry={"type": "xstate.spawnChild"}), "'xstate.spawnChild' is not supported"),
    ({"initial": "a", "on": {"X": "a"}, "states": {"a": {}}}, "on.X: no state 'a': at the root it is written '.a'"),
    (
        {"initial": "a", "states": {"a": {"id": "x"}, "b": {"id": "x"}}},
        "states.b: the id 'x' is that of states.a already",
    ),
    (
        {"initial": "p", "states": {"p": {"initial": "in", "states": {"in": {}}}, "q": {"on": {"X": "in"}}}},
        "states.q.on.X: no state 'in': a plain name is a sibling; write '#(machine).p.in' for 'p.in'",
    ),
    (
        {"initial": "p", "states": {"p": {"initial": "h", "states": {"h": {"type": "history"}, "a": {}}}}},
        "states.p.states.h: its default leads back to itself: give it a target",
    ),
    (
        {"initial": "a", "states": {"a": {}, "h": {"type": "history", "on": {"X": "a"}}}},
        "states.h.on: a history state is never active",
    ),
    (
        {
            "initial": "p",
            "states": {
                "p": {"initial": "a", "states": {"a": {}, "h": {"type": "history", "target": "#(machine).q"}}},
                "q": {},
            },
        },
        "states.p.states.h.target: '#(machine).q' lies outside of the state",
    ),
]


@pytest.mark.parametrize(("config", "message"), FAULTS, ids=[message[:60] for _, message in FAULTS])
def test_a_fault_is_named_with_its_path(config: Any, message: str) -> None:
    with pytest.raises(MachineConfigError) as caught:
        Machine(config, guards={"isAdmin": lambda c, e, p: True}, actions={"send": lambda c, e, p: None})
    assert message in str(caught.value)


def test_it_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="initial"):
        Machine({"states": {"a": {}}})


def test_implementations_are_checked_too() -> None:
    async def later(context: object, event: object, params: object) -> bool:
        return True

    class Later:
        async def __call__(self, context: object, event: object, params: object) -> bool:
            return True

    guarded = flat(on={"X": {"target": "b", "guard": "g"}})
    for implementation, message in (
        (later, "guards.g: must not be async"),
        (Later(), "guards.g: must not be async"),
        (3, "guards.g: must be callable"),
        ("g", "the guard 'g' is defined by itself"),
        ({"not": {"and": ["g"]}}, "the guard 'g' is defined by itself"),
        ("h", "no implementation of the guard 'h'"),
    ):
        with pytest.raises(MachineConfigError, match=message):
            Machine(guarded, guards={"g": implementation})
    acting = flat(entry="act")
    for implementation, message in (
        (later, "actions.act: must not be async"),
        (["act"], "the action 'act' is defined by itself"),
        ({"type": "other"}, "no implementation of the action 'other'"),
    ):
        with pytest.raises(MachineConfigError, match=message):
            Machine(acting, actions={"act": implementation})
    with pytest.raises(MachineConfigError, match="a delay is a number"):
        Machine(flat(after={"slow": "b"}), delays={"slow": -1})


def test_a_config_nested_without_end_is_refused() -> None:
    state: dict[str, Any] = {"initial": "a"}
    state["states"] = {"a": state}
    with pytest.raises(MachineConfigError, match="nested too deeply"):
        Machine(state)


def test_what_does_not_matter_is_ignored() -> None:
    # Editors write out lists that are empty.
    assert Machine(flat(invoke=[], entry=[], tags=[], meta={})).fingerprint == Machine(flat(meta={})).fingerprint
    extra = {"$schema": "x", "version": "1", "schemas": {}, "types": {}, "description": "d", "meta": {"k": 1}}
    plain, rich = Machine(flat()), Machine({**flat(description="a state", meta=[1]), **extra, "x-mine": {}})
    assert plain.fingerprint == rich.fingerprint


def test_the_config_is_kept_as_given_and_cannot_be_changed() -> None:
    config = flat(on={"X": ["b"]})
    machine = Machine(config)
    config["states"]["a"]["on"]["X"].append("nowhere")
    assert machine.config["states"]["a"]["on"]["X"] == ("b",)
    with pytest.raises(TypeError):
        machine.config["states"]["a"]["on"] = {}  # type: ignore[index]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"on": {"X": "b"}}, {"on": {"X": [{"target": ["b"], "reenter": False}]}}),
        ({"entry": "act"}, {"entry": [{"type": "act"}]}),
        ({"after": {1000: "b"}}, {"after": {"1000": {"target": "b"}}}),
        ({"tags": "x"}, {"tags": ["y"], "description": "z"}),
        ({"on": {"X": "b", "Y": "approved"}}, {"on": {"Y": "approved", "X": "b"}}),
        (
            {"entry": {"type": "act", "params": {"a": 1, "b": 2}}},
            {"entry": {"params": {"b": 2, "a": 1}, "type": "act"}},
        ),
    ],
)
def test_two_ways_to_write_one_machine_have_one_fingerprint(first: Any, second: Any) -> None:
    actions = {"act": lambda c, e, p: None}
    assert Machine(flat(**first), actions=actions).fingerprint == Machine(flat(**second), actions=actions).fingerprint


@pytest.mark.parametrize(
    "other",
    [
        {"on": {"X": "approved"}},
        {"on": {"Y": "b"}},
        {"on": {"X": {"target": "b", "guard": "g"}}},
        {"on": {"X": {"target": "b", "actions": "act"}}},
        {"on": {"X": "b"}, "entry": "act"},
        {"on": {"X": "b"}, "after": {"5": "b"}},
        {"on": {"X": "b"}, "always": {"target": "b", "guard": "g"}},
        {"on": {"X": "b"}, "id": "own"},
    ],
)
def test_what_moves_a_workflow_otherwise_has_another_fingerprint(other: Any) -> None:
    implementations: Any = {"guards": {"g": lambda c, e, p: True}, "actions": {"act": lambda c, e, p: None}}
    assert Machine(flat(on={"X": "b"})).fingerprint != Machine(flat(**other), **implementations).fingerprint
    assert Machine({**flat(), "context": {"n": 1}}).fingerprint != Machine(flat()).fingerprint


YAML = """
# on, off, yes and no are strings here, and so is every key
id: door
initial: off
context: {ratio: .5, hex: 0x1F, big: 12, none: ~, no: no, when: 2026-01-01, clock: 12:30}
states:
  off:
    on:
      TOGGLE: on
    after:
      1000: on
  on:
    on: {TOGGLE: off}
"""


def test_reading_yaml(tmp_path: Path) -> None:
    path = tmp_path / "door.yaml"
    path.write_text(YAML, encoding="utf-8")
    config = read_config(path)
    assert config["states"]["off"] == {"on": {"TOGGLE": "on"}, "after": {"1000": "on"}}
    assert config["context"] == {
        "ratio": 0.5, "hex": 31, "big": 12, "none": None, "no": "no", "when": "2026-01-01", "clock": "12:30",
    }  # fmt: skip
    assert Machine(config).initial().state == "off"
    assert read_config(str(path)) == config


def test_reading_json_text_files_and_mappings(tmp_path: Path) -> None:
    config = flat(on={"X": "b"})
    path = tmp_path / "m.json"
    path.write_text("\ufeff" + json.dumps(config), encoding="utf-8")
    assert read_config(path) == read_config(str(path)) == read_config(json.dumps(config, indent=1)) == config
    copy = read_config(config)
    copy["states"]["a"]["on"]["X"] = "approved"
    assert config["states"]["a"]["on"]["X"] == "b"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("m.json", "{", "m.json: line 1, column 2: not JSON"),
        ("m.json", "[]", "m.json: a configuration is an object, not list"),
        ("m.json", '{"a": 1, "a": 2}', "the key 'a' occurs twice in one object"),
        ("m.json", '{"a": NaN}', "NaN is not JSON"),
        ("m.json", "[" * 100_000, "nested too deeply"),
        ("m.yml", "a: [", "m.yml: not YAML"),
        ("m.yml", "a: 1\na: 2", "the key 'a' occurs twice in one object"),
        ("m.yml", "? [1]\n: 2", "a key must be a string"),
        ("m.yml", "a: !!python/object:os.system {}", "not YAML"),
        ("m.yaml", "- a", "a configuration is an object, not list"),
        ("m.txt", "{}", "neither JSON text nor a file named .json, .yaml, .yml"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(MachineConfigError) as caught:
        read_config(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_no_text() -> None:
    with pytest.raises(MachineConfigError, match=r"nowhere\.json: cannot be read"):
        read_config("nowhere.json")
    with pytest.raises(MachineConfigError, match="line 1"):
        read_config('{"a": }')
