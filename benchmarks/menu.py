"""`tools/list` beside the SDK's MCPServer and FastMCP: the whole list of gated tools, in process and over HTTP.

python -m benchmarks.menu [--tools 500] [--rounds 9] [--seconds 1]
"""

import asyncio
import tempfile
from contextlib import AsyncExitStack, ExitStack

from mcp import Client

from benchmarks import servers
from benchmarks.compare import Settings, Subject, http_server, measure, print_machine, report, settings

ABOUT = "tools/list beside MCPServer and FastMCP."


def subjects(folder: str) -> dict[str, tuple[str, str]]:
    """Return kind and store of what is compared, by the name under which it is shown."""
    return {
        "MCPServer": ("MCPServer", "memory://"),
        "FastMCP": ("FastMCP", "memory://"),
        "mcpfusion, no gate": ("mcpfusion", "memory://"),
        "mcpfusion, gated, memory": ("mcpfusion gated", "memory://"),
        "mcpfusion, gated, SQLite": ("mcpfusion gated", f"sqlite:///{folder}/menu.db"),
    }


async def in_process(how: Settings) -> None:
    """Compare by the SDK's client in the same process, which reads and checks what it gets."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        clients = {
            name: await stack.enter_async_context(
                Client(servers.lowlevel(servers.make(kind, how.tools, store)), mode="2026-07-28", cache=None)
            )
            for name, (kind, store) in subjects(folder).items()
        }
        found = await measure({name: Subject(client.list_tools) for name, client in clients.items()}, how)
    report(f"tools/list of {how.tools} tools, the SDK's client in process", found, "MCPServer")


async def over_http(how: Settings) -> None:
    """Compare over HTTP, with a client that only reads the bytes."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        running = {
            name: stack.enter_context(http_server(kind, how.tools, store))
            for name, (kind, store) in subjects(folder).items()
        }
        found = await measure({name: Subject(server.list, server.cpu) for name, server in running.items()}, how)
    report(f"tools/list of {how.tools} tools, HTTP (2026-07-28)", found, "MCPServer")


def main() -> None:
    """Run both comparisons."""
    how = settings(ABOUT)
    print_machine()
    asyncio.run(in_process(how))
    asyncio.run(over_http(how))


if __name__ == "__main__":
    main()
