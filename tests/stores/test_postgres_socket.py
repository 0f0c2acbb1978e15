"""How the PostgreSQL store waits: what is large, what is said unasked, event loops of other threads."""

import asyncio
import gc
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import anyio
import psycopg
import pytest

from mcpfusion.stores import PostgresStore, postgres_socket
from mcpfusion.stores.postgres_link import Link
from mcpfusion.stores.postgres_url import PostgresUrl

from ..support.postgres_servers import end_backends
from ..support.postgres_servers import postgres_url as postgres_url
from .records import step, workflow

pytestmark = pytest.mark.anyio

CHANNEL = "test_socket"


@pytest.fixture
async def link(postgres_url: str) -> AsyncIterator[Link]:
    link = await Link.connect(PostgresUrl(postgres_url).parameters)
    yield link
    link.close()


async def test_what_does_not_fit_into_the_socket(link: Link, monkeypatch: pytest.MonkeyPatch):
    writable = postgres_socket.Socket._writable
    full = anyio.Event()
    times = 0

    def add_writer(number: int, callback: Any) -> None:
        real(number, callback)
        full.set()

    def counted(self: postgres_socket.Socket) -> None:
        nonlocal times
        times += 1
        writable(self)

    real = asyncio.get_running_loop().add_writer
    monkeypatch.setattr(asyncio.get_running_loop(), "add_writer", add_writer)
    monkeypatch.setattr(postgres_socket.Socket, "_writable", counted)
    text = "x" * 20_000_000

    async def send() -> None:
        assert await link.execute("SELECT $1::text || 'y'", (text,), 10) == [(text + "y",)]

    os.kill(link.backend, signal.SIGSTOP)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            with anyio.fail_after(10):
                await full.wait()
                await anyio.sleep(0.05)
            assert times == 0
            os.kill(link.backend, signal.SIGCONT)
    finally:
        os.kill(link.backend, signal.SIGCONT)
    assert times


async def test_what_is_said_unasked_is_looked_at_once(link: Link, postgres_url: str, monkeypatch: pytest.MonkeyPatch):
    looks = 0
    readable = postgres_socket.Socket._readable

    def counted(self: postgres_socket.Socket) -> None:
        nonlocal looks
        looks += 1
        readable(self)

    monkeypatch.setattr(postgres_socket.Socket, "_readable", counted)
    await link.execute("SELECT 1", (), 5)
    assert link.is_quiet()
    looks = 0
    end_backends(postgres_url.partition("?")[0], f"pid = {link.backend}")
    await anyio.sleep(0.1)
    assert looks == 1
    assert not link.is_quiet()
    with pytest.raises(psycopg.OperationalError):
        await link.execute("SELECT 1", (), 5)


@pytest.mark.parametrize("prepared", [True, False])
async def test_news_that_comes_with_an_answer_is_kept(link: Link, prepared: bool):
    if prepared:
        link.prepare_statements()
    await link.execute(f"LISTEN {CHANNEL}", (), 5)
    assert await link.notified(0.01) == []
    for text in ("one", "two"):
        told = "SELECT count(pg_notify($1, $2)), $3::bigint"
        assert await link.execute(told, (CHANNEL, text, 2**40), 5) == [(1, 2**40)]
    assert await link.notified(5) == ["one", "two"]
    assert await link.notified(0.01) == []
    assert await link.execute("SELECT 1 WHERE false", (), 5) == []


async def test_a_statement_that_fails_says_what_the_server_says(link: Link):
    link.prepare_statements()
    for _ in range(2):
        with pytest.raises(psycopg.errors.UndefinedTable):
            await link.execute("SELECT * FROM nowhere", (), 5)
        with pytest.raises(psycopg.errors.DivisionByZero):
            await link.execute("SELECT 1 / $1::bigint", (0,), 5)
    assert await link.execute("SELECT 4 / $1::bigint", (2,), 5) == [(2,)]
    with pytest.raises(psycopg.errors.UndefinedTable):
        await link.run_script("SELECT 1; SELECT * FROM nowhere; SELECT 2", 5)
    await link.run_script("SELECT 1; SELECT 2", 5)


def test_closed_while_an_event_loop_of_another_thread_is_at_work(postgres_url: str):
    store = PostgresStore(postgres_url)
    used, closed, over = threading.Event(), threading.Event(), threading.Event()

    async def use() -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(write, store, number, 0)
        used.set()
        await anyio.to_thread.run_sync(closed.wait, 10)
        # The numbers of the descriptors that were closed are those of the next connections.
        again = PostgresStore(postgres_url)
        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(write, again, number, 1)
        await again.aclose()
        over.set()

    thread = threading.Thread(target=anyio.run, args=(use,), daemon=True)
    thread.start()
    assert used.wait(10)
    anyio.run(store.aclose)
    closed.set()
    assert over.wait(10)
    thread.join(10)
    with psycopg.connect(postgres_url.partition("?")[0]) as other:
        left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'mcpfusion' AND query LIKE %s"
        schema = PostgresUrl(postgres_url).quoted_schema
        for _ in range(100):
            if other.execute(left, (f"%{schema}%",)).fetchone() == (0,):
                break
            other.rollback()
            threading.Event().wait(0.05)
        else:
            pytest.fail("connections were left open")


async def write(store: PostgresStore, number: int, version: int) -> None:
    handle = f"INV-{number}"
    moved = step(handle=handle)
    assert await store.write(workflow(version + 1, handle=handle), expected_version=version, step=moved)


async def test_the_number_of_a_socket_that_ended_is_free_for_the_next_connection(link: Link, postgres_url: str):
    number = link._libpq.socket
    server = postgres_url.partition("?")[0]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, end_backends, server, f"pid = {link.backend}")
        with pytest.raises(psycopg.OperationalError):
            await link.execute("SELECT pg_sleep(10)", (), 5)
    following = await Link.connect(PostgresUrl(postgres_url).parameters)
    try:
        assert following._libpq.socket == number
        assert await following.execute("SELECT 1", (), 5) == [(1,)]
        link._socket.shut_down()
        link.close()
        assert await following.execute("SELECT 2", (), 5) == [(2,)]
    finally:
        following.close()


@pytest.mark.parametrize("how", ["out of time", "cancelled"])
async def test_a_connection_that_was_not_made_is_closed(how: str):
    """At once, and not when the garbage is collected: a server that shuts down waits for it."""
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        silent.settimeout(5)
        url = f"postgresql://ann@127.0.0.1:{silent.getsockname()[1]}/db"
        gc.disable()
        try:
            caught: BaseException | None = None
            try:
                with anyio.fail_after(0.3 if how == "cancelled" else 10):
                    await Link.connect(PostgresUrl(url).parameters)
            except (TimeoutError, psycopg.OperationalError) as error:
                caught = error
            assert caught is not None
            client, _ = silent.accept()
            client.settimeout(1)
            with closing(client):
                assert client.recv(1000)
                assert client.recv(1000) == b""
        finally:
            gc.enable()
