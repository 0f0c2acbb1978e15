"""What gateways share in PostgreSQL: the contract, on a real server; sweeping, sizes, several processes."""

from collections.abc import AsyncIterator

import pytest

from mcpfusion.swarm import postgres_state
from mcpfusion.swarm.open import SwarmStores, open_swarm_stores
from mcpfusion.swarm.postgres_state import PostgresSwarmStore
from mcpfusion.testing import swarm_store_contract

from ..stores.processes import start_script
from ..support.postgres_servers import postgres_url as postgres_url
from ..support.postgres_servers import shared

pytestmark = pytest.mark.anyio


class TestPostgresSwarmStore(swarm_store_contract()):
    @pytest.fixture
    async def stores(self, postgres_url: str) -> AsyncIterator[SwarmStores]:
        stores = open_swarm_stores(postgres_url)
        yield stores
        await stores.aclose()


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresSwarmStore]:
    store = PostgresSwarmStore(postgres_url)
    yield store
    await store.aclose()


def rows(store: PostgresSwarmStore, table: str) -> int:
    ((count,),) = shared().execute(f"SELECT count(*) FROM {store.server.url.schema}.{table}")
    return count


async def test_a_megabyte_of_state(store: PostgresSwarmStore):
    state = {"text": "é" * 512 * 1024}
    await store.set("big", state, 60)
    assert await store.get("big") == state


async def test_what_expired_is_swept_in_batches(store: PostgresSwarmStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(postgres_state, "SWEEP_LIMIT", 4)
    monkeypatch.setattr(postgres_state, "SWEEP_EVERY", 0.0)
    for number in range(6):
        await store.set(f"state {number}", {}, 0)
        await store.take_place("g", "d", f"h{number}", limit=9, domain_limit=None, ttl_seconds=0)
        await store.write_routes("g", f"c{number}", "[]", expected_version=0, ttl_seconds=0)
        # What is over already counts for nothing, and is no used token either.
        assert await store.add("jti", 0.0)
    await store.set("lasts", {}, 60)
    for _ in range(3):
        await store.set("lasts", {}, 60)
    assert rows(store, "handoff_state") == 1
    assert [rows(store, table) for table in ("used_token", "route", "place")] == [0, 0, 0]


async def test_a_sweep_that_fails_fails_nothing_else(store: PostgresSwarmStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(postgres_state, "_SWEEP", "DELETE FROM {s}.nothing_of_the_kind")
    await store.set("key", {"n": 1}, 60)
    assert await store.get("key") == {"n": 1}


async def test_no_name_is_kept_but_those_of_pins(store: PostgresSwarmStore):
    await store.set("ref-secret", {}, 60)
    await store.add("jti-secret", 4e9)
    await store.write_routes("gateway-secret", "conversation-secret", "[]", expected_version=0, ttl_seconds=60)
    await store.take_place("gateway-secret", "d-secret", "h-secret", limit=1, domain_limit=None, ttl_seconds=60)
    for table in ("handoff_state", "used_token", "route", "place"):
        ((kept,),) = shared().execute(f"SELECT string_agg(t::text, '') FROM {store.server.url.schema}.{table} AS t")
        assert b"secret".hex() not in kept
        assert "secret" not in kept


TAKER = """
import sys, anyio
from mcpfusion.swarm.postgres_state import PostgresSwarmStore

async def main(url, name):
    store = PostgresSwarmStore(url)
    print("ready", flush=True)
    sys.stdin.readline()
    taken = []
    for number in range(10):
        limits = {"limit": 12, "domain_limit": 9, "ttl_seconds": 60}
        if await store.take_place("g", "de"[number % 2], f"{name}:{number}", **limits):
            taken.append("de"[number % 2])
    await store.aclose()
    print(*taken)

anyio.run(main, *sys.argv[1:])
"""


async def test_places_are_counted_in_all_processes_together(store: PostgresSwarmStore, postgres_url: str):
    processes = [start_script(TAKER, postgres_url, str(number)) for number in range(3)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    taken: list[str] = []
    for process in processes:
        out, err = process.communicate()
        assert (process.returncode, err) == (0, "")
        taken += out.split()
    assert len(taken) == 12
    assert max(taken.count("d"), taken.count("e")) <= 9
    assert await store.places_taken("g") == 12
