"""Servers in an ASGI host: mounted, with the SDK's own options, over the older transport, and whom they let in."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.sse import sse_client
from mcp.server import Server
from mcp.server.mcpserver import MCPServer
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from mcpfusion import Fusion, StateMachineGate, gate_server
from mcpfusion.wire.anonymous import AnonymousCallersError
from tests.gate_identity.users import AUTH, Verifier
from tests.support.hearing import hearing_client
from tests.support.serving import ERAS, http_app, sdk_client
from tests.wire.ways import BASES, INVOICE, make

pytestmark = pytest.mark.anyio

SERVERS = (None, "lowlevel", "mcpserver", "fastmcp")


def invoices(base: str | None = None, **options: Any) -> Any:
    f = Fusion("invoices")
    f.action("invoice.submit").describe("Submit.").bind_state("draft", "SUBMIT").handle(lambda: "in review")
    f.action("invoice.approve").describe("Approve.").bind_state("review", "APPROVE").handle(lambda: "approved")
    return f.server(fsm=f.fsm(INVOICE), base=BASES[base](None) if base else None, **options)


async def menu(client: Client) -> set[str]:
    return {tool.name for tool in (await client.list_tools()).tools} - {"own.echo"}


async def health(request: Request) -> PlainTextResponse:
    return PlainTextResponse("well")


# --- in an app of one's own ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", SERVERS)
async def test_two_servers_mounted_in_an_app_of_ones_own_keep_to_themselves(base: str | None) -> None:
    apps = {name: invoices(base).asgi(path="/mcp") for name in ("north", "south")}

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for app in apps.values():
                await stack.enter_async_context(app.router.lifespan_context(app))
            yield

    routes = [Route("/health", health), *(Mount(f"/{name}", app) for name, app in apps.items())]
    async with http_app(Starlette(routes=routes, lifespan=lifespan)) as origin:
        async with hearing_client(f"{origin}/north/mcp", "2026-07-28") as (client, heard):
            assert not (await client.call_tool("invoice.submit")).is_error
            await heard.wait(1)
            assert await menu(client) == {"invoice.approve"}
        async with hearing_client(f"{origin}/south/mcp", "2026-07-28") as (client, heard):
            assert await menu(client) == {"invoice.submit"}
            assert heard.count() == 0
        async with hearing_client(f"{origin}/south/mcp", "legacy") as (client, heard):
            assert await menu(client) == {"invoice.submit"}
            assert not (await client.call_tool("invoice.submit")).is_error
            await heard.wait(1)
        async with httpx2.AsyncClient() as http:
            assert (await http.get(f"{origin}/health")).text == "well"


@pytest.mark.parametrize("base", SERVERS)
async def test_another_path(base: str | None) -> None:
    async with (
        http_app(invoices(base).asgi(path="/api/v1/tools")) as origin,
        sdk_client(f"{origin}/api/v1/tools", "auto") as client,
    ):
        assert await menu(client) == {"invoice.submit"}


# --- the SDK's own options -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", SERVERS)
async def test_a_server_that_answers_in_json_tells_on_the_other_stream(base: str | None) -> None:
    async with (
        http_app(invoices(base).asgi(json_response=True)) as origin,
        hearing_client(f"{origin}/mcp", "legacy") as (client, heard),
    ):
        assert await menu(client) == {"invoice.submit"}
        assert not (await client.call_tool("invoice.submit")).is_error
        await heard.wait(1)
        assert await menu(client) == {"invoice.approve"}


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("base", SERVERS)
async def test_without_sessions_both_eras_are_served_alike(base: str | None, mode: str) -> None:
    async with http_app(invoices(base, state_handle_key="id").asgi(stateless_http=True)) as origin:
        for _ in range(2):
            async with sdk_client(f"{origin}/mcp", mode) as client:
                assert await menu(client) == {"invoice.submit", "invoice.approve"}
        async with sdk_client(f"{origin}/mcp", mode) as client:
            assert not (await client.call_tool("invoice.submit", {"id": "A-1"})).is_error
        async with sdk_client(f"{origin}/mcp", mode) as client:
            assert (await client.call_tool("invoice.approve", {"id": "B-2"})).is_error
            missing = await client.call_tool("invoice.approve", {})
            assert missing.structured_content["code"] == "INVALID_HANDLE"
            assert not (await client.call_tool("invoice.approve", {"id": "A-1"})).is_error


async def test_over_the_older_sse_transport_each_session_has_its_own_workflow() -> None:
    base, gate = BASES["mcpserver"](None), StateMachineGate(INVOICE)
    gate.bind_tool("own.echo", ["draft"], "SUBMIT")
    gate_server(base, gate)
    async with http_app(base.sse_app()) as origin:
        for _ in range(2):
            async with hearing_client(sse_client(f"{origin}/sse"), "legacy") as (client, heard):
                assert [tool.name for tool in (await client.list_tools()).tools] == ["own.echo"]
                done = await client.call_tool("own.echo", {"text": "x"})
                assert not done.is_error
                assert done.meta["io.mcpfusion/workflow"]["handle"].startswith("@session:")
                await heard.wait(1)
                assert (await client.list_tools()).tools == []


# --- whom they let in ----------------------------------------------------------------------------------------------

ANYWHERE = ("0.0.0.0", "::", "192.168.1.5", "example.com", "127.0.0.1.example.com", "")
LOOPBACK = ("127.0.0.1", "127.8.9.10", "localhost", "::1", "[::1]")


@pytest.mark.parametrize("base", SERVERS)
def test_anonymous_callers_who_would_share_a_workflow_are_refused_off_loopback(base: str | None) -> None:
    server = invoices(base)
    for host in ANYWHERE:
        with pytest.raises(AnonymousCallersError, match=r"state_handle_key.*single_tenant"):
            server.asgi(host=host)
        with pytest.raises(AnonymousCallersError):
            server.run("http", host=host, port=0)


@pytest.mark.parametrize("base", SERVERS)
def test_on_loopback_that_is_only_said(base: str | None, caplog: pytest.LogCaptureFixture) -> None:
    for host in (*LOOPBACK, None):
        caplog.clear()
        invoices(base).asgi(host=host)
        assert [record.levelname for record in caplog.records if "share one workflow" in record.message] == [
            "WARNING"
        ]


@pytest.mark.parametrize(
    "told_apart",
    [{"state_handle_key": "id"}, {"single_tenant": True}, {"auth": AUTH, "token_verifier": Verifier()}],
    ids=["handle", "single-tenant", "auth"],
)
def test_who_is_told_apart_or_meant_to_share_may_come_from_anywhere(
    told_apart: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    for host in (*ANYWHERE, *LOOPBACK, None):
        invoices(**told_apart).asgi(host=host)
    assert "share one workflow" not in caplog.text


def test_a_server_without_a_gate_or_with_authentication_of_its_own_may_be_reached_from_anywhere() -> None:
    f = Fusion("plain")
    f.action("plain.hello").handle(lambda: "hello")
    f.server().asgi(host="0.0.0.0")
    base = MCPServer("own", auth=AUTH, token_verifier=Verifier())
    g = Fusion("invoices")
    g.action("invoice.submit").bind_state("draft", "SUBMIT").handle(lambda: "")
    g.server(fsm=g.fsm(INVOICE), base=base).asgi(host="0.0.0.0")


@pytest.mark.parametrize("base", SERVERS)
async def test_a_server_on_loopback_answers_no_page_that_had_its_name_rebound(base: str | None) -> None:
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "page", "version": "1"}}
    body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    async with (
        http_app(invoices(base, state_handle_key="id").asgi(host="127.0.0.1")) as origin,
        httpx2.AsyncClient(headers={"Accept": "application/json, text/event-stream"}) as http,
    ):
        for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
            assert (await http.post(f"{origin}/mcp", json=body, headers=headers)).status_code in (403, 421), headers
        for headers in ({}, {"Host": "localhost:80"}, {"Origin": "http://localhost:3000"}):
            assert (await http.post(f"{origin}/mcp", json=body, headers=headers)).status_code == 200, headers


# --- what cannot be ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", ["lowlevel", "mcpserver", "fastmcp"])
def test_a_server_is_attached_once(base: str) -> None:
    server = BASES[base](None)
    gate_server(server, StateMachineGate(INVOICE))
    with pytest.raises(ValueError, match="attached already"):
        gate_server(server, StateMachineGate(INVOICE))


@pytest.mark.parametrize("thing", [object(), None, "http://127.0.0.1/mcp", Fusion("x"), Server])
def test_what_is_no_server_is_refused_by_name(thing: Any) -> None:
    with pytest.raises(TypeError, match=r"MCPServer, or fastmcp\.FastMCP"):
        gate_server(thing, StateMachineGate(INVOICE))


def test_an_option_or_a_transport_that_there_is_not_is_refused() -> None:
    with pytest.raises(TypeError, match="state_handel_key"):
        invoices(state_handel_key="id")
    with pytest.raises(TypeError, match="acess"):
        make("gate-mcpserver", keyed=False, acess="shared")
    with pytest.raises(ValueError, match="'stdio' or 'http'"):
        invoices().run("sse")
    with pytest.raises(ValueError, match="auth belongs to the server given as base"):
        invoices("mcpserver", auth=AUTH, token_verifier=Verifier())
    with pytest.raises(ValueError, match="go together"):
        invoices(auth=AUTH)
