"""What gateways and specialists keep: in memory, and in SQLite."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mcpfusion.stores import StoreError, open_store
from mcpfusion.swarm.open import SwarmStores, open_swarm_stores
from mcpfusion.swarm.sqlite_state import SqliteSwarmStore
from mcpfusion.testing import swarm_store_contract

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def open_memory() -> AsyncIterator[SwarmStores]:
    yield open_swarm_stores("memory://")


class TestMemory(swarm_store_contract(open_memory)):
    pass


class TestSqlite(swarm_store_contract()):
    @pytest.fixture
    async def stores(self, tmp_path: Path) -> AsyncIterator[SwarmStores]:
        stores = open_swarm_stores(f"sqlite:///{tmp_path}/swarm.db")
        yield stores
        await stores.aclose()


def test_a_url_is_read_as_that_of_the_workflows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    stores = open_swarm_stores("SQLite:///with%20space.db")
    assert isinstance(stores.routes, SqliteSwarmStore)
    assert stores.routes._file.path == tmp_path / "with space.db"
    assert list(tmp_path.iterdir()) == []
    for url in ("mongodb://user:s3cret@host/db", "sqlite://host/w.db", "memory://name", "s3cret@host", ""):
        with pytest.raises(ValueError, match="supported are") as caught:
            open_swarm_stores(url)
        assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("first", ["workflows", "swarm"])
async def test_one_file_holds_workflows_and_what_gateways_share(tmp_path: Path, first: str):
    url = f"sqlite:///{tmp_path}/all.db"
    workflows, stores = open_store(url), open_swarm_stores(url)
    if first == "workflows":
        assert await workflows.read("", "INV-1") is None
    assert await stores.pins.check("finance", "pay", "d1")
    assert await workflows.read("", "INV-1") is None
    again = open_swarm_stores(url, create=False)
    assert not await again.pins.check("finance", "pay", "d2")
    for each in (workflows, stores, again):
        await each.aclose()


async def test_what_is_wrong_with_a_file_is_said(tmp_path: Path):
    stores = open_swarm_stores(f"sqlite:///{tmp_path}/none.db", create=False)
    with pytest.raises(StoreError, match=r"none\.db': there is no such file; check the path"):
        await stores.states.get("key")
    (tmp_path / "text.db").write_text("no database, but long enough that SQLite looks at it" * 20)
    stores = open_swarm_stores(f"sqlite:///{tmp_path}/text.db")
    with pytest.raises(StoreError, match="it is no SQLite database"):
        await stores.states.get("key")
    stores = open_swarm_stores(f"sqlite:///{tmp_path}/closed.db")
    await stores.aclose()
    with pytest.raises(StoreError, match="was closed"):
        await stores.routes.read_routes("g", "c")


async def test_what_expired_is_swept_out(tmp_path: Path):
    now = [1000.0]
    store = SqliteSwarmStore(tmp_path / "swarm.db", clock=lambda: now[0])
    for number in range(5):
        await store.set(f"{number}", {}, 10)
        assert await store.add(f"{number}", now[0] + 10)
        assert await store.write_routes("g", f"{number}", "[]", expected_version=0, ttl_seconds=10)
        assert await store.take_place("g", "d", f"{number}", limit=9, domain_limit=None, ttl_seconds=10)
    now[0] = 1011.0
    await store.set("new", {}, 10)
    assert await store.add("new", now[0] + 10)
    assert await store.write_routes("g", "new", "[]", expected_version=0, ttl_seconds=10)
    assert await store.take_place("g", "d", "new", limit=1, domain_limit=None, ttl_seconds=10)
    connection = store._file.connect()
    for table in ("handoff_state", "used_token", "route", "place"):
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (1,)
    await store.aclose()
