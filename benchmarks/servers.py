"""The servers that are compared: the same tools on each, and the same settings of the HTTP server.

As a script, `python -m benchmarks.servers KIND TOOLS STORE PORT` serves one of them over HTTP.
"""

import gc
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("FASTMCP_LOG_LEVEL", "ERROR")
logging.disable(logging.WARNING)

KINDS = ("MCPServer", "FastMCP", "mcpfusion", "mcpfusion gated")
"""`mcpfusion` has the tools as actions without a gate; in `mcpfusion gated` each call moves a workflow on."""

MACHINE = {
    "id": "toggle",
    "initial": "even",
    "states": {"even": {"on": {"NEXT": "odd"}}, "odd": {"on": {"NEXT": "even"}}},
}
"""Each step is due again at once, so that every call of a benchmark is a step."""

ARGUMENTS = {"query": "hello world", "limit": 5, "verbose": True}


def tool(number: int) -> Callable[..., Any]:
    """Return the function of one tool."""

    async def search(query: str, limit: int = 10, verbose: bool = False) -> str:
        return f"result for {query} ({limit})"

    search.__name__ = f"search_{number}"
    search.__doc__ = f"Search collection number {number} and return the best matching entries for the given query."
    return search


def make(kind: str, tools: int, store: str = "memory://") -> Any:
    """Return a server of one kind."""
    if kind == "MCPServer":
        return _mcpserver(tools)
    return _fastmcp(tools) if kind == "FastMCP" else _fusion(tools, store, gated=kind == "mcpfusion gated")


def names(kind: str, tools: int) -> list[str]:
    """Return the names of a server's tools."""
    prefix = "bench.search_" if kind.startswith("mcpfusion") else "search_"
    return [f"{prefix}{number}" for number in range(tools)]


def lowlevel(server: Any) -> Any:
    """Return the SDK's low-level server inside."""
    for attribute in ("lowlevel", "_lowlevel_server", "_mcp_server"):
        if hasattr(server, attribute):
            return getattr(server, attribute)
    return server


def _mcpserver(tools: int) -> Any:
    from mcp.server import MCPServer

    server = MCPServer("bench", version="1.0")
    for number in range(tools):
        server.add_tool(tool(number))
    return server


def _fastmcp(tools: int) -> Any:
    from fastmcp import FastMCP

    server = FastMCP("bench", version="1.0")
    for number in range(tools):
        server.tool(tool(number))
    return server


def _fusion(tools: int, store: str, *, gated: bool) -> Any:
    from mcpfusion import Fusion

    f = Fusion("bench", version="1.0")
    for number in range(tools):
        action = f.action(f"bench.search_{number}")
        (action.bind_state("*", "NEXT") if gated else action).handle(tool(number))
    return f.server(fsm=f.fsm(MACHINE) if gated else None, store=store, single_tenant=True)


def _asgi(server: Any) -> Any:
    if hasattr(server, "asgi"):
        return server.asgi(host="127.0.0.1")
    return server.http_app(path="/mcp") if hasattr(server, "http_app") else server.streamable_http_app()


def main(kind: str, tools: str, store: str, port: str) -> None:
    """Serve over HTTP until the process is told to stop."""
    import uvicorn

    app = _asgi(make(kind, int(tools), store))
    gc.collect()
    gc.freeze()
    uvicorn.run(app, port=int(port), log_level="error", access_log=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
