"""An HTTP server that is told to stop: the requests that have begun are answered before the streams end."""

import socket
import time
from typing import Any

import anyio
import uvicorn
from sse_starlette.sse import AppStatus

from mcpfusion.wire.answering import Answering


class HttpServer(uvicorn.Server):
    """uvicorn's server, which would break off answers that are streams as soon as it is told to stop.

    Args:
        config: Its `timeout_graceful_shutdown` is how many seconds it may take to stop in all.
        answering: What it waits for.
    """

    def __init__(self, config: uvicorn.Config, answering: Answering) -> None:
        super().__init__(config)
        self._answering = answering

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until told to stop."""
        AppStatus.disable_automatic_graceful_drain()
        try:
            await super().serve(sockets)
        finally:
            AppStatus.enable_automatic_graceful_drain_mode()
            AppStatus.should_exit = False

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, answer what has begun, then end what is left."""
        grace: Any = self.config.timeout_graceful_shutdown
        until = time.monotonic() + grace
        for listening in self.servers:
            listening.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with anyio.move_on_after(grace):
            await self._answering.nothing()
        AppStatus.should_exit = True
        left: Any = max(until - time.monotonic(), 0.0)
        self.config.timeout_graceful_shutdown = left
        await super().shutdown(sockets)
