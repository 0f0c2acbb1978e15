"""The handshake of 2025-11-25 without any client's help."""

from typing import Any

from tests.support.serving import post

INITIALIZE: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "hand", "version": "1"}},
}


async def open_session(url: str) -> dict[str, str]:
    """Open a session, and return its headers."""
    opened = await post(url, INITIALIZE, {})
    headers = {"Mcp-Session-Id": opened.headers["mcp-session-id"], "MCP-Protocol-Version": "2025-11-25"}
    await post(url, {"jsonrpc": "2.0", "method": "notifications/initialized"}, headers)
    return headers
