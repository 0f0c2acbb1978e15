"""One connection to PostgreSQL: made ready, used within a time limit, cut when that is over."""

import os
import select
import socket
from asyncio import get_running_loop
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from .postgres_driver import AsyncConnection, AsyncRawCursor, ConnStatus, ExecStatus, Format, Notify, PGresult
from .postgres_errors import failure

T = TypeVar("T")
Row = tuple[Any, ...]

MINIMUM_VERSION = 130_000


class Link:
    """A connection in autocommit mode.

    Attributes:
        generation: Of the pool, when it was made.
    """

    def __init__(self, connection: AsyncConnection[Row], generation: int = 0) -> None:
        self._connection = connection
        # One for all statements, each of which is fetched before the next: to make one costs more than to use it.
        self._cursor = connection.cursor()
        self._cursor.format = Format.BINARY
        self._poll = select.poll()
        self._poll.register(connection.pgconn.socket, select.POLLIN | select.POLLHUP | select.POLLERR)
        self._cut_off = False
        self.generation = generation

    @classmethod
    async def connect(cls, parameters: Mapping[str, Any], generation: int = 0) -> "Link":
        """Return a new connection.

        Raises:
            StoreError: The server is too old.
            psycopg.Error: It cannot be reached, or refuses.
        """
        connection = await AsyncConnection.connect(
            **parameters, autocommit=True, prepare_threshold=None, cursor_factory=AsyncRawCursor
        )
        link = cls(connection, generation)
        version = connection.info.server_version
        if version < MINIMUM_VERSION:
            link.close()
            raise failure(f"the server is of version {version // 10_000}", "use PostgreSQL 13 or newer")
        return link

    @property
    def backend(self) -> int:
        """The process id of the server's side, as it was told when connecting; a pooler makes one up."""
        return self._connection.pgconn.backend_pid

    @property
    def server_version(self) -> int:
        """As PostgreSQL counts: 160004 is 16.4."""
        return self._connection.info.server_version

    @property
    def direct(self) -> bool:
        """Whether statements are prepared, as there is no pooler in between."""
        return self._connection.prepare_threshold is not None

    def prepare_statements(self) -> None:
        """Plan each statement once. Not behind a pooler, which may hand the next one to another backend."""
        self._connection.prepare_threshold = 0

    async def execute(self, statement: str, values: Sequence[Any], seconds: float) -> list[Row]:
        """Return the rows of one statement, which commits by itself.

        When the time is over the connection is cut, and the statement may or may not have been carried out. Cutting
        it, instead of asking the server to cancel, works with a server that has stopped answering as well.

        Raises:
            StoreError: The time is over.
            psycopg.Error: As the driver or the server says.
        """
        return await self._within(seconds, self._fetch(statement, values))

    async def run_script(self, text: str, seconds: float) -> None:
        """Carry out several statements. Raises as `execute` does."""
        await self._within(seconds, self._connection.execute(text.encode()))

    async def notified(self, seconds: float) -> list[str]:
        """Return the messages that came in, waiting for the first one up to so many seconds."""
        came: list[Notify] = [each async for each in self._connection.notifies(timeout=seconds, stop_after=1)]
        return [each.payload for each in came]

    def is_quiet(self) -> bool:
        """Whether it can be used: whole, and with nothing to read. What a server says unasked is a farewell."""
        return self._connection.pgconn.status == ConnStatus.OK and not self._poll.poll(0)

    def close(self) -> None:
        """Close it, whatever it is doing."""
        self._connection.pgconn.finish()

    async def _fetch(self, statement: str, values: Sequence[Any]) -> list[Row]:
        cursor = await self._cursor.execute(statement.encode(), values)
        return await cursor.fetchall() if _has_rows(cursor.pgresult) else []

    async def _within(self, seconds: float, work: Coroutine[Any, Any, T]) -> T:
        timer = get_running_loop().call_later(max(seconds, 0.0), self._cut)
        try:
            return await work
        except Exception:
            if self._cut_off:
                raise failure("no answer in time", "see what the server is busy with") from None
            raise
        finally:
            timer.cancel()

    def _cut(self) -> None:
        self._cut_off = True
        # libpq reads the end of the stream next, and fails. Its file descriptor stays its own to close.
        with suppress(OSError), socket.socket(fileno=os.dup(self._connection.pgconn.socket)) as other:
            other.shutdown(socket.SHUT_RDWR)


def _has_rows(result: PGresult | None) -> bool:
    return result is not None and result.status == ExecStatus.TUPLES_OK
