"""Snapshots from a store: everything is checked, and what does not fit is refused, never reset."""

import json
from typing import Any

import pytest

from mcpfusion.machine import Machine, UnknownStateError

NESTED: dict[str, Any] = {
    "id": "loan",
    "initial": "draft",
    "context": {"amount": 0},
    "states": {
        "draft": {"on": {"SUBMIT": "review"}},
        "review": {
            "type": "parallel",
            "on": {"PAUSE": "paused"},
            "states": {
                "legal": {
                    "initial": "open",
                    "states": {"open": {"on": {"L": "ok"}}, "ok": {"after": {1000: "open"}}},
                },
                "money": {"initial": "open", "states": {"open": {"on": {"M": "ok"}}, "ok": {}}},
                "back": {"type": "history", "history": "deep"},
            },
        },
        "paused": {"on": {"RESUME": "review.back", "STOP": "stopped"}},
        "stopped": {"type": "final"},
    },
}


@pytest.fixture
def machine() -> Machine:
    return Machine(NESTED)


def paused(machine: Machine) -> dict[str, Any]:
    snapshot = machine.initial()
    for event in ("SUBMIT", "M", "L", "PAUSE"):
        snapshot = machine.transition(snapshot, event, now=7.0)
    return json.loads(json.dumps(snapshot.to_json()))


def test_a_snapshot_goes_on_where_it_was(machine: Machine) -> None:
    data = paused(machine)
    assert data == {
        "machine": machine.fingerprint,
        "value": "paused",
        "status": "active",
        "context": {"amount": 0},
        "history": {"review.back": ["review.legal.ok", "review.money.ok"]},
    }
    resumed = machine.transition(machine.restore(data), "RESUME", now=9.0)
    assert resumed.value == {"review": {"legal": "ok", "money": "ok"}}
    assert machine.due(resumed) == 10.0
    assert machine.restore(json.loads(json.dumps(resumed.to_json()))) == resumed


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("drft", r"machine 'loan': no state 'drft' \(did you mean 'draft'\?\)"),
        (None, "a state value is a string or an object, not None"),
        (3, "a state value is a string"),
        (["draft"], "a state value is a string"),
        ("review", "the machine is a compound state: 'review' does not say enough"),
        ({}, "the machine is a compound state: {} does not fit it"),
        ({"draft": {}}, "'draft' has no states of its own"),
        ({"review": {}}, "'review' is a parallel state"),
        ({"review": "legal"}, "'review' is a parallel state: 'legal' does not say enough"),
        ({"review": {"legal": "open"}}, "'review' is a parallel state"),
        ({"review": {"legal": "open", "mony": "open"}}, r"no state 'mony' in 'review' \(did you mean 'money'\?\)"),
        ({"review": {"legal": "open", "back": {}}}, "no state 'back' in 'review'"),
        ({"review": {"legal": "open", "money": "op"}}, "no state 'op' in 'review.money'"),
        ({"review": {"legal": "open", "money": {"open": {}}}}, "'review.money.open' has no states of its own"),
        ({"review": {"legal": "open", "money": {"open": {}, "ok": {}}}}, "'review.money' is a compound state"),
        ({"draft": {}, "paused": {}}, "does not fit"),
    ],
)
def test_a_value_that_does_not_fit(machine: Machine, value: Any, message: str) -> None:
    with pytest.raises(UnknownStateError, match=message):
        machine.restore({"value": value})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"status": "done"}, "the state 'paused' cannot have the status 'done'"),
        ({"status": "stopped"}, "'stopped' is no status"),
        ({"value": "stopped"}, "the state 'stopped' cannot have the status 'active'"),
        ({"context": []}, "'context' must be an object"),
        ({"context": {"x": {1}}}, "must be JSON data"),
        ({"history": []}, "'history' must be an object"),
        ({"history": {"review.bak": []}}, r"no history state 'review.bak' \(did you mean 'review.back'\?\)"),
        ({"history": {"review.back": "x"}}, "what 'review.back' remembers is no list"),
        ({"history": {"review.back": ["draft"]}}, "'review.back' cannot remember 'draft'"),
        ({"history": {"review.back": [3]}}, "'review.back' cannot remember 3"),
        (
            {"history": {"review.back": ["review.legal.ok", "review.legal.open", "review.money.ok"]}},
            "what 'review.back' remembers is no legal set of states",
        ),
        ({"timers": {}}, "'timers' is no list"),
        ({"timers": [3]}, "a timer must be an object"),
        ({"timers": [{"id": "x", "due": 1.0}]}, "a timer needs an id and an event"),
        ({"timers": [{"id": "x", "event": {}, "due": 1.0}]}, "the event of a timer needs a type"),
        ({"timers": [{"id": "x", "event": {"type": "E"}}]}, "a timer needs the time at which it is due"),
        ({"timers": [{"id": "x", "event": {"type": "E"}, "due": True}]}, "a timer needs the time"),
        ({"timers": [{"id": "x", "event": {"type": "E"}, "due": 1}] * 2}, "two timers have the same id"),
        (
            {"timers": [{"id": "x", "event": {"type": "xstate.after.5.loan.paused"}, "due": 1}]},
            "the timer 'xstate.after.5.loan.paused' belongs to no active state",
        ),
    ],
)
def test_anything_else_that_does_not_fit(machine: Machine, changes: Any, message: str) -> None:
    with pytest.raises(UnknownStateError, match=message):
        machine.restore({**paused(machine), **changes})


@pytest.mark.parametrize("data", [None, "draft", ["draft"], 3])
def test_what_is_no_snapshot(machine: Machine, data: Any) -> None:
    with pytest.raises(UnknownStateError, match="a snapshot is an object"):
        machine.restore(data)


def test_data_nested_without_end(machine: Machine) -> None:
    endless: dict[str, Any] = {}
    endless["x"] = endless
    with pytest.raises(UnknownStateError, match="nested too deeply"):
        machine.restore({"value": "draft", "context": endless})


def test_a_bare_state(machine: Machine) -> None:
    assert machine.restore_state("draft") == machine.initial()
    text = '{"review":{"legal":"ok","money":"open"}}'
    restored = machine.restore_state(text)
    assert restored.state == text
    assert restored.context == {"amount": 0}
    assert restored.timers == ()
    assert machine.restore_state(' { "review": { "money": "open", "legal": "ok" } } ') == restored
    assert not machine.bare
    for bad in ("nope", "", "{", "{]", '{"review": {}}', "review.legal", "[1]"):
        with pytest.raises(UnknownStateError):
            machine.restore_state(bad)


# A later definition of the same workflow


def later(**changes: Any) -> Machine:
    return Machine({**NESTED, **changes, "states": {**NESTED["states"], **changes.get("states", {})}})


def test_a_snapshot_of_an_older_definition_goes_on_if_it_fits(machine: Machine) -> None:
    new = later(states={"paused": {"on": {"RESUME": "review.back", "STOP": "stopped", "DROP": "draft"}}})
    assert new.fingerprint != machine.fingerprint
    restored = new.restore(paused(machine))
    assert restored.machine == new.fingerprint
    assert new.transition(restored, "DROP").state == "draft"
    assert new.transition(restored, "RESUME").value == {"review": {"legal": "ok", "money": "ok"}}


def test_a_state_that_is_gone_or_has_become_another_kind_does_not_fit(machine: Machine) -> None:
    nested = {"initial": "in", "on": {"RESUME": "review.back"}, "states": {"in": {}}}
    for changes, message in (
        ({"paused": nested}, "'paused' does not say enough"),
        ({"review": {"on": {"PAUSE": "paused"}}, "paused": {"on": {"RESUME": "review"}}}, "no history state"),
    ):
        with pytest.raises(UnknownStateError, match=message):
            later(states=changes).restore(paused(machine))


def test_a_delay_that_is_gone_does_not_vanish_silently(machine: Machine) -> None:
    snapshot = machine.transition(machine.transition(machine.initial(), "SUBMIT"), "L", now=1.0)
    data = snapshot.to_json()
    review = json.loads(json.dumps(NESTED["states"]["review"]))
    review["states"]["legal"]["states"]["ok"] = {"after": {"2000": "open"}}
    with pytest.raises(UnknownStateError, match="belongs to no active state"):
        later(states={"review": review}).restore(data)
    same = later(
        states={"stopped": {"type": "final", "description": "x"}, "draft": {"on": {"SUBMIT": "review", "X": {}}}}
    )
    assert same.restore(data).timers == snapshot.timers


def test_what_a_later_definition_adds_to_the_context_begins_as_configured(machine: Machine) -> None:
    new = later(context={"amount": 1, "currency": "EUR"})
    assert new.restore(paused(machine)).context == {"amount": 0, "currency": "EUR"}


def test_the_status_follows_the_definition_when_it_changed(machine: Machine) -> None:
    data = {**paused(machine), "value": "stopped", "status": "done"}
    assert machine.restore(data).final
    reopened = later(states={"stopped": {"on": {"REOPEN": "draft"}}})
    restored = reopened.restore(data)
    assert not restored.final
    assert reopened.transition(restored, "REOPEN").state == "draft"


def test_a_flat_machine_keeps_what_an_older_one_knew() -> None:
    states: dict[str, Any] = {"a": {"on": {"GO": "b"}}, "b": {}}
    rich = Machine({"id": "m", "initial": "a", "context": {"n": 3}, "states": states})
    flat = Machine({"id": "m", "initial": "a", "states": states})
    assert flat.flat
    restored = flat.restore(rich.initial().to_json())
    assert restored.context == {"n": 3}
    moved = flat.transition(restored, "GO")
    assert (moved.state, moved.context) == ("b", {"n": 3})


def test_a_flat_machine_checks_what_it_restores() -> None:
    machine = Machine({"id": "m", "initial": "a", "states": {"a": {"on": {"GO": "b"}}, "b": {"type": "final"}}})
    for snapshot in (machine.initial(), machine.restore_state("b")):
        assert machine.restore(snapshot.to_json()) is snapshot
        with pytest.raises(UnknownStateError, match="cannot have the status"):
            machine.restore({**snapshot.to_json(), "status": "active" if snapshot.final else "done"})
    with pytest.raises(UnknownStateError, match="no state 'c'"):
        machine.restore({"machine": machine.fingerprint, "value": "c", "status": "active"})
    assert machine.restore({"value": "a", "status": "active", "machine": "another"}) == machine.initial()


def test_tags_are_those_of_the_machine_at_hand() -> None:
    plain = Machine({"id": "m", "initial": "a", "states": {"a": {}}})
    tagged = Machine({"id": "m", "initial": "a", "states": {"a": {"tags": "x"}}})
    assert plain.fingerprint == tagged.fingerprint
    assert tagged.restore(plain.initial().to_json()).tags == ("x",)
