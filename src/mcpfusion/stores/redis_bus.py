"""What the processes of one Redis tell each other: a channel of its publish and subscribe."""

from collections.abc import AsyncGenerator, Sequence

import anyio

from .protocol import StoreError
from .redis_errors import RedisError, explain, failure
from .redis_link import Link
from .redis_server import LIMIT, Call, RedisServer

_QUIET = 4.0
"""Seconds without a word after which the server is asked whether it is there, and again for its answer."""

_AGAIN = 0.5
_BATCH = 500


class RedisBus:
    """A `Bus`. In a Cluster every node passes on what one is told.

    Args:
        server: Whose database and prefix say which bus it is.
    """

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._channel = server.prefix + b"bus:" + str(server.url.database).encode()

    async def publish(self, messages: Sequence[str]) -> None:
        """See `Bus.publish`."""
        for at in range(0, len(messages), _BATCH):
            batch = messages[at : at + _BATCH]
            calls = [Call([self._channel], ("PUBLISH", self._channel, text.encode())) for text in batch]
            await self._server.run_all(calls)

    async def listen(self) -> AsyncGenerator[str | None]:
        """See `Bus.listen`."""
        while not self._server.closed:
            link: Link | None = None
            try:
                link = await self._server.connect(self._channel)
                deadline = anyio.current_time() + LIMIT
                (answer,) = await link.exchange([("SUBSCRIBE", self._channel)], deadline, shield=False)
                if isinstance(answer, RedisError):
                    raise answer
                yield None
                while True:
                    yield await self._next(link)
            except (StoreError, RedisError, OSError):
                pass
            finally:
                if link is not None:
                    await link.close()
            await anyio.sleep(_AGAIN)
        raise explain(failure("was closed", "make a new store"))

    async def _next(self, link: Link) -> str:
        asked = False
        while True:
            said = await link.next_push(_QUIET)
            if said is not None:
                asked = False
                if said[0] == b"message":
                    return str(said[2], "utf-8", "replace")
            elif asked:
                raise failure("the bus does not answer")
            else:
                asked = True
                await link.ping()
