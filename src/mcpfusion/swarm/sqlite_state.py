"""Carried state, used tokens and pinned definitions in one SQLite file, shared by the processes of a host."""

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread

from mcpfusion.swarm.state import HandoffStateStore, InMemoryHandoffStateStore, InMemoryReplayStore, ReplayStore

T = TypeVar("T")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS handoff_state (key TEXT PRIMARY KEY, state TEXT NOT NULL, expires REAL NOT NULL);
CREATE INDEX IF NOT EXISTS handoff_state_expires ON handoff_state (expires);
CREATE TABLE IF NOT EXISTS used_token (jti TEXT PRIMARY KEY, expires REAL NOT NULL);
CREATE INDEX IF NOT EXISTS used_token_expires ON used_token (expires);
CREATE TABLE IF NOT EXISTS pin (
    specialist TEXT NOT NULL, tool TEXT NOT NULL, digest TEXT NOT NULL, refused TEXT, PRIMARY KEY (specialist, tool)
);
"""


class SwarmFile:
    """The file: one connection, used by one thread at a time."""

    def __init__(self, path: str | Path, clock: Callable[[], float]) -> None:
        self.path = Path(path)
        self.clock = clock
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do `work` in a transaction of its own, in a worker thread."""
        return await to_thread.run_sync(self._run, work, limiter=CapacityLimiter(1))

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            if self._connection is None:
                self._connection = self._open()
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                return work(self._connection)

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=10, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.executescript(_SCHEMA)
        return connection


class SqliteHandoffStateStore:
    """A `HandoffStateStore` in a SQLite file."""

    shared = True

    def __init__(self, path: str | Path, *, clock: Callable[[], float] = time.time) -> None:
        self._file = SwarmFile(path, clock)

    async def set(self, key: str, state: Mapping[str, Any], ttl_seconds: float) -> None:
        """Keep `state`; what has expired is swept out on the way."""
        text, now = json.dumps(state), self._file.clock()

        def work(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM handoff_state WHERE expires <= ?", (now,))
            row = (key, text, now + ttl_seconds)
            connection.execute("INSERT OR REPLACE INTO handoff_state VALUES (?, ?, ?)", row)

        await self._file.run(work)

    async def get(self, key: str) -> Mapping[str, Any] | None:
        """Return what is kept under `key`, or None."""
        now = self._file.clock()
        query = "SELECT state FROM handoff_state WHERE key = ? AND expires > ?"
        row = await self._file.run(lambda connection: connection.execute(query, (key, now)).fetchone())
        return None if row is None else json.loads(row[0])

    async def delete(self, key: str) -> None:
        """Forget what is kept under `key`."""
        await self._file.run(lambda connection: connection.execute("DELETE FROM handoff_state WHERE key = ?", (key,)))


class SqliteReplayStore:
    """A `ReplayStore` in a SQLite file."""

    def __init__(self, path: str | Path, *, clock: Callable[[], float] = time.time) -> None:
        self._file = SwarmFile(path, clock)

    async def add(self, jti: str, expires_at: float) -> bool:
        """Mark a token as used. False when it was used before."""
        now = self._file.clock()

        def work(connection: sqlite3.Connection) -> bool:
            connection.execute("DELETE FROM used_token WHERE expires <= ?", (now,))
            row = (jti, expires_at)
            return connection.execute("INSERT OR IGNORE INTO used_token VALUES (?, ?)", row).rowcount == 1

        return await self._file.run(work)


def open_handoff_store(url: str) -> HandoffStateStore:
    """Return the handoff state store that `url` names: `memory://` or `sqlite:///path`.

    Raises:
        ValueError: It names none.
    """
    path = _path(url)
    return InMemoryHandoffStateStore() if path is None else SqliteHandoffStateStore(path)


def open_replay_store(url: str) -> ReplayStore:
    """Return the store of used tokens that `url` names: `memory://` or `sqlite:///path`.

    Raises:
        ValueError: It names none.
    """
    path = _path(url)
    return InMemoryReplayStore() if path is None else SqliteReplayStore(path)


def _path(url: str) -> str | None:
    if url.rstrip("/") == "memory:":
        return None
    head = "sqlite:///"
    if not url.startswith(head) or len(url) == len(head):
        scheme = url.partition("://")[0][:32]
        raise ValueError(f"no handoff store for {scheme!r} URLs; supported are memory:// and sqlite:///path")
    return url[len(head) :]
