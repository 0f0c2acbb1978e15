"""The engines by themselves: a compare-and-set loop over nothing but the driver, beside which the stores are put."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeVar

Set = Callable[[int, int, str], Awaitable[bool]]
"""Sets worker's record, of the given number, if its version is still the given one."""

_LUA = """
if (redis.call('HGET', KEYS[1], 'version') or '0') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'version', ARGV[1] + 1, 'record', ARGV[2])
return 1
"""
_TABLE = "CREATE TABLE bare (worker INTEGER PRIMARY KEY, version INTEGER NOT NULL, record TEXT NOT NULL)"


T = TypeVar("T")


def _queue(items: Iterable[T]) -> asyncio.Queue[T]:
    queue: asyncio.Queue[T] = asyncio.Queue()
    for item in items:
        queue.put_nowait(item)
    return queue


@asynccontextmanager
async def bare_redis(url: str, workers: int, connections: int) -> AsyncIterator[Set]:
    """redis-py and a minimal script; whoever finds no connection free waits for one."""
    from redis.asyncio import Redis

    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(Redis.from_url(url, single_connection_client=True))
            for _ in range(connections)
        ]
        free = _queue(clients)
        script = await clients[0].script_load(_LUA)

        async def compare_and_set(worker: int, version: int, record: str) -> bool:
            client = await free.get()
            try:
                return await client.evalsha(script, 1, f"bare:{worker}", version, record) == 1
            finally:
                free.put_nowait(client)

        yield compare_and_set


@asynccontextmanager
async def bare_postgres(url: str, workers: int, connections: int) -> AsyncIterator[Set]:
    """psycopg and one UPDATE; whoever finds no connection free waits for one."""
    from psycopg import AsyncConnection

    async with AsyncExitStack() as stack:
        links = [
            await stack.enter_async_context(await AsyncConnection.connect(url, autocommit=True))
            for _ in range(connections)
        ]
        free = _queue(links)
        await links[0].execute(_TABLE)
        for worker in range(workers):
            await links[0].execute("INSERT INTO bare VALUES (%s, 0, '')", (worker,))
        update = "UPDATE bare SET version = version + 1, record = %s WHERE worker = %s AND version = %s"

        async def compare_and_set(worker: int, version: int, record: str) -> bool:
            link = await free.get()
            try:
                return (await link.execute(update, (record, worker, version))).rowcount == 1
            finally:
                free.put_nowait(link)

        yield compare_and_set


@asynccontextmanager
async def bare_sqlite(folder: str, workers: int, connections: int) -> AsyncIterator[Set]:
    """sqlite3 and one UPDATE, synced to the disk; one connection, since writers wait for each other anyway."""
    connection = sqlite3.connect(Path(folder, "bare.db"), isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(_TABLE)
    connection.executemany("INSERT INTO bare VALUES (?, 0, '')", [(worker,) for worker in range(workers)])
    update = "UPDATE bare SET version = version + 1, record = ? WHERE worker = ? AND version = ?"

    async def compare_and_set(worker: int, version: int, record: str) -> bool:
        return connection.execute(update, (record, worker, version)).rowcount == 1

    yield compare_and_set
    connection.close()
