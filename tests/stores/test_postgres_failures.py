"""What befalls a PostgreSQL server, and the store with it: an error in time, and then it goes on by itself."""

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest

from mcpfusion.stores import PostgresStore, StoreError, postgres_bus, postgres_schema, postgres_server
from mcpfusion.stores.postgres_url import PostgresUrl

from ..support import postgres_servers, tls
from ..support.postgres_servers import PostgresProcess, end_backends
from ..support.tls import certificate as certificate
from .records import step, workflow

pytestmark = pytest.mark.anyio

PATIENCE = 20.0


@pytest.fixture(scope="module")
def own() -> Iterator[PostgresProcess]:
    with postgres_servers.running(max_connections="12", superuser_reserved_connections="3") as server:
        yield server


@pytest.fixture
def server(own: PostgresProcess) -> PostgresProcess:
    own.ensure_running()
    return own


@pytest.fixture
async def store(server: PostgresProcess) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(server.schema_url())
    yield store
    await store.aclose()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> float:
    """A shorter time limit, so that the tests need not wait for it."""
    for module in (postgres_server, postgres_bus):
        monkeypatch.setattr(module, "LIMIT", 1.0)
    monkeypatch.setattr(postgres_server, "STATEMENT_LIMIT", 0.4)
    monkeypatch.setattr(postgres_server, "_GRACE", 0.2)
    monkeypatch.setattr(postgres_bus, "_CHECK_EVERY", 0.5)
    return 1.0


@contextmanager
def within(seconds: float) -> Iterator[None]:
    begun = time.monotonic()
    yield
    # The machine that tests may be busy; a limit that does not hold is off by more than this.
    assert time.monotonic() - begun < seconds + 3


async def works_again(store: PostgresStore, seconds: float = PATIENCE) -> None:
    with anyio.fail_after(seconds):
        while True:
            try:
                await store.read("ann", "INV-1")
                return
            except StoreError:
                await anyio.sleep(0.05)


async def each_operation(store: PostgresStore) -> list[Callable[[], Awaitable[Any]]]:
    return [
        lambda: store.read("ann", "INV-1"),
        lambda: store.write(workflow(2), expected_version=1, step=step()),
        lambda: store.states_in_use("ann"),
        lambda: store.list_workflows(),
        lambda: store.publish(["x"]),
    ]


async def test_a_server_that_hangs(server: PostgresProcess, store: PostgresStore, soon: float):
    assert await store.write(workflow(), expected_version=0)
    server.pause()
    try:
        for operation in await each_operation(store):
            with within(2 * soon), pytest.raises(StoreError, match=r"in time|cannot be reached"):
                await operation()
        # Many at once, more than there are connections: none waits longer.
        failed: list[StoreError] = []

        async def one() -> None:
            with pytest.raises(StoreError) as caught:
                await store.read("ann", "INV-1")
            failed.append(caught.value)

        with within(2 * soon):
            async with anyio.create_task_group() as tasks:
                for _ in range(30):
                    tasks.start_soon(one)
        assert len(failed) == 30
    finally:
        server.go_on()
    await works_again(store)
    assert await store.read("ann", "INV-1") is not None


async def test_a_write_that_hung_may_have_been_carried_out_but_not_later(
    server: PostgresProcess, store: PostgresStore, soon: float
):
    assert await store.write(workflow(), expected_version=0)
    server.pause()
    try:
        with pytest.raises(StoreError):
            await store.write(workflow(2), expected_version=1, step=step())
    finally:
        server.go_on()
    await works_again(store)
    found = await store.read("ann", "INV-1")
    assert found is not None
    assert len(await store.history("ann", "INV-1")) == found.version - 1
    assert await store.write(workflow(found.version + 1), expected_version=found.version)


async def test_a_server_that_crashes_and_comes_back(server: PostgresProcess, store: PostgresStore):
    async def one(number: int) -> None:
        assert await store.write(workflow(handle=f"INV-{number}"), expected_version=0)

    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(one, number)
    server.crash()
    for operation in await each_operation(store):
        with within(1), pytest.raises(StoreError, match="cannot be reached; start it, or correct the URL"):
            await operation()
    server.start()
    # None of the dead connections costs an operation.
    for number in range(8):
        assert await store.read("ann", f"INV-{number}") == workflow(handle=f"INV-{number}")
    assert await store.write(workflow(2), expected_version=1)


async def test_backends_that_are_ended_are_not_even_noticed(server: PostgresProcess, store: PostgresStore):
    async def reads() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(store.read, "ann", "INV-1")

    await reads()
    assert end_backends(server.url(), "application_name = 'mcpfusion'") > 1
    assert await store.write(workflow(), expected_version=0)
    await reads()


async def test_a_backend_that_is_ended_under_a_write(server: PostgresProcess, store: PostgresStore):
    assert await store.write(workflow(), expected_version=0)
    with psycopg.connect(server.url()) as other:
        # Holds the row, so that the write waits for it.
        other.execute(f"UPDATE {store.server.url.schema}.workflow SET version = version".encode())
        async with anyio.create_task_group() as tasks:

            async def write() -> None:
                with pytest.raises(StoreError, match="terminating connection"):
                    await store.write(workflow(2), expected_version=1)

            tasks.start_soon(write)
            end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            deadline = time.monotonic() + PATIENCE
            while not server.execute(end):
                assert time.monotonic() < deadline
                await anyio.sleep(0.02)
    assert await store.write(workflow(2), expected_version=1)


async def test_a_row_that_somebody_holds_costs_the_time_limit(
    server: PostgresProcess, store: PostgresStore, soon: float
):
    assert await store.write(workflow(), expected_version=0)
    with psycopg.connect(server.url()) as other:
        other.execute(f"UPDATE {store.server.url.schema}.workflow SET version = version".encode())
        with within(soon), pytest.raises(StoreError, match=r"in time|timeout"):
            await store.write(workflow(2), expected_version=1)
        other.rollback()
    # The server gave it up as well: it does not happen later.
    assert await store.read("ann", "INV-1") == workflow()
    assert await store.write(workflow(2), expected_version=1)


async def test_no_connections_left(server: PostgresProcess):
    url = server.schema_url()
    server.execute("DROP ROLE IF EXISTS app", "CREATE ROLE app LOGIN SUPERUSER", "ALTER ROLE app NOSUPERUSER")
    server.execute(
        f"GRANT USAGE ON SCHEMA {PostgresUrl(url).schema} TO app",
        f"GRANT ALL ON ALL TABLES IN SCHEMA {PostgresUrl(url).schema} TO app",
    )
    store = PostgresStore(url.replace("postgres@", "app@"))
    others: list[psycopg.Connection[Any]] = []

    def take_all() -> None:
        with suppress(psycopg.OperationalError):
            while len(others) < 20:
                others.append(psycopg.connect(server.url(user="app")))
        assert len(others) < 20

    take_all()
    with within(1), pytest.raises(StoreError, match="raise max_connections, or lower mcpfusion_pool_size"):
        await store.read("ann", "INV-1")
    others.pop().close()
    await works_again(store)
    take_all()
    # With the one connection that it has, it does what it is asked, one after the other.
    async with anyio.create_task_group() as tasks:
        for number in range(30):
            tasks.start_soon(lambda n: store.write(workflow(handle=f"INV-{n}"), expected_version=0), number)
    assert len(await store.list_workflows()) == 30
    for other in others:
        other.close()
    await store.aclose()


async def test_a_pool_that_is_in_use_is_waited_for(server: PostgresProcess, soon: float):
    store = PostgresStore(server.schema_url("mcpfusion_pool_size=1"))
    assert await store.write(workflow(), expected_version=0)
    with psycopg.connect(server.url()) as other:
        other.execute(f"UPDATE {store.server.url.schema}.workflow SET version = version".encode())
        async with anyio.create_task_group() as tasks:

            async def fails() -> None:
                with within(soon), pytest.raises(StoreError, match=r"in time|timeout"):
                    await store.write(workflow(2), expected_version=1)

            for _ in range(3):
                tasks.start_soon(fails)
        other.rollback()
    assert await store.write(workflow(2), expected_version=1)
    await store.aclose()


async def test_a_server_that_only_takes_reads(server: PostgresProcess, store: PostgresStore):
    assert await store.write(workflow(), expected_version=0)
    server.execute("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
    try:
        await _until(store, 2, refused=True)
        assert await store.read("ann", "INV-1") is not None
    finally:
        server.execute("SET default_transaction_read_only = off", "ALTER SYSTEM RESET default_transaction_read_only")
        server.execute("SELECT pg_reload_conf()")
    await _until(store, 2, refused=False)


async def _until(store: PostgresStore, version: int, *, refused: bool) -> None:
    with anyio.fail_after(PATIENCE):
        while True:
            found = await store.read("ann", "INV-1")
            assert found is not None
            said = ""
            try:
                await store.write(workflow(found.version + 1), expected_version=found.version)
            except StoreError as error:
                said = str(error)
            assert not said or "target_session_attrs=read-write" in said
            if bool(said) is refused:
                return
            await anyio.sleep(0.05)


async def test_of_several_hosts_the_one_that_takes_writes(server: PostgresProcess, soon: float):
    url = server.schema_url()
    unused = postgres_servers.free_port()
    hosts = url.replace(f"127.0.0.1:{server.port}", f"127.0.0.1:{unused},127.0.0.1:{server.port}")
    store = PostgresStore(f"{hosts}&target_session_attrs=read-write")
    assert await store.write(workflow(), expected_version=0)
    await store.aclose()
    standby = PostgresStore(f"{hosts}&target_session_attrs=standby")
    with pytest.raises(StoreError, match=r"hot standby mode; it only takes reads|it cannot be reached"):
        await standby.read("ann", "INV-1")
    await standby.aclose()


async def test_a_wrong_password(server: PostgresProcess):
    server.require_password("guarded")
    server.execute("DROP ROLE IF EXISTS guarded", "CREATE ROLE guarded LOGIN PASSWORD 'right'")
    for password, said in (("wr%40ng", "password authentication failed"), ("", "no password|password")):
        url = server.url(user=f"guarded:{password}" if password else "guarded")
        store = PostgresStore(url)
        with within(1), pytest.raises(StoreError, match=said) as caught:
            await store.read("ann", "INV-1")
        assert "wr" not in str(caught.value).replace("wrong", "")
        assert "check the user and password in the URL" in str(caught.value)
        await store.aclose()


# the schema


async def test_tls(server: PostgresProcess, store: PostgresStore, certificate: Path):
    schema = f"mcpfusion_schema={store.server.url.schema}"
    async with tls.in_front_of(server.port, certificate, asked=tls.POSTGRES) as port:
        place = f"postgresql://postgres@localhost:{port}/postgres?{schema}"
        async with aclosing(PostgresStore(f"{place}&sslmode=verify-full&sslrootcert={certificate}")) as good:
            large = workflow(snapshot={"value": "draft", "context": {"text": "x" * 3_000_000}})
            assert await good.write(large, expected_version=0)
            assert await good.read("ann", "INV-1") == large
            await good.publish(["hello"])
        untrusted = f"{place}&sslmode=verify-full&sslrootcert=/dev/null"
        async with aclosing(PostgresStore(untrusted)) as bad:
            with pytest.raises(StoreError, match="certificate"):
                await bad.read("ann", "INV-1")


async def test_a_schema_is_never_made_silently(server: PostgresProcess):
    url = server.new_schema_url()
    store = PostgresStore(url)
    for operation in await each_operation(store):
        with pytest.raises(StoreError, match=r"its schema is missing or incomplete .* run mcpfusion store init"):
            await operation()
    await store.initialise()
    assert await store.write(workflow(), expected_version=0)
    await store.aclose()


@pytest.mark.parametrize(("version", "said"), [(0, "run mcpfusion store init"), (99, "upgrade mcpfusion")])
async def test_a_schema_of_another_version_is_refused(server: PostgresProcess, version: int, said: str):
    url = server.schema_url()
    schema = PostgresUrl(url).schema
    server.execute(f"UPDATE {schema}.mcpfusion SET version = {version}")
    store = PostgresStore(url)
    with pytest.raises(StoreError, match=f"its schema has version {version}, .*; {said}"):
        await store.read("ann", "INV-1")
    if version > postgres_schema.SCHEMA_VERSION:
        with pytest.raises(StoreError, match="upgrade mcpfusion"):
            await store.initialise()
    await store.aclose()


async def test_many_may_make_the_schema_at_once(server: PostgresProcess):
    url = server.new_schema_url()
    found: list[Any] = []

    async def one() -> None:
        found.append(await postgres_schema.initialise(PostgresUrl(url)))

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(one)
    assert sorted(before.version is None for before, _ in found) == [False] * 3 + [True]
    assert {after.version for _, after in found} == {postgres_schema.SCHEMA_VERSION}


async def test_a_migration_that_fails_leaves_nothing(server: PostgresProcess, monkeypatch: pytest.MonkeyPatch):
    url = server.schema_url()
    schema = PostgresUrl(url).schema
    broken = "ALTER TABLE {s}.workflow ADD COLUMN more text; ALTER TABLE {s}.nothing ADD COLUMN more text;"
    monkeypatch.setattr(postgres_schema, "_MIGRATIONS", (*postgres_schema._MIGRATIONS, broken))
    monkeypatch.setattr(postgres_schema, "SCHEMA_VERSION", postgres_schema.SCHEMA_VERSION + 1)
    with pytest.raises(StoreError):
        await postgres_schema.initialise(PostgresUrl(url))
    columns = f"SELECT 1 FROM information_schema.columns WHERE table_schema = '{schema}' AND column_name = 'more'"
    assert server.execute(columns) == []
    mended = "ALTER TABLE {s}.workflow ADD COLUMN more text;"
    monkeypatch.setattr(postgres_schema, "_MIGRATIONS", (*postgres_schema._MIGRATIONS[:-1], mended))
    before, after = await postgres_schema.initialise(PostgresUrl(url))
    assert (before.version, after.version) == (1, 2)
    assert server.execute(columns) == [(1,)]


async def test_rights_on_the_schema_are_enough(server: PostgresProcess):
    server.execute("DROP SCHEMA IF EXISTS gates CASCADE", "DROP ROLE IF EXISTS owner", "CREATE ROLE owner LOGIN")
    server.execute("CREATE SCHEMA gates AUTHORIZATION owner", "REVOKE ALL ON SCHEMA public FROM PUBLIC")
    url = server.url("mcpfusion_schema=gates", user="owner")
    await postgres_schema.initialise(PostgresUrl(url))
    store = PostgresStore(url)
    assert await store.write(workflow(), expected_version=0, step=step())
    await store.aclose()
    server.execute("DROP ROLE IF EXISTS stranger", "CREATE ROLE stranger LOGIN")
    stranger = PostgresStore(server.url("mcpfusion_schema=gates", user="stranger"))
    with pytest.raises(StoreError, match=r"permission denied .* give the role of the URL its rights"):
        await stranger.read("ann", "INV-1")
    await stranger.aclose()
    nowhere = PostgresUrl(server.url("mcpfusion_schema=elsewhere", user="stranger"))
    with pytest.raises(StoreError, match="permission denied"):
        await postgres_schema.initialise(nowhere)


# the bus


async def test_a_listener_is_told_that_it_may_have_missed_something(
    server: PostgresProcess, store: PostgresStore, soon: float, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)
    came: list[str | None] = []
    news = anyio.Event()

    async def listen() -> None:
        nonlocal news
        async with aclosing(store.listen()) as messages:
            async for message in messages:
                came.append(message)
                news.set()
                news = anyio.Event()

    async def until(count: int) -> None:
        with anyio.fail_after(PATIENCE):
            while len(came) < count:
                await news.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen)
        await until(1)
        await store.publish(["one"])
        await until(2)
        assert end_backends(server.url(), "query LIKE 'LISTEN%'")
        await until(3)
        await store.publish(["two"])
        await until(4)
        await anyio.to_thread.run_sync(server.crash)
        await anyio.sleep(0.3)
        await anyio.to_thread.run_sync(server.start)
        await until(5)
        server.pause()
        await anyio.sleep(2.5)
        server.go_on()
        await until(6)
        await works_again(store)
        await store.publish(["three"])
        await until(7)
        tasks.cancel_scope.cancel()
    assert came == [None, "one", None, "two", None, None, "three"]
    assert caplog.text.count("is not heard for now") == 3


async def test_a_listener_ends_when_the_store_is_closed(store: PostgresStore, soon: float):
    with anyio.fail_after(PATIENCE):
        async for message in store.listen():
            assert message is None
            await store.aclose()
