"""What a handler raises: a generic message for the client, the cause in the log, and the server goes on."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from mcpfusion import Context, Fusion, ToolError
from tests.e2e.serving import over_http
from tests.support.serving import ERAS

pytestmark = pytest.mark.anyio

SECRET = "postgres://admin:hunter2@db/prod"

MACHINE = {"id": "m", "initial": "a", "states": {"a": {"on": {"GO": "b"}}, "b": {}}}


class Odd(Exception):
    def __str__(self) -> str:
        raise RuntimeError(SECRET)

    __repr__ = __str__


def raisers() -> dict[str, Callable[[], Any]]:
    async def error() -> str:
        raise RuntimeError(SECRET)

    def sync_error() -> str:
        raise KeyError(SECRET)

    async def group() -> str:
        raise ExceptionGroup(SECRET, [ValueError(SECRET), TypeError(SECRET)])

    async def cancelled() -> str:
        raise asyncio.CancelledError(SECRET)

    async def leaves() -> str:
        raise SystemExit(SECRET)

    def sync_leaves() -> str:
        raise SystemExit(SECRET)

    async def stops() -> str:
        raise StopAsyncIteration(SECRET)

    def sync_stops() -> str:
        raise StopIteration(SECRET)

    async def odd() -> str:
        raise Odd

    async def recursion() -> str:
        return await recursion()

    async def times_out() -> str:
        raise TimeoutError(SECRET)

    return {fn.__name__: fn for fn in (error, sync_error, group, cancelled, leaves, sync_leaves, stops)} | {
        fn.__name__: fn for fn in (sync_stops, odd, recursion, times_out)
    }


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("bound", [False, True])
async def test_nothing_of_it_reaches_the_client_and_the_server_goes_on(
    mode: str, bound: bool, caplog: pytest.LogCaptureFixture
) -> None:
    f = Fusion("raising")
    for name, handler in raisers().items():
        builder = f.action(f"run.{name}")
        (builder.bind_state("a", "GO") if bound else builder).handle(handler)
    f.query("run.fine").handle(lambda: "fine")
    options = {"fsm": f.fsm(MACHINE), "state_handle_key": "id"} if bound else {}
    async with over_http(f, mode, **options) as client:
        for name in raisers():
            caplog.clear()
            result = await client.call_tool(f"run.{name}", {"id": name} if bound else {})
            assert result.is_error, name
            doubtful = (
                bound and name == "cancelled"
            )  # something it waited for was cut off; nobody knows how far it was
            assert result.structured_content["code"] == ("IN_DOUBT" if doubtful else "INTERNAL_ERROR"), name
            for word in (SECRET, "hunter2", "Error'", "Traceback", "Exit", "Stop", "recursion depth"):
                assert word not in result.model_dump_json(), (name, word)
            if bound:
                assert result.meta["io.mcpfusion/workflow"]["state"] == "a", name
            ours = [record for record in caplog.records if record.name.startswith("mcpfusion")]
            assert [record for record in ours if record.levelno == logging.ERROR and record.exc_info], name
            assert (await client.call_tool("run.fine")).content[0].text == "fine", name


@pytest.mark.parametrize("mode", ERAS)
async def test_a_tool_error_is_the_clients_to_read(mode: str) -> None:
    f = Fusion("telling")

    @f.action("run.tell").handle
    async def tell(ctx: Context) -> str:
        raise ToolError("the card was declined", code="DECLINED", data={"retryAfter": 30, "odd": {1, 2}})

    @f.action("run.plain").handle
    def plain() -> str:
        raise ToolError("just no")

    @f.action("run.unprintable").handle
    def unprintable() -> str:
        raise ToolError("no \ud800 \x00 text", data={"bad": object(), "nan": float("nan")})

    async with over_http(f, mode) as client:
        told = await client.call_tool("run.tell")
        assert told.is_error
        assert told.content[0].text == "DECLINED: the card was declined"
        assert told.structured_content["code"] == "DECLINED"
        assert told.structured_content["retryAfter"] == 30
        plainly = await client.call_tool("run.plain")
        assert (plainly.content[0].text, plainly.structured_content) == ("just no", {"message": "just no"})
        assert (await client.call_tool("run.unprintable")).is_error


@pytest.mark.parametrize("mode", ERAS)
async def test_a_tool_error_with_an_output_schema_still_arrives(mode: str) -> None:
    f = Fusion("schema")

    @f.action("run.number").handle
    def number(good: bool) -> int:
        if not good:
            raise ToolError("no number", code="NONE")
        return 3

    async with over_http(f, mode) as client:
        await client.list_tools()
        result = await client.call_tool("run.number", {"good": False})
        assert (result.is_error, result.structured_content["code"]) == (True, "NONE")
        assert (await client.call_tool("run.number", {"good": True})).structured_content == {"result": 3}
