"""What is refused when it is declared: names that collide, bindings that do not fit, options that do not exist."""

from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer

from mcpfusion import BindingError, Fusion, RegistrationError
from tests.support.serving import ERAS, sdk_client

MACHINE = {"id": "m", "initial": "a", "states": {"a": {"on": {"GO": "b"}}, "b": {}}}


def test_one_name_twice_is_refused_and_names_it() -> None:
    f = Fusion("twice")
    f.action("a.b").handle(lambda: "1")
    with pytest.raises(RegistrationError, match=r"'a\.b'"):
        f.query("a.b").handle(lambda: "2")


@pytest.mark.parametrize(("separator", "other"), [("_", "a_b"), ("_", "a.b"), ("__", "a__b"), ("-", "a-b")])
def test_two_names_that_become_one_tool_are_refused_and_named(separator: str, other: str) -> None:
    f = Fusion("joined", separator=separator)
    f.action("x.a.b").handle(lambda: "1")
    with pytest.raises(RegistrationError, match=r"x\.a\.b") as refused:
        f.action(f"x.{other}").handle(lambda: "2")
    assert f"x.{other}" in str(refused.value)


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("separator", [".", "_", "__", "-", "/"])
async def test_the_separator_is_in_the_tools_name_and_the_gate_knows_it(mode: str, separator: str) -> None:
    f = Fusion("joined", separator=separator)
    f.action("shop.cart.pay").bind_state("a", "GO").handle(lambda: "paid")
    name = separator.join(("shop", "cart", "pay"))
    async with sdk_client(f.server(fsm=f.fsm(MACHINE)).lowlevel, mode) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == [name]
        assert (await client.call_tool(name)).meta["io.mcpfusion/workflow"]["state"] == "b"


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ERAS)
async def test_an_action_with_the_name_of_a_tool_that_is_there_already(mode: str) -> None:
    base = MCPServer("base")

    @base.tool(name="shop.pay")
    def pay() -> str:
        return "the old one"

    f = Fusion("new")
    f.action("shop.pay").handle(lambda: "the new one")
    server = f.server(base=base)
    async with sdk_client(server.lowlevel, mode) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names == ["shop.pay"], "a name must not be on the menu twice"
        assert (await client.call_tool("shop.pay")).content[0].text == "the new one"


@pytest.mark.parametrize(
    ("states", "event", "words"),
    [
        ("c", "GO", ["shop.pay", "'c'"]),
        ("aa", None, ["shop.pay", "did you mean 'a'"]),
        ("a", "GOO", ["shop.pay", "GOO"]),
        ("b", "GO", ["shop.pay", "'b'", "GO"]),
        ("tag:payable", None, ["shop.pay", "payable"]),
        ("z*", None, ["shop.pay", "z*"]),
    ],
)
def test_a_binding_that_the_machine_does_not_have_is_refused_at_start_up(
    states: str, event: str | None, words: list[str]
) -> None:
    f = Fusion("bound")
    f.action("shop.pay").bind_state(states, event).handle(lambda: "paid")
    with pytest.raises(BindingError) as refused:
        f.server(fsm=f.fsm(MACHINE))
    for word in words:
        assert word in str(refused.value)


def test_bindings_without_a_machine_are_refused() -> None:
    f = Fusion("bound")
    f.action("shop.pay").bind_state("a").handle(lambda: "paid")
    with pytest.raises(BindingError, match="shop"):
        f.server()


@pytest.mark.parametrize(
    "options",
    [
        {"acess": "owner"},
        {"state_handle_key": ""},
        {"state_handle_key": 7},
        {"access": "everybody"},
        {"store": "nosql://x"},
        {"store": 7},
        {"auth": object()},
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(options: dict[str, Any]) -> None:
    f = Fusion("options")
    f.action("shop.pay").bind_state("a").handle(lambda: "paid")
    with pytest.raises((TypeError, ValueError)):
        f.server(fsm=f.fsm(MACHINE), **options)
