"""Real processes that start fast: forked from a server process that has imported everything already."""

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import anyio
import httpx2
from mcp import Client

from mcpfusion.stores.sqlite import SqliteStore
from tests.gate.payments import Settings, make_server
from tests.support.serving import free_port

_forking = multiprocessing.get_context("forkserver")
_forking.set_forkserver_preload(
    ["tests.gate.processes", "mcpfusion.wire.server", "mcp.client.streamable_http", "uvicorn"]
)

PATIENCE = 60.0
"""Seconds to wait for what must happen; a failure, not a measurement."""


def start(target: Callable[..., object], *args: Any) -> BaseProcess:
    """Run `target(*args)` in a process of its own."""
    process = _forking.Process(target=target, args=args, daemon=True)
    process.start()
    return process


def end(process: BaseProcess) -> None:
    """Make sure that the process is gone."""
    process.kill()
    process.join()


def channel() -> Any:
    """Return a queue to hear from processes."""
    return _forking.SimpleQueue()


def barrier(parties: int) -> Any:
    """Return a barrier that as many processes pass together."""
    return _forking.Barrier(parties)


def serve(settings: Settings, port: int) -> None:
    """Be an HTTP server of payments."""
    import mcpfusion.wire.server

    mcpfusion.wire.server.SHUTDOWN_GRACE = settings.grace
    make_server(settings).run("http", port=port)


@contextmanager
def http_servers(settings: Settings, count: int = 1) -> Iterator[list[tuple[str, BaseProcess]]]:
    """Run servers of payments, and yield their URLs and processes when all of them answer."""
    ports = [free_port() for _ in range(count)]
    running = [start(serve, settings, port) for port in ports]
    try:
        for port, process in zip(ports, running, strict=True):
            _await_answer(port, process)
        yield [(f"http://127.0.0.1:{port}/mcp", process) for port, process in zip(ports, running, strict=True)]
    finally:
        for process in running:
            end(process)


def _await_answer(port: int, process: BaseProcess) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        assert process.is_alive(), f"the server ended with {process.exitcode} before it answered"
        try:
            httpx2.get(f"http://127.0.0.1:{port}/", timeout=5)
        except httpx2.TransportError:
            time.sleep(0.02)
        else:
            return
    raise AssertionError("the server did not answer")


def call(settings: Settings, mode: str, tool: str, arguments: dict[str, Any], answers: Any = None) -> None:
    """Be a process with a server and its client, and make one call."""

    async def main() -> None:
        async with Client(make_server(settings).lowlevel, mode=mode, read_timeout_seconds=PATIENCE) as client:
            result = await client.call_tool(tool, arguments)
            if answers is not None:
                answers.put(result.structured_content)

    anyio.run(main)


def call_all(url: str, mode: str, calls: list[tuple[str, dict[str, Any]]], together: Any, answers: Any) -> None:
    """Be a client of an HTTP server: connect, wait for the others, make all calls at once, report the codes."""

    async def main() -> None:
        codes: list[str] = []

        async def one(client: Client, tool: str, arguments: dict[str, Any]) -> None:
            result = await client.call_tool(tool, arguments)
            codes.append(result.structured_content["code"] if result.is_error else "OK")

        async with Client(url, mode=mode, read_timeout_seconds=PATIENCE) as client:
            await client.list_tools()
            together.wait(PATIENCE)
            async with anyio.create_task_group() as group:
                for tool, arguments in calls:
                    group.start_soon(one, client, tool, arguments)
        answers.put(codes)

    anyio.run(main)


async def until(condition: Callable[[], object]) -> None:
    """Wait until the condition holds."""
    with anyio.fail_after(PATIENCE):
        while not condition():  # noqa: ASYNC110 - what other processes write
            await anyio.sleep(0.01)


async def record_of(settings: Settings, handle: str) -> tuple[Any, list[Any]]:
    """Return a workflow's record and history as they are in the file."""
    store = SqliteStore(Path(settings.folder, "payments.db"))
    try:
        return await store.read("", handle), list(await store.history("", handle))
    finally:
        await store.aclose()
