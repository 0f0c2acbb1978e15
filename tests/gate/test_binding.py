"""Bindings are checked when they are made: what the machine does not have is refused, with a near miss."""

from typing import Any

import pytest

from mcpfusion import BindingError, Fusion, Policies, StateMachineGate

CONFIG = {
    "id": "shop",
    "initial": "cart",
    "states": {
        "cart": {"on": {"CHECKOUT": "payment"}, "tags": ["open"]},
        "payment": {"on": {"PAY": "paid", "ABORT": "cart"}, "tags": ["open", "payable"]},
        "paid": {"type": "final"},
    },
}
NESTED = {
    "id": "review",
    "initial": "legal",
    "states": {
        "legal": {"initial": "pending", "states": {"pending": {"on": {"OK": "done"}}, "done": {}}},
        "over": {"type": "final"},
    },
}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown state": ({"states": "cat"}, r"'t'.*'cat'.*did you mean 'cart'"),
    "one of several": ({"states": ["cart", "pait"]}, r"'t'.*'pait'.*did you mean 'paid'"),
    "a state in other letters": ({"states": "Cart"}, r"'Cart'.*did you mean 'cart'"),
    "a glob for nothing": ({"states": "pay*ing"}, r"'t'.*'pay\*ing'"),
    "an unknown tag": ({"states": "tag:payabel"}, r"'t'.*payabel.*did you mean '(tag:)?payable'"),
    "no states": ({"states": []}, r"'t': no state is named"),
    "no state's name": ({"states": ""}, r"'t'"),
    "an unknown event": (
        {"states": "cart", "transition": "CHECKUOT"},
        r"'t'.*'shop' has no event 'CHECKUOT'.*CHECKOUT",
    ),
    "an event that the state does not take": (
        {"states": "cart", "transition": "PAY"},
        r"'t': state 'cart' does not take the event 'PAY' \(states that do: payment\)",
    ),
    "an event that one of the states does not take": (
        {"states": ["payment", "cart"], "transition": "PAY"},
        r"state 'cart' does not take the event 'PAY'",
    ),
    "an event out of a final state": ({"states": "paid", "transition": "PAY"}, r"state 'paid' does not take"),
    "a glob without a state that takes it": (
        {"states": "c*", "transition": "PAY"},
        r"state 'cart' does not take",
    ),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_the_machine_does_not_have_is_refused_by_the_gate_and_by_the_server(case: Any) -> None:
    arguments, said = case
    gate = StateMachineGate(CONFIG)
    with pytest.raises(BindingError, match=said):
        gate.bind_tool("t", **arguments)
    assert gate.tools == {}
    f = Fusion("shop")
    states = arguments["states"]
    if not states:
        return  # refused where the action is declared
    binding = (states, arguments["transition"]) if "transition" in arguments else (states, None)

    @f.action("shop.t").bind_state(*binding).handle
    def t() -> None: ...

    with pytest.raises(BindingError, match=said.replace("'t'", "'shop.t'")):
        f.server(fsm=StateMachineGate(CONFIG))


@pytest.mark.parametrize(
    ("states", "paths"),
    [
        ("cart", {"cart"}),
        (("cart", "paid"), {"cart", "paid"}),
        ("*", {"cart", "payment", "paid"}),
        ("pa*", {"payment", "paid"}),
        ("tag:open", {"cart", "payment"}),
        (["tag:payable", "paid"], {"payment", "paid"}),
    ],
)
def test_patterns_stand_for_states(states: Any, paths: set[str]) -> None:
    gate = StateMachineGate(CONFIG)
    gate.bind_tool("t", states)
    assert gate.bindings_of("t")[0].paths == paths


def test_a_glob_may_name_more_states_than_take_the_event() -> None:
    gate = StateMachineGate(CONFIG)
    gate.bind_tool("t", "pa*", "PAY")
    gate.transition("CHECKOUT")
    assert gate.is_tool_allowed("t")


def test_a_tool_bound_again_has_more_states_each_with_its_own_event() -> None:
    gate = StateMachineGate(CONFIG)
    gate.bind_tool("next", "cart", "CHECKOUT")
    gate.bind_tool("next", "payment", "PAY", policies=Policies(time_limit=3))
    assert [(binding.states, binding.event) for binding in gate.bindings_of("next")] == [
        (("cart",), "CHECKOUT"),
        (("payment",), "PAY"),
    ]
    gate.bind_tool("next", "paid")
    assert gate.tools["next"].policies == Policies(time_limit=3)
    assert gate.tools["next"].where == "cart, payment, paid"
    assert gate.bindings_of("other") == ()


def test_nested_states_are_named_by_their_path_and_active_with_their_children() -> None:
    gate = StateMachineGate(NESTED)
    gate.bind_tool("any", "legal")
    gate.bind_tool("first", "legal.pending", "OK")
    gate.bind_tool("both", "legal.*")
    assert gate.visible_tool_names() == ["any", "first", "both"]
    gate.transition("OK")
    assert gate.visible_tool_names() == ["any", "both"]
    with pytest.raises(BindingError, match=r"'pending'.*legal\.pending"):
        gate.bind_tool("t", "pending")


def test_a_tool_needs_a_name() -> None:
    with pytest.raises(BindingError, match="name"):
        StateMachineGate(CONFIG).bind_tool("", "cart")


def test_a_tool_bound_by_its_action_and_by_the_gate_is_refused() -> None:
    f = Fusion("shop")
    gate = f.fsm(CONFIG)
    gate.bind_tool("shop.t", "cart")

    @f.action("shop.t", bind_state="cart").handle
    def t() -> None: ...

    with pytest.raises(BindingError, match=r"'shop\.t' is bound twice"):
        f.server(fsm=gate)


@pytest.mark.parametrize("how", [{"bind_state": "cart"}, {"mints_handle": True}])
def test_a_bound_action_on_a_server_without_a_machine_is_refused(how: Any) -> None:
    f = Fusion("shop")

    @f.action("shop.t", **how).handle
    def t() -> None: ...

    with pytest.raises(BindingError, match=r"'shop\.t'.*fsm="):
        f.server()


def test_an_option_that_there_is_not_is_refused() -> None:
    f = Fusion("shop")
    with pytest.raises(TypeError, match="time_limits"):
        f.server(fsm=f.fsm(CONFIG), time_limits=1)
