"""A handler that takes longer than its time limit leaves its step in doubt, whatever it does when it is stopped."""

import threading
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from mcp import Client

from mcpfusion import Context, Fusion, ToolError
from mcpfusion.stores.memory import MemoryStore
from tests.gate.payments import CONFIG
from tests.support.serving import ERAS

pytestmark = pytest.mark.anyio


class Shop:
    """A server whose `payment.capture` is the handler given, the first time."""

    def __init__(self, handler: Any, *, options: dict[str, Any] | None = None, **action: Any) -> None:
        self.runs = 0
        self.keys: list[str] = []
        self.now = 1000.0
        self.store = MemoryStore()
        f = Fusion("shop")

        def begin(ctx: Context) -> bool:
            self.runs += 1
            self.keys.append(ctx.workflow.idempotency_key)
            return self.runs == 1

        @f.action("payment.capture", bind_state=("due", "PAY"), **action).handle
        async def capture(id: str, ctx: Context) -> dict:
            if begin(ctx):
                await handler()
            return {"done": True}

        @f.action("payment.capture_in_thread", bind_state=("due", "PAY"), **action).handle
        def capture_in_thread(id: str, ctx: Context) -> dict:
            if begin(ctx):
                handler()
            return {"done": True}

        options = {"clock": lambda: self.now, "conflict_wait": 0.02, **(options or {})}
        self.server = f.server(fsm=f.fsm(CONFIG), state_handle_key="id", store=self.store, **options)

    async def call(self, mode: str, tool: str = "payment.capture") -> Any:
        async with Client(self.server.lowlevel, mode=mode) as client:
            with anyio.fail_after(20):
                return (await client.call_tool(tool, {"id": "p1"})).structured_content

    async def standing(self) -> tuple[str, int]:
        record = await self.store.read("", "p1")
        return record.state, len(await self.store.history("", "p1"))


async def turns_it_into_its_own_error() -> None:
    try:
        await anyio.sleep(30)
    except BaseException:
        raise RuntimeError("interrupted") from None


async def turns_it_into_a_tool_error() -> None:
    try:
        await anyio.sleep(30)
    except BaseException:
        raise ToolError("interrupted") from None


async def cleans_up_slowly() -> None:
    try:
        await anyio.sleep(30)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.1)


OVERRUNS = {
    "sleeps": lambda: anyio.sleep(30),
    "raises an error of its own": turns_it_into_its_own_error,
    "raises a tool error": turns_it_into_a_tool_error,
    "cleans up": cleans_up_slowly,
}


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("handler", OVERRUNS.values(), ids=OVERRUNS)
async def test_a_handler_over_its_time_limit_is_in_doubt(handler: Any, mode: str) -> None:
    shop = Shop(handler, time_limit=0.05)
    answer = await shop.call(mode)
    assert answer["code"] == "IN_DOUBT"
    assert "time limit of 0.05 s" in answer["message"]
    assert "Do not repeat it" in answer["message"]
    assert (await shop.call(mode))["code"] == "IN_DOUBT"
    assert shop.runs == 1
    assert await shop.standing() == ("due", 0)


@pytest.fixture
def thread_ends() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("mode", ERAS)
async def test_a_plain_function_over_its_time_limit_is_in_doubt_and_its_late_result_is_nothing(
    mode: str, thread_ends: threading.Event
) -> None:
    shop = Shop(lambda: thread_ends.wait(20), time_limit=0.05)
    assert (await shop.call(mode, "payment.capture_in_thread"))["code"] == "IN_DOUBT"
    thread_ends.set()
    assert (await shop.call(mode, "payment.capture_in_thread"))["code"] == "IN_DOUBT"
    assert await shop.standing() == ("due", 0)


@pytest.mark.parametrize("mode", ERAS)
async def test_where_a_step_may_be_retried_it_is_called_again_at_once_with_the_same_key(mode: str) -> None:
    shop = Shop(lambda: anyio.sleep(30), time_limit=0.05, on_doubt="retry")
    answer = await shop.call(mode)
    assert answer["code"] == "IN_DOUBT"
    assert "safe to call it again" in answer["message"]
    assert await shop.call(mode) == {"done": True}
    assert shop.keys[0] == shop.keys[1]
    assert await shop.standing() == ("paid", 1)


async def test_a_handler_that_ends_well_although_it_was_told_to_stop_counts() -> None:
    async def handler() -> None:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.15)

    shop = Shop(handler, time_limit=0.05)
    assert await shop.call(ERAS[1]) == {"done": True}
    assert await shop.standing() == ("paid", 1)


async def test_the_server_has_a_time_limit_for_actions_that_say_none() -> None:
    shop = Shop(lambda: anyio.sleep(30), options={"time_limit": 0.05})
    assert (await shop.call(ERAS[1]))["code"] == "IN_DOUBT"


async def test_the_lease_is_the_actions_time_limit_and_the_margin() -> None:
    leases: list[float] = []

    async def handler() -> None:
        leases.append((await shop.store.read("", "p1")).claim.lease_until)

    shop = Shop(handler, time_limit=7, options={"lease_margin": 2, "time_limit": 100})
    await shop.call(ERAS[1])
    shop = Shop(handler, options={"lease_margin": 2, "time_limit": 100})
    await shop.call(ERAS[1])
    assert leases == [1009.0, 1102.0]
