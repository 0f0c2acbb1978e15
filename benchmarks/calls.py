"""`tools/call` beside the SDK's MCPServer and FastMCP: a call without a gate, and a step of a workflow.

A step is claimed and committed: two writes to the store, each synced to the disk by SQLite.

    python -m benchmarks.calls [--tools 50] [--rounds 9] [--seconds 1]
"""

import asyncio
import tempfile
from contextlib import AsyncExitStack, ExitStack
from functools import partial

from mcp import Client

from benchmarks import servers
from benchmarks.compare import Settings, Subject, http_server, measure, print_machine, report, settings
from benchmarks.menu import subjects

ABOUT = "tools/call beside MCPServer and FastMCP."


async def in_process(how: Settings) -> None:
    """Compare by the SDK's client in the same process."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        operations = {}
        for name, (kind, store) in subjects(folder).items():
            server = servers.lowlevel(servers.make(kind, how.tools, store))
            client = await stack.enter_async_context(Client(server, mode="2026-07-28"))
            await client.list_tools()  # a client that knows the tools checks their results
            operations[name] = Subject(partial(client.call_tool, servers.names(kind, 1)[0], servers.ARGUMENTS))
        found = await measure(operations, how)
    report(f"tools/call, {how.tools} tools, the SDK's client in process", found, "MCPServer")


async def over_http(how: Settings) -> None:
    """Compare over HTTP, with a client that only reads the bytes."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        running = {
            name: stack.enter_context(http_server(kind, how.tools, store))
            for name, (kind, store) in subjects(folder).items()
        }
        found = await measure({name: Subject(server.call, server.cpu) for name, server in running.items()}, how)
    report(f"tools/call, {how.tools} tools, HTTP (2026-07-28)", found, "MCPServer")


def main() -> None:
    """Run both comparisons."""
    how = settings(ABOUT)
    print_machine()
    asyncio.run(in_process(how))
    asyncio.run(over_http(how))


if __name__ == "__main__":
    main()
