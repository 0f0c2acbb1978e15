"""Any py-key-value store behind the gate: in memory, in files, in Redis."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from key_value.aio.protocols import AsyncKeyValue
from key_value.aio.stores.filetree import FileTreeStore
from key_value.aio.stores.memory import MemoryStore
from key_value.aio.stores.redis import RedisStore
from key_value.aio.wrappers.prefix_keys import PrefixKeysWrapper
from mcp import Client
from redis.asyncio import Redis

from mcpfusion import Fusion
from mcpfusion.stores import FsmSnapshot, FsmStateStore, KeyValueFsmStateStore, StoreError, VersionedFsmStateStore
from mcpfusion.testing.workflows import ODD_NAMES
from tests.gate.payments import CONFIG
from tests.support import redis_servers
from tests.support.serving import ERAS

pytestmark = pytest.mark.anyio

AT = "2026-01-01T00:00:00+00:00"


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_servers.server(tmp_path_factory.mktemp("redis")) as server:
        yield server.url()


@pytest.fixture(params=["memory", "files", "wrapped", "redis"])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Callable[[], AsyncKeyValue]]:
    """Gives a new object, as another process would have it, over the same data where they last."""
    if request.param == "redis":
        async with Redis.from_url(request.getfixturevalue("redis_url"), decode_responses=True) as client:
            await client.flushall()
            yield lambda: RedisStore(client=client)
        return
    memory = MemoryStore()
    kinds: dict[str, Callable[[], Any]] = {
        "memory": lambda: memory,
        "files": lambda: FileTreeStore(data_directory=tmp_path),
        "wrapped": lambda: PrefixKeysWrapper(memory, prefix="shop"),
    }
    yield kinds[request.param]


async def test_it_loads_what_was_saved_last(backend: Callable[[], AsyncKeyValue]):
    store = KeyValueFsmStateStore(backend())
    assert isinstance(store, FsmStateStore)
    assert not isinstance(store, VersionedFsmStateStore)
    assert await store.load("INV-1") is None
    await store.save("INV-1", FsmSnapshot("draft", AT))
    moved = FsmSnapshot('{"review": "légal 🧾"}', AT)
    await store.save("INV-1", moved)
    assert await store.load("INV-1") == moved
    assert await KeyValueFsmStateStore(backend()).load("INV-1") == moved
    assert await KeyValueFsmStateStore(backend(), collection="other").load("INV-1") is None


async def test_a_handle_may_be_anything(backend: Callable[[], AsyncKeyValue]):
    store = KeyValueFsmStateStore(backend())
    names = [*ODD_NAMES.values(), "../../etc/passwd", "a/b", "a", "A", "con", "a::b", "\ud800", "é" * 1024]
    for number, name in enumerate(names):
        await store.save(name, FsmSnapshot(str(number), AT))
    for number, name in enumerate(names):
        assert await store.load(name) == FsmSnapshot(str(number), AT)


async def test_what_does_not_move_is_forgotten(backend: Callable[[], AsyncKeyValue]):
    store = KeyValueFsmStateStore(backend(), ttl=1)
    await store.save("INV-1", FsmSnapshot("draft", AT))
    assert await store.load("INV-1") == FsmSnapshot("draft", AT)
    with anyio.fail_after(30):
        while await store.load("INV-1") is not None:  # noqa: ASYNC110 - it is a backend's clock that is waited for
            await anyio.sleep(0.05)


async def test_what_is_no_snapshot_is_refused():
    backend = MemoryStore()
    store = KeyValueFsmStateStore(backend)
    await store.save("INV-1", FsmSnapshot("draft", AT))
    (key,) = await backend.keys(collection="mcpfusion")
    whole = await backend.get(key, collection="mcpfusion")
    assert whole == {"handle": "INV-1", "state": "draft", "updated_at": AT}
    for value in ({}, {**whole, "handle": "INV-2"}, {**whole, "state": 7}, {**whole, "updated_at": None}):
        await backend.put(key, value, collection="mcpfusion")
        with pytest.raises(StoreError, match="is no snapshot of its handle"):
            await store.load("INV-1")


@pytest.mark.parametrize("ttl", [0, -1, float("nan")])
def test_a_time_to_live_is_positive(ttl: float):
    with pytest.raises(ValueError, match="ttl must be positive"):
        KeyValueFsmStateStore(MemoryStore(), ttl=ttl)


def shop(store: Any, runs: list[str]) -> Any:
    f = Fusion("shop")

    @f.action("payment.capture", bind_state=("due", "PAY")).handle
    async def capture(id: str) -> dict[str, str]:
        runs.append(id)
        await anyio.sleep(0.01)
        return {"paid": id}

    @f.action("payment.refund", bind_state=("paid", "REFUND")).handle
    async def refund(id: str) -> dict[str, str]:
        runs.append(f"refund {id}")
        return {"refunded": id}

    server = f.server(fsm=f.fsm(CONFIG), state_handle_key="id", store=KeyValueFsmStateStore(store))
    return server.lowlevel


@pytest.mark.parametrize("mode", ERAS)
async def test_a_gated_server_keeps_its_workflows_there(backend: Callable[[], AsyncKeyValue], mode: str):
    runs: list[str] = []
    results: list[bool] = []
    async with Client(shop(backend(), runs), mode=mode) as client:

        async def call() -> None:
            results.append((await client.call_tool("payment.capture", {"id": "рахунок/1"})).is_error)

        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(call)
        assert runs == ["рахунок/1"]
        assert results.count(False) == 1
    # Another server, later: it goes on where the first one stopped.
    async with Client(shop(backend(), runs), mode=mode) as client:
        assert (await client.call_tool("payment.capture", {"id": "рахунок/1"})).is_error
        assert not (await client.call_tool("payment.refund", {"id": "рахунок/1"})).is_error
    assert runs == ["рахунок/1", "refund рахунок/1"]


async def test_a_backend_that_fails_closes_the_gate_and_says_nothing_of_it():
    class Down(MemoryStore):
        async def get(self, key: str, *, collection: str | None = None) -> Any:
            raise ConnectionError("dsn=hunter2")

    runs: list[str] = []
    async with Client(shop(Down(), runs)) as client:
        result = await client.call_tool("payment.capture", {"id": "p1"})
    assert result.is_error
    assert "hunter2" not in str(result)
    assert runs == []
