"""Middleware around calls: its order, what it may do to a call and its result, and what its faults do."""

import logging
from dataclasses import replace
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer

from mcpfusion import Call, CallNext, Context, Fusion, ToolError, ToolResult
from tests.e2e.serving import over_http
from tests.support.serving import ERAS, sdk_client

pytestmark = pytest.mark.anyio

MACHINE = {"id": "m", "initial": "a", "states": {"a": {"on": {"GO": "b"}}, "b": {}}}


def logged(log: list[str], name: str) -> Any:
    async def layer(call: Call, call_next: CallNext) -> ToolResult:
        log.append(f"> {name} {call.tool}")
        try:
            return await call_next(call)
        finally:
            log.append(f"< {name}")

    return layer


@pytest.mark.parametrize("mode", ERAS)
async def test_the_first_is_outermost_and_the_servers_goes_around_the_actions(mode: str) -> None:
    log: list[str] = []
    f = Fusion("order")

    @f.action("run.it").use(logged(log, "own 1"), logged(log, "own 2")).handle
    def it() -> str:
        log.append("handler")
        return "ran"

    f.action("run.other").handle(lambda: "other")
    async with over_http(f, mode, middleware=[logged(log, "all 1"), logged(log, "all 2")]) as client:
        await client.call_tool("run.it")
        names = ["all 1", "all 2", "own 1", "own 2"]
        assert log == [f"> {n} run.it" for n in names] + ["handler"] + [f"< {n}" for n in reversed(names)]
        log.clear()
        await client.call_tool("run.other")
        assert log == ["> all 1 run.other", "> all 2 run.other", "< all 2", "< all 1"]


@pytest.mark.parametrize("mode", ERAS)
async def test_it_can_answer_itself_and_rewrite_arguments_and_results(mode: str) -> None:
    got: list[Any] = []
    f = Fusion("rewriting")

    @f.action("run.take").handle
    def take(number: int) -> str:
        got.append(number)
        return str(number)

    async def layer(call: Call, call_next: CallNext) -> ToolResult:
        if call.arguments.get("number") == "stop":
            return ToolResult([{"type": "text", "text": "stopped"}])
        arguments = {**call.arguments, "number": int(call.arguments["number"]) + 1}
        result = await call_next(replace(call, arguments=arguments))
        return replace(result, content=[*result.content, {"type": "text", "text": "seen"}], meta={"example.com/m": 1})

    async with over_http(f, mode, middleware=[layer]) as client:
        assert (await client.call_tool("run.take", {"number": "stop"})).content[0].text == "stopped"
        assert got == []
        result = await client.call_tool("run.take", {"number": 4})
        assert [block.text for block in result.content] == ["5", "seen"]
        assert result.meta["example.com/m"] == 1
        assert got == [5]


@pytest.mark.parametrize("mode", ERAS)
async def test_a_handle_that_it_rewrites_names_the_workflow_that_moves(mode: str) -> None:
    f = Fusion("rewriting")
    f.action("run.go").bind_state("a", "GO").handle(lambda: "gone")

    async def layer(call: Call, call_next: CallNext) -> ToolResult:
        return await call_next(replace(call, arguments={"id": f"tenant-{call.arguments['id']}"}))

    server = f.server(fsm=f.fsm(MACHINE), state_handle_key="id", middleware=[layer])
    async with sdk_client(server.lowlevel, mode) as client:
        block = (await client.call_tool("run.go", {"id": "1"})).meta["io.mcpfusion/workflow"]
        assert (block["handle"], block["state"]) == ("tenant-1", "b")


@pytest.mark.parametrize("mode", ERAS)
async def test_a_call_that_it_answers_moves_nothing(mode: str) -> None:
    f = Fusion("short")
    ran: list[int] = []
    f.action("run.go").bind_state("a", "GO").handle(lambda: ran.append(1))

    async def layer(call: Call, call_next: CallNext) -> ToolResult:
        return ToolResult([{"type": "text", "text": "not today"}])

    server = f.server(fsm=f.fsm(MACHINE), middleware=[layer])
    async with sdk_client(server.lowlevel, mode) as client:
        assert not (await client.call_tool("run.go")).is_error
        assert [tool.name for tool in (await client.list_tools()).tools] == ["run.go"]
    assert ran == []


async def raises_tool_error(call: Call, call_next: CallNext) -> ToolResult:
    raise ToolError("slow down", code="RATE_LIMITED", data={"after": 3})


async def raises(call: Call, call_next: CallNext) -> ToolResult:
    raise RuntimeError("a secret reason")


async def raises_after(call: Call, call_next: CallNext) -> ToolResult:
    await call_next(call)
    raise RuntimeError("a secret reason")


async def returns_rubbish(call: Call, call_next: CallNext) -> Any:
    return {"content": "a secret reason"}


async def returns_nothing(call: Call, call_next: CallNext) -> Any:
    await call_next(call)


def is_not_async(call: Call, call_next: CallNext) -> Any:
    return "a secret reason"


async def makes_what_no_message_carries(call: Call, call_next: CallNext) -> ToolResult:
    return ToolResult([{"type": "text", "text": "x"}], {"a secret reason": object()})


FAULTS = [raises, raises_after, returns_rubbish, returns_nothing, is_not_async, makes_what_no_message_carries]


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("layer", FAULTS)
async def test_its_faults_are_logged_and_not_told(
    mode: str, own: bool, layer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    f = Fusion("faulty")
    builder = f.action("run.it")
    (builder.use(layer) if own else builder).handle(lambda: "ran")
    f.action("run.fine").handle(lambda: "fine")
    async with over_http(f, mode, middleware=[] if own else [skipping("run.fine", layer)]) as client:
        result = await client.call_tool("run.it")
        expected = "RESULT_INVALID" if layer is makes_what_no_message_carries else "INTERNAL_ERROR"
        assert (result.is_error, result.structured_content["code"]) == (True, expected)
        assert "secret" not in result.model_dump_json()
        assert [r for r in caplog.records if r.name.startswith("mcpfusion") and r.levelno == logging.ERROR]
        assert (await client.call_tool("run.fine")).content[0].text == "fine"


def skipping(tool: str, layer: Any) -> Any:
    async def around(call: Call, call_next: CallNext) -> ToolResult:
        return await (call_next(call) if call.tool == tool else layer(call, call_next))

    def plainly(call: Call, call_next: CallNext) -> Any:
        return call_next(call) if call.tool == tool else layer(call, call_next)

    return plainly if layer is is_not_async else around


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("own", [False, True])
async def test_its_tool_errors_are_told(mode: str, own: bool) -> None:
    f = Fusion("telling")
    builder = f.action("run.it")
    (builder.use(raises_tool_error) if own else builder).handle(lambda: "ran")
    async with over_http(f, mode, middleware=[] if own else [raises_tool_error]) as client:
        result = await client.call_tool("run.it")
        assert result.content[0].text == "RATE_LIMITED: slow down"
        assert result.structured_content["after"] == 3


@pytest.mark.parametrize("mode", ERAS)
async def test_it_sees_calls_of_the_tools_that_the_server_had_already(mode: str) -> None:
    base = MCPServer("base")

    @base.tool(name="old.add")
    def add(a: int, b: int) -> int:
        return a + b

    seen: list[Any] = []

    async def layer(call: Call, call_next: CallNext) -> ToolResult:
        seen.append((call.tool, dict(call.arguments), call.action and call.action.name, call.context.tool))
        arguments = {**call.arguments, "b": 40} if call.tool == "old.add" else call.arguments
        result = await call_next(replace(call, arguments=arguments))
        return replace(result, meta={"example.com/seen": True})

    f = Fusion("new")
    f.action("new.it").handle(lambda: "new")
    async with over_http(f, mode, base=base, middleware=[layer]) as client:
        result = await client.call_tool("old.add", {"a": 2, "b": 1})
        assert result.structured_content == {"result": 42}
        assert result.meta["example.com/seen"] is True
        await client.call_tool("new.it")
    assert seen == [("old.add", {"a": 2, "b": 1}, None, "old.add"), ("new.it", {}, "new.it", "new.it")]


@pytest.mark.parametrize("mode", ERAS)
async def test_a_call_that_it_sends_to_another_tool_is_judged_as_that_tools(mode: str) -> None:
    base = MCPServer("base")

    @base.tool(name="old.one")
    def one() -> str:
        return "one"

    @base.tool(name="old.two")
    def two() -> str:
        return "two"

    ran: list[str] = []
    f = Fusion("routing")
    f.action("run.free").handle(lambda: ran.append("free"))
    f.action("run.gated").bind_state("b").handle(lambda: ran.append("gated"))

    async def layer(call: Call, call_next: CallNext) -> ToolResult:
        to = {"run.free": "run.gated", "run.gated": "run.free", "old.one": "old.two"}.get(call.tool, call.tool)
        return await call_next(replace(call, tool=to))

    server = f.server(fsm=f.fsm(MACHINE), base=base, middleware=[layer])
    async with sdk_client(server.lowlevel, mode) as client:
        assert (await client.call_tool("run.free")).structured_content["code"] == "FORBIDDEN"
        assert ran == []
        await client.call_tool("run.gated")
        assert ran == ["free"]
        assert (await client.call_tool("old.one")).content[0].text == "two"


@pytest.mark.parametrize("mode", ERAS)
async def test_it_wraps_each_run_of_a_call_that_asks_a_question(mode: str) -> None:
    from pydantic import BaseModel

    class Sure(BaseModel):
        sure: bool

    log: list[str] = []
    f = Fusion("asking")

    @f.action("run.ask").handle
    async def ask(ctx: Context) -> str:
        return str((await ctx.elicit("Sure?", Sure)).data)

    async def answer(context: Any, params: Any) -> Any:
        import mcp_types as types

        return types.ElicitResult(action="accept", content={"sure": True})

    async with over_http(f, mode, middleware=[logged(log, "all")], elicitation_callback=answer) as client:
        assert (await client.call_tool("run.ask")).content[0].text == "sure=True"
    assert log == ["> all run.ask", "< all"] * 2
