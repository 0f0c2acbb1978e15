"""The one seam: the SDK's low-level server, which every kind of MCP server in Python has inside."""

from typing import Any

from mcp.server import Server


def lowlevel_of(server: Any) -> Server[Any]:
    """Return the low-level server of a `Server`, an `MCPServer` or a `fastmcp.FastMCP`.

    Raises:
        TypeError: It is none of the three.
    """
    for candidate in (
        server,
        getattr(server, "_lowlevel_server", None),
        getattr(server, "_mcp_server", None),
    ):
        if isinstance(candidate, Server):
            return candidate  # pyright: ignore[reportUnknownVariableType]
    raise TypeError(
        f"cannot attach to {type(server).__module__}.{type(server).__qualname__}: expected the SDK's Server or "
        "MCPServer, or fastmcp.FastMCP"
    )
