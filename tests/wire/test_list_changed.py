"""A changed menu is told, in both eras and over real transports: to those whose menu it is, and to nobody else."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp import Client
from mcp.server.mcpserver import Context, MCPServer

from mcpfusion import Fusion, StateMachineGate, gate_server
from tests.gate_identity.users import TOKENS, approvals, authenticated
from tests.support.hearing import Heard, hearing_client
from tests.support.serving import ERAS, call, http_app, http_client, post, sdk_client
from tests.wire.by_hand import open_session
from tests.wire.ways import WAYS, make

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def served(way: str, *, keyed: bool) -> AsyncIterator[tuple[str, Any]]:
    made = make(way, keyed=keyed)
    async with http_app(made.asgi()) as origin:
        yield f"{origin}/mcp", made.lowlevel._mcpfusion_attachment._audience


async def move(client: Client, tool: str, **arguments: str) -> None:
    result = await client.call_tool(f"invoice.{tool}", arguments)
    assert not result.is_error, result.content


# --- handshake era -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["own", "gate-lowlevel", "gate-mcpserver", "gate-fastmcp"])
async def test_another_session_that_named_the_workflow_is_told_and_a_third_is_not(way: str) -> None:
    async with (
        served(way, keyed=True) as (url, _),
        hearing_client(url, "legacy") as (mover, heard),
        hearing_client(url, "legacy") as (partner, heard_by_partner),
        hearing_client(url, "legacy") as (stranger, heard_by_stranger),
    ):
        for client in (mover, partner, stranger):
            await client.list_tools()
        assert (await partner.call_tool("invoice.discharge", {"id": "A-1"})).is_error
        await move(mover, "submit", id="A-1")
        await heard.wait(1)
        await heard_by_partner.wait(1)
        assert "invoice.approve" in {tool.name for tool in (await partner.list_tools()).tools}
        await move(partner, "approve", id="A-1")
        await heard.wait(2)
        await move(stranger, "submit", id="B-2")
        await heard_by_stranger.wait(1)
        # Each has heard of his own and no more: what was sent before has been read before.
        assert (heard.count(), heard_by_partner.count(), heard_by_stranger.count()) == (2, 2, 1)


async def test_sessions_with_workflows_of_their_own_hear_of_their_own() -> None:
    async with (
        served("own", keyed=False) as (url, _),
        hearing_client(url, "legacy") as (one, heard_by_one),
        hearing_client(url, "legacy") as (other, heard_by_other),
    ):
        await one.list_tools()
        await other.list_tools()
        await move(one, "submit", id="1")
        await heard_by_one.wait(1)
        await move(other, "submit", id="2")
        await heard_by_other.wait(1)
        await move(one, "approve")
        await heard_by_one.wait(2)
        assert (heard_by_one.count(), heard_by_other.count()) == (2, 1)


async def test_a_session_without_an_open_stream_holds_nobody_up() -> None:
    """A client that posts and never listens cannot be told, which is no reason for others to wait."""
    async with served("own", keyed=True) as (url, audience), hearing_client(url, "legacy") as (mover, heard):
        for _ in range(3):
            session = await open_session(url)  # nobody reads what it is sent outside of answers
            await post(url, call("invoice.discharge", {"id": "A-1"}), session)
            await post(url, {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}, session)
        await mover.list_tools()
        assert audience.size == 4
        await move(mover, "submit", id="A-1")
        await heard.wait(1)
        await move(mover, "approve", id="A-1")
        await heard.wait(2)


# --- 2026-07-28 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["own", "gate-lowlevel", "gate-mcpserver", "gate-fastmcp"])
async def test_every_listener_of_the_process_is_told_once_for_each_step(way: str) -> None:
    async with (
        served(way, keyed=False) as (url, _),
        hearing_client(url, "2026-07-28") as (mover, heard),
        hearing_client(url, "2026-07-28") as (_, heard_by_other),
        hearing_client(url, "2026-07-28", resources_list_changed=True) as (_, heard_by_uninterested),
    ):
        await move(mover, "submit", id="1")
        assert (await mover.call_tool("invoice.discharge", {"id": "1"})).is_error
        await move(mover, "approve")
        await move(mover, "discharge", id="1")
        await heard.wait(3)
        await heard_by_other.wait(3)
        assert (heard.count(), heard_by_other.count(), heard_by_uninterested.count()) == (3, 3, 0)


async def test_listeners_hear_of_their_own_principals_workflows_only() -> None:
    heard = {"alice": Heard(), "bob": Heard()}
    async with authenticated(approvals(), state_handle_key="id") as url, AsyncExitStack() as stack:
        clients: dict[str, Client] = {}
        for user, ear in heard.items():
            opened = http_client(url, "2026-07-28", token=TOKENS[user], message_handler=ear)
            clients[user] = await stack.enter_async_context(opened)
            await stack.enter_async_context(clients[user].listen(tools_list_changed=True))
        assert not (await clients["alice"].call_tool("approval.submit", {"id": "A-1"})).is_error
        await heard["alice"].wait(1)
        # A second workflow in the same state adds nothing to the union that is her menu.
        assert not (await clients["alice"].call_tool("approval.submit", {"id": "A-2"})).is_error
        assert not (await clients["bob"].call_tool("approval.submit", {"id": "A-1"})).is_error
        await heard["bob"].wait(1)
        assert not (await clients["alice"].call_tool("approval.approve", {"id": "A-2"})).is_error
        await heard["alice"].wait(2)
        assert (heard["alice"].count(), heard["bob"].count()) == (2, 1)


@pytest.mark.parametrize("way", ["base", "gate"])
async def test_the_servers_own_changes_arrive_on_the_same_stream(way: str) -> None:
    base = MCPServer("own")

    @base.tool(name="own.touch")
    async def touch(ctx: Context) -> str:
        await ctx.notify_resource_updated("memo://terms")
        await ctx.notify_resources_changed()
        await ctx.notify_prompts_changed()
        await ctx.notify_tools_changed()
        return "touched"

    @base.tool(name="own.sink")
    def sink() -> str:
        return "sunk"

    if way == "gate":
        gate = StateMachineGate(SHUTTLE)
        gate.bind_tool("own.sink", ["dock"], "SINK")
        gate_server(base, gate)
        app, step = base.streamable_http_app(), "own.sink"
    else:
        f = Fusion("own")
        f.action("boat.sink").bind_state("dock", "SINK").handle(lambda: "")
        app, step = f.server(fsm=f.fsm(SHUTTLE), base=base).asgi(), "boat.sink"
    kinds = {
        "tools_list_changed": True,
        "prompts_list_changed": True,
        "resources_list_changed": True,
        "resource_subscriptions": ["memo://terms"],
    }
    async with (
        http_app(app) as origin,
        hearing_client(f"{origin}/mcp", "2026-07-28", **kinds) as (client, heard),
        hearing_client(f"{origin}/mcp", "2026-07-28") as (_, only_tools),
    ):
        await client.call_tool("own.touch")
        for kind in (
            types.ResourceUpdatedNotification,
            types.ResourceListChangedNotification,
            types.PromptListChangedNotification,
            types.ToolListChangedNotification,
        ):
            await heard.wait(1, kind)
        assert not (await client.call_tool(step)).is_error
        await heard.wait(2)
        await only_tools.wait(2)
        assert len(only_tools.messages) == 2
        assert len(heard.messages) == 5


# --- both ----------------------------------------------------------------------------------------------------------

SHUTTLE = {
    "id": "boat",
    "initial": "dock",
    "states": {
        "dock": {"on": {"ROW": "sea", "SINK": "sunk"}},
        "sea": {"on": {"ROW": "dock", "SINK": "sunk"}},
        "sunk": {"type": "final"},
    },
}


def boat(*, compact: bool) -> Any:
    f = Fusion("boat")
    row = f.action("boat.row").describe("Row across, to the other side.").bind_state(["dock", "sea"], "ROW")
    (row.compact_description("Row.") if compact else row).handle(lambda: "rowed")
    f.action("boat.look").describe("Look.").bind_state("*").handle(lambda: "water")
    f.action("boat.sink").describe("Sink.").bind_state(["dock", "sea"], "SINK").handle(lambda: "sunk")
    return f.server(fsm=f.fsm(SHUTTLE))


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("compact", [False, True])
async def test_a_step_is_told_only_if_the_list_it_leads_to_is_another(compact: bool, mode: str) -> None:
    async with (
        http_app(boat(compact=compact).asgi()) as origin,
        hearing_client(f"{origin}/mcp", mode) as (client, heard),
    ):
        told = 0
        before = (await client.list_tools()).tools
        for tool in ("row", "look", "row", "row", "look", "sink"):
            assert not (await client.call_tool(f"boat.{tool}")).is_error
            after = (await client.list_tools()).tools
            told += after != before
            before = after
        await heard.wait(told)
        assert told == (4 if compact else 1)
        assert heard.count() == told


@pytest.mark.parametrize("way", WAYS)
async def test_list_changes_are_advertised_in_both_eras(way: str) -> None:
    async with http_app(make(way, keyed=True).asgi()) as origin:
        for mode, version in (("legacy", "2025-11-25"), ("auto", "2026-07-28")):
            async with sdk_client(f"{origin}/mcp", mode) as client:
                assert client.protocol_version == version
                assert client.server_capabilities.tools.list_changed is True


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("way", ["own", "gate-fastmcp"])
async def test_a_client_that_has_gone_is_no_listener_any_more(way: str, mode: str) -> None:
    async with served(way, keyed=False) as (url, audience), hearing_client(url, mode) as (stays, heard):
        await stays.list_tools()
        for _ in range(3):
            async with hearing_client(url, mode) as (client, _):
                await client.list_tools()
                assert audience.size == 2
            with anyio.fail_after(20):
                while audience.size != 1:  # noqa: ASYNC110 - the server notices when it notices
                    await anyio.sleep(0.01)
        await move(stays, "submit", id="1")
        await heard.wait(1)
