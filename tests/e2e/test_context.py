"""What a handler is given: progress, headers, principal, lifespan, logger, workflow; and where it runs."""

import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import anyio
import pytest

from mcpfusion import Context, Fusion
from tests.e2e.serving import over_http
from tests.gate_identity.users import AUTH, TOKENS, Verifier
from tests.support.serving import ERAS, http_app, http_client, sdk_client, stdio_server

pytestmark = pytest.mark.anyio

MACHINE = {"id": "m", "initial": "a", "states": {"a": {"on": {"GO": "b"}}, "b": {}}}


@pytest.mark.parametrize("mode", ERAS)
async def test_two_sync_handlers_overlap_and_the_server_answers_meanwhile(mode: str) -> None:
    f = Fusion("threads")
    both, asked = threading.Barrier(2, timeout=30), threading.Event()
    threads: set[int] = set()

    @f.action("run.sync").handle
    def sync() -> str:
        both.wait()  # broken unless the other one runs at the same time
        threads.add(threading.get_ident())
        return "met" if asked.wait(30) else "alone"

    @f.action("run.ask").handle
    async def ask() -> str:
        threads.add(threading.get_ident())
        asked.set()
        return "asked"

    results: list[str] = []
    async with over_http(f, mode) as client:

        async def one() -> None:
            results.append((await client.call_tool("run.sync")).content[0].text)

        async with anyio.create_task_group() as group:
            group.start_soon(one)
            group.start_soon(one)
            assert (await client.call_tool("run.ask")).content[0].text == "asked"
    assert results == ["met", "met"]
    assert len(threads) == 3


@pytest.mark.parametrize("mode", ERAS)
async def test_progress_reaches_the_callback_of_the_call_in_order(mode: str) -> None:
    f = Fusion("progress")

    @f.action("run.steps").bind_state("a", "GO").handle
    async def steps(ctx: Context) -> str:
        for number in (1, 2, 2, 1, 3):
            await ctx.progress(number, 3, f"step {number}")
        return "done"

    told: list[tuple[float, float | None, str | None]] = []
    complete = anyio.Event()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))
        if progress == 3:
            complete.set()

    async with over_http(f, mode, fsm=f.fsm(MACHINE), state_handle_key="id") as client:
        result = await client.call_tool("run.steps", {"id": "1"}, progress_callback=on_progress)
        assert not result.is_error
        with anyio.fail_after(20):
            await complete.wait()
        assert told == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]
        # Nobody asked to be told, and nothing breaks.
        assert not (await client.call_tool("run.steps", {"id": "2"})).is_error


@pytest.mark.parametrize("mode", ERAS)
async def test_over_http_a_handler_sees_headers_principal_session_and_meta(mode: str) -> None:
    f = Fusion("seen")
    seen: dict[str, Any] = {}

    @f.action("run.look").handle
    async def look(context: Context, word: str) -> str:
        seen.update(
            header=context.headers["x-word"],
            names=[name for name in context.headers if name != name.lower()],
            principal=context.principal,
            session=context.session_id,
            meta=context.meta.get("example.com/trace"),
            tool=context.tool,
            workflow=context.workflow if context.has_workflow else None,
            request=context.request_id,
        )
        return word

    server = f.server(auth=AUTH, token_verifier=Verifier())
    async with (
        http_app(server.asgi(host="127.0.0.1")) as origin,
        http_client(f"{origin}/mcp", mode, token=TOKENS["alice"], headers={"X-Word": "hello"}) as client,
    ):
        await client.call_tool("run.look", {"word": "x"}, meta={"example.com/trace": "t-1"})
    assert seen["header"] == "hello"
    assert seen["names"] == []
    assert "alice" in seen["principal"]
    assert (seen["session"] is not None) == (mode == "legacy")
    assert (seen["meta"], seen["tool"], seen["workflow"]) == ("t-1", "run.look", None)
    assert seen["request"] is not None


@pytest.mark.parametrize("mode", ERAS)
async def test_over_stdio_there_are_no_headers_and_nobody_is_authenticated(mode: str, tmp_path: Any) -> None:
    script = tmp_path / "server.py"
    script.write_text(
        "from mcpfusion import Context, Fusion\n"
        "f = Fusion('bare')\n"
        "@f.action('run.look').handle\n"
        "def look(ctx: Context) -> dict:\n"
        "    return {'headers': dict(ctx.headers), 'principal': ctx.principal, 'session': ctx.session_id}\n"
        "f.server().run('stdio')\n"
    )
    async with sdk_client(stdio_server(script), mode) as client:
        result = await client.call_tool("run.look")
        assert result.structured_content == {"headers": {}, "principal": None, "session": None}


@pytest.mark.parametrize("mode", ERAS)
async def test_what_the_lifespan_gives_is_there_and_is_taken_down_once(mode: str) -> None:
    events: list[str] = []

    @asynccontextmanager
    async def lifespan(server: Any) -> AsyncIterator[dict[str, int]]:
        events.append("up")
        try:
            yield {"pool": 7}
        finally:
            events.append("down")

    f = Fusion("living", lifespan=lifespan)

    @f.action("run.look").handle
    def look(ctx: Context) -> dict[str, int]:
        return dict(ctx.lifespan)

    async with over_http(f, mode) as client:
        for _ in range(2):
            assert (await client.call_tool("run.look")).structured_content == {"pool": 7}
    assert events == ["up", "down"]


@pytest.mark.parametrize("mode", ERAS)
async def test_the_logger_is_the_tools_own(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    f = Fusion("logging")

    @f.action("run.log").handle
    async def log(ctx: Context) -> None:
        ctx.logger.info("said %s", "so")

    caplog.set_level(logging.INFO, "mcpfusion.action")
    async with sdk_client(f.server().lowlevel, mode) as client:
        await client.call_tool("run.log")
    said = [(record.name, record.getMessage()) for record in caplog.records if record.name.startswith("mcpfusion")]
    assert said == [("mcpfusion.action.run.log", "said so")]


@pytest.mark.parametrize("mode", ERAS)
async def test_the_workflow_of_a_call_is_there_with_a_key_for_this_step_only(mode: str) -> None:
    f = Fusion("flow")
    keys: list[tuple[str, str, str, Any]] = []

    def note(ctx: Context) -> None:
        flow = ctx.workflow
        keys.append((flow.handle, flow.state, flow.idempotency_key, flow.value))

    @f.action("run.go").bind_state("a", "GO").handle
    async def go(ctx: Context, fail: bool) -> str:
        note(ctx)
        if fail:
            raise RuntimeError
        return "gone"

    @f.query("run.look").bind_state("*").handle
    def look(ctx: Context) -> str:
        note(ctx)
        return "seen"

    server = f.server(fsm=f.fsm(MACHINE), state_handle_key="id")
    async with sdk_client(server.lowlevel, mode) as client:
        for arguments in ({"id": "1", "fail": True}, {"id": "1", "fail": False}, {"id": "2", "fail": False}):
            await client.call_tool("run.go", arguments)
        await client.call_tool("run.look", {"id": "1"})
    first, again, other, looked = keys
    assert first == again
    assert first[2]
    assert len(first[2]) == 32
    assert other[2] not in ("", first[2])
    assert looked == ("1", "b", "", "b")


@pytest.mark.parametrize("mode", ERAS)
async def test_context_variables_reach_a_sync_handler(mode: str) -> None:
    who: ContextVar[str] = ContextVar("who", default="nobody")
    f = Fusion("vars")

    @f.action("run.who").handle
    def tell() -> str:
        return who.get()

    async def set_who(call: Any, call_next: Any) -> Any:
        token = who.set("the middleware")
        try:
            return await call_next(call)
        finally:
            who.reset(token)

    async with sdk_client(f.server(middleware=[set_who]).lowlevel, mode) as client:
        assert (await client.call_tool("run.who")).content[0].text == "the middleware"
