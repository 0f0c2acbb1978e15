"""The socket of a connection to PostgreSQL, and what of psycopg's waits for it.

psycopg hands out the protocol as generators that say when they need the socket, and waits for them itself by telling
the event loop of the socket for each wait anew. That costs two system calls, more than all the rest of a statement.
Here the event loop is told once, and the generator goes on within its call.
"""

import os
import select
import socket
from asyncio import AbstractEventLoop, Future, get_running_loop
from contextlib import suppress
from typing import Any, TypeVar

from .postgres_driver import ConnStatus, PGconn, PQGen, Ready, Wait

T = TypeVar("T")


class Socket:
    """That of one connection, for the event loop in which it is made. One generator at a time waits for it."""

    def __init__(self, libpq: PGconn) -> None:
        self._loop = get_running_loop()
        self._libpq = libpq
        self._number = libpq.socket
        self._poll = select.poll()
        self._poll.register(self._number, select.POLLIN | select.POLLHUP | select.POLLERR)
        self._watched = False
        self._work: PQGen[Any] | None = None
        self._done: Future[Any] | None = None

    async def carry_out(self, work: PQGen[T]) -> T:
        """Return what the generator returns. Raises as it does.

        Whoever is cancelled while an answer is due closes the connection: it would be taken for that of the next.
        """
        if not self._watched:
            self._loop.add_reader(self._number, self._readable)
            self._watched = True
        self._work, self._done = work, self._loop.create_future()
        self._go_on()
        try:
            return await self._done
        finally:
            self._work = self._done = None

    def is_quiet(self) -> bool:
        """Whether there is nothing to read, nor an end."""
        return not self._poll.poll(0)

    def shut_down(self) -> None:
        """End it both ways. libpq reads the end next; the file descriptor stays its own to close."""
        if self._libpq.status != ConnStatus.OK:
            return
        with suppress(OSError), socket.socket(fileno=os.dup(self._number)) as other:
            other.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        """Have the event loop watch it no longer: before it is closed, as its number may be another's next."""
        if self._watched and not self._loop.is_closed():
            self._loop.remove_reader(self._number)
            self._loop.remove_writer(self._number)
        self._watched = False

    def belongs_to_another(self) -> AbstractEventLoop | None:
        """Return its event loop if that is at work, and not the one here: only there it may be forgotten."""
        try:
            here = get_running_loop()
        except RuntimeError:
            here = None
        return self._loop if self._loop.is_running() and self._loop is not here else None

    def _readable(self) -> None:
        if self._work is None:
            # Said unasked. It stays there to be read, and is told of again by `is_quiet`.
            self.forget()
        else:
            self._go_on(Ready.R)

    def _writable(self) -> None:
        self._loop.remove_writer(self._number)
        self._go_on(Ready.W)

    def _go_on(self, ready: Ready | None = None) -> None:
        done, work = self._done, self._work
        if done is None or work is None or done.done():
            return
        try:
            wanted = next(work) if ready is None else work.send(ready)
        except StopIteration as end:
            self._forget_if_closed()
            done.set_result(end.value)
        except Exception as error:
            self._forget_if_closed()
            done.set_exception(error)
        else:
            if wanted & Wait.W:
                self._loop.add_writer(self._number, self._writable)

    def _forget_if_closed(self) -> None:
        # libpq closes the socket of a connection that has ended, and its number is free for the next one.
        if self._libpq.status != ConnStatus.OK:
            self.forget()
