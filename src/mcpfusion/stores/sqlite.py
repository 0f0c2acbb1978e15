"""The embedded store: one SQLite file, shared by the processes of one machine."""

import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import finalize

from anyio import CancelScope, CapacityLimiter, Lock, to_thread
from anyio.lowlevel import RunVar

from .codec import check_key, check_write, decode_step, decode_workflow, encode_step, encode_workflow
from .protocol import Step, Workflow
from .sqlite_file import SqliteFile

T = TypeVar("T")

_READERS = 4

_LIST = "SELECT record, scope, handle, version FROM workflow"
_READ = f"{_LIST} WHERE scope = ? AND handle = ?"
_INSERT = """
INSERT INTO workflow (version, state, steps, doubtful_from, due, expires, record, scope, handle)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
"""
_UPDATE = """
UPDATE workflow SET version = ?, state = ?, steps = ?, doubtful_from = ?, due = ?, expires = ?, record = ?
WHERE scope = ? AND handle = ? AND version = ?
"""
_ADD_STEP = "INSERT INTO step (scope, handle, record) VALUES (?, ?, ?)"
# A skip-scan: one look-up in the index per distinct state. SELECT DISTINCT would read every workflow.
_STATES_IN_USE = """
WITH RECURSIVE used (state) AS (
    SELECT min(state) FROM workflow WHERE scope = ?1 AND steps > 0
    UNION ALL
    SELECT (SELECT min(state) FROM workflow WHERE scope = ?1 AND steps > 0 AND state > used.state)
    FROM used WHERE used.state IS NOT NULL
)
SELECT state FROM used WHERE state IS NOT NULL
"""
_NEXT_DUE = """
SELECT due, scope, handle FROM workflow WHERE due IS NOT NULL ORDER BY due, scope, handle LIMIT ?
"""
# A claimed workflow has a `doubtful_from`; the words are those of the partial index.
_EXPIRED = """
SELECT scope, handle FROM workflow WHERE expires IS NOT NULL AND doubtful_from IS NULL AND expires < ?
ORDER BY expires, scope, handle LIMIT ?
"""
_REMOVE = (
    "DELETE FROM step WHERE scope = ? AND handle = ?",
    "DELETE FROM workflow WHERE scope = ? AND handle = ?",
)
_FIND = f"{_LIST} WHERE handle = ? ORDER BY scope LIMIT 100"
_HISTORY = "SELECT record FROM step WHERE scope = ? AND handle = ? ORDER BY number DESC LIMIT ?"


@dataclass(slots=True, eq=False)
class _Write:
    """A write that waits for its turn. `outcome` is None until a thread has carried it out."""

    row: tuple[Any, ...]
    expected_version: int
    step: tuple[str, str, str] | None
    withdrawn: bool = False
    outcome: bool | Exception | None = None


class _Lane:
    """What one event loop needs to take its turns."""

    def __init__(self) -> None:
        self.writing = Lock(fast_acquire=True)
        self.writer = CapacityLimiter(1)
        self.readers = CapacityLimiter(_READERS)


class SqliteStore:
    """A `VersionedFsmStateStore` in one SQLite file.

    Several processes of one machine may use the file at once, and any number of tasks may use one store. A
    write that returned True has been synced to the disk. Writes that wait at the same moment are committed
    together, so that they share one sync. The file is opened by the first use; let that be after a fork.

    Args:
        path: The file; created when it does not exist. Its folder must exist.
        busy_timeout: How long to wait for another process's write, in seconds.
        create: False refuses a file that does not exist yet.

    Raises:
        ValueError: The path names no file (empty, or SQLite's ":memory:").
    """

    def __init__(self, path: str | os.PathLike[str], *, busy_timeout: float = 10.0, create: bool = True) -> None:
        if not os.fspath(path) or os.fspath(path).startswith(":memory:"):
            raise ValueError("SqliteStore needs the path of a file; MemoryStore keeps workflows in memory")
        self._file = SqliteFile(path, busy_timeout=busy_timeout, create=create)
        self._closed = False
        self._writer_lock = threading.Lock()
        self._writer: sqlite3.Connection | None = None
        self._pending: deque[_Write] = deque()
        self._readers_lock = threading.Lock()
        self._idle_readers: list[sqlite3.Connection] = []
        self._lanes: RunVar[_Lane] = RunVar("mcpfusion.stores.sqlite")
        finalize(self, self._file.close_all)

    async def read(self, scope: str, handle: str) -> Workflow | None:
        """See `VersionedFsmStateStore.read`."""
        check_key(scope, handle)
        rows = await self._select(_READ, (scope, handle))
        return decode_workflow(*rows[0]) if rows else None

    async def write(self, workflow: Workflow, *, expected_version: int, step: Step | None = None) -> bool:
        """See `VersionedFsmStateStore.write`. Raises ValueError for a write that contradicts itself.

        A write whose caller is cancelled happens whole or not at all.
        """
        check_write(workflow, expected_version, step)
        request = _request(workflow, expected_version, step)
        lane = self._lane()
        self._pending.append(request)
        try:
            async with lane.writing:
                # Whoever had the turn before took along everything that was waiting, perhaps this too.
                if request.outcome is None:
                    await to_thread.run_sync(self._write_pending, limiter=lane.writer)
        finally:
            request.withdrawn = True
        if isinstance(request.outcome, bool):
            return request.outcome
        raise self._file.explain(request.outcome or RuntimeError("the write was not carried out"))

    async def states_in_use(self, scope: str) -> Sequence[str]:
        """See `VersionedFsmStateStore.states_in_use`."""
        check_key(scope, "")
        return [row[0] for row in await self._select(_STATES_IN_USE, (scope,))]

    async def next_due(self, *, limit: int = 100) -> Sequence[tuple[float, str, str]]:
        """See `VersionedFsmStateStore.next_due`."""
        return await self._select(_NEXT_DUE, (max(limit, 0),))

    async def list_workflows(
        self,
        *,
        scope: str | None = None,
        state: str | None = None,
        in_doubt_at: float | None = None,
        after: tuple[str, str] | None = None,
        limit: int = 100,
    ) -> Sequence[Workflow]:
        """See `VersionedFsmStateStore.list_workflows`."""
        filters: list[tuple[str, tuple[Any, ...]]] = []
        if scope is not None:
            filters.append(("scope = ?", (scope,)))
        if state is not None:
            filters.append(("state = ?", (state,)))
        if in_doubt_at is not None:
            filters.append(("doubtful_from < ?", (in_doubt_at,)))
        if after is not None:
            filters.append(("(scope, handle) > (?, ?)", after))
        where = f"WHERE {' AND '.join(sql for sql, _ in filters)}" if filters else ""
        # Only the constants above are put together; every value is bound.
        query = f"{_LIST} {where} ORDER BY scope, handle LIMIT ?"
        values = [value for _, bound in filters for value in bound]
        rows = await self._select(query, (*values, max(limit, 0)))
        return [decode_workflow(*row) for row in rows]

    async def find(self, handle: str) -> Sequence[Workflow]:
        """See `VersionedFsmStateStore.find`."""
        check_key("", handle)
        rows = await self._select(_FIND, (handle,))
        return [decode_workflow(*row) for row in rows]

    async def history(self, scope: str, handle: str, *, limit: int = 1000) -> Sequence[Step]:
        """See `VersionedFsmStateStore.history`."""
        check_key(scope, handle)
        rows = await self._select(_HISTORY, (scope, handle, max(limit, 0)))
        return [decode_step(row[0], scope, handle) for row in reversed(rows)]

    async def prune(self, *, before: float, limit: int = 1000) -> int:
        """See `VersionedFsmStateStore.prune`. Removes them in one transaction."""
        lane = self._lane()
        async with lane.writing:
            return await to_thread.run_sync(self._prune, before, max(limit, 0), limiter=lane.writer)

    async def aclose(self) -> None:
        """Close the file. Calling it again does nothing; anything else raises StoreError from then on."""
        if not self._closed:
            self._closed = True
            with CancelScope(shield=True):
                await to_thread.run_sync(self._close, limiter=self._lane().writer)

    def _lane(self) -> _Lane:
        try:
            return self._lanes.get()
        except LookupError:
            lane = _Lane()
            self._lanes.set(lane)
            return lane

    async def _select(self, query: str, values: Sequence[Any]) -> list[Any]:
        return await to_thread.run_sync(self._fetch, query, values, limiter=self._lane().readers)

    # What follows runs in worker threads. A thread finishes what it began, whatever becomes of its caller:
    # it alone takes a connection and gives it back.

    def _check_usable(self) -> None:
        if self._closed:
            raise self._file.error("was closed", "make a new store")
        if self._file.connections:
            self._file.check_unmoved()

    def _fetch(self, query: str, values: Sequence[Any]) -> list[Any]:
        self._check_usable()
        connection = None
        try:
            with self._readers_lock:
                connection = self._idle_readers.pop() if self._idle_readers else None
            connection = connection or self._file.connect()
            rows = connection.execute(query, values).fetchall()
        except Exception as error:
            if connection is not None:
                self._file.close(connection)
            raise self._file.explain(error) from error
        with self._readers_lock:
            if not self._closed:
                self._idle_readers.append(connection)
                return rows
        self._file.close(connection)
        return rows

    def _write_pending(self) -> None:
        with self._writer_lock:
            batch: list[_Write] = []
            while self._pending:
                request = self._pending.popleft()
                if not request.withdrawn:
                    batch.append(request)
            if not batch:
                return
            try:
                outcomes = self._use_writer(lambda connection: _commit(connection, batch))
            except Exception as error:
                for request in batch:
                    request.outcome = error
            else:
                for request, outcome in zip(batch, outcomes, strict=True):
                    request.outcome = outcome

    def _prune(self, before: float, limit: int) -> int:
        with self._writer_lock:
            try:
                return self._use_writer(lambda connection: _remove_expired(connection, before, limit))
            except Exception as error:
                raise self._file.explain(error) from error

    def _use_writer(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            self._check_usable()
            self._writer = self._writer or self._file.connect()
            return work(self._writer)
        except Exception:
            # Closing rolls back whatever is open, in whatever state the engine left it.
            if self._writer is not None:
                self._file.close(self._writer)
                self._writer = None
            raise

    def _close(self) -> None:
        with self._writer_lock, self._readers_lock:
            idle = [*self._idle_readers, *([self._writer] if self._writer else [])]
            self._idle_readers.clear()
            self._writer = None
            for connection in idle:
                self._file.close(connection)


def _request(workflow: Workflow, expected_version: int, step: Step | None) -> _Write:
    scope, handle = workflow.scope, workflow.handle
    claim = workflow.claim
    doubtful_from = None if claim is None else float("-inf") if claim.in_doubt else claim.lease_until
    record = encode_workflow(workflow)
    times = (doubtful_from, workflow.due, workflow.expires_at)
    row = (workflow.version, workflow.state, workflow.steps, *times, record, scope, handle)
    line = None if step is None else (scope, handle, encode_step(step))
    return _Write(row, expected_version, line)


def _commit(connection: sqlite3.Connection, batch: Sequence[_Write]) -> list[bool]:
    connection.execute("BEGIN IMMEDIATE")
    outcomes = [_apply(connection, request) for request in batch]
    connection.execute("COMMIT" if any(outcomes) else "ROLLBACK")
    return outcomes


def _apply(connection: sqlite3.Connection, request: _Write) -> bool:
    if request.expected_version == 0:
        changed = connection.execute(_INSERT, request.row).rowcount
    else:
        changed = connection.execute(_UPDATE, (*request.row, request.expected_version)).rowcount
    if changed == 1 and request.step is not None:
        connection.execute(_ADD_STEP, request.step)
    return changed == 1


def _remove_expired(connection: sqlite3.Connection, before: float, limit: int) -> int:
    connection.execute("BEGIN IMMEDIATE")
    expired = connection.execute(_EXPIRED, (before, limit)).fetchall()
    for statement in _REMOVE:
        connection.executemany(statement, expired)
    connection.execute("COMMIT")
    return len(expired)
