from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from mcpfusion.stores import FsmSnapshot, FsmStateStore, InMemoryFsmStateStore, MemoryStore
from mcpfusion.testing import store_contract


@asynccontextmanager
async def open_memory() -> AsyncIterator[MemoryStore]:
    yield MemoryStore()


class TestMemoryStore(store_contract(open_memory)):
    pass


@pytest.mark.anyio
async def test_the_small_store_loads_what_it_saved():
    store = InMemoryFsmStateStore()
    assert isinstance(store, FsmStateStore)
    assert await store.load("INV-1") is None
    first = FsmSnapshot("draft", "2026-01-01T00:00:00Z")
    second = FsmSnapshot("review", "2026-01-02T00:00:00Z")
    await store.save("INV-1", first)
    assert await store.load("INV-1") == first
    await store.save("INV-1", second)
    assert await store.load("INV-1") == second
    assert await store.load("INV-2") is None
