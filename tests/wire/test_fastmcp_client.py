"""FastMCP's own client on gated servers: list, call, list_changed and refusal, in both eras."""

import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest
from fastmcp import Client, FastMCP
from fastmcp.client.transports import StdioTransport
from fastmcp.exceptions import ToolError
from mcp.client.subscriptions import listen

from mcpfusion import StateMachineGate, gate_server
from tests.support.hearing import Heard
from tests.support.serving import ERAS, http_app
from tests.wire.conftest import WAYS_FILE
from tests.wire.ways import INVOICE, make

pytestmark = pytest.mark.anyio

WAYS = ("own", "gate-fastmcp")
VERSIONS = {"legacy": "2025-11-25", "2026-07-28": "2026-07-28", "auto": "2026-07-28"}


@asynccontextmanager
async def fastmcp_client(server: Any, mode: str) -> AsyncIterator[tuple[Client[Any], Heard]]:
    """Yield FastMCP's client and what it hears. It opens no stream itself, so in 2026-07-28 one is opened for it."""
    heard = Heard()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(server, mode=mode, message_handler=heard, timeout=60))
        assert client.protocol_version == VERSIONS[mode]
        if mode != "legacy":
            await stack.enter_async_context(listen(client.session, tools_list_changed=True))
        yield client, heard


async def pays_once(client: Client[Any], heard: Heard) -> None:
    async def menu() -> set[str]:
        return {tool.name for tool in await client.list_tools()} - {"own.echo"}

    assert await menu() == {"invoice.submit", "invoice.flaky", "invoice.view"}
    with pytest.raises(ToolError, match=r"FORBIDDEN: .*'draft'.*invoice\.submit"):
        await client.call_tool("invoice.discharge", {"id": "A-1"})
    submitted = await client.call_tool("invoice.submit", {"id": "A-1"})
    assert submitted.data == {"id": "A-1", "status": "in review"}
    assert submitted.meta["io.mcpfusion/workflow"]["allowedActions"] == ["invoice.approve"]
    await heard.wait(1)
    assert await menu() == {"invoice.approve", "invoice.view"}
    await client.call_tool("invoice.approve")
    await heard.wait(2)
    assert (await client.call_tool("invoice.discharge", {"id": "A-1"})).data["paid"] == 1
    await heard.wait(3)
    assert await menu() == {"invoice.view"}
    again = await client.call_tool("invoice.discharge", {"id": "A-1"}, raise_on_error=False)
    assert again.is_error
    assert again.structured_content["code"] == "ALREADY_DONE"
    assert again.meta["io.mcpfusion/workflow"]["final"] is True
    assert (await client.call_tool("invoice.view", {"id": "A-1"})).data["paid"] == 1
    assert heard.count() == 3


@pytest.mark.parametrize("mode", VERSIONS)
@pytest.mark.parametrize("way", WAYS)
async def test_over_http(way: str, mode: str) -> None:
    async with (
        http_app(make(way, keyed=False).asgi()) as origin,
        fastmcp_client(f"{origin}/mcp", mode) as (client, heard),
    ):
        await pays_once(client, heard)


@pytest.mark.parametrize("way", WAYS)
async def test_over_stdio(way: str) -> None:
    async def one(mode: str) -> None:
        server = StdioTransport(sys.executable, [str(WAYS_FILE), "stdio", way], keep_alive=False)
        async with fastmcp_client(server, mode) as (client, heard):
            await pays_once(client, heard)

    async with anyio.create_task_group() as group:
        for mode in ERAS:
            group.start_soon(one, mode)


@pytest.mark.parametrize("mode", ERAS)
async def test_in_process_the_object_itself_is_gated(mode: str) -> None:
    """`fastmcp.Client(mcp)` comes in by the same door as everybody."""
    mcp = FastMCP("shop")
    ran: list[str] = []

    @mcp.tool
    def pay(id: str) -> str:
        ran.append(id)
        return "paid"

    gate = StateMachineGate(INVOICE)
    gate.bind_tool("pay", ["approved"], "DISCHARGE")
    gate_server(mcp, gate)
    async with Client(mcp, mode=mode) as client:
        assert await client.list_tools() == []
        with pytest.raises(ToolError, match="FORBIDDEN"):
            await client.call_tool("pay", {"id": "A-1"})
    assert ran == []
