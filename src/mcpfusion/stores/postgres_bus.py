"""The bus of PostgreSQL: NOTIFY, and one connection of its own for each that listens."""

import hashlib
import logging
from collections.abc import AsyncGenerator, Sequence

import anyio

from .postgres_errors import explain
from .postgres_link import Link
from .postgres_server import LIMIT, PostgresServer

_log = logging.getLogger(__name__)

_CHECK_EVERY = 4.0
"""Seconds of silence after which the connection is asked whether it still lives."""

_LONGEST_PAUSE = 1.0

_PUBLISH = "SELECT count(pg_notify($1, message)) FROM unnest($2::text[]) WITH ORDINALITY AS m (message, n)"


class PostgresBus:
    """A `Bus`. Sends through the server's pool, in one statement for each call."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._warned = False
        # Databases are apart of themselves; schemas in one database are not, and a channel has 63 bytes.
        self._channel = "mcpfusion_" + hashlib.sha256(server.url.schema.encode()).hexdigest()[:16]

    async def publish(self, messages: Sequence[str]) -> None:
        """See `Bus.publish`. Raises StoreError."""
        if messages:
            await self._server.run(_PUBLISH, self._channel, list(messages))

    async def listen(self) -> AsyncGenerator[str | None]:
        """See `Bus.listen`. A server that has gone silent is noticed within ten seconds."""
        pause = 0.0
        while not self._server.closed:
            link: Link | None = None
            try:
                link = await self._connect()
                pause = 0.0
                yield None
                while not self._server.closed:
                    messages = await link.notified(_CHECK_EVERY)
                    for message in messages:
                        yield message
                    if not messages:
                        await link.execute("SELECT 1", (), LIMIT)
            except Exception as error:
                if not pause and not self._server.closed:
                    _log.warning("what other processes tell is not heard for now: %s", explain(error))
            finally:
                if link is not None:
                    link.close()
            await anyio.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 2 or 0.05)

    async def _connect(self) -> Link:
        link = await self._server.connect()
        try:
            await link.execute(f'LISTEN "{self._channel}"', (), LIMIT)
        except BaseException:
            link.close()
            raise
        if not link.direct and not self._warned:
            self._warned = True
            _log.warning(
                "PostgreSQL store: the URL leads to a pooler; in transaction mode nothing is heard of what other "
                "processes tell. Give the URL of the server itself, or of a pool in session mode."
            )
        return link
