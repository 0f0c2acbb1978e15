"""The connections of one process to a PostgreSQL server: a bounded pool, time limits, the server's clock.

The pool is made here, not taken from psycopg_pool, for what a gate needs of it: a server that is away is an error at
once and not after a wait, a connection that died idle is seen before it is used and without a round trip, and each
event loop of the process has connections of its own.
"""

import os
import time
from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import Sequence
from threading import Lock
from typing import Any
from weakref import finalize, ref

import anyio

from .postgres_driver import OperationalError, ReadOnlySqlTransaction
from .postgres_errors import INIT, explain, failure, is_full
from .postgres_link import Link, Row
from .postgres_schema import SCHEMA_VERSION
from .postgres_url import PostgresUrl
from .protocol import StoreError

LIMIT = 5.0
"""Seconds that an operation may take, waiting for a connection included."""

STATEMENT_LIMIT = 2.0
"""Seconds after which the server gives a statement up, so that it does not happen later, when nobody waits for it."""

_GRACE = 0.5
"""Seconds in which the server says so; then it has stopped answering."""

_LOOK_AGAIN = 0.02
_NOW = "extract(epoch FROM clock_timestamp())::float8"

# One round trip makes a connection ready. A pooler tells another process id than the backend's own; its backends
# are shared, so that settings would be everybody's. The settings: no statement outlives its caller for long; a
# write is durable when it returns, and meets a newer version as a version that is not the expected one.
_HELLO = """
SELECT {now},
    pg_backend_pid() = $1::int4,
    (SELECT version FROM {s}.mcpfusion),
    CASE WHEN pg_backend_pid() = $1::int4 THEN
        set_config('statement_timeout', $2::text, false) || set_config('jit', 'off', false)
        || set_config('default_transaction_isolation', 'read committed', false)
        || CASE WHEN current_setting('synchronous_commit') = 'off'
            THEN set_config('synchronous_commit', 'on', false) ELSE '' END
    END
"""


class _Lane:
    """What one event loop has of the pool."""

    def __init__(self, size: int) -> None:
        self._loop: ref[AbstractEventLoop] = ref(get_running_loop())
        self.process = os.getpid()
        self.slots = anyio.Semaphore(size, fast_acquire=True)
        self.idle: list[Link] = []
        self.open = 0

    def serves(self, loop: AbstractEventLoop, process: int) -> bool:
        """Whether it is that of an event loop in a process."""
        return self._loop() is loop and self.process == process

    @property
    def is_over(self) -> bool:
        """Whether its event loop has come to its end."""
        loop = self._loop()
        return loop is None or loop.is_closed()

    def close(self, link: Link) -> None:
        """Close one of its connections."""
        self.open -= 1
        link.close()

    def close_idle(self) -> None:
        """Close what nobody uses."""
        # What was opened before a fork is the parent's.
        if os.getpid() == self.process:
            while self.idle:
                self.close(self.idle.pop())


class PostgresServer:
    """The pool. Nothing is opened before it is first used; every failure is a StoreError within `LIMIT` seconds.

    Args:
        url: See `PostgresUrl`, which says what it raises.

    Attributes:
        url: What the URL says.
        closed: Whether it was closed.
    """

    def __init__(self, url: str) -> None:
        self.url = PostgresUrl(url)
        self._hello = self.sql(_HELLO)
        self.closed = False
        self._generation = 0
        self._sampled: tuple[float, float] | None = None
        self._lanes: list[_Lane] = []
        self._adding = Lock()
        finalize(self, _close_lanes, self._lanes)

    def sql(self, text: str) -> str:
        """Return a statement with the schema put in for `{s}`, and what tells the server's time for `{now}`."""
        return text.replace("{s}", self.url.quoted_schema).replace("{now}", _NOW)

    def now(self) -> float:
        """Return the server's time; see `EngineClock.now`."""
        if self._sampled is None:
            return time.time()
        told, arrived = self._sampled
        return told + (time.monotonic() - arrived)

    def tell_time(self, told: float) -> None:
        """Take note of the server's time, as an answer that arrived just now says it."""
        self._sampled = (told, time.monotonic())

    async def run(self, statement: str, *values: Any, repeatable: bool = False) -> list[Row]:
        """Return the rows of one statement, carried out in one round trip and committed when it returns.

        A statement that began runs to its end even if the caller is cancelled, so that it is known what became of
        it.

        Args:
            values: Of types that are the same for each call, or each combination is prepared for itself.
            repeatable: It changes nothing, so that it may be sent again when the connection breaks.

        Raises:
            StoreError: It failed. Unless it is repeatable it may have been carried out all the same.
        """
        deadline = anyio.current_time() + LIMIT - STATEMENT_LIMIT - _GRACE
        try:
            try:
                return await self._run(statement, values, deadline)
            except OperationalError as error:
                if not repeatable or error.sqlstate == "57014":
                    raise
                return await self._run(statement, values, deadline)
        except TimeoutError:
            raise failure("no connection in time", "see whether it answers, or raise mcpfusion_pool_size") from None
        except Exception as error:
            # Without the cause: the driver's words may quote a row, a host or a user.
            raise explain(error) from None

    async def connect(self) -> Link:
        """Return a connection that is nobody's but the caller's, ready for use, within `LIMIT` seconds.

        Raises:
            StoreError: It cannot be made, or the schema is not of this version.
        """
        self._check_open()
        try:
            with anyio.fail_after(LIMIT):
                return await self._connect(anyio.current_time() + LIMIT)
        except TimeoutError:
            raise failure("cannot be reached in time", "see whether it answers") from None
        except Exception as error:
            raise explain(error) from None

    async def aclose(self) -> None:
        """Close the connections. Calling it again does nothing; anything else raises StoreError from then on."""
        self.closed = True
        _close_lanes(self._lanes)

    async def _run(self, statement: str, values: Sequence[Any], deadline: float) -> list[Row]:
        lane = self._lane()
        try:
            lane.slots.acquire_nowait()
        except anyio.WouldBlock:
            with anyio.fail_after(deadline - anyio.current_time()):
                await lane.slots.acquire()
        link: Link | None = None
        rows: list[Row] = []
        try:
            link = self._idle(lane) or await self._wait_for_link(lane, deadline)
            # Bounded by the time limit inside.
            with anyio.CancelScope(shield=True):
                rows = await link.execute(statement, values, STATEMENT_LIMIT + _GRACE)
        except BaseException as error:
            if link is not None:
                lane.close(link)
                # What befell one connection has likely befallen those that wait as well.
                if isinstance(error, OperationalError | ReadOnlySqlTransaction | StoreError):
                    self._generation += 1
            raise
        finally:
            lane.slots.release()
        lane.idle.append(link)
        if self.closed:
            lane.close_idle()
        return rows

    def _idle(self, lane: _Lane) -> Link | None:
        while lane.idle:
            link = lane.idle.pop()
            if link.generation == self._generation and link.is_quiet():
                return link
            lane.close(link)
        return None

    async def _wait_for_link(self, lane: _Lane, deadline: float) -> Link:
        with anyio.fail_after(deadline - anyio.current_time()):
            while True:
                try:
                    link = await self._connect(deadline)
                except OperationalError as error:
                    # The server has no more for us: we make do with those we have.
                    if not (is_full(error) and lane.open):
                        raise
                else:
                    lane.open += 1
                    return link
                if waiting := self._idle(lane):
                    return waiting
                await anyio.sleep(_LOOK_AGAIN)
        raise TimeoutError

    async def _connect(self, deadline: float) -> Link:
        link = await Link.connect(self.url.parameters, self._generation)
        try:
            values = (link.backend, str(int(STATEMENT_LIMIT * 1000)))
            rows: list[Row] = []
            with anyio.CancelScope(shield=True):
                rows = await link.execute(self._hello, values, deadline - anyio.current_time())
            ((told, direct, version, _),) = rows
            if version != SCHEMA_VERSION:
                raise _version_error(version)
        except BaseException:
            link.close()
            raise
        self.tell_time(told)
        if direct:
            link.prepare_statements()
        return link

    def _check_open(self) -> None:
        if self.closed:
            raise failure("was closed", "make a new store")

    def _lane(self) -> _Lane:
        self._check_open()
        loop, process = get_running_loop(), os.getpid()
        for lane in self._lanes:
            if lane.serves(loop, process):
                return lane
        lane = _Lane(self.url.pool_size)
        with self._adding:
            for other in self._lanes:
                if other.is_over:
                    other.close_idle()
            self._lanes[:] = [lane, *(other for other in self._lanes if not other.is_over)]
        return lane


def _close_lanes(lanes: list[_Lane]) -> None:
    for lane in lanes:
        lane.close_idle()


def _version_error(version: int) -> StoreError:
    if version > SCHEMA_VERSION:
        return failure(
            f"its schema has version {version}, this mcpfusion reads version {SCHEMA_VERSION}", "upgrade mcpfusion"
        )
    return failure(f"its schema has version {version}, this mcpfusion needs {SCHEMA_VERSION}", f"run {INIT}")
