"""The gate without a server: it stands somewhere itself, and says which tools may be called there."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpfusion import BindingError, MachineConfigError, StateMachineGate, TransitionResult, UnknownStateError
from mcpfusion.machine import Machine

CONFIG = {
    "id": "shop",
    "initial": "cart",
    "states": {
        "cart": {"on": {"CHECKOUT": "payment", "ADD": "cart"}},
        "payment": {"on": {"PAY": "paid", "ABORT": "cart"}},
        "paid": {"type": "final"},
    },
}


def shop() -> StateMachineGate:
    gate = StateMachineGate(CONFIG)
    gate.bind_tool("pay", "payment", "PAY")
    gate.bind_tool("add", ["cart"], "ADD")
    gate.bind_tool("checkout", ["cart"], "CHECKOUT")
    gate.bind_tool("cancel", "*")
    return gate


def test_a_gate_begins_in_the_initial_state_and_shows_what_is_bound_there() -> None:
    gate = shop()
    assert gate.initial_state == gate.current_state == "cart"
    assert gate.visible_tool_names() == ["add", "checkout", "cancel"]
    assert [gate.is_tool_allowed(name) for name in ("pay", "add", "checkout", "cancel")] == [False, True, True, True]


def test_a_tool_that_is_not_bound_is_always_allowed() -> None:
    gate = shop()
    assert gate.is_tool_allowed("help")
    assert gate.visible_tool_names(["help", "pay", "checkout", "help"]) == ["help", "checkout", "help"]
    assert gate.visible_tool_names([]) == []


def test_an_event_moves_the_gate_and_says_from_where_to_where() -> None:
    gate = shop()
    assert gate.transition("CHECKOUT") == TransitionResult(True, "cart", "payment")
    assert (gate.initial_state, gate.current_state) == ("cart", "payment")
    assert gate.visible_tool_names() == ["pay", "cancel"]
    assert gate.transition({"type": "PAY"}) == TransitionResult(True, "payment", "paid")
    assert gate.visible_tool_names() == ["cancel"]


@pytest.mark.parametrize("event", ["PAY", "NO_SUCH_EVENT", "", "__class__", "constructor", "checkout", "☃"])
def test_an_event_that_nothing_takes_changes_nothing(event: str) -> None:
    gate = shop()
    heard: list[TransitionResult] = []
    gate.on_transition(heard.append)
    assert gate.transition(event) == TransitionResult(False, "cart", "cart")
    assert heard == []


def test_an_event_that_leads_back_is_a_change() -> None:
    assert shop().transition("ADD") == TransitionResult(True, "cart", "cart")


def test_a_machine_that_is_done_takes_no_event() -> None:
    gate = shop()
    for event in ("CHECKOUT", "PAY"):
        gate.transition(event)
    for event in ("CHECKOUT", "PAY", "ABORT", "ADD"):
        assert gate.transition(event) == TransitionResult(False, "paid", "paid")


def test_listeners_hear_of_changes_until_they_unsubscribe() -> None:
    gate = shop()
    first: list[TransitionResult] = []
    second: list[TransitionResult] = []
    unsubscribe = gate.on_transition(first.append)
    gate.on_transition(second.append)
    gate.transition("CHECKOUT")
    unsubscribe()
    unsubscribe()  # does nothing
    gate.transition("ABORT")
    assert first == [TransitionResult(True, "cart", "payment")]
    assert second == [*first, TransitionResult(True, "payment", "cart")]


def test_the_same_listener_twice_is_two_subscriptions() -> None:
    gate = shop()
    heard: list[TransitionResult] = []
    unsubscribe = gate.on_transition(heard.append)
    gate.on_transition(heard.append)
    gate.transition("CHECKOUT")
    unsubscribe()
    gate.transition("ABORT")
    assert len(heard) == 3


def test_a_listener_that_raises_hides_nothing_from_the_others(caplog: pytest.LogCaptureFixture) -> None:
    gate = shop()
    heard: list[TransitionResult] = []
    gate.on_transition(lambda _: 1 / 0)
    gate.on_transition(heard.append)
    assert gate.transition("CHECKOUT").changed
    assert len(heard) == 1
    assert "ZeroDivisionError" in caplog.text


def test_a_listener_may_unsubscribe_itself_and_send_an_event() -> None:
    gate = shop()
    heard: list[str] = []

    def once(result: TransitionResult) -> None:
        heard.append(result.current_state)
        unsubscribe()
        gate.transition("PAY")

    unsubscribe = gate.on_transition(once)
    gate.transition("CHECKOUT")
    assert heard == ["payment"]
    assert gate.current_state == "paid"


def test_a_snapshot_is_json_and_restores_where_the_gate_stood() -> None:
    gate = shop()
    gate.transition("CHECKOUT")
    kept = json.loads(json.dumps(gate.snapshot()))
    other = shop()
    other.restore(kept)
    assert other.current_state == "payment"
    assert other.visible_tool_names() == ["pay", "cancel"]
    assert other.transition("PAY").changed


@pytest.mark.parametrize(
    "snapshot",
    [{}, {"value": "nowhere"}, {"value": None}, {"value": {"cart": "x"}}, {"value": "cart", "status": "odd"}],
)
def test_a_snapshot_that_does_not_fit_is_refused_and_the_gate_stays(snapshot: Any) -> None:
    gate = shop()
    gate.transition("CHECKOUT")
    with pytest.raises(UnknownStateError):
        gate.restore(snapshot)
    assert gate.current_state == "payment"


def test_the_refusal_names_the_state_and_what_was_perhaps_meant() -> None:
    with pytest.raises(UnknownStateError, match=r"paymnt.*payment"):
        shop().restore({"value": "paymnt"})


def test_a_clone_goes_its_own_way() -> None:
    gate = shop()
    heard: list[TransitionResult] = []
    gate.on_transition(heard.append)
    gate.transition("CHECKOUT")
    clone = gate.clone()
    assert clone.current_state == "payment"
    clone.transition("PAY")
    clone.bind_tool("refund", "paid")
    assert (gate.current_state, clone.current_state) == ("payment", "paid")
    assert len(heard) == 1
    assert "refund" not in gate.tools
    gate.bind_tool("late", "cart")
    assert "late" not in clone.tools
    theirs: list[TransitionResult] = []
    third = clone.clone()
    third.restore({"value": "cart"})
    third.on_transition(theirs.append)
    third.transition("CHECKOUT")
    assert len(theirs) == 1
    assert clone.current_state == "paid"


def test_a_gate_given_to_servers_is_not_moved_by_them() -> None:
    gate = shop()
    compiled = gate.compile()
    gate.bind_tool("late", "cart")
    assert "late" not in compiled.tools
    assert gate.current_state == "cart"


@pytest.mark.parametrize("suffix", [".json", ".yaml", ".yml"])
def test_a_gate_reads_its_config_from_a_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"shop{suffix}"
    path.write_text(json.dumps(CONFIG))
    assert StateMachineGate(path).initial_state == StateMachineGate(str(path)).initial_state == "cart"
    assert StateMachineGate(json.dumps(CONFIG)).initial_state == "cart"
    assert StateMachineGate(Machine(CONFIG)).initial_state == "cart"


def test_a_bad_config_is_refused_with_the_path_of_its_fault() -> None:
    bad = {"id": "m", "initial": "a", "states": {"a": {"on": {"GO": "bb"}}, "b": {}, "bbb": {}}}
    with pytest.raises(MachineConfigError, match=r"states\.a\.on\.GO: no state 'bb' \(did you mean"):
        StateMachineGate(bad)


# --- any flat machine, any events -------------------------------------------------------------------------

words = st.sampled_from(["a", "b", "constructor", "__class__", "☃", "tag", "d e"])
events = st.sampled_from(["GO", "STOP", "constructor", "__init__", "e"])


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.lists(words, min_size=1, max_size=5, unique=True))
    states = {
        name: {"on": draw(st.dictionaries(events, st.sampled_from(names), max_size=3))} for name in names
    }  # fmt: skip
    return {"id": "m", "initial": names[0], "states": states}


@given(configs(), st.lists(events, max_size=12), st.data())
def test_a_gate_is_where_its_config_says_and_shows_what_is_bound_there(
    config: dict[str, Any], sent: list[str], data: st.DataObject
) -> None:
    gate = StateMachineGate(config)
    bound: dict[str, list[str]] = {}
    for place in range(4):
        states = data.draw(st.lists(st.sampled_from(list(config["states"])), min_size=1, unique=True))
        gate.bind_tool(f"t{place}", states)
        bound[f"t{place}"] = states
    state = config["initial"]
    heard: list[TransitionResult] = []
    gate.on_transition(heard.append)
    moves = 0
    for event in sent:
        target = config["states"][state]["on"].get(event)
        result = gate.transition(event)
        assert result == TransitionResult(target is not None, state, target or state)
        moves += result.changed
        state = target or state
        assert gate.current_state == state
        assert gate.visible_tool_names() == [name for name, states in bound.items() if state in states]
        twin = gate.clone()
        twin.restore(json.loads(json.dumps(gate.snapshot())))
        assert (twin.current_state, twin.visible_tool_names()) == (state, gate.visible_tool_names())
    assert len(heard) == moves


@given(st.text() | st.lists(st.text(), max_size=3), st.none() | st.text())
def test_whatever_is_bound_is_honoured_or_refused(states: Any, transition: Any) -> None:
    gate = StateMachineGate(CONFIG)
    try:
        gate.bind_tool("t", states, transition)
    except BindingError as error:
        assert "'t'" in str(error)  # noqa: PT017 - whether it is refused is Hypothesis's to choose
        assert gate.tools == {}
    else:
        assert gate.bindings_of("t")[0].paths <= set(CONFIG["states"])
