"""A Redis server that is away, slow, full, closed to us, or not what it should be."""

import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import redis

from mcpfusion.stores import RedisStore, StoreError, open_store
from mcpfusion.stores.redis_pool import Call, Pool, Turn
from mcpfusion.stores.redis_url import RedisUrl
from mcpfusion.swarm.open import open_swarm_stores

from ..support import tls
from ..support.redis_servers import Server, eventually, server
from ..support.tls import certificate as certificate
from .processes import run_script
from .records import claim, last, step, workflow

pytestmark = pytest.mark.anyio

SECRET = "s3cret/@:?%"
QUOTED = "s3cret%2F%40%3A%3F%25"


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[Server]:
    with server(tmp_path / "redis", "--appendonly", "yes", "--appendfsync", "always") as one:
        yield one


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[RedisStore]:
    store = RedisStore(url)
    try:
        yield store
    finally:
        await store.aclose()


async def fails(what: Callable[[], Awaitable[Any]], said: str, seconds: float = 6.5) -> None:
    began = time.monotonic()
    with pytest.raises(StoreError, match=f"^Redis store: [^\n]*{said}") as caught:
        await what()
    assert time.monotonic() - began < seconds
    assert "127.0.0.1" not in str(caught.value)
    assert caught.value.__cause__ is None


async def works_again(store: RedisStore, seconds: float = 3) -> None:
    with anyio.fail_after(seconds + 3):
        began = time.monotonic()
        while True:
            try:
                await store.read("ann", "again")
                break
            except StoreError:
                await anyio.sleep(0.05)
    assert time.monotonic() - began < seconds


async def all_fail(store: RedisStore, said: str) -> None:
    """Every method says so."""
    methods: list[Callable[[], Awaitable[Any]]] = [
        partial(store.read, "ann", "INV-1"),
        partial(store.write, workflow(2), expected_version=1, step=step()),
        partial(store.states_in_use, "ann"),
        store.next_due,
        store.list_workflows,
        partial(store.find, "INV-1"),
        partial(store.history, "ann", "INV-1"),
        partial(store.prune, before=1.0),
        partial(store.publish, ["hello"]),
    ]
    for method in methods:
        await fails(method, said)


async def test_a_server_that_is_killed_and_started_again(redis_server: Server):
    async with opened(redis_server.url()) as store:
        assert await store.write(workflow(claim=claim()), expected_version=0, step=step())
        redis_server.kill()
        await all_fail(store, "cannot be reached, or the connection was lost; start it, or correct the URL")
        redis_server.start()
        await works_again(store)
        # What was acknowledged had been synced.
        assert await store.read("ann", "INV-1") == workflow(claim=claim())
        assert await store.history("ann", "INV-1") == [step()]


async def test_a_server_that_was_never_there():
    async with opened("redis://127.0.0.1:9/0") as store:
        await all_fail(store, "cannot be reached")


async def test_a_server_that_hangs(redis_server: Server):
    async with opened(redis_server.url()) as store:
        assert await store.write(workflow(), expected_version=0)
        late = partial(store.write, workflow(2, id="late"), expected_version=1, step=step())
        with redis_server.hanging():
            async with anyio.create_task_group() as tasks:
                for _ in range(30):
                    tasks.start_soon(fails, late, "(no answer|cannot be reached|no connection) in time")
                tasks.start_soon(fails, partial(store.read, "ann", "INV-1"), "in time")
        await works_again(store)
        # What nobody waited for any more was not carried out when the server went on.
        assert await store.read("ann", "INV-1") == workflow()
        assert await store.write(workflow(2), expected_version=1)


async def test_a_slow_server_is_only_slow(redis_server: Server):
    async with opened(redis_server.url()) as store:
        assert await store.write(workflow(), expected_version=0)
        redis_server.client(socket_timeout=None).execute_command("CLIENT", "PAUSE", 400, "ALL")
        async with anyio.create_task_group() as tasks:
            for number in range(30):
                tasks.start_soon(partial(store.write, workflow(handle=str(number)), expected_version=0))
        assert len(await store.list_workflows()) == 31


async def test_a_full_server_takes_no_writes_and_keeps_what_it_has(redis_server: Server):
    admin = redis_server.client()
    async with opened(redis_server.url()) as store:
        assert await store.write(workflow(expires_at=5.0), expected_version=0, step=step())
        admin.config_set("maxmemory", "100kb")
        for held in (1, 0):
            written = workflow(held + 1, handle="INV-1" if held else "new")
            full = partial(store.write, written, expected_version=held, step=step(handle=written.handle))
            await fails(full, "it is full; raise its maxmemory")
        assert await store.read("ann", "INV-1") == workflow(expires_at=5.0)
        assert await store.history("ann", "INV-1") == [step()]
        assert await store.read("ann", "new") is None
        assert [each.handle for each in await store.list_workflows()] == ["INV-1"]
        # Room can still be made.
        assert await store.prune(before=6.0) == 1
        admin.config_set("maxmemory", 0)
        assert await store.write(workflow(), expected_version=0)


async def test_a_server_out_of_connections(redis_server: Server):
    admin = redis_server.client()
    async with opened(redis_server.url()) as store:
        admin.config_set("maxclients", 1)
        await fails(partial(store.read, "ann", "INV-1"), "it takes no more connections; raise its maxclients")
        admin.config_set("maxclients", 1000)
        await works_again(store)


async def test_connections_are_bounded(redis_server: Server):
    admin = redis_server.client()
    async with opened(redis_server.url() + "?max_connections=3&client_name=bounded") as store:
        async with anyio.create_task_group() as tasks:
            for number in range(500):
                tasks.start_soon(store.read, "ann", str(number))
        assert sum(each["name"] == "bounded" for each in admin.client_list()) == 3


async def test_calls_of_the_same_moment_share_an_exchange(redis_server: Server):
    """However many connections there are."""
    admin = redis_server.client()

    async def move(store: RedisStore, handle: str) -> None:
        for version in range(30):
            assert await store.write(workflow(version + 1, handle), expected_version=version)

    async with opened(redis_server.url() + "?max_connections=10") as store:
        await store.read("ann", "INV-1")
        before = admin.info("stats")["total_reads_processed"]
        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(move, store, str(number))
        exchanges = admin.info("stats")["total_reads_processed"] - before
    assert exchanges < 150


async def test_who_finds_no_room_in_an_exchange_goes_in_another():
    under_way: list[int] = []
    all_go, go_on = anyio.Event(), anyio.Event()

    async def exchange(pool: Pool, turns: Sequence[Turn], deadline: float) -> None:
        under_way.append(len(turns))
        if sum(under_way) == 250:
            all_go.set()
        await go_on.wait()

    pool = Pool(("127.0.0.1", 9), 10, exchange)
    async with anyio.create_task_group() as tasks:
        for _ in range(250):
            tasks.start_soon(pool.send, [Turn(Call([], []), 0, False, False)], anyio.current_time() + 5)
        with anyio.fail_after(3):
            await all_go.wait()
        assert under_way == [1, 100, 100, 49]
        go_on.set()


async def test_a_connection_that_the_server_closed_is_not_used(redis_server: Server):
    admin = redis_server.client()
    async with opened(redis_server.url()) as store:
        for version in range(5):
            assert await store.write(workflow(version + 1), expected_version=version)
            admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            await anyio.sleep(0.02)


async def test_a_password_that_is_wrong(redis_server: Server):
    admin = redis_server.client()
    admin.acl_setuser("ann", enabled=True, passwords=["+" + SECRET], commands=["+@all"], keys=["*"], channels=["*"])
    admin.config_set("requirepass", "other")
    place = f"127.0.0.1:{redis_server.port}"
    for credentials in ("", "ann:wrong@", ":wrong@", f"bob:{QUOTED}@"):
        async with opened(f"redis://{credentials}{place}") as store:
            await fails(partial(store.read, "ann", "INV-1"), "the user or password is refused")
    async with opened(f"redis://ann:{QUOTED}@{place}/3") as store:
        assert await store.write(workflow(), expected_version=0)
        assert SECRET not in repr(store) and QUOTED not in repr(store)


async def test_a_user_with_no_more_rights_than_it_needs(redis_server: Server):
    """The rights that the documentation names."""
    admin = redis_server.client()
    admin.execute_command(
        *("ACL", "SETUSER", "gate", "on", ">secret", "resetkeys", "~mcpfusion:*", "resetchannels", "&mcpfusion:*"),
        *("-@all", "+@connection", "+@read", "+@write", "+@scripting", "+@pubsub", "+time", "+wait", "-script"),
    )
    async with opened(f"redis://gate:secret@127.0.0.1:{redis_server.port}") as store:
        assert await store.write(workflow(expires_at=1.0), expected_version=0, step=step())
        assert len(await store.list_workflows()) == len(await store.find("INV-1")) == 1
        await store.publish(["hello"])
        async with aclosing(store.listen()) as heard:
            assert await anext(heard) is None
        assert await store.prune(before=2.0) == 1
    admin.execute_command("ACL", "SETUSER", "gate", "-eval")
    async with opened(f"redis://gate:secret@127.0.0.1:{redis_server.port}") as store:
        await fails(partial(store.read, "ann", "INV-1"), "its user may not do this")


async def test_a_replica_is_refused(redis_server: Server, tmp_path: Path):
    async with opened(redis_server.url()) as store:
        assert await store.write(workflow(), expected_version=0)
        with server(tmp_path / "replica", "--replicaof", "127.0.0.1", str(redis_server.port)) as replica:
            async with opened(replica.url()) as other:
                await fails(partial(other.read, "ann", "INV-1"), "it is a replica; name its master")
            # One that becomes a replica while it is used.
            redis_server.client().replicaof("127.0.0.1", replica.port)
            await fails(partial(store.write, workflow(2), expected_version=1), "it only takes reads; name its master")
            await fails(partial(store.read, "ann", "INV-1"), "it is a replica")
            redis_server.client().replicaof("NO", "ONE")
            await works_again(store)


async def test_a_write_that_too_few_replicas_have(
    redis_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("mcpfusion.stores.redis_server.WAIT_LIMIT_MS", 300)
    async with opened(redis_server.url() + "?wait=1") as store:
        await fails(partial(store.write, workflow(), expected_version=0), "too few replicas have what was written", 4)
        # It may be there all the same, which the gate finds by reading.
        assert await store.read("ann", "INV-1") == workflow()
        with server(tmp_path / "replica", "--replicaof", "127.0.0.1", str(redis_server.port)) as replica:
            admin = redis_server.client()
            eventually(lambda: admin.set("followed", 1) and admin.wait(1, 1000) == 1)
            assert await store.write(workflow(2), expected_version=1)
            with redis.Redis(port=replica.port) as look:
                assert any(look.scan_iter("mcpfusion:*"))


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random"])
async def test_a_server_that_throws_workflows_away_is_refused(redis_server: Server, policy: str):
    admin = redis_server.client()
    admin.config_set("maxmemory-policy", policy)
    async with opened(redis_server.url()) as store:
        assert await store.read("ann", "INV-1") is None  # it has no limit, so it throws nothing away
    admin.config_set("maxmemory", "100mb")
    async with opened(redis_server.url()) as store:
        await fails(partial(store.read, "ann", "INV-1"), "it throws away .*; set its maxmemory-policy to noeviction")


async def test_a_server_whose_scripts_were_flushed(redis_server: Server):
    async with opened(redis_server.url()) as store:
        assert await store.write(workflow(), expected_version=0)
        redis_server.client().script_flush()
        assert await store.write(workflow(2), expected_version=1)


async def test_data_of_another_version_is_refused(redis_server: Server):
    admin = redis_server.client()
    admin.set("mcpfusion:layout", "2:1")
    async with opened(redis_server.url()) as store:
        with pytest.raises(StoreError, match="laid out by a newer mcpfusion; upgrade"):
            await store.read("ann", "INV-1")
    admin.set("mcpfusion:layout", "1:1")
    async with opened(redis_server.url()) as store:
        assert await store.write(workflow(), expected_version=0, step=step())
        (key,) = admin.keys("mcpfusion:{0}w*")
        head = admin.lindex(key, 0)
        for damaged, said in ((head[:-3], "is damaged"), (b"1:::0:2x", "is of another version")):
            admin.lset(key, 0, damaged)
            with pytest.raises(StoreError, match=said):
                await store.read("ann", "INV-1")
            assert await store.history("ann", "INV-1") == [step()]


async def test_the_layout_that_was_written_first_counts(redis_server: Server):
    redis_server.client().set("mcpfusion:layout", "1:32")
    async with opened(redis_server.url()) as store:
        for number in range(100):
            assert await store.write(workflow(handle=f"{number:03}", due=float(number)), expected_version=0)
        assert [each.handle for each in await store.list_workflows()] == [f"{number:03}" for number in range(100)]
        assert [at for at, _, _ in await store.next_due(limit=7)] == [float(number) for number in range(7)]
        tags = {key.partition(b"}")[0] for key in redis_server.client().scan_iter("mcpfusion:{*}w*")}
        assert len(tags) > 20


async def test_a_closed_store_says_so(redis_server: Server):
    store = RedisStore(redis_server.url())
    await store.read("ann", "INV-1")
    await store.aclose()
    await all_fail(store, "was closed; make a new store")


async def test_the_bus_goes_on_after_the_server_was_away(redis_server: Server):
    async with opened(redis_server.url()) as store, aclosing(store.listen()) as heard:
        assert await anext(heard) is None
        await store.publish(["one"])
        assert await anext(heard) == "one"
        redis_server.kill()
        await anyio.sleep(0.1)
        redis_server.start()
        with anyio.fail_after(4):
            assert await anext(heard) is None
        await store.publish(["two"])
        assert await anext(heard) == "two"


@pytest.mark.timeout(60)
async def test_the_bus_notices_a_server_that_hangs(redis_server: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mcpfusion.stores.redis_bus._QUIET", 0.3)
    async with opened(redis_server.url()) as store, aclosing(store.listen()) as heard:
        assert await anext(heard) is None
        await anyio.sleep(0.1)
        async with anyio.create_task_group() as tasks:
            again: list[str | None] = []

            async def go_on() -> None:
                again.append(await anext(heard))

            tasks.start_soon(go_on)
            await anyio.sleep(1.2)  # quiet, and alive
            assert again == []
            with redis_server.hanging():
                await anyio.sleep(1.5)
        assert again == [None]


def test_a_store_serves_one_event_loop_after_another(redis_server: Server):
    store = RedisStore(redis_server.url())

    async def use(version: int) -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(4):
                written = workflow(version + 1, handle=str(number))
                tasks.start_soon(partial(store.write, written, expected_version=version))
        assert len(await store.list_workflows()) == 4

    for version in range(3):
        anyio.run(use, version)
    found = anyio.run(store.read, "ann", "1")
    assert found is not None
    assert found.version == 3
    anyio.run(store.aclose)


async def test_history_is_bounded(redis_server: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mcpfusion.stores.redis.HISTORY_LIMIT", 5)
    async with opened(redis_server.url()) as store:
        for number in range(8):
            moved = step(call_id=str(number))
            assert await store.write(workflow(number + 1), expected_version=number, step=moved)
        assert [each.call_id for each in await store.history("ann", "INV-1")] == ["3", "4", "5", "6", "7"]
        assert await store.read("ann", "INV-1") == workflow(8)


async def test_an_idle_workflow_is_small(redis_server: Server):
    """After a step that is in its history, with an end; so many that what the server itself takes does not count."""
    admin = redis_server.client()
    admin.config_set("appendonly", "no")
    handles = [f"wf_{secrets.token_hex(16)}" for _ in range(4000)]

    async def leave_idle(store: RedisStore, some: Sequence[str]) -> None:
        for handle in some:
            done = last(call_id=secrets.token_hex(16), digest=secrets.token_hex(32), result=None)
            first = workflow(handle=handle, expires_at=time.time(), last=done, id=secrets.token_hex(8))
            moved = step(handle=handle, call_id=done.call_id, at=time.time())
            assert await store.write(first, expected_version=0, step=moved)

    def used() -> int:
        told = admin.info("memory")
        return told["used_memory"] - told["mem_clients_normal"]

    async with opened(redis_server.url()) as store:
        await store.read("ann", "INV-1")
        before = used()
        async with anyio.create_task_group() as tasks:
            for at in range(20):
                tasks.start_soon(leave_idle, store, handles[at::20])
        each = (used() - before) / len(handles) - len(handles[0])
    assert each < 1024, each


def test_urls_are_read():
    plain = RedisUrl(f"rediss://ann:{QUOTED}@db.example:7000/3?prefix=x:&wait=2&max_connections=4&ssl_cert_reqs=none")
    assert (plain.kind, plain.hosts, plain.database) == ("single", [("db.example", 7000)], 3)
    assert (plain.prefix, plain.wait, plain.pool_size) == ("x:", 2, 4)
    connection = plain.connection(plain.hosts[0])
    assert (connection.username, connection.password, connection.db) == ("ann", SECRET, 3)
    assert type(connection).__name__ == "SSLConnection"
    assert SECRET not in repr(plain)
    watched = RedisUrl("valkey+sentinel://:p@a,b:1,[::1]:2/service/4?sentinel_password=q")
    assert (watched.kind, watched.hosts) == ("sentinel", [("a", 26379), ("b", 1), ("::1", 2)])
    assert (watched.service, watched.database, watched.wait) == ("service", 4, 1)
    assert watched.connection(("m", 1)).password == "p"
    assert watched.sentinel_connection(("s", 1)).password == "q"
    many = RedisUrl("Redis+Cluster://a,b:7001")
    assert (many.kind, many.hosts, many.wait) == ("cluster", [("a", 6379), ("b", 7001)], 1)


@pytest.mark.parametrize(
    "url",
    [
        "redis://",
        "redis:///0",
        "redis://host:port/0",
        "redis://host/zero",
        "redis://host:6379:1/0",
        "redis://a,b/0",
        "redis://ann:s3cret/x@host/0",
        "redis://ann:s3cret@host/0?decode_responses=1",
        "redis://ann:s3cret@host/0?nonsense=1",
        "redis://ann:s3cret@host/0?ssl_ca_certs=/x",
        "redis://ann:s3cret@host/0?prefix={s3cret}",
        "redis://ann:s3cret@host/0?prefix=%7B",
        "redis://ann:s3cret@host/0?wait=s3cret",
        "redis://ann:s3cret@host/0?max_connections=0",
        "rediss://ann:s3cret@host/0?ssl_min_version=s3cret",
        "rediss://ann:s3cret@host/0?ssl_cert_reqs=s3cret",
        "redis+sentinel://ann:s3cret@host",
        "redis+sentinel://ann:s3cret@host/service/x",
        "redis+cluster://ann:s3cret@host/1",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_at_once(url: str):
    for open_it in (open_store, open_swarm_stores):
        with pytest.raises(ValueError, match=r"redis|Redis|URL|expected") as caught:
            open_it(url)
        assert "s3cret" not in str(caught.value)
        assert caught.value.__cause__ is None or "s3cret" not in str(caught.value.__cause__)


async def test_tls(redis_server: Server, certificate: Path):
    async with tls.in_front_of(redis_server.port, certificate) as port:
        place = f"localhost:{port}/0"
        for good in (f"ssl_ca_certs={certificate}", "ssl_cert_reqs=none&ssl_check_hostname=false"):
            async with opened(f"rediss://{place}?{good}") as store:
                assert await store.read("ann", "INV-1") is None
                await store.publish(["hello"])
        async with opened(f"rediss://{place}") as store:
            await fails(partial(store.read, "ann", "INV-1"), "its TLS certificate is not trusted")
        async with opened(f"redis://{place}") as store:
            await fails(partial(store.read, "ann", "INV-1"), "cannot be reached, or the connection was lost")


def test_without_the_extra_it_says_what_to_install():
    script = """
import sys

sys.modules["redis"] = None
from mcpfusion.stores import StoreError, open_store
from mcpfusion.swarm.open import open_swarm_stores

for opened in (open_store, open_swarm_stores):
    try:
        opened("redis://host")
    except StoreError as error:
        print(error)
"""
    assert run_script(script) == "a redis:// store needs redis: pip install 'mcpfusion[redis]'\n" * 2
