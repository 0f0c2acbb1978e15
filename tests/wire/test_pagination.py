"""Menus that need several pages: in one order, each tool once, whatever happens between two pages."""

import base64
import json
import sys
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp import Client
from mcp.server import Server
from mcp.shared.exceptions import MCPError

from mcpfusion import Fusion, StateMachineGate, gate_server
from tests.support.serving import ERAS, http_app, post, sdk_client
from tests.wire.by_hand import INITIALIZE, open_session
from tests.wire.conftest import WAYS_FILE

pytestmark = pytest.mark.anyio

COIN = {
    "id": "coin",
    "initial": "heads",
    "states": {"heads": {"on": {"FLIP": "tails"}}, "tails": {"on": {"FLIP": "heads"}}},
}


def names(page: types.ListToolsResult) -> list[str]:
    return [tool.name for tool in page.tools]


async def pages(client: Client) -> list[list[str]]:
    found = [await client.list_tools()]
    while found[-1].next_cursor is not None:
        assert len(found) < 50, "the pages have no end"
        found.append(await client.list_tools(cursor=found[-1].next_cursor))
    return [names(page) for page in found]


def many(number: int = 500, *, base: Any = None, **options: Any) -> Any:
    """Return a server of that many tools: by turns of both states, of heads, of tails, and not bound at all."""
    f = Fusion("many")
    states = (["heads", "tails"], "heads", "tails", None)
    for place in range(number - 1):
        action = f.action(f"many.t{(place * 7919) % 1000:03}").describe("One of many.")
        bound = states[place % 4]
        (action.bind_state(bound) if bound else action).handle(lambda: "")
    f.action("many.flip").describe("Flip.").bind_state(["heads", "tails"], "FLIP").handle(lambda: "")
    return f.server(fsm=f.fsm(COIN), base=base, **options)


@pytest.mark.parametrize("mode", ERAS)
async def test_500_tools_come_in_the_order_of_their_declaration_in_two_pages(mode: str) -> None:
    f = Fusion("many")
    declared = [f"many.t{(place * 7919) % 1000:03}" for place in range(500)]
    for name in declared:
        f.action(name).describe("One of many.").bind_state("*").handle(lambda: "")
    for _ in range(2):  # another server, and another client, give the same
        async with http_app(f.server(fsm=f.fsm(COIN)).asgi()) as origin, sdk_client(f"{origin}/mcp", mode) as client:
            first, second = await pages(client)
            assert (len(first), len(second)) == (250, 250)
            assert first + second == declared
            assert await pages(client) == [first, second]


@pytest.mark.parametrize("mode", ERAS)
async def test_a_menu_that_changes_between_two_pages_loses_and_doubles_nothing(mode: str) -> None:
    async with sdk_client(many(page_size=100).lowlevel, mode) as client:
        heads = [name for page in await pages(client) for name in page]
        await client.call_tool("many.flip")
        tails = [name for page in await pages(client) for name in page]
        lasting = [name for name in heads if name in set(tails)]
        assert len(heads) > len(lasting) > 200

        await client.call_tool("many.flip")
        seen: list[str] = []
        cursor = None
        while True:
            page = await client.list_tools(cursor=cursor)
            seen += names(page)
            if (cursor := page.next_cursor) is None:
                break
            await client.call_tool("many.flip")
        assert len(seen) == len(set(seen))
        assert [name for name in seen if name in set(lasting)] == lasting


@pytest.mark.parametrize("mode", ERAS)
async def test_the_last_page_says_that_it_is_the_last(mode: str) -> None:
    for number, sizes in ((4, [2, 2]), (5, [2, 2, 1]), (2, [2]), (1, [1])):
        f = Fusion("few")
        for place in range(number):
            f.action(f"few.t{place}").handle(lambda: "")
        async with sdk_client(f.server(page_size=2).lowlevel, mode) as client:
            assert [len(page) for page in await pages(client)] == sizes
    async with sdk_client(Fusion("none").server().lowlevel, mode) as client:
        assert await pages(client) == [[]]


def encoded(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


RUBBISH = {
    "text": "rubbish",
    "no-base64": "%%%",
    "not-ascii": "é" * 10,
    "surrogate": "\ud800",
    "unknown-tool": encoded("many.nothing"),
    "list": encoded(["many.flip"]),
    "number": encoded(7),
    "null": encoded(None),
    "not-utf8": base64.urlsafe_b64encode(b"\xff\xfe").decode(),
    "deep": base64.urlsafe_b64encode(b"[" * 100_000).decode(),
    "large": "A" * 1_000_000,
    "another-spelling": encoded("many.flip") + "!!",
    "base": "base:1",
}


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("cursor", RUBBISH.values(), ids=RUBBISH.keys())
async def test_a_cursor_that_is_rubbish_is_refused_as_such(cursor: str, mode: str) -> None:
    async with sdk_client(many(8, page_size=2).lowlevel, mode) as client:
        with pytest.raises(MCPError) as refused:
            await client.list_tools(cursor=cursor)
        assert refused.value.error.code == types.INVALID_PARAMS
        assert len(await pages(client)) > 1


def paged_base(number: int, *, extra: tuple[str, ...] = ()) -> Server[Any]:
    """Return a low-level server that gives its tools two at a time, by cursors of its own."""
    own = [*extra, *(f"own.t{place}" for place in range(number))]

    async def list_tools(ctx: Any, params: types.PaginatedRequestParams) -> types.ListToolsResult:
        start = int(params.cursor or 0)
        more = str(start + 2) if start + 2 < len(own) else None
        tools = [types.Tool(name=name, input_schema={"type": "object"}) for name in own[start : start + 2]]
        return types.ListToolsResult(tools=tools, next_cursor=more)

    async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        return types.CallToolResult(content=[types.TextContent(text=f"own {params.name}")])

    return Server("own", on_list_tools=list_tools, on_call_tool=call_tool)


@pytest.mark.parametrize("mode", ERAS)
async def test_the_servers_own_pages_come_after_ours(mode: str) -> None:
    alone = [name for page in await ours(mode, None) for name in page]
    both = await ours(mode, paged_base(5))
    assert [name for page in both for name in page] == [*alone, "own.t0", "own.t1", "own.t2", "own.t3", "own.t4"]


async def ours(mode: str, base: Any) -> list[list[str]]:
    async with sdk_client(many(13, page_size=3, base=base).lowlevel, mode) as client:
        return await pages(client)


@pytest.mark.parametrize("mode", ERAS)
async def test_pages_of_a_gated_server_leave_out_what_is_not_due(mode: str) -> None:
    server, gate = paged_base(7), StateMachineGate(COIN)
    for name in ("own.t0", "own.t1", "own.t4"):
        gate.bind_tool(name, "tails")
    gate.bind_tool("own.t6", "heads", "FLIP")
    gate_server(server, gate)
    async with sdk_client(server, mode) as client:
        # The first of its pages has nothing to show now, and is no end.
        assert await pages(client) == [[], ["own.t2", "own.t3"], ["own.t5"], ["own.t6"]]
        await client.call_tool("own.t6")
        assert await pages(client) == [["own.t0", "own.t1"], ["own.t2", "own.t3"], ["own.t4", "own.t5"], []]


@pytest.mark.parametrize("mode", ERAS)
async def test_an_action_stands_for_the_servers_own_tool_of_the_same_name(mode: str) -> None:
    """Calls reach the action, so that the list must not show another tool by that name beside it."""
    async with sdk_client(many(3, base=paged_base(3, extra=("many.flip",))).lowlevel, mode) as client:
        listed = [name for page in await pages(client) for name in page]
        assert len(listed) == len(set(listed))
        assert "many.flip" in listed
        assert (await client.call_tool("many.flip")).content[0].text == ""


WRONG_TYPES: list[Any] = [5, 0, False, True, [], ["a"], {}, {"a": 1}, 1.5]


async def test_a_cursor_of_the_wrong_type_is_refused_in_the_handshake_era() -> None:
    async with http_app(many(8, page_size=2).asgi()) as origin:
        session = await open_session(f"{origin}/mcp")
        for cursor in WRONG_TYPES:
            body = {"jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": {"cursor": cursor}}
            assert '"code":-32602' in (await post(f"{origin}/mcp", body, session)).text, cursor
        whole = await post(f"{origin}/mcp", {"jsonrpc": "2.0", "id": 8, "method": "tools/list"}, session)
        assert "many.t000" in whole.text


async def test_a_cursor_of_the_wrong_type_is_refused_in_2026_07_28() -> None:
    meta = {
        types.PROTOCOL_VERSION_META_KEY: "2026-07-28",
        types.CLIENT_INFO_META_KEY: {"name": "hand", "version": "1"},
        types.CLIENT_CAPABILITIES_META_KEY: {},
    }
    headers = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/list"}
    async with http_app(many(8, page_size=2).asgi()) as origin:
        for cursor in WRONG_TYPES:
            params = {"cursor": cursor, "_meta": meta}
            body = {"jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": params}
            assert (await post(f"{origin}/mcp", body, headers)).json()["error"]["code"] == types.INVALID_PARAMS, (
                cursor
            )
        body = {"jsonrpc": "2.0", "id": 8, "method": "tools/list", "params": {"_meta": meta}}
        assert "many.t000" in (await post(f"{origin}/mcp", body, headers)).text


async def test_no_list_is_given_before_the_handshake_or_to_a_session_that_there_is_not() -> None:
    listed = {"jsonrpc": "2.0", "id": 7, "method": "tools/list"}
    async with http_app(many(8).asgi()) as origin:
        session = await open_session(f"{origin}/mcp")
        assert (await post(f"{origin}/mcp", listed, session | {"Mcp-Session-Id": "0" * 32})).status_code == 404
        assert (await post(f"{origin}/mcp", listed, {})).status_code == 400
    command = [sys.executable, str(WAYS_FILE), "stdio", "own"]
    sent = "".join(json.dumps(message) + "\n" for message in (listed, "rubbish", [], INITIALIZE))
    ended = await anyio.run_process(command, input=sent.encode())
    answers = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [answer.get("error", {}).get("code") for answer in answers if answer.get("id") == 7] == [
        types.INVALID_PARAMS
    ]
    assert [answer["id"] for answer in answers if "result" in answer] == [0]
