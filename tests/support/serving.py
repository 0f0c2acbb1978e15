"""Real servers in real processes, and the SDK's client on them over real transports."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import anyio
import httpx2
import uvicorn
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

ERAS = ("legacy", "2026-07-28")
"""The client modes: 2025-11-25 with a session, 2026-07-28 without."""


def free_port() -> int:
    """Return a port of the loopback address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def http_process(
    file: str | Path,
    *,
    args: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run `python FILE http PORT ARGS` and yield its MCP URL and the process, once it answers. Ends it afterwards.

    The file is expected to call `server.run("http", port=int(sys.argv[2]))`.
    """
    port = free_port()
    command = [sys.executable, str(file), "http", str(port), *args]
    process = subprocess.Popen(command, env={**os.environ, **(env or {})}, cwd=cwd, stdin=subprocess.DEVNULL)
    try:
        wait_until_it_answers(port, process)
        yield f"http://127.0.0.1:{port}/mcp", process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes], *, seconds: float = 10) -> None:
    """Ask the process to end, and end it when it does not."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_until_it_answers(port: int, process: subprocess.Popen[bytes], seconds: float = 30) -> None:
    """Return once the server answers on the port."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with exit code {process.returncode} before it answered")
        try:
            httpx2.get(f"http://127.0.0.1:{port}/", timeout=1)
        except httpx2.TransportError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError("the server did not answer in time")


def stdio_server(
    file: str | Path,
    *,
    args: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
) -> StdioServerParameters:
    """Return what makes a client start `python FILE stdio ARGS` and talk to it."""
    return StdioServerParameters(
        command=sys.executable, args=[str(file), "stdio", *args], env={**os.environ, **(env or {})}, cwd=cwd
    )


@asynccontextmanager
async def sdk_client(server: Any, mode: str, **options: Any) -> AsyncIterator[Client]:
    """Yield the SDK's client on a URL, on stdio parameters, or on a server in this process."""
    async with Client(server, mode=mode, read_timeout_seconds=60, **options) as client:
        yield client


class _Prompt(uvicorn.Server):
    """A server that ends as uvicorn's does, without the tenths of a second that it sleeps on the way: some hundred
    tests have two or three servers each."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.told = anyio.Event()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.told.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listening in [*self.servers, *(sockets or ())]:
            listening.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with anyio.move_on_after(self.config.timeout_graceful_shutdown) as grace:
            while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110 - there is no event
                await anyio.sleep(0.005)
        if grace.cancelled_caught:
            for task in self.server_state.tasks:
                task.cancel()
        await self.lifespan.shutdown()


@asynccontextmanager
async def http_app(app: Any) -> AsyncIterator[str]:
    """Serve an ASGI app on a real port from this process's event loop, and yield its origin."""
    config = uvicorn.Config(app, log_level="critical", lifespan="on", timeout_graceful_shutdown=1)
    server = _Prompt(config)
    # Signals stay the test runner's. By their handler the SDK's streams would find the server that was started last,
    # and those of all servers in this process would end with that one.
    server.capture_signals = nullcontext  # type: ignore[method-assign]
    # Only where the protocol is named does asyncio turn Nagle's algorithm off, which has answers wait for 40 ms.
    with socket.socket(proto=socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        async with anyio.create_task_group() as group:
            group.start_soon(server.serve, [listening])
            with anyio.fail_after(20):
                while not server.started:  # noqa: ASYNC110 - uvicorn has no event to wait for
                    await anyio.sleep(0.005)
            try:
                yield f"http://127.0.0.1:{port}"
            finally:
                server.told.set()


@asynccontextmanager
async def http_client(
    url: str, mode: str, *, token: str | None = None, headers: Mapping[str, str] | None = None, **options: Any
) -> AsyncIterator[Client]:
    """Yield the SDK's client on a URL, with a bearer token and headers of its own."""
    sent = {**(headers or {}), **({"Authorization": f"Bearer {token}"} if token else {})}
    async with httpx2.AsyncClient(headers=sent, timeout=60) as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, mode=mode, read_timeout_seconds=60, **options) as client:
            yield client


def call(tool: str, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a tools/call request of the handshake eras as it goes over the wire."""
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments or {}}}


async def post(url: str, body: Any, headers: Mapping[str, str]) -> httpx2.Response:
    """Send a message without any client's help."""
    sent = {"Accept": "application/json, text/event-stream", **headers}
    async with httpx2.AsyncClient(timeout=30) as http:
        return await http.post(url, json=body, headers=sent)


Connect = Callable[..., AbstractAsyncContextManager[Client]]
