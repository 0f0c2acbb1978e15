"""A server of actions for the tests of what goes over the wire, by HTTP in both eras."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp import Client

from mcpfusion import Fusion
from tests.support.serving import http_app, http_client


@asynccontextmanager
async def over_http(
    f: Fusion, mode: str, *, headers: dict[str, str] | None = None, **options: Any
) -> AsyncIterator[Client]:
    """Serve the actions over HTTP, and yield a client that has connected."""
    client_options = {
        name: options.pop(name) for name in ("elicitation_callback", "message_handler") if name in options
    }
    server = f.server(**options)
    async with (
        http_app(server.asgi(host="127.0.0.1")) as origin,
        http_client(f"{origin}/mcp", mode, headers=headers, **client_options) as client,
    ):
        yield client
