"""Flat machines: examples, and properties over random ones with odd names."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mcpfusion.machine import Machine, MachineConfigError, MachineError, Snapshot, UnknownStateError

INVOICE: dict[str, Any] = {
    "id": "invoice",
    "initial": "draft",
    "states": {
        "draft": {"on": {"SUBMIT": "review"}},
        "review": {"on": {"APPROVE": "approved", "REJECT": "draft"}},
        "approved": {"tags": "payable", "on": {"DISCHARGE": "discharged", "TOUCH": "approved"}},
        "discharged": {"type": "final"},
    },
}


def test_the_way_of_an_invoice() -> None:
    machine = Machine(INVOICE)
    assert machine.flat
    assert machine.bare
    assert machine.id == "invoice"
    assert machine.states == ("draft", "review", "approved", "discharged")
    assert machine.events == {"SUBMIT", "APPROVE", "REJECT", "DISCHARGE", "TOUCH"}
    assert machine.tags == {"payable"}
    snapshot = machine.initial()
    assert (snapshot.value, snapshot.state, snapshot.status, snapshot.final) == ("draft", "draft", "active", False)
    assert machine.next_events(snapshot) == ("SUBMIT",)
    assert machine.can(snapshot, "SUBMIT")
    assert not machine.can(snapshot, "DISCHARGE")
    assert machine.transition(snapshot, "DISCHARGE") is snapshot
    snapshot = machine.transition(snapshot, {"type": "SUBMIT", "by": "ann"})
    snapshot = machine.transition(snapshot, "APPROVE")
    assert snapshot.tags == ("payable",)
    assert snapshot.paths == {"approved"}
    snapshot = machine.transition(snapshot, "DISCHARGE")
    assert (snapshot.status, snapshot.final, snapshot.state) == ("done", True, "discharged")
    assert machine.next_events(snapshot) == ()
    assert machine.transition(snapshot, "SUBMIT") is snapshot


def test_an_accepted_event_never_returns_the_same_object() -> None:
    machine = Machine(INVOICE)
    approved = machine.restore_state("approved")
    touched = machine.transition(approved, "TOUCH")
    assert touched == approved
    assert touched is not approved
    assert machine.transition(touched, "TOUCH") is not touched


def test_what_an_event_must_be() -> None:
    machine = Machine(INVOICE)
    for event in ({}, {"type": 3}, "*", "order.*", {"type": "*"}):
        with pytest.raises(MachineError, match="event"):
            machine.transition(machine.initial(), event)
        with pytest.raises(MachineError, match="event"):
            machine.can(machine.initial(), event)


def test_a_snapshot_of_another_machine_is_refused() -> None:
    other = Machine({**INVOICE, "id": "other"})
    machine = Machine(INVOICE)
    for ask in (machine.transition, machine.can):
        with pytest.raises(UnknownStateError, match="belongs to the machine"):
            ask(other.initial(), "SUBMIT")
    for ask in (machine.next_events, machine.meta, lambda snapshot: machine.elapse(snapshot, 1.0)):
        with pytest.raises(UnknownStateError, match="belongs to the machine"):
            ask(other.initial())


def test_an_equal_machine_goes_on_with_a_snapshot() -> None:
    first, second = Machine(INVOICE), Machine(json.loads(json.dumps(INVOICE)))
    assert first.fingerprint == second.fingerprint
    assert second.transition(first.initial(), "SUBMIT") == first.transition(first.initial(), "SUBMIT")


def test_forbidden_events_and_wildcards() -> None:
    machine = Machine(
        {
            "initial": "a",
            "on": {"RESET": ".a", "order.*": ".c", "*": ".d"},
            "states": {
                "a": {"on": {"order.*": "b", "order.paid": {}, "STAY": None}},
                "b": {"on": {"RESET": {}}},
                "c": {},
                "d": {},
            },
        }
    )
    assert machine.flat
    a = machine.initial()
    assert machine.transition(a, "order.sent").state == "b"
    assert machine.transition(a, "order").state == "b"
    # A forbidden event is chosen before every wildcard, and before the root.
    assert machine.transition(a, "order.paid") is a
    assert machine.transition(a, "STAY") is a
    assert not machine.can(a, "STAY")
    assert machine.transition(a, "ANY").state == "d"
    b = machine.transition(a, "order.x")
    assert machine.transition(b, "RESET") is b
    assert machine.transition(b, "order.x.y").state == "c"


def test_accepting_names_the_states_with_a_transition() -> None:
    machine = Machine(
        {
            "initial": "a",
            "on": {"RESET": ".a"},
            "states": {"a": {"on": {"GO": "b", "X": {}}}, "b": {"on": {"*": "a"}}, "": {"on": {"GO": "a"}}},
        }
    )
    assert machine.accepting("GO") == {"a", "b", ""}
    assert machine.accepting("X") == {"b"}
    # A state whose path is "" keeps that name for itself: the root is told as all its states.
    assert machine.accepting("RESET") == {"a", "b", ""}
    assert machine.accepting("*") == frozenset()
    assert Machine(INVOICE).accepting("NOPE") == frozenset()
    assert Machine({"initial": "a", "on": {"R": ".a"}, "states": {"a": {}}}).accepting("R") == {""}


def test_expand() -> None:
    machine = Machine(INVOICE)
    assert machine.expand("review") == {"review"}
    assert machine.expand("*ed") == {"approved", "discharged"}
    assert machine.expand("*") == set(machine.states)
    assert machine.expand("tag:payable") == {"approved"}
    for pattern, hint in (("reviw", "'review'"), ("tag:paiable", "'payable'"), ("aproved*", "'approved'")):
        with pytest.raises(MachineConfigError, match=f"did you mean {hint}"):
            machine.expand(pattern)


def test_a_state_name_that_looks_like_a_pattern_is_a_name_first() -> None:
    machine = Machine({"initial": "*", "states": {"*": {}, "tag:x": {}, "y": {"tags": ["x"]}, "a.b": {}}})
    assert machine.expand("*") == {"*"}
    assert machine.expand("tag:x") == {"tag:x"}
    assert machine.expand("a.b") == {"a.b"}
    assert machine.expand("a*") == {"a.b"}


ODD = ["constructor", "__class__", "__proto__", "", " ", "v1.0", "a.b.c", "\\", "#x", ".y", "é", "状態", "*", "tag:x",
       "{", '{"a":1}', "null", "true", "on", "\n", "0", "\ud800"]  # fmt: skip


@pytest.mark.parametrize("key", ODD)
def test_an_odd_key_is_just_a_string(key: str) -> None:
    states = {key: {"id": "odd", "on": {"GO": "plain"}}, "plain": {"on": {"BACK": "#odd"}}}
    machine = Machine({"initial": key, "states": states})
    snapshot = machine.initial()
    assert snapshot.value == key
    assert snapshot.paths == {key}
    assert machine.states == (key, "plain")
    assert machine.restore_state(key) == snapshot
    assert machine.restore_state(snapshot.state) == snapshot
    assert machine.restore(json.loads(json.dumps(snapshot.to_json()))) == snapshot
    assert machine.transition(machine.transition(snapshot, "GO"), "BACK") == snapshot
    assert machine.expand(key) == {key}


@pytest.mark.parametrize("key", [key for key in ODD if key not in ("#x", ".y")])
def test_an_odd_key_is_a_target_as_it_stands(key: str) -> None:
    machine = Machine({"initial": "plain", "states": {"plain": {"on": {"GO": key}}, key: {}}})
    assert machine.transition(machine.initial(), "GO").value == key


# Random flat machines, over odd names, with every form of a transition.

names = st.one_of(st.sampled_from(ODD[:-1]), st.text(max_size=4))
events = st.one_of(st.sampled_from(["GO", "a.b", "a", "constructor", "__class__"]), st.text(min_size=1, max_size=3))


@st.composite
def flat_machines(draw: st.DrawFn) -> dict[str, Any]:
    keys = draw(st.lists(names, min_size=1, max_size=5, unique=True))
    descriptors = st.one_of(events, st.sampled_from(["*", "a.*"]))
    targets = st.sampled_from(range(len(keys))).map(lambda index: f"#s{index}")
    transitions = st.one_of(
        targets,
        st.none(),
        st.just({}),
        st.builds(lambda target: {"target": target}, targets),
        st.builds(lambda target, reenter: {"target": [target], "reenter": reenter}, targets, st.booleans()),
        st.lists(st.builds(lambda target: {"target": target}, targets), max_size=2),
    )
    ons = st.dictionaries(descriptors, transitions, max_size=4)
    states: dict[str, Any] = {}
    for index, key in enumerate(keys):
        state: dict[str, Any] = {"id": f"s{index}", "on": draw(ons)}
        if draw(st.booleans()) and index:
            state["type"] = "final"
        states[key] = state
    config = {"id": "machine", "initial": draw(st.sampled_from(keys)), "states": states, "on": draw(ons)}
    assume(
        not any(
            "*" in descriptor.split(".")[:-1] for state in (config, *states.values()) for descriptor in state["on"]
        )
    )
    return config


def walk(machine: Machine, sent: list[str]) -> list[Snapshot]:
    found = [machine.initial()]
    for event in sent:
        found.append(machine.transition(found[-1], event))
    return found


plain_events = events.filter(lambda event: event != "*" and not event.endswith(".*"))


@given(flat_machines(), st.lists(plain_events, max_size=8))
def test_properties(config: Mapping[str, Any], sent: list[str]) -> None:
    machine, twin = Machine(config), Machine(json.loads(json.dumps(config)))
    assert machine.flat
    assert machine.fingerprint == twin.fingerprint
    snapshots = walk(machine, sent)
    assert snapshots == walk(twin, sent)  # determinism
    for before, event, after in zip(snapshots, sent, snapshots[1:], strict=False):
        assert after.value in config["states"]  # no event leads outside the states
        assert after.paths == {after.value}
        assert machine.can(before, event) == (after is not before)
        if event not in machine.events and not any(key.endswith("*") for key in machine.events):
            assert after is before  # unknown events change nothing
        if before.final:
            assert after is before  # a machine that is done takes no event
        assert machine.restore(json.loads(json.dumps(after.to_json()))) == after
        assert machine.restore_state(after.state) == after


@given(flat_machines(), st.lists(plain_events, max_size=8))
def test_the_fast_path_agrees_with_the_interpreter(config: Mapping[str, Any], sent: list[str]) -> None:
    fast = Machine(config)
    # An empty entry action makes the machine one that is not flat, and changes nothing else.
    slow = Machine({**config, "entry": "nothing"}, actions={"nothing": []})
    assert not slow.flat
    one, other = fast.initial(), slow.initial()
    for event in sent:
        before, other_before = one, other
        one, other = fast.transition(one, event), slow.transition(other, event)
        assert (one.value, one.status) == (other.value, other.status)
        assert (one is before) == (other is other_before)
