"""A name that gates nothing is said, so that no tool stays open by a slip of the pen."""

import logging
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer

from mcpfusion import BindingError, Fusion, RegistrationError, StateMachineGate, gate_server
from tests.support.serving import ERAS, sdk_client
from tests.wire.ways import BASES, INVOICE, Shop

pytestmark = pytest.mark.anyio


def slip() -> StateMachineGate:
    gate = StateMachineGate(INVOICE)
    gate.bind_tool("invoice.submit", ["draft"], "SUBMIT")
    gate.bind_tool("invoice.dischrage", ["approved"], "DISCHARGE")
    return gate


def test_a_binding_to_an_action_that_there_is_not_is_refused_with_a_near_miss() -> None:
    f = Fusion("invoices")
    f.action("invoice.submit").handle(lambda: "")
    f.action("invoice.discharge").handle(lambda: "")
    with pytest.raises(BindingError, match=r"'invoice\.dischrage'.*did you mean 'invoice\.discharge'"):
        f.server(fsm=slip())


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("base", BASES)
async def test_a_binding_to_a_tool_that_the_server_does_not_list_is_said_once(
    base: str, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    server: Any = BASES[base](Shop())
    attachment = gate_server(server, slip())
    async with sdk_client(attachment.lowlevel, mode) as client:
        for _ in range(2):
            await client.list_tools()
    said = [record for record in caplog.records if record.name.startswith("mcpfusion")]
    assert [record.levelno for record in said] == [logging.WARNING]
    assert "'invoice.dischrage'" in said[0].getMessage()
    assert "did you mean 'invoice.discharge'" in said[0].getMessage()


@pytest.mark.parametrize("mode", ERAS)
async def test_a_binding_to_a_tool_that_comes_later_gates_it_then(mode: str) -> None:
    server = MCPServer("own")
    gate_server(server, slip())
    async with sdk_client(server, mode) as client:
        assert (await client.list_tools()).tools == []
        server.add_tool(lambda: "submitted", name="invoice.submit")
        server.add_tool(lambda: "discharged", name="invoice.dischrage")
        assert [tool.name for tool in (await client.list_tools()).tools] == ["invoice.submit"]
        assert (await client.call_tool("invoice.dischrage")).structured_content["code"] == "FORBIDDEN"
        assert not (await client.call_tool("invoice.submit")).is_error


def test_an_action_declared_after_the_server_was_made_is_refused() -> None:
    """It would be neither listed nor gated."""
    f = Fusion("invoices")
    f.action("invoice.view").handle(lambda: "")
    f.server()
    with pytest.raises(RegistrationError, match=r"'invoice\.late'.*before"):
        f.action("invoice.late").handle(lambda: "")
    f.server()  # of the same actions, as many servers as one likes
