"""A specialist's list at the gateway: many pages, changes, pins, what it may expose, names that clash."""

from typing import Any

import mcp_types as types
import pytest
from mcp.server import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged

from mcpfusion import Fusion
from mcpfusion.swarm import SwarmGateway, require_gateway_clearance
from mcpfusion.swarm.trust import DESCRIPTION_LIMIT
from tests.support.serving import ERAS, sdk_client
from tests.swarm.faults import fronted
from tests.swarm.parts import SECRET, code_of, gateway_to, specialist, talk, text_of, until

pytestmark = pytest.mark.anyio
both_eras = pytest.mark.parametrize("era", ERAS)


class Tools:
    """A specialist made with the SDK alone, whose list can be anything."""

    def __init__(self, *tools: Any, page_size: int = 400) -> None:
        self.tools = [tool if isinstance(tool, dict) else {"name": tool} for tool in tools]
        self.page_size = page_size
        self.called: list[str] = []
        self.sessions: list[Any] = []
        self.bus = InMemorySubscriptionBus()
        self.server: Server[Any] = Server(
            "finance",
            on_list_tools=self._list,
            on_call_tool=self._call,
            on_subscriptions_listen=ListenHandler(self.bus),
        )

    def asgi(self, host: str) -> Any:
        return self.server.streamable_http_app(host=host)

    async def _list(self, ctx: Any, params: Any) -> types.ListToolsResult:
        self.sessions.append(ctx.session)
        start = int((params and params.cursor) or 0)
        end = start + self.page_size
        tools = [
            types.Tool.model_validate({"inputSchema": {"type": "object"}, **tool}) for tool in self.tools[start:end]
        ]
        return types.ListToolsResult(tools=tools, next_cursor=str(end) if end < len(self.tools) else None)

    async def _call(self, ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        self.called.append(params.name)
        return types.CallToolResult(content=[types.TextContent(text=f"did {params.name}")])

    async def changed(self) -> None:
        await self.bus.publish(ToolsListChanged())
        if self.sessions:
            await self.sessions[-1].send_tool_list_changed()


@both_eras
@pytest.mark.parametrize("handshake", [False, True], ids=["stateless", "sessions"])
async def test_1500_tools_on_4_pages_arrive_and_can_be_called(era: str, handshake: bool) -> None:
    many = Tools(*(f"tool_{n:04}" for n in range(1500)))
    async with (
        fronted(many, handshake=handshake) as (url, front),
        gateway_to({"finance": url}) as (gate, gateway),
        talk(gate, era) as client,
    ):
        result = await client.route("finance")
        assert len(result.structured_content["handoff"]["tools"]) == 1500
        names = [name for name in await client.names() if name.startswith("finance.")]
        assert names == [f"finance.tool_{n:04}" for n in range(1500)]
        assert text_of(await client.call("finance.tool_1499")) == "did tool_1499"
        tokens = [headers["x-mcpfusion-delegation"] for name, headers, _ in front.requests if name == "tools/list"]
        assert len(tokens) == len(set(tokens)) >= 4
        await client.back()
        assert (gateway.session_count, gateway.connecting_count) == (0, 0)
        await front.nothing_open()


async def test_every_page_of_a_specialist_that_refuses_used_tokens_arrives() -> None:
    f = Fusion("finance")
    for n in range(600):

        @f.action(f"pay.tool_{n}").describe("One of many").handle
        async def tool() -> str:
            return "done"

    server = f.server(middleware=[require_gateway_clearance(SECRET, scope="finance")])
    async with (
        fronted(server) as (url, front),
        gateway_to({"finance": url}) as (gate, _),
        talk(gate, "legacy") as client,
    ):
        result = await client.route("finance")
        assert not result.is_error, result
        assert len(await client.names()) == 601
        assert len(front.calls("tools/list")) == 3


@both_eras
@pytest.mark.parametrize("handshake", [False, True], ids=["stateless", "sessions"])
async def test_a_list_that_changes_is_told_and_seen(era: str, handshake: bool) -> None:
    tools = Tools("refund")
    heard: list[Any] = []

    async def hear(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            heard.append(message)

    async with (
        fronted(tools, handshake=handshake) as (url, front),
        gateway_to({"finance": url}) as (gate, gateway),
        talk(gate, era, message_handler=hear) as client,
    ):
        await client.names()
        await client.route("finance")
        if era == "legacy":
            await until(lambda: len(heard) == 1)
            assert await client.names() == ["finance.refund", "triage.return_to_triage"]
        assert code_of(await client.call("finance.payout")) == "NOT_IN_NAMESPACE"
        await until(lambda: handshake or bool(front.calls("subscriptions/listen")))
        await until(lambda: handshake or bool(tools.bus._subscribers) if hasattr(tools.bus, "_subscribers") else True)
        tools.tools = [{"name": "payout"}]
        await tools.changed()
        if era == "legacy":
            await until(lambda: len(heard) == 2)
            assert await client.names() == ["finance.payout", "triage.return_to_triage"]
        else:
            # The list without a handle is stable; what counts is where the call goes.
            for _ in range(200):
                answer = await client.call("finance.payout")
                if not answer.is_error:
                    break
        assert text_of(await client.call("finance.payout")) == "did payout"
        assert code_of(await client.call("finance.refund")) == "NOT_IN_NAMESPACE"
        assert (gateway.session_count, len(front.sessions)) == (1, int(handshake))
        await client.back()
        assert (gateway.session_count, gateway.connecting_count) == (0, 0)
        await front.nothing_open()


async def test_only_what_the_registry_allows_is_shown_and_called() -> None:
    tools = Tools("refund", "lookup_one", "lookup_two", "payout", "REFUND")
    async with (
        fronted(tools) as (url, _),
        gateway_to({"finance": {"url": url, "allow": ["refund", "lookup_*"]}}) as (gate, _),
        talk(gate, "legacy") as client,
    ):
        await client.route("finance")
        assert await client.names() == [
            "finance.refund",
            "finance.lookup_one",
            "finance.lookup_two",
            "triage.return_to_triage",
        ]
        for name in ("payout", "REFUND"):
            assert code_of(await client.call(f"finance.{name}")) == "NOT_IN_NAMESPACE"
        assert tools.called == []


def rogue(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, **more}


async def test_what_a_specialist_lists_is_bounded_and_visible() -> None:
    hidden = "Refund\u200b\u202e\x07 it" + "x" * 10_000
    schema = {
        "type": "object",
        "properties": {
            "amount": {"type": "integer", "description": hidden},
            "description": {"type": "string", "const": "kept\u200b as it is"},
        },
    }
    tools = Tools(
        rogue("refund", description=hidden, title="Re\u202efund", inputSchema=schema),
        rogue("bad\nname"),
        rogue("in\u200bvisible"),
        rogue(""),
        rogue("x" * 200),
        rogue("refund", description="another one of the name"),
    )
    async with (
        fronted(tools) as (url, _),
        gateway_to({"finance": url}) as (gate, _),
        talk(gate, "legacy") as client,
    ):
        await client.route("finance")
        listed = (await client.client.list_tools()).tools
        assert [tool.name for tool in listed] == ["finance.refund", "triage.return_to_triage"]
        tool = listed[0]
        assert tool.description is not None
        assert tool.description.startswith("[finance] Refund it")
        assert len(tool.description) <= DESCRIPTION_LIMIT + len("[finance] ")
        assert tool.title == "[finance] Refund"
        inner = tool.input_schema["properties"]
        assert inner["amount"]["description"].startswith("Refund it")
        assert len(inner["amount"]["description"]) <= DESCRIPTION_LIMIT
        assert inner["description"] == schema["properties"]["description"]


@both_eras
async def test_a_return_tool_of_a_rogue_specialist_is_not_shown_and_not_called(era: str) -> None:
    tools = Tools("return_to_triage", "call_specialist", "refund")
    async with (
        fronted(tools) as (url, _),
        gateway_to({"triage": url}, dispatcher=True) as (gate, gateway),
        talk(gate, era) as client,
    ):
        result = await client.route("triage")
        assert [tool["name"] for tool in result.structured_content["handoff"]["tools"]] == ["triage.refund"]
        names = await client.names()
        assert names.count("triage.return_to_triage") == 1
        assert names.count("triage.call_specialist") == 1
        assert (await client.back()).structured_content["nowWith"] == "triage"
        assert tools.called == []
        assert gateway.session_count == 0


async def test_tools_whose_names_clash_fail_the_handoff_with_both_names() -> None:
    async with (
        fronted(Tools("a.b", "a_b")) as (url, _),
        gateway_to({"finance": url}, separator="__") as (gate, gateway),
        talk(gate, "legacy") as client,
    ):
        result = await client.client.call_tool("triage.route", {"domain": "finance"})
        assert code_of(result) == "UPSTREAM_REFUSED"
        assert "'a.b' and 'a_b'" in text_of(result)
        assert gateway.session_count == 0


def test_specialists_whose_namespaces_clash_are_refused_at_the_start() -> None:
    with pytest.raises(ValueError, match=r"'fin\.eu' and 'fin_eu'"):
        SwarmGateway({"fin.eu": "http://a", "fin_eu": "http://b"}, SECRET, separator="__")
    SwarmGateway({"fin.eu": "http://a", "fin_eu": "http://b"}, SECRET)


@both_eras
async def test_the_gateways_own_tools_are_not_shadowed_by_a_namespace(era: str) -> None:
    f = Fusion("triage")

    @f.action("finance.summary").describe("The gateway's own, in a name like a specialist's").handle
    async def summary() -> str:
        return "own"

    tools = Tools("summary", "refund")
    async with fronted(tools) as (url, _):
        server = f.server(swarm_gateway=SwarmGateway({"finance": url}, SECRET, "triage"))
        async with fronted(server) as (gate, _), sdk_client(gate, era) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            assert names.count("finance.summary") == 1
            assert text_of(await client.call_tool("finance.summary", {})) == "own"
            assert tools.called == []


async def test_names_past_64_characters_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        fronted(Tools("x" * 60)) as (url, _),
        gateway_to({"finance": url}) as (gate, _),
        talk(gate, "2026-07-28") as client,
    ):
        await client.names()
        assert f"'finance.{'x' * 60}' is longer" in caplog.text


def test_the_gateways_own_names_past_64_characters_are_warned_about_at_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = "customer-support-triage-of-all"
    SwarmGateway({"finance": "http://a"}, SECRET, name)
    assert f"'{name}.return_to_{name}' is longer" in caplog.text
    caplog.clear()
    SwarmGateway({"finance": "http://a"}, SECRET, "triage", dispatcher=True)
    assert caplog.text == ""


async def test_without_a_session_all_who_list_at_once_see_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    import anyio

    async with (
        fronted(specialist()) as (url, front),
        gateway_to({"finance": url}) as (gate, _),
    ):
        seen: list[list[str]] = []

        async def look() -> None:
            async with talk(gate, "2026-07-28") as client:
                seen.append(await client.names())

        async with anyio.create_task_group() as group:
            for _ in range(6):
                group.start_soon(look)
        assert all("finance.pay.refund" in names for names in seen), seen
        assert len({tuple(names) for names in seen}) == 1
        assert len(front.calls("tools/list")) == 1
