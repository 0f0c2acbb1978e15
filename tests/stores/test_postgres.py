"""The PostgreSQL store as a store: the contract on a real server, plans, event loops, poolers, what it never says."""

import gc
import logging
import threading
import warnings
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import psycopg
import pytest

from mcpfusion.stores import PostgresStore, StoreError, open_store, postgres
from mcpfusion.stores.postgres_url import PostgresUrl
from mcpfusion.testing import store_contract

from ..support.postgres_servers import postgres_url as postgres_url
from ..support.postgres_servers import shared
from .processes import run_script, start_script
from .records import claim, step, workflow

pytestmark = pytest.mark.anyio


class TestPostgresStore(store_contract()):
    @pytest.fixture
    async def store(self, postgres_url: str) -> AsyncIterator[PostgresStore]:
        store = PostgresStore(postgres_url)
        yield store
        await store.aclose()


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_url)
    yield store
    await store.aclose()


# the URL


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "PostgreSQL"])
async def test_its_url_opens_it(postgres_url: str, scheme: str):
    store = open_store(postgres_url.replace("postgresql", scheme, 1))
    assert isinstance(store, PostgresStore)
    assert await store.write(workflow(), expected_version=0)
    await store.aclose()


@pytest.mark.parametrize(
    ("url", "parameters", "schema", "size"),
    [
        ("postgresql://app@db/shop", {"user": "app", "host": "db", "dbname": "shop"}, "mcpfusion", 10),
        ("postgresql://a:p%40ss@db?mcpfusion_schema=g%20s", {"password": "p@ss", "host": "db"}, "g s", 10),
        ("postgresql://a:p?mcpfusion_x=1@db/s", {"password": "p?mcpfusion_x=1", "dbname": "s"}, "mcpfusion", 10),
        (
            "postgres://h1:1,h2:2/d?mcpfusion_pool_size=3&sslmode=verify-full&target_session_attrs=read-write",
            {"host": "h1,h2", "port": "1,2", "sslmode": "verify-full", "target_session_attrs": "read-write"},
            "mcpfusion",
            3,
        ),
        (
            "postgresql:///d?host=/run/pg&user=a",
            {"host": "/run/pg", "user": "a"},
            "mcpfusion",
            10,
        ),
    ],
)
def test_a_url_is_as_libpq_takes_it(url: str, parameters: dict[str, str], schema: str, size: int):
    found = PostgresUrl(url)
    assert found.parameters.items() >= parameters.items()
    assert (found.schema, found.pool_size) == (schema, size)
    assert "mcpfusion_schema" not in found.parameters


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://u:s3cret/s3cret@host:port/d", "cannot be read"),
        ("postgresql://u:s3cret@host/d?nothing=1", "cannot be read"),
        ("postgresql://u:s3cret@host/d?mcpfusion_shema=x", "no parameter 'mcpfusion_shema'"),
        ("postgresql://u:s3cret@host/d?mcpfusion_schema=", "mcpfusion_schema: expected"),
        ("postgresql://u:s3cret@host/d?mcpfusion_schema=pg_x", "mcpfusion_schema: expected"),
        ("postgresql://u:s3cret@host/d?mcpfusion_pool_size=0", "mcpfusion_pool_size: expected a number"),
        ("postgresql://u:s3cret@host/d?mcpfusion_pool_size=many", "mcpfusion_pool_size: expected a number"),
    ],
)
def test_a_url_that_is_wrong_is_refused_without_its_secret(url: str, said: str):
    with pytest.raises(ValueError, match=said) as caught:
        open_store(url)
    assert "s3cret" not in str(caught.value)


async def test_nothing_says_the_secret_or_the_name(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, logger="mcpfusion")
    store = PostgresStore("postgresql://app:s3cret@127.0.0.1:1/shop")
    with pytest.raises(StoreError) as caught:
        await store.write(workflow(handle="INV-secret"), expected_version=0)
    told = [
        str(caught.value),
        repr(caught.value),
        repr(store),
        repr(store.server),
        repr(store.server.url),
        caplog.text,
    ]
    assert not any("s3cret" in text or "INV-secret" in text or "127.0.0.1" in text for text in told)
    assert caught.value.__suppress_context__
    await store.aclose()


def test_without_the_extra_it_says_how_to_get_it():
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from mcpfusion.stores import StoreError, open_store\n"
        "try: open_store('postgresql://db/shop')\n"
        "except StoreError as error: print(error)\n"
    )
    assert run_script(code) == "a postgresql:// store needs psycopg: pip install 'mcpfusion[postgres]'\n"


# what is kept


async def test_a_name_that_no_index_holds_is_refused(store: PostgresStore):
    with pytest.raises(StoreError, match="longer than 2500 bytes"):
        await store.read("s" * 1500, "h" * 1001)
    longest = workflow(scope="é" * 750, handle="h" * 1000, state='{"a":"' + "x" * 20_000 + '"}')
    assert await store.write(longest, expected_version=0, step=step(scope="é" * 750, handle="h" * 1000))
    assert await store.read(longest.scope, longest.handle) == longest
    assert await store.states_in_use(longest.scope) == [longest.state]
    assert await store.list_workflows(state=longest.state) == [longest]


async def test_a_long_history_keeps_its_newest_steps(store: PostgresStore, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(postgres, "HISTORY_LIMIT", 10)
    monkeypatch.setattr(postgres, "_TRIM_EVERY", 5)
    for number in range(1, 33):
        written = workflow(number, steps=number)
        assert await store.write(written, expected_version=number - 1, step=step(call_id=str(number)))
        assert await store.write(workflow(handle=f"{number}"), expected_version=0, step=step(handle=f"{number}"))
    assert [each.call_id for each in await store.history("ann", "INV-1")] == [str(n) for n in range(20, 33)]
    assert len(await store.history("ann", "7")) == 1
    assert not await store.write(workflow(35, steps=35), expected_version=34, step=step())
    assert len(await store.history("ann", "INV-1")) == 13


async def test_prune_leaves_alone_what_is_being_written(store: PostgresStore):
    for number in range(50):
        ours = workflow(handle=f"{number:02}", expires_at=float(number))
        assert await store.write(ours, expected_version=0, step=step(handle=ours.handle))
    with psycopg.connect(shared().url()) as other:
        query = f"UPDATE {store.server.url.schema}.workflow SET version = 9 WHERE handle = '07'"
        other.execute(query.encode())
        assert await store.prune(before=30.0) == 29
        assert await store.prune(before=30.0) == 0
        other.rollback()
    assert await store.prune(before=30.0) == 1
    assert [each.handle for each in await store.list_workflows()] == [f"{number:02}" for number in range(30, 50)]
    assert await store.history("ann", "03") == []
    assert len(await store.history("ann", "33")) == 1


async def test_every_query_uses_an_index(monkeypatch: pytest.MonkeyPatch):
    store = PostgresStore(shared().schema_url())
    schema = store.server.url.schema
    shared().execute(
        f"""INSERT INTO {schema}.workflow (scope, handle, version, state, steps, doubtful_from, due, expires, record)
        SELECT convert_to('s' || n % 500, 'UTF8'), convert_to('h' || n, 'UTF8'), 1, convert_to('s' || n % 9, 'UTF8'),
            1, CASE WHEN n % 999 = 0 THEN n END, CASE WHEN n % 9 = 0 THEN n END,
            CASE WHEN n % 9 = 1 THEN n END, '{{}}'
        FROM generate_series(1, 20000) AS n""",
        f"INSERT INTO {schema}.step SELECT scope, handle, 1, record FROM {schema}.workflow",
        f"ANALYZE {schema}.workflow, {schema}.step",
    )
    asked: list[tuple[str, tuple[Any, ...]]] = []

    async def note(statement: str, *values: Any, repeatable: bool = False) -> list[Any]:
        asked.append((statement, values))
        return [(0, None, None)] if "LEFT JOIN" in statement else [(0,)] if "FROM gone" in statement else []

    monkeypatch.setattr(store.server, "run", note)
    await store.read("s1", "h1")
    await store.write(workflow(2, "h1", "s1"), expected_version=1, step=step("h1", "s1"))
    await store.states_in_use("s1")
    await store.next_due()
    await store.find("h1")
    await store.history("s1", "h1")
    await store.prune(before=100.0)
    await store.list_workflows()
    await store.list_workflows(after=("s2", "h77"))
    await store.list_workflows(scope="s1")
    await store.list_workflows(state="s1")
    await store.list_workflows(scope="s1", state="s1", after=("s1", "h2"))
    await store.list_workflows(in_doubt_at=1e9)
    assert len(asked) == 13
    with psycopg.connect(shared().url(), cursor_factory=psycopg.RawCursor) as connection:
        for mode in (b"force_custom_plan", b"force_generic_plan"):
            connection.execute(b"SET plan_cache_mode = " + mode)
            for statement, values in asked:
                plan = connection.execute(b"EXPLAIN " + statement.encode(), values, prepare=True).fetchall()
                text = "\n".join(row[0] for row in plan)
                assert "Seq Scan" not in text, (statement, text)
                assert "Index" in text, (statement, text)


# event loops, forks, processes


def test_one_store_in_several_event_loops(postgres_url: str):
    store: Any = PostgresStore(postgres_url)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        for version in range(3):
            assert anyio.run(lambda v: store.write(workflow(v + 1), expected_version=v), version)
        assert len(store.server._lanes) == 1

        def read() -> None:
            anyio.run(store.read, "ann", "INV-1")

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert anyio.run(store.read, "ann", "INV-1") == workflow(3)
        store = None
        gc.collect()


def test_a_fork_has_connections_of_its_own(postgres_url: str):
    script = """
import os, sys, warnings, anyio
from mcpfusion.stores import PostgresStore
from stores.records import workflow

warnings.simplefilter("ignore", DeprecationWarning)
store = PostgresStore(sys.argv[1])
assert anyio.run(lambda: store.write(workflow(1), expected_version=0))
child = os.fork()
if child == 0:
    assert anyio.run(lambda: store.write(workflow(2), expected_version=1))
    anyio.run(store.aclose)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert anyio.run(lambda: store.write(workflow(3), expected_version=2))
anyio.run(store.aclose)
"""
    assert run_script(script, postgres_url) == ""


async def test_a_closed_store_is_refused(store: PostgresStore):
    assert await store.write(workflow(), expected_version=0)
    await store.aclose()
    for operation in (store.read("ann", "INV-1"), store.publish(["x"])):
        with pytest.raises(StoreError, match="was closed; make a new store"):
            await operation
    assert [message async for message in store.listen()] == []


HAMMER = """
import sys, anyio
from mcpfusion.stores import PostgresStore
from stores.records import step, workflow

async def work(store, name, won):
    while True:
        found = await store.read("ann", "INV-1")
        version = found.version if found else 0
        if version >= 200:
            return
        ours = workflow(version + 1, id=f"{name}:{version + 1}")
        if await store.write(ours, expected_version=version, step=step(call_id=ours.id)):
            won.append(version + 1)

async def main(url, name):
    store = PostgresStore(url)
    won = []
    print("ready", flush=True)
    sys.stdin.readline()
    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(work, store, name, won)
    await store.aclose()
    print(*won)

anyio.run(main, *sys.argv[1:])
"""


async def test_of_four_processes_one_wins_each_version(store: PostgresStore, postgres_url: str):
    processes = [start_script(HAMMER, postgres_url, str(number)) for number in range(4)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    wins: list[str] = []
    for number, process in enumerate(processes):
        out, err = process.communicate()
        assert (process.returncode, err) == (0, "")
        wins += [f"{number}:{version}" for version in out.split()]
    # Each version was won once, and by the process that the history names.
    history = [each.call_id for each in await store.history("ann", "INV-1")]
    assert [int(each.split(":")[1]) for each in history] == list(range(1, 201))
    assert sorted(wins) == sorted(history)


# a pooler


class Pooler:
    """What a pooler in transaction mode does to a client: it makes up the process id, and every backend is lent."""

    def __init__(self) -> None:
        self.prepared = 0
        self.port = 0

    async def serve(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        self.port = listener.extra(anyio.abc.SocketAttribute.local_port)
        task_status.started()
        async with listener:
            await listener.serve(self._handle)

    async def _handle(self, client: anyio.abc.SocketStream) -> None:
        server = await anyio.connect_tcp("127.0.0.1", shared().port)
        async with client, server, anyio.create_task_group() as tasks:
            tasks.start_soon(self._up, client, server)
            await self._down(server, client)
            tasks.cancel_scope.cancel()

    async def _up(self, client: anyio.abc.SocketStream, server: anyio.abc.SocketStream) -> None:
        async for data in client:
            # A Parse message names what it prepares; the unnamed one has an empty name.
            self.prepared += data[:1] == b"P" and data[5:6] != b"\0"
            await server.send(data)

    async def _down(self, server: anyio.abc.SocketStream, client: anyio.abc.SocketStream) -> None:
        async for data in server:
            at = data.find(b"K\0\0\0\x0c")
            if at >= 0:
                data = data[: at + 5] + b"\0\0\0\x01" + data[at + 9 :]
            await client.send(data)


@asynccontextmanager
async def pooler() -> AsyncIterator[Pooler]:
    made = Pooler()
    async with anyio.create_task_group() as tasks:
        await tasks.start(made.serve)
        yield made
        tasks.cancel_scope.cancel()


async def test_behind_a_pooler_nothing_is_left_on_the_connection(postgres_url: str, caplog: pytest.LogCaptureFixture):
    async with pooler() as between:
        store = PostgresStore(postgres_url.replace(f":{shared().port}", f":{between.port}"))
        for version in range(4):
            assert await store.write(workflow(version + 1, claim=claim()), expected_version=version, step=step())
        assert len(await store.history("ann", "INV-1")) == 4
        assert between.prepared == 0
        timeout = await store.server.run("SELECT current_setting('statement_timeout')")
        assert timeout == [("0",)]
        async with aclosing(store.listen()) as messages:
            assert await anext(messages) is None
        assert "the URL leads to a pooler" in caplog.text
        await store.aclose()
    direct = PostgresStore(postgres_url)
    assert await direct.server.run("SELECT current_setting('statement_timeout')") == [("2s",)]
    await direct.aclose()
