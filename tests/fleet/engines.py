"""The engines that a fleet may share, and what befalls them."""

import itertools
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio

from tests.fleet.scenario import Disturb
from tests.support import postgres_servers, redis_servers

AWAY = 1.0
"""Seconds that an engine is away when it is restarted."""

HELD = 2.0
"""Seconds that another process keeps a file's lock: time enough for handlers' leases to run out."""


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that runs.

    Attributes:
        url: Names the store.
        disturb: Does to it what befalls engines of its kind.
    """

    url: str
    disturb: Disturb


@asynccontextmanager
async def sqlite_file(folder: Path) -> AsyncIterator[Engine]:
    """A file, which another process locks for a while, as a backup may."""
    file = folder / "orders.db"

    def lock() -> None:
        other = sqlite3.connect(file, timeout=10, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        time.sleep(HELD)
        other.close()

    async def disturb() -> None:
        await anyio.to_thread.run_sync(lock)

    yield Engine(f"sqlite:///{file}", disturb)


@asynccontextmanager
async def postgres(folder: Path) -> AsyncIterator[Engine]:
    """A PostgreSQL server, which is restarted: shut down, or crashed, in turns."""
    with postgres_servers.running() as server:
        ways = itertools.cycle([server.end, server.crash])
        yield Engine(await anyio.to_thread.run_sync(server.schema_url), _restarting(ways, server.start))


@asynccontextmanager
async def redis(folder: Path) -> AsyncIterator[Engine]:
    """A Redis server that keeps what it acknowledged, and is restarted: shut down, or killed, in turns."""
    with redis_servers.server(folder / "redis", "--appendonly", "yes", "--appendfsync", "always") as server:

        def shut_down() -> None:
            assert server.process is not None
            server.process.terminate()
            server.process.wait()

        ways = itertools.cycle([shut_down, server.kill])
        yield Engine(server.url(), _restarting(ways, server.start))


def _restarting(ways: Iterator[Callable[[], None]], start: Callable[[], object]) -> Disturb:
    async def disturb() -> None:
        await anyio.to_thread.run_sync(next(ways))
        await anyio.sleep(AWAY)
        await anyio.to_thread.run_sync(start)

    return disturb


ENGINES: dict[str, Callable[[Path], AbstractAsyncContextManager[Engine]]] = {
    "sqlite": sqlite_file,
    "redis": redis,
    "postgres": postgres,
}
