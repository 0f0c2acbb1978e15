"""One connection to PostgreSQL: made ready, used within a time limit, cut when that is over.

psycopg connects, speaks the protocol, and turns values into what it takes and back. Its cursors are passed by: one of
them does more for a statement of ours than the server.
"""

from asyncio import get_running_loop
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from traceback import clear_frames
from typing import Any, TypeVar

import anyio

from .postgres_driver import (
    AsyncConnection,
    ConnStatus,
    ExecStatus,
    Format,
    Notify,
    PGresult,
    PyFormat,
    Transformer,
    error_from_result,
    execute,
    notifies,
)
from .postgres_errors import failure
from .postgres_socket import Socket

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
        self._libpq = connection.pgconn
        self._socket = Socket(self._libpq)
        self._adapt = Transformer(connection)
        self._prepared: dict[tuple[str, tuple[int, ...]], bytes] | None = None
        self._heard: list[Notify] = []
        connection.add_notify_handler(self._heard.append)
        self._cut_off = False
        self.generation = generation

    @classmethod
    async def connect(cls, parameters: Mapping[str, Any], generation: int = 0) -> "Link":
        """Return a new connection.

        Raises:
            StoreError: The server is too old.
            psycopg.Error: It cannot be reached, or refuses.
        """
        try:
            connection = await AsyncConnection.connect(**parameters, autocommit=True)
        except BaseException as error:
            _let_go(error)
            raise
        link = cls(connection, generation)
        version = link.server_version
        if version < MINIMUM_VERSION:
            link.close()
            raise failure(f"the server is of version {version // 10_000}", "use PostgreSQL 13 or newer")
        return link

    @property
    def backend(self) -> int:
        """The process id of the server's side, as it was told when connecting; a pooler makes one up."""
        return self._libpq.backend_pid

    @property
    def server_version(self) -> int:
        """As PostgreSQL counts: 160004 is 16.4."""
        return self._connection.info.server_version

    @property
    def direct(self) -> bool:
        """Whether statements are prepared, as there is no pooler in between."""
        return self._prepared is not None

    def prepare_statements(self) -> None:
        """Plan each statement once. Not behind a pooler, which may hand the next one to another backend."""
        self._prepared = {}

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
        self._libpq.send_query(text.encode())
        await self._within(seconds, self._result())

    async def notified(self, seconds: float) -> list[str]:
        """Return the messages that came in, waiting for the first one up to so many seconds."""
        if not self._heard:
            with anyio.move_on_after(seconds):
                await self._socket.carry_out(notifies(self._libpq))
        came = [each.payload for each in self._heard]
        self._heard.clear()
        return came

    def is_quiet(self) -> bool:
        """Whether it can be used: whole, and with nothing to read. What a server says unasked is a farewell."""
        return self._libpq.status == ConnStatus.OK and self._socket.is_quiet()

    def close(self) -> None:
        """Close it, whatever it is doing; that of another thread's event loop a moment later."""
        if (loop := self._socket.belongs_to_another()) is None:
            self._close()
        else:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._close)

    def _close(self) -> None:
        self._socket.forget()
        self._libpq.finish()

    async def _fetch(self, statement: str, values: Sequence[Any]) -> list[Row]:
        adapt = self._adapt
        given = adapt.dump_sequence(values, [PyFormat.AUTO] * len(values))
        types, formats = adapt.types or (), adapt.formats
        if self._prepared is None:
            self._libpq.send_query_params(statement.encode(), given, types, formats, Format.BINARY)
        else:
            name = self._prepared.get((statement, types)) or await self._prepare(statement, types)
            self._libpq.send_query_prepared(name, given, formats, Format.BINARY)
        result = await self._result()
        if result.status != ExecStatus.TUPLES_OK:
            return []
        adapt.set_pgresult(result)
        return adapt.load_rows(0, result.ntuples, tuple)

    async def _prepare(self, statement: str, types: tuple[int, ...]) -> bytes:
        assert self._prepared is not None
        name = f"mcpfusion_{len(self._prepared)}".encode()
        self._libpq.send_prepare(name, statement.encode(), types)
        await self._result()
        self._prepared[statement, types] = name
        return name

    async def _result(self) -> PGresult:
        results = await self._socket.carry_out(execute(self._libpq))
        for result in results:
            if result.status == ExecStatus.FATAL_ERROR:
                raise error_from_result(result)
        return results[-1]

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
        self._socket.shut_down()


def _let_go(error: BaseException | None) -> None:
    """Close what psycopg was connecting: it leaves that open, held by the places where the error was raised.

    A server that shuts down waits for it.
    """
    while error is not None:
        clear_frames(error.__traceback__)
        # What psycopg gives as the cause is its own; the context may be anybody's.
        error = error.__cause__
