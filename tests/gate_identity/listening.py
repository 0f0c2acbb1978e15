"""Users that hear of their menus."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mcp import Client

from tests.gate_identity.users import TOKENS
from tests.support.hearing import Heard
from tests.support.serving import http_client


@asynccontextmanager
async def listening(url: str, mode: str, user: str | None = None) -> AsyncIterator[tuple[Client, Heard]]:
    """Yield a client that has seen its menu and hears of changes, on its session or on a stream it asked for."""
    heard = Heard()
    token = TOKENS[user] if user else None
    async with http_client(url, mode, token=token, message_handler=heard) as client:
        if mode == "legacy":
            await client.list_tools()
            yield client, heard
            return
        async with client.listen(tools_list_changed=True):
            await client.list_tools()
            yield client, heard
