"""The end of workflows: calls are refused after it, the store is cleared, and nothing is taken away too soon."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from mcpfusion import Context, Fusion, ToolError
from mcpfusion.gate import records
from mcpfusion.gate.operator import reset, resolve_not_done
from mcpfusion.stores import InMemoryFsmStateStore, MemoryStore, SqliteStore, VersionedFsmStateStore
from mcpfusion.wire import timers
from tests.support.serving import ERAS, http_app, http_client, sdk_client

pytestmark = pytest.mark.anyio

ORDER = {
    "id": "order",
    "initial": "cart",
    "states": {
        "cart": {"on": {"PAY": "paid", "HOLD": "cart"}},
        "paid": {"on": {"SHIP": "shipped"}},
        "shipped": {"type": "final"},
    },
}
START = 1_800_000_000.0
LIFE = 100.0
DAY = 24 * 3600.0


@dataclass
class Shop:
    """Orders with a clock that a test sets, and what the handlers did."""

    store: Any
    now: float = START
    keys: list[str] = field(default_factory=list)

    def server(self, machine: dict[str, Any] = ORDER, **options: Any) -> Any:
        f = Fusion("orders", version="1.0.0")

        def note(ctx: Context) -> str:
            self.keys.append(ctx.workflow.idempotency_key)
            return ctx.workflow.state

        @f.mutation("order.pay").bind_state("cart", "PAY").handle
        def pay(ctx: Context) -> str:
            return note(ctx)

        @f.mutation("order.ship").bind_state("paid", "SHIP").handle
        def ship(ctx: Context) -> str:
            return note(ctx)

        @f.query("order.look").bind_state("*").handle
        def look(ctx: Context) -> str:
            return note(ctx)

        @f.mutation("order.lose").bind_state("cart", "PAY").handle
        def lose(ctx: Context) -> str:
            raise ToolError("the bank did not answer", in_doubt=True)

        @f.query("order.try").bind_state("cart", "PAY").on_doubt("retry").handle
        def try_(ctx: Context) -> str:
            raise ToolError("the bank did not answer", in_doubt=True)

        if options.pop("mints", False):

            @f.mutation("order.open").mints_handle().handle
            def open_() -> str:
                return "opened"

        given = {"expires_after": LIFE, "clock": lambda: self.now, "store": self.store, **options}
        return f.server(fsm=f.fsm(machine), **given)


@pytest.fixture(params=["memory", "sqlite"])
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Shop]:
    store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "orders.db")
    yield Shop(store)
    await store.aclose()


@asynccontextmanager
async def over_http(server: Any, mode: str) -> AsyncIterator[Client]:
    async with http_app(server.asgi(host="127.0.0.1")) as origin, http_client(f"{origin}/mcp", mode) as client:
        yield client


async def code(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    return str(result.structured_content["code"]) if result.is_error and result.structured_content else "ok"


async def names(client: Client) -> set[str]:
    return {tool.name for tool in (await client.list_tools()).tools}


async def record_of(shop: Shop, handle: str) -> Any:
    record = await shop.store.read("", handle)
    assert record is not None
    return record


async def until_left(shop: Shop, number: int) -> None:
    with anyio.fail_after(10):
        while len(await shop.store.list_workflows()) != number:  # noqa: ASYNC110 - nothing tells of a removal
            await anyio.sleep(0.01)


@pytest.mark.parametrize("mode", ERAS)
async def test_a_call_after_the_end_is_refused_and_says_when_it_was_and_what_to_do(shop: Shop, mode: str):
    async with over_http(shop.server(state_handle_key="id"), mode) as client:
        assert await code(client, "order.pay", id="A") == "ok"
        shop.now = START + LIFE - 1
        assert await code(client, "order.look", id="A") == "ok"  # looking is no write and puts nothing off
        shop.now = START + LIFE
        for tool in ("order.ship", "order.look", "order.pay"):
            refused = await client.call_tool(tool, {"id": "A"})
            assert refused.is_error
            assert refused.structured_content == {
                "code": "EXPIRED",
                "message": f"'{tool}' did not run: this workflow expired at 2027-01-15T08:01:40Z, and nothing runs "
                "on it any more. Begin a new one under another handle.",
                "handle": "A",
                "expiredAt": "2027-01-15T08:01:40Z",
                "allowedActions": [],
            }
        assert len(shop.keys) == 2
        assert await code(client, "order.pay", id="B") == "ok"


@pytest.mark.parametrize("mode", ERAS)
async def test_each_write_puts_the_end_off(shop: Shop, mode: str):
    async with over_http(shop.server(state_handle_key="id"), mode) as client:
        assert await code(client, "order.pay", id="A") == "ok"
        shop.now += LIFE - 1
        assert await code(client, "order.ship", id="A") == "ok"
        assert (await record_of(shop, "A")).expires_at == shop.now + LIFE
        shop.now += LIFE - 1
        assert await code(client, "order.look", id="A") == "ok"


async def test_a_session_does_not_see_what_its_expired_workflow_showed(shop: Shop):
    async with over_http(shop.server(state_handle_key="id"), "legacy") as client:
        assert await code(client, "order.pay", id="A") == "ok"
        assert "order.ship" in await names(client)
        shop.now += LIFE
        assert await names(client) == {"order.pay", "order.look", "order.lose", "order.try"}


@pytest.mark.parametrize("mode", ERAS)
async def test_who_names_no_workflow_begins_a_new_one_after_the_end(shop: Shop, mode: str):
    async with sdk_client(shop.server().lowlevel, mode) as client:
        assert await code(client, "order.pay") == "ok"
        first = await record_of(shop, "@process")
        assert await code(client, "order.pay") == "ALREADY_DONE"
        shop.now += LIFE
        assert "order.pay" in await names(client)
        assert "order.ship" not in await names(client)
        assert await code(client, "order.ship") == "FORBIDDEN"
        assert await code(client, "order.pay") == "ok"
        second = await record_of(shop, "@process")
        assert (second.state, second.steps) == ("paid", 1)
        assert second.id != first.id
        assert len(set(shop.keys)) == 2
        assert len(await shop.store.history("", "@process")) == 2


async def test_a_sessions_own_workflow_begins_anew_too(shop: Shop):
    async with over_http(shop.server(), "legacy") as client:
        assert await code(client, "order.pay") == "ok"
        shop.now += LIFE
        assert await code(client, "order.pay") == "ok"
        assert "order.ship" in await names(client)


@pytest.mark.parametrize("mode", ERAS)
async def test_a_minted_handle_that_is_gone_or_never_was_opens_nothing(shop: Shop, mode: str):
    async with over_http(shop.server(state_handle_key="id", mints=True), mode) as client:
        opened = await client.call_tool("order.open", {})
        handle = opened.content[-1].text.split('"')[1]
        assert await code(client, "order.pay", id=handle) == "ok"
        guessed = await client.call_tool("order.pay", {"id": "wf_AAAAAAAAAAAAAAAAAAAAAA"})
        assert guessed.structured_content == {
            "code": "UNKNOWN_HANDLE",
            "message": "'order.pay' did not run: no workflow has this handle. It was never opened, or it expired "
            "long ago. Open a new one: order.open.",
            "handle": "wf_AAAAAAAAAAAAAAAAAAAAAA",
            "allowedActions": [],
        }
        shop.now += LIFE
        expired = await client.call_tool("order.pay", {"id": handle})
        assert expired.structured_content["code"] == "EXPIRED"
        assert expired.structured_content["message"].endswith("Open a new one: order.open.")
        assert await shop.store.prune(before=shop.now + 1) == 1
        assert await code(client, "order.pay", id=handle) == "UNKNOWN_HANDLE"
        assert len(shop.keys) == 1
        assert await shop.store.list_workflows() == []


@pytest.mark.parametrize("mode", ERAS)
async def test_a_running_server_removes_what_expired_a_day_ago(
    shop: Shop, mode: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(timers, "PRUNE_EVERY", 0.01)
    monkeypatch.setattr(timers, "LOOK_EVERY", 0.01)
    monkeypatch.setattr(timers, "PRUNED_AT_ONCE", 2)
    async with over_http(shop.server(state_handle_key="id"), mode) as client:
        for handle in "ABCDE":
            assert await code(client, "order.pay", id=handle) == "ok"
        shop.now += LIFE + DAY
        assert await code(client, "order.pay", id="A") == "EXPIRED"
        assert await code(client, "order.pay", id="new") == "ok"
        shop.now += 1
        await until_left(shop, 1)
        assert [each.handle for each in await shop.store.list_workflows()] == ["new"]
        assert await shop.store.history("", "A") == []


class Failing(MemoryStore):
    """Fails its first three removals."""

    failures = 3

    async def prune(self, *, before: float, limit: int = 1000) -> int:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the engine is away")
        return await super().prune(before=before, limit=limit)


async def test_a_store_that_fails_does_not_end_the_removing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(timers, "PRUNE_EVERY", 0.01)
    shop = Shop(Failing())
    async with sdk_client(shop.server(state_handle_key="id").lowlevel, "2026-07-28") as client:
        assert await code(client, "order.pay", id="A") == "ok"
        shop.now += LIFE + DAY + 1
        await until_left(shop, 0)
        assert shop.store.failures == 0


async def test_what_is_in_doubt_under_hold_does_not_expire_before_it_is_resolved(shop: Shop):
    async with sdk_client(shop.server(state_handle_key="id").lowlevel, "2026-07-28") as client:
        assert await code(client, "order.lose", id="A") == "IN_DOUBT"
        shop.now += LIFE + DAY + 1
        assert await code(client, "order.pay", id="A") == "IN_DOUBT"
        assert await shop.store.prune(before=shop.now) == 0
        await resolve_not_done(shop.store, await record_of(shop, "A"), operator="me", now=shop.now)
        shop.now += DAY
        assert await code(client, "order.pay", id="A") == "ok"  # its time began again with the step
        shop.now += LIFE
        assert await code(client, "order.pay", id="A") == "EXPIRED"
        await reset(shop.store, await record_of(shop, "A"), snapshot={"value": "cart"}, operator="me", now=shop.now)
        assert await code(client, "order.pay", id="A") == "ok"


async def test_what_is_in_doubt_under_retry_expires_and_is_removed(shop: Shop, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(timers, "PRUNE_EVERY", 0.01)
    async with sdk_client(shop.server(state_handle_key="id").lowlevel, "2026-07-28") as client:
        assert await code(client, "order.try", id="A") == "IN_DOUBT"
        assert await code(client, "order.lose", id="B") == "IN_DOUBT"
        shop.now += LIFE
        assert await code(client, "order.try", id="A") == "EXPIRED"
        shop.now += DAY + 1
        await until_left(shop, 1)
        assert [each.handle for each in await shop.store.list_workflows()] == ["B"]


async def test_a_call_in_progress_is_not_taken_for_the_end(shop: Shop):
    reached, go = anyio.Event(), anyio.Event()
    f = Fusion("slow", version="1.0.0")

    @f.mutation("order.pay").bind_state("cart", "PAY").handle
    async def pay() -> str:
        reached.set()
        await go.wait()
        return "paid"

    server = f.server(
        fsm=f.fsm(ORDER), store=shop.store, state_handle_key="id", expires_after=1.0, clock=lambda: shop.now
    )
    async with sdk_client(server.lowlevel, "2026-07-28") as client, anyio.create_task_group() as group:

        async def call() -> None:
            assert await code(client, "order.pay", id="A") == "ok"

        group.start_soon(call)
        await reached.wait()
        shop.now += 30  # within the lease, beyond the end
        assert await shop.store.prune(before=shop.now + DAY) == 0
        go.set()
    assert (await record_of(shop, "A")).expires_at == shop.now + 1


TIMED = {
    "id": "order",
    "initial": "cart",
    "states": {
        "cart": {"on": {"PAY": "paid"}},
        "paid": {"on": {"SHIP": "shipped"}, "after": {"500000": "late"}},
        "late": {"on": {"SHIP": "shipped"}},
        "shipped": {"type": "final"},
    },
}


async def test_a_workflow_does_not_end_before_its_timer_has_gone_off(shop: Shop):
    async with sdk_client(shop.server(TIMED, state_handle_key="id").lowlevel, "2026-07-28") as client:
        assert await code(client, "order.pay", id="A") == "ok"
        assert await code(client, "order.pay", id="B") == "ok"
        assert (await record_of(shop, "A")).expires_at == START + 500 + LIFE
        shop.now = START + 499
        assert await code(client, "order.look", id="A") == "ok"
    # No server is alive meanwhile. What was due goes off first, at its time, and the end is counted from there.
    shop.now = START + 500 + LIFE - 1
    async with sdk_client(shop.server(TIMED, state_handle_key="id").lowlevel, "2026-07-28") as client:
        assert await code(client, "order.look", id="A") == "ok"
        record = await record_of(shop, "A")
        assert (record.state, record.expires_at) == ("late", START + 500 + LIFE)
        shop.now += 1
        assert await code(client, "order.look", id="A") == "EXPIRED"
        assert await code(client, "order.look", id="B") == "EXPIRED"


async def test_without_the_option_a_workflow_has_no_end_and_the_next_step_takes_one_away(shop: Shop):
    async with sdk_client(shop.server(state_handle_key="id").lowlevel, "2026-07-28") as client:
        assert await code(client, "order.pay", id="A") == "ok"
        assert await code(client, "order.pay", id="B") == "ok"
    async with sdk_client(shop.server(state_handle_key="id", expires_after=None).lowlevel, "2026-07-28") as client:
        assert await code(client, "order.ship", id="A") == "ok"
        assert (await record_of(shop, "A")).expires_at is None
        shop.now += 100 * LIFE
        assert await code(client, "order.look", id="A") == "ok"
        assert await code(client, "order.ship", id="B") == "EXPIRED"  # what was written stays so


@pytest.mark.parametrize("seconds", [0, -1.0, float("inf"), float("nan")])
def test_a_time_that_is_none_is_refused(seconds: float):
    with pytest.raises(ValueError, match="expires_after: expected a number of seconds above 0"):
        Shop(MemoryStore()).server(expires_after=seconds)


def test_a_load_save_store_cannot_let_workflows_expire():
    with pytest.raises(ValueError, match="expires_after: a load/save store keeps no time of expiry"):
        Shop(InMemoryFsmStateStore()).server()


async def test_removing_and_calling_at_the_same_time_loses_no_step(shop: Shop):
    """What is removed while a call loads it is a workflow that the call does not find any more."""
    store: VersionedFsmStateStore = shop.store
    async with sdk_client(shop.server(expires_after=0.001).lowlevel, "2026-07-28") as client:
        for _ in range(20):
            shop.now += 1
            async with anyio.create_task_group() as group:
                group.start_soon(code, client, "order.pay")
                group.start_soon(lambda: store.prune(before=shop.now))
    record = await record_of(shop, "@process")
    assert (record.state, record.claim) == ("paid", None)
    assert len(shop.keys) == len(set(shop.keys)) == 20


def test_records_of_the_end():
    record = records.Workflow("", "A", "w", 1, 1, "cart", {"value": "cart"}, START)
    assert not records.expired(record, START)
    assert records.expired(records.dated(record, START, 5.0), START + 5)
    assert not records.expired(records.dated(record, START, 5.0), START + 4.9)
