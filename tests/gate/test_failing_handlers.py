"""Handlers that fail in every way there is: where the workflow stands then, and whether the next call may run."""

import asyncio
import sys
import threading
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp_types import TextContent

from mcpfusion import Context, Fusion, ToolError, ToolResult
from mcpfusion.stores.memory import MemoryStore
from tests.gate.payments import CONFIG
from tests.support.serving import ERAS

pytestmark = pytest.mark.anyio

SECRET = "card 4111 1111 1111 1111"


class Shop:
    """A server whose `payment.capture` is the given handler the first time, and succeeds from then on."""

    def __init__(self, handler: Any, transition: Any = "PAY", **options: Any) -> None:
        self.runs = 0
        self.keys: list[str] = []
        self.store = MemoryStore()
        self.now = 1000.0
        f = Fusion("shop")
        action = {name: options.pop(name) for name in ("on_doubt", "time_limit", "keep_result") if name in options}

        @f.action("payment.capture", bind_state=("due", transition), **action).handle
        async def capture(id: str, ctx: Context, n: int = 0) -> Any:
            self.runs += 1
            self.keys.append(ctx.workflow.idempotency_key)
            return await handler() if self.runs == 1 else {"done": True}

        @f.action("payment.void", bind_state=("due", "VOID")).handle
        async def void(id: str) -> dict:
            return {"void": True}

        options = {"clock": lambda: self.now, "conflict_wait": 0.02, **options}
        self.server = f.server(fsm=f.fsm(CONFIG), state_handle_key="id", store=self.store, **options)

    async def call(self, mode: str, tool: str = "payment.capture", **arguments: Any) -> Any:
        async with Client(self.server.lowlevel, mode=mode) as client:
            with anyio.fail_after(20):
                return await client.call_tool(tool, {"id": "p1", **arguments})

    async def code(self, mode: str, tool: str = "payment.capture") -> str:
        result = await self.call(mode, tool)
        return (result.structured_content or {}).get("code", "UNCODED") if result.is_error else "OK"

    async def standing(self) -> tuple[str, int, bool]:
        record = await self.store.read("", "p1")
        return record.state, len(await self.store.history("", "p1")), record.claim is not None


def raising(error: BaseException) -> Any:
    async def handler() -> None:
        raise error

    return handler


def raising_in_a_group(*errors: BaseException) -> Any:
    async def handler() -> None:
        async with anyio.create_task_group() as group:
            for error in errors:
                group.start_soon(raising(error))

    return handler


async def with_a_dead_task() -> None:
    task = asyncio.ensure_future(asyncio.sleep(60))
    task.cancel()
    await task


EXCEPTIONS = {
    "an exception": raising(RuntimeError(SECRET)),
    "an exception in a group": raising_in_a_group(RuntimeError(SECRET)),
    "several exceptions": raising_in_a_group(RuntimeError(SECRET), ToolError("part of it"), ValueError()),
    "an exception nobody can print": raising(type("Odd", (Exception,), {"__str__": lambda self: 1 / 0})()),
    "a time-out of its own": raising(TimeoutError(SECRET)),
}


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("handler", EXCEPTIONS.values(), ids=EXCEPTIONS)
async def test_an_exception_moves_nothing_frees_the_slot_and_tells_the_client_nothing(
    handler: Any, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop(handler)
    result = await shop.call(mode)
    assert result.structured_content["code"] == "INTERNAL_ERROR"
    assert result.structured_content["message"] == "'payment.capture' failed for an internal reason."
    assert "4111" not in str(result)
    assert "the handler of 'payment.capture' raised" in caplog.text
    assert await shop.standing() == ("due", 0, False)
    assert await shop.code(mode) == "OK"
    assert shop.keys[0] == shop.keys[1]
    assert await shop.standing() == ("paid", 1, False)


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("where", [raising, raising_in_a_group])
async def test_a_tool_error_reaches_the_client_whole_and_frees_the_slot_for_another_event(
    where: Any, mode: str
) -> None:
    shop = Shop(where(ToolError("the card was declined", code="DECLINED", data={"retry_after": 5})))
    result = await shop.call(mode)
    assert result.is_error
    assert result.content[0].text == "DECLINED: the card was declined"
    assert result.structured_content == {"code": "DECLINED", "message": "the card was declined", "retry_after": 5}
    block = result.meta["io.mcpfusion/workflow"]
    assert block == {
        "handle": "p1", "state": "due", "allowedActions": ["payment.capture", "payment.void"], "final": False,
    }  # fmt: skip
    assert await shop.standing() == ("due", 0, False)
    assert await shop.code(mode, "payment.void") == "OK"


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("on_doubt", ["hold", "retry"])
async def test_a_tool_error_in_doubt_holds_the_workflow_or_may_be_tried_again(on_doubt: str, mode: str) -> None:
    shop = Shop(raising(ToolError("no answer from the bank", in_doubt=True)), on_doubt=on_doubt)
    result = await shop.call(mode)
    assert result.structured_content["code"] == "IN_DOUBT"
    assert "no answer from the bank" in result.structured_content["message"]
    assert await shop.standing() == ("due", 0, True)
    assert await shop.code(mode, "payment.void") == ("IN_DOUBT" if on_doubt == "hold" else "OK")
    assert shop.runs == 1


@pytest.mark.parametrize("mode", ERAS)
async def test_a_step_in_doubt_that_may_be_retried_keeps_its_key(mode: str) -> None:
    shop = Shop(raising(ToolError("no answer from the bank", in_doubt=True)), on_doubt="retry")
    assert await shop.code(mode) == "IN_DOUBT"
    assert await shop.code(mode) == "OK"
    assert len(shop.keys) == 2
    assert shop.keys[0] == shop.keys[1]
    assert await shop.standing() == ("paid", 1, False)


@pytest.mark.parametrize("mode", ERAS)
async def test_of_several_errors_one_in_doubt_is_enough(mode: str) -> None:
    shop = Shop(raising_in_a_group(ToolError("declined"), ToolError("no answer from the bank", in_doubt=True)))
    assert await shop.code(mode) == "IN_DOUBT"
    assert await shop.code(mode) == "IN_DOUBT"
    assert shop.runs == 1


@pytest.mark.parametrize("mode", ERAS)
async def test_an_error_that_is_returned_moves_nothing(mode: str) -> None:
    async def handler() -> ToolResult:
        return ToolResult([{"type": "text", "text": "no"}], is_error=True)

    shop = Shop(handler)
    assert (await shop.call(mode)).content[0].text == "no"
    assert await shop.standing() == ("due", 0, False)
    assert await shop.code(mode) == "OK"


class Unprintable:
    """Looks like a content block, and cannot be written down."""

    type = "text"

    def model_dump(self, **_: Any) -> dict[str, Any]:
        raise KeyError(SECRET)


UNSHOWABLE = {
    "a lock": {"lock": threading.Lock()},
    "an object of its own": Unprintable(),
    "a block with an object": TextContent(type="text", text="t", _meta={"x": object()}),
    "a plain block with an object": {"type": "text", "text": "t", "_meta": {"x": object()}},
    "blocks": [{"type": "text", "text": "t"}, Unprintable()],
    "a generator": (each for each in ()),
}


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("keep_result", [None, 60])
@pytest.mark.parametrize("value", UNSHOWABLE.values(), ids=UNSHOWABLE)
async def test_a_result_that_cannot_be_shown_counts_all_the_same(
    value: Any, keep_result: float | None, mode: str
) -> None:
    async def handler() -> Any:
        return value

    shop = Shop(handler, **({"keep_result": keep_result} if keep_result else {}))
    result = await shop.call(mode)
    assert result.structured_content == {
        "code": "RESULT_INVALID",
        "message": "'payment.capture' was carried out, but its result cannot be shown.",
    }
    assert await shop.standing() == ("paid", 1, False)
    assert await shop.code(mode) == ("ALREADY_DONE" if keep_result is None else "RESULT_INVALID")
    assert shop.runs == 1


@pytest.mark.parametrize("mode", ERAS)
async def test_bad_arguments_claim_nothing(mode: str) -> None:
    shop = Shop(raising(AssertionError()))
    for arguments in ({"n": "x"}, {"n": [1]}, {"m": 1}, {"n": None}):
        assert (await shop.call(mode, **arguments)).structured_content["code"] == "INVALID_ARGUMENTS"
    assert await shop.store.read("", "p1") is None
    assert shop.runs == 0


async def asks_to_exit() -> None:
    sys.exit(SECRET)


async def exits_in_a_group() -> None:
    async with anyio.create_task_group():
        await asks_to_exit()


NO_EXCEPTIONS = {
    "a task that was cancelled": with_a_dead_task,
    "an exit, as command line code asks for": asks_to_exit,
    "an exit in a group": exits_in_a_group,
}


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("handler", NO_EXCEPTIONS.values(), ids=NO_EXCEPTIONS)
async def test_what_is_no_exception_does_not_bring_the_server_down(handler: Any, mode: str) -> None:
    shop = Shop(handler, on_doubt="retry")
    async with Client(shop.server.lowlevel, mode=mode) as client:
        with anyio.fail_after(20):
            result = await client.call_tool("payment.capture", {"id": "p1"})
            assert result.is_error
            assert "4111" not in str(result)
            assert not (await client.call_tool("payment.capture", {"id": "p1"})).is_error
    assert await shop.standing() == ("paid", 1, False)
