"""What gateways and specialists share, in one SQLite file that the processes of a host have in common."""

import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from weakref import finalize

from anyio import CancelScope, CapacityLimiter, to_thread
from anyio.lowlevel import RunVar

from mcpfusion.stores.sqlite_file import SqliteFile
from mcpfusion.swarm.pins import Pin
from mcpfusion.swarm.route_store import KeptRoutes

T = TypeVar("T")

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS handoff_state (key TEXT PRIMARY KEY, state TEXT NOT NULL, expires REAL NOT NULL)",
    "CREATE INDEX IF NOT EXISTS handoff_state_expires ON handoff_state (expires)",
    "CREATE TABLE IF NOT EXISTS used_token (jti TEXT PRIMARY KEY, expires REAL NOT NULL)",
    "CREATE INDEX IF NOT EXISTS used_token_expires ON used_token (expires)",
    """CREATE TABLE IF NOT EXISTS pin (
        specialist TEXT NOT NULL, tool TEXT NOT NULL, digest TEXT NOT NULL, refused TEXT,
        PRIMARY KEY (specialist, tool)
    )""",
    """CREATE TABLE IF NOT EXISTS route (
        gateway TEXT NOT NULL, conversation TEXT NOT NULL, version INTEGER NOT NULL, record TEXT NOT NULL,
        expires REAL NOT NULL, PRIMARY KEY (gateway, conversation)
    )""",
    "CREATE INDEX IF NOT EXISTS route_expires ON route (expires)",
    """CREATE TABLE IF NOT EXISTS place (
        gateway TEXT NOT NULL, domain TEXT NOT NULL, handoff_id TEXT NOT NULL, expires REAL NOT NULL,
        PRIMARY KEY (gateway, domain, handoff_id)
    )""",
    "CREATE INDEX IF NOT EXISTS place_expires ON place (expires)",
)
_KEEP_PLACE = "INSERT OR REPLACE INTO place VALUES (?, ?, ?, ?)"


class SqliteSwarmStore:
    """A `HandoffStateStore`, `ReplayStore`, `PinStore` and `RouteStore` in one SQLite file.

    It may be the file of a `SqliteStore`. Times to live count by this host's clock. Opened by the first use.
    Every method raises StoreError when the file cannot be used.

    Args:
        path: The file; created when it does not exist. Its folder must exist.
        create: False refuses a file that does not exist yet.
        clock: Gives seconds since the epoch.
    """

    shared = True

    def __init__(
        self, path: str | os.PathLike[str], *, create: bool = True, clock: Callable[[], float] = time.time
    ) -> None:
        self._file = SqliteFile(path, busy_timeout=10.0, create=create)
        self._clock = clock
        self._closed = False
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._limiters: RunVar[CapacityLimiter] = RunVar("mcpfusion.swarm.sqlite")
        finalize(self, self._file.close_all)

    async def set(self, key: str, state: Mapping[str, Any], ttl_seconds: float) -> None:
        """See `HandoffStateStore.set`."""
        text = json.dumps(state)

        def work(connection: sqlite3.Connection) -> None:
            now = self._clock()
            connection.execute("DELETE FROM handoff_state WHERE expires <= ?", (now,))
            connection.execute(
                "INSERT OR REPLACE INTO handoff_state VALUES (?, ?, ?)", (key, text, now + ttl_seconds)
            )

        await self._run(work)

    async def get(self, key: str) -> Mapping[str, Any] | None:
        """See `HandoffStateStore.get`."""
        row = await self._fetch("SELECT state FROM handoff_state WHERE key = ? AND expires > ?", key, self._clock())
        return None if row is None else json.loads(row[0])

    async def delete(self, key: str) -> None:
        """See `HandoffStateStore.delete`."""
        await self._execute("DELETE FROM handoff_state WHERE key = ?", key)

    async def add(self, jti: str, expires_at: float) -> bool:
        """See `ReplayStore.add`."""

        def work(connection: sqlite3.Connection) -> bool:
            connection.execute("DELETE FROM used_token WHERE expires <= ?", (self._clock(),))
            row = (jti, expires_at)
            return connection.execute("INSERT OR IGNORE INTO used_token VALUES (?, ?)", row).rowcount == 1

        return await self._run(work)

    async def check(self, specialist: str, tool: str, digest: str) -> bool:
        """See `PinStore.check`."""

        def work(connection: sqlite3.Connection) -> bool:
            connection.execute("INSERT OR IGNORE INTO pin VALUES (?, ?, ?, NULL)", (specialist, tool, digest))
            query = "SELECT digest FROM pin WHERE specialist = ? AND tool = ?"
            (known,) = connection.execute(query, (specialist, tool)).fetchone()
            if known != digest:
                note = "UPDATE pin SET refused = ? WHERE specialist = ? AND tool = ?"
                connection.execute(note, (digest, specialist, tool))
            return known == digest

        return await self._run(work)

    async def pins(self) -> Sequence[Pin]:
        """See `PinStore.pins`."""
        query = "SELECT specialist, tool, digest, refused FROM pin ORDER BY specialist, tool"
        return [Pin(*row) for row in await self._run(lambda connection: connection.execute(query).fetchall())]

    async def accept(self, specialist: str, tool: str) -> bool:
        """See `PinStore.accept`."""
        change = "UPDATE pin SET digest = refused, refused = NULL"
        waits = "WHERE specialist = ? AND tool = ? AND refused IS NOT NULL"
        return await self._execute(f"{change} {waits}", specialist, tool) == 1

    async def read_routes(self, gateway: str, conversation: str) -> KeptRoutes | None:
        """See `RouteStore.read_routes`."""
        query = "SELECT version, record FROM route WHERE gateway = ? AND conversation = ? AND expires > ?"
        row = await self._fetch(query, gateway, conversation, self._clock())
        return None if row is None else KeptRoutes(*row)

    async def write_routes(
        self, gateway: str, conversation: str, record: str | None, *, expected_version: int, ttl_seconds: float
    ) -> bool:
        """See `RouteStore.write_routes`."""

        def work(connection: sqlite3.Connection) -> bool:
            now = self._clock()
            connection.execute("DELETE FROM route WHERE expires <= ?", (now,))
            query = "SELECT version FROM route WHERE gateway = ? AND conversation = ?"
            (version,) = connection.execute(query, (gateway, conversation)).fetchone() or (0,)
            if version != expected_version:
                return False
            if record is None:
                forget = "DELETE FROM route WHERE gateway = ? AND conversation = ?"
                connection.execute(forget, (gateway, conversation))
            else:
                row = (gateway, conversation, version + 1, record, now + ttl_seconds)
                connection.execute("INSERT OR REPLACE INTO route VALUES (?, ?, ?, ?, ?)", row)
            return True

        return await self._run(work)

    async def keep_routes(self, gateway: str, conversation: str, ttl_seconds: float) -> None:
        """See `RouteStore.keep_routes`."""
        now = self._clock()
        statement = "UPDATE route SET expires = ? WHERE gateway = ? AND conversation = ? AND expires > ?"
        await self._execute(statement, now + ttl_seconds, gateway, conversation, now)

    async def take_place(
        self, gateway: str, domain: str, handoff_id: str, *, limit: int, domain_limit: int | None, ttl_seconds: float
    ) -> bool:
        """See `RouteStore.take_place`."""

        def work(connection: sqlite3.Connection) -> bool:
            now = self._clock()
            connection.execute("DELETE FROM place WHERE expires <= ?", (now,))
            query = "SELECT count(*), coalesce(sum(domain = ?), 0) FROM place WHERE gateway = ?"
            taken, to_domain = connection.execute(query, (domain, gateway)).fetchone()
            if taken >= limit or (domain_limit is not None and to_domain >= domain_limit):
                return False
            connection.execute(_KEEP_PLACE, (gateway, domain, handoff_id, now + ttl_seconds))
            return True

        return await self._run(work)

    async def keep_place(self, gateway: str, domain: str, handoff_id: str, ttl_seconds: float) -> None:
        """See `RouteStore.keep_place`."""
        await self._execute(_KEEP_PLACE, gateway, domain, handoff_id, self._clock() + ttl_seconds)

    async def free_place(self, gateway: str, domain: str, handoff_id: str) -> None:
        """See `RouteStore.free_place`."""
        statement = "DELETE FROM place WHERE gateway = ? AND domain = ? AND handoff_id = ?"
        await self._execute(statement, gateway, domain, handoff_id)

    async def places_taken(self, gateway: str, domain: str | None = None) -> int:
        """See `RouteStore.places_taken`."""
        query = "SELECT count(*) FROM place WHERE gateway = ? AND expires > ? AND (? IS NULL OR domain = ?)"
        return (await self._fetch(query, gateway, self._clock(), domain, domain))[0]

    async def aclose(self) -> None:
        """Close the file. Calling it again does nothing; anything else raises StoreError from then on."""
        if not self._closed:
            self._closed = True
            with CancelScope(shield=True):
                await to_thread.run_sync(self._close, limiter=self._limiter())

    async def _execute(self, statement: str, *values: Any) -> int:
        return await self._run(lambda connection: connection.execute(statement, values).rowcount)

    async def _fetch(self, query: str, *values: Any) -> Any:
        return await self._run(lambda connection: connection.execute(query, values).fetchone())

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await to_thread.run_sync(self._transact, work, limiter=self._limiter())

    def _limiter(self) -> CapacityLimiter:
        try:
            return self._limiters.get()
        except LookupError:
            limiter = CapacityLimiter(1)
            self._limiters.set(limiter)
            return limiter

    # What follows runs in worker threads.

    def _transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            try:
                if self._closed:
                    raise self._file.error("was closed", "make a new store")
                if self._connection is None:
                    self._connection = self._open()
                self._file.check_unmoved()
                with self._connection:
                    self._connection.execute("BEGIN IMMEDIATE")
                    return work(self._connection)
            except Exception as error:
                raise self._file.explain(error) from error

    def _open(self) -> sqlite3.Connection:
        connection = self._file.connect()
        try:
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                for statement in _SCHEMA:
                    connection.execute(statement)
        except BaseException:
            self._file.close(connection)
            raise
        return connection

    def _close(self) -> None:
        with self._lock:
            self._file.close_all()
            self._connection = None
