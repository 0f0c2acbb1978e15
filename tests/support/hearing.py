"""What a client hears without having asked: notifications, counted as they come over the wire."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import mcp_types as types
from mcp import Client
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from tests.support.serving import sdk_client


class Heard:
    """A message handler that keeps every message, raw: nothing is merged or dropped."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self._more = anyio.Event()

    async def __call__(self, message: Any) -> None:
        """Keep a message."""
        self.messages.append(message)
        more, self._more = self._more, anyio.Event()
        more.set()

    def count(self, kind: type[Any] = types.ToolListChangedNotification) -> int:
        """Return how many messages of a kind have come."""
        return sum(isinstance(message, kind) for message in self.messages)

    async def wait(
        self, number: int, kind: type[Any] = types.ToolListChangedNotification, seconds: float = 20
    ) -> None:
        """Wait until `number` messages of a kind have come in all.

        Raises:
            TimeoutError: They did not come in time.
        """
        with anyio.fail_after(seconds):
            while self.count(kind) < number:
                await self._more.wait()


@asynccontextmanager
async def hearing_client(server: Any, mode: str, **listen: Any) -> AsyncIterator[tuple[Client, Heard]]:
    """Yield the SDK's client and what it hears: in the era without sessions it listens for what `listen` says.

    Without `listen` that is the list of tools.
    """
    heard = Heard()
    async with sdk_client(server, mode, message_handler=heard) as client:
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            yield client, heard
            return
        async with client.listen(**(listen or {"tools_list_changed": True})):
            yield client, heard
