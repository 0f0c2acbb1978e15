"""Whatever is asked of them in whatever order, the engines answer alike."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpfusion.stores import MemoryStore, PostgresStore, RedisStore, SqliteStore, VersionedFsmStateStore

from ..support.postgres_servers import emptied_url
from ..support.redis_servers import Server, server
from .records import claim, step, workflow


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("redis")) as one:
        yield one


names = st.sampled_from(["", "a", "b", "é"])
states = st.sampled_from(["draft", "review", ""])
times = st.sampled_from([0.0, 10.0, 20.5])
dues = st.none() | times
ends = st.none() | times
claims = st.none() | st.builds(claim, lease_until=times, in_doubt=st.booleans())
places = st.fixed_dictionaries({"scope": names, "handle": names})

Ask = Callable[[VersionedFsmStateStore], Any]


def _write(
    place: dict[str, str],
    state: str,
    claimed: Any,
    due: float | None,
    end: float | None,
    expected: int,
    stepped: bool,
) -> Ask:
    steps = expected + stepped
    ours = workflow(expected + 1, **place, state=state, claim=claimed, due=due, expires_at=end, steps=steps)
    moved = step(**place, to_state=state, call_id=str(expected)) if stepped else None
    return lambda store: store.write(ours, expected_version=expected, step=moved)


asks: st.SearchStrategy[Ask] = st.one_of(
    st.builds(_write, places, states, claims, dues, ends, st.integers(0, 3), st.booleans()),
    st.builds(_write, places, states, claims, dues, ends, st.just(0), st.booleans()),
    places.map(lambda place: lambda store: store.read(**place)),
    names.map(lambda scope: lambda store: store.states_in_use(scope)),
    names.map(lambda handle: lambda store: store.find(handle)),
    st.integers(0, 3).map(lambda limit: lambda store: store.next_due(limit=limit)),
    st.builds(lambda before, limit: lambda store: store.prune(before=before, limit=limit), times, st.integers(0, 3)),
    st.builds(lambda place, limit: lambda store: store.history(**place, limit=limit), places, st.integers(0, 3)),
    st.fixed_dictionaries(
        {},
        optional={
            "scope": names,
            "state": states,
            "in_doubt_at": st.sampled_from([0.0, 10.0, 15.0, 99.0]),
            "after": st.tuples(names, names),
            "limit": st.integers(0, 5),
        },
    ).map(lambda filters: lambda store: store.list_workflows(**filters)),
)


async def _compare(asked: list[Ask], other: VersionedFsmStateStore) -> None:
    memory = MemoryStore()
    for ask in asked:
        assert await ask(memory) == await ask(other)
    everything = await memory.list_workflows(limit=1000)
    assert everything == await other.list_workflows(limit=1000)
    assert await memory.next_due() == await other.next_due()
    for each in everything:
        place = (each.scope, each.handle)
        assert await memory.history(*place) == await other.history(*place)


@settings(max_examples=60, deadline=None)
@given(st.lists(asks, min_size=1, max_size=40))
def test_memory_and_sqlite_agree(asked: list[Ask]):
    async def compare(folder: str) -> None:
        sqlite = SqliteStore(Path(folder, "w.db"))
        await _compare(asked, sqlite)
        await sqlite.aclose()

    with tempfile.TemporaryDirectory() as folder:
        anyio.run(compare, folder)


@settings(max_examples=40, deadline=None)
@given(st.lists(asks, min_size=1, max_size=40))
def test_memory_and_postgres_agree(asked: list[Ask]):
    async def compare() -> None:
        store = PostgresStore(emptied_url())
        await _compare(asked, store)
        await store.aclose()

    anyio.run(compare)


@settings(max_examples=40, deadline=None)
@given(st.lists(asks, min_size=1, max_size=40), st.sampled_from([1, 32]))
def test_memory_and_redis_agree(redis_server: Server, asked: list[Ask], buckets: int):
    async def compare() -> None:
        store = RedisStore(redis_server.url())
        await _compare(asked, store)
        await store.aclose()

    redis_server.client().flushall()
    redis_server.client().set("mcpfusion:layout", f"1:{buckets}")
    anyio.run(compare)
