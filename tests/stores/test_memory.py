import pytest

from mcpfusion.stores import FsmSnapshot, FsmStateStore, InMemoryFsmStateStore, MemoryStore

from .conformance import StoreConformance


class TestMemoryStore(StoreConformance):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore()


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
