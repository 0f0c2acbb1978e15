"""What a server's own tools do, they still do behind a gate: all content, progress, questions, whole contexts."""

from typing import Any

import mcp_types as types
import pytest
from mcp.client import ClientRequestContext
from mcp.server import Server
from mcp.server.mcpserver import Context as SdkContext
from mcp.server.mcpserver import MCPServer

from mcpfusion import StateMachineGate, ToolError, gate_server
from tests.support.hearing import hearing_client
from tests.support.serving import ERAS, http_app, sdk_client

pytestmark = pytest.mark.anyio

WORKFLOW = "io.mcpfusion/workflow"
SHOP = {"id": "shop", "initial": "cart", "states": {"cart": {"on": {"PAY": "paid"}}, "paid": {}}}

RICH: dict[str, Any] = {
    "content": [
        {"type": "text", "text": "über", "annotations": {"audience": ["user"], "priority": 0.5}},
        {"type": "image", "data": "aGk=", "mimeType": "image/png", "_meta": {"a": 1}},
        {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
        {"type": "resource_link", "uri": "memo://terms", "name": "terms", "title": "Terms", "size": 7},
        {"type": "resource", "resource": {"uri": "memo://terms", "text": "30 days", "mimeType": "text/plain"}},
    ],
    "structuredContent": {"total": 12.5, "items": [None, {"deep": []}], "": False, "none": None},
    "_meta": {"example.com/trace": {"id": [1, 2]}},
}


def gated(handler: Any, properties: dict[str, Any] | None = None, **options: Any) -> Server[Any]:
    """Return a low-level server whose tool `pay` is bound to the cart, and `pay.free` the same but not bound."""
    schema = {"type": "object", "properties": properties or {}}

    async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[types.Tool(name=name, input_schema=schema) for name in ("pay", "pay.free")]
        )

    server: Server[Any] = Server("shop", on_list_tools=list_tools, on_call_tool=handler)
    gate = StateMachineGate(SHOP)
    gate.bind_tool("pay", ["cart"], "PAY")
    gate_server(server, gate, **options)
    return server


async def rich(ctx: Any, params: Any) -> types.CallToolResult:
    return types.CallToolResult.model_validate(RICH)


@pytest.mark.parametrize("mode", ERAS)
async def test_every_kind_of_content_comes_through_and_the_block_is_added(mode: str) -> None:
    async with http_app(gated(rich).streamable_http_app()) as origin, sdk_client(f"{origin}/mcp", mode) as client:
        for tool in ("pay.free", "pay"):
            wire = (await client.call_tool(tool)).model_dump(by_alias=True, mode="json", exclude_none=True)
            assert wire["content"] == RICH["content"]
            assert wire["structuredContent"] == RICH["structuredContent"]
            assert wire["_meta"]["example.com/trace"] == {"id": [1, 2]}
            assert (WORKFLOW in wire["_meta"]) is (tool == "pay")


@pytest.mark.parametrize("mode", ERAS)
async def test_a_tool_that_answers_with_plain_data_is_understood(mode: str) -> None:
    async def plain(ctx: Any, params: Any) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": "ok"}], "resultType": "complete"}

    async with hearing_client(gated(plain), mode) as (client, heard):
        await client.list_tools()
        assert (await client.call_tool("pay")).meta[WORKFLOW]["state"] == "paid"
        await heard.wait(1)


@pytest.mark.parametrize("mode", ERAS)
async def test_an_effect_in_doubt_is_held_for_a_servers_own_tool_too(mode: str) -> None:
    async def doubtful(ctx: Any, params: Any) -> types.CallToolResult:
        raise ToolError("the bank did not answer", in_doubt=True)

    async with hearing_client(gated(doubtful), mode) as (client, heard):
        for _ in range(2):
            result = await client.call_tool("pay")
            assert result.structured_content["code"] == "IN_DOUBT"
            assert result.meta[WORKFLOW]["allowedActions"] == []
        assert "the bank did not answer" in (await client.call_tool("pay.free")).content[0].text
        assert heard.count() == 0


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize(("property_", "handle"), [({"type": "integer"}, 7), ({"type": "string"}, "7")])
async def test_a_handle_the_tool_takes_itself_reaches_it_as_it_was_sent(
    property_: dict[str, Any], handle: Any, mode: str
) -> None:
    given: list[Any] = []

    async def note(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        given.append((params.arguments, (ctx.params or {}).get("arguments")))
        return types.CallToolResult(content=[])

    async with sdk_client(gated(note, {"id": property_}, state_handle_key="id"), mode) as client:
        result = await client.call_tool("pay", {"id": handle, "note": "x"})
        assert result.meta[WORKFLOW]["handle"] == "7"
        assert given == [({"id": handle, "note": "x"},) * 2]


@pytest.mark.parametrize("mode", ERAS)
async def test_a_handle_the_tool_does_not_take_is_nowhere_in_what_it_is_given(mode: str) -> None:
    given: list[Any] = []

    async def note(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        given.append((params.arguments, (ctx.params or {}).get("arguments")))
        return types.CallToolResult(content=[])

    async with sdk_client(gated(note, {"note": {"type": "string"}}, state_handle_key="id"), mode) as client:
        # Called before anything was listed: the server is asked what the tool takes.
        assert not (await client.call_tool("pay", {"id": "A-1", "note": "x"})).is_error
        assert not (await client.call_tool("pay.free", {"id": "A-1", "note": "x"})).is_error
        assert given == [({"note": "x"},) * 2, ({"id": "A-1", "note": "x"},) * 2]


def decorated(kind: str) -> Any:
    """Return an `MCPServer` or a `FastMCP` whose tools use the whole context that their server gives them."""
    ran: list[str] = []
    if kind == "mcpserver":
        server: Any = MCPServer("shop")
        context: Any = SdkContext
    else:
        from fastmcp import Context, FastMCP

        server, context = FastMCP("shop"), Context

    async def pay(ctx: Any, amount: int) -> str:
        await ctx.report_progress(1, 2)
        await ctx.report_progress(2, 2)
        ran.append(str(await ctx.read_resource("memo://terms")))
        return f"paid {amount}"

    pay.__annotations__["ctx"] = context
    server.tool(name="pay")(pay)
    server.resource("memo://terms", name="terms")(lambda: "30 days")
    gate = StateMachineGate(SHOP)
    gate.bind_tool("pay", ["cart"], "PAY")
    gate_server(server, gate)
    return server


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("kind", ["mcpserver", "fastmcp"])
async def test_progress_and_the_servers_own_context_work_inside_a_passage(kind: str, mode: str) -> None:
    server = decorated(kind)
    app = server.streamable_http_app() if kind == "mcpserver" else server.http_app()
    progress: list[float] = []

    async def on_progress(done: float, total: float | None, message: str | None) -> None:
        progress.append(done)

    async with http_app(app) as origin, hearing_client(f"{origin}/mcp", mode) as (client, heard):
        (tool,) = (await client.list_tools()).tools
        assert set(tool.input_schema["properties"]) == {"amount"}
        result = await client.call_tool("pay", {"amount": 3}, progress_callback=on_progress)
        assert not result.is_error, result.content
        assert result.content[0].text == "paid 3"
        assert progress == [1, 2]
        assert result.meta[WORKFLOW]["state"] == "paid"
        await heard.wait(1)


QUESTION = types.ElicitRequest(
    params=types.ElicitRequestFormParams(
        message="Sure?", requested_schema={"type": "object", "properties": {"sure": {"type": "boolean"}}}
    )
)


async def test_a_question_in_the_way_of_2026_07_28_leaves_state_and_slot_until_it_is_answered() -> None:
    async def ask(ctx: Any, params: types.CallToolRequestParams) -> Any:
        if params.input_responses is None:
            return types.InputRequiredResult(input_requests={"q": QUESTION}, request_state="not json: 7")
        assert params.request_state == "not json: 7"
        return types.CallToolResult(content=[types.TextContent(text="paid")])

    states: list[str] = []

    async def answer(context: ClientRequestContext, params: Any) -> types.ElicitResult:
        other = await context.session.call_tool("pay", {}, allow_input_required=True)
        states.append(type(other).__name__)  # the slot is free: another call gets as far as its own question
        return types.ElicitResult(action="accept", content={"sure": True})

    async with (
        http_app(gated(ask).streamable_http_app()) as origin,
        sdk_client(f"{origin}/mcp", "2026-07-28", elicitation_callback=answer) as client,
    ):
        result = await client.call_tool("pay")
        assert not result.is_error, result.content
        assert result.meta[WORKFLOW]["state"] == "paid"
        assert states == ["InputRequiredResult"]


async def test_a_question_in_the_handshake_era_is_asked_inside_the_step() -> None:
    async def ask(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        answer = await ctx.session.elicit_form("Sure?", QUESTION.params.requested_schema, ctx.request_id)
        return types.CallToolResult(content=[], is_error=answer.action != "accept")

    answers = ["decline", "cancel", "accept"]

    async def answer(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action=answers.pop(0), content={"sure": True})

    async with (
        http_app(gated(ask).streamable_http_app()) as origin,
        sdk_client(f"{origin}/mcp", "legacy", elicitation_callback=answer) as client,
    ):
        results = [await client.call_tool("pay") for _ in range(3)]
        assert [result.meta[WORKFLOW]["state"] for result in results] == ["cart", "cart", "paid"]
