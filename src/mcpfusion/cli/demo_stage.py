"""What the demo acts on: a folder of its own, server processes, and clients that connect to them."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import anyio
import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from mcpfusion.cli import demo_server

SESSIONS = "legacy"
"""The client mode for protocol 2025-11-25, where the server keeps a session."""

STATELESS = "2026-07-28"

START_LIMIT = 40.0
"""Seconds a server may take to answer for the first time."""

READ_LIMIT = 20.0
"""Seconds a client waits for an answer."""

_SERVER = (sys.executable, "-m", "mcpfusion.cli.demo_server")


class DemoError(Exception):
    """Something is not as the demo says. One line."""


class Stage:
    """A fresh folder, and the server processes that use it. Leaving it ends them and removes the folder."""

    def __init__(self) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="mcpfusion-demo-", ignore_cleanup_errors=True)
        self.folder = Path(self._temporary.name).resolve()
        self.store = demo_server.store_url(self.folder)
        self.provider = demo_server.Provider(self.folder)
        self._environment = {**os.environ, demo_server.FOLDER: str(self.folder)}
        self._log = (self.folder / "servers.log").open("a+")
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._log.close()
        self._temporary.cleanup()

    async def serve(self, *, tokens: bool = False) -> tuple[str, subprocess.Popen[bytes]]:
        """Start a server over HTTP and return its URL and its process, once it answers.

        Args:
            tokens: Callers must authenticate.

        Raises:
            DemoError: It does not answer in time.
        """
        port = free_port()
        return await self._start([*_SERVER, "http", str(port), *(["tokens"] if tokens else [])], port, {})

    async def start(
        self, module: str, *arguments: str, port: int, environment: dict[str, str]
    ) -> tuple[str, subprocess.Popen[bytes]]:
        """Start `python -m MODULE ARGUMENTS PORT` and return its URL and its process, once it answers.

        Raises:
            DemoError: It does not answer in time.
        """
        return await self._start([sys.executable, "-m", module, *arguments, str(port)], port, environment)

    async def _start(
        self, command: Sequence[str], port: int, environment: Mapping[str, str]
    ) -> tuple[str, subprocess.Popen[bytes]]:
        process = subprocess.Popen(  # noqa: S603, ASYNC220 - our own module; starting it takes no time
            command,
            env={**self._environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        self._processes.append(process)
        url = f"http://127.0.0.1:{port}/mcp"
        with anyio.move_on_after(START_LIMIT):
            async with httpx2.AsyncClient() as client:
                while process.poll() is None:
                    if await _answers(client, url):
                        return url, process
                    await anyio.sleep(0.05)
        raise DemoError("a server did not start")

    @asynccontextmanager
    async def connect(
        self,
        url: str,
        mode: str,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        heard: Callable[[Any], None] | None = None,
    ) -> AsyncGenerator[Client]:
        """Yield a client over HTTP.

        Args:
            token: The bearer token it sends.
            headers: Further headers that it sends.
            heard: Called with every notification that arrives outside a listen stream.
        """
        async with AsyncExitStack() as stack:
            sent = {**(headers or {}), **({"Authorization": f"Bearer {token}"} if token else {})}
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=sent, timeout=READ_LIMIT))
            transport = streamable_http_client(url, http_client=http)
            yield await stack.enter_async_context(_client(transport, mode, heard))

    @asynccontextmanager
    async def spawn(self, mode: str) -> AsyncGenerator[Client]:
        """Yield a client that has started a server of its own, over stdio."""
        command, *arguments = _SERVER
        server = StdioServerParameters(command=command, args=[*arguments, "stdio"], env=self._environment)
        async with _client(stdio_client(server, errlog=self._log), mode, None) as client:
            yield client

    async def command(self, *arguments: str) -> str:
        """Return what `mcpfusion ARGUMENTS --store URL` prints.

        Raises:
            DemoError: It failed.
        """
        command = [sys.executable, "-m", "mcpfusion.cli.main", *arguments, "--store", self.store]
        result = await anyio.run_process(command, check=False)
        if result.returncode:
            raise DemoError(f"mcpfusion {' '.join(arguments)}: {result.stderr.decode().strip()}")
        return result.stdout.decode()

    def complaints(self) -> str:
        """Return what the servers wrote on their standard error, at most its last 4,000 characters."""
        return _read(self._log)[-4000:]


def _client(transport: Any, mode: str, heard: Callable[[Any], None] | None) -> Client:
    async def handler(message: Any) -> None:
        if heard is not None:
            heard(message)

    return Client(transport, mode=mode, read_timeout_seconds=READ_LIMIT, message_handler=handler)


async def _answers(client: httpx2.AsyncClient, url: str) -> bool:
    try:
        await client.get(url, timeout=2)
    except httpx2.TransportError:
        return False
    return True


def free_port() -> int:
    """Return a port of the loopback address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _read(log: IO[str]) -> str:
    log.flush()
    log.seek(0)
    return log.read()
