"""Specialists in every way to reach them, and those that fail.

Those that do fail in an app in front of a real one, or are sockets that do not speak at all.
"""

import json
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import httpx2
from mcp.server.sse import SseServerTransport
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from tests.support.serving import http_app
from tests.swarm.parts import specialist, until


class Front:
    """An ASGI app in front of a specialist's: it counts its sessions and fails as it is told.

    Attributes:
        mode: `ok`, `500`, `garbage`, `break` (in the middle of an answer), or `hang` (until `release`).
        only: The method that fails; None is all of them.
        handshake: The specialist knows no `server/discover`, so that its clients must have sessions.
        sessions: Those that are open now.
        opened: How many were opened.
        requests: Method, headers and body of what came.
        hanging: How many requests hang now.
        answering: How many requests of each method are being answered now; one for a stream is until it ends.
    """

    def __init__(self, app: Any, *, handshake: bool = False) -> None:
        self.app = app
        self.mode = "ok"
        self.only: str | None = None
        self.handshake = handshake
        self.sessions: set[str] = set()
        self.opened = 0
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.hanging = 0
        self.release = anyio.Event()
        self.answering: Counter[str] = Counter()
        self.url = ""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {key.decode(): value.decode("latin-1") for key, value in scope["headers"]}
        body, again = await _read(receive) if scope["method"] == "POST" else (b"", receive)
        message = json.loads(body or b"{}")
        method = message.get("method", "") if isinstance(message, dict) else ""
        self.requests.append((method or scope["method"], headers, message))
        with self._answering(method or scope["method"]):
            await self._answer_it(method, message, headers, scope, receive, again, send)

    @contextmanager
    def _answering(self, method: str) -> Iterator[None]:
        self.answering[method] += 1
        try:
            yield
        finally:
            self.answering[method] -= 1

    async def _answer_it(
        self, method: str, message: Any, headers: dict[str, str], scope: Any, receive: Any, again: Any, send: Any
    ) -> None:
        if scope["path"] == "/counts":
            await _answer(send, 200, json.dumps([len(self.sessions), self.opened, self.open - 1]).encode())
            return
        if self.handshake and method == "server/discover":
            error = {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "Method not found"}}
            await _answer(send, 200, json.dumps(error).encode())
            return
        fails = self.mode if self.only in (None, method) and scope["method"] == "POST" else "ok"
        if fails == "500":
            await _answer(send, 500, b"Internal Server Error", b"text/plain")
        elif fails == "garbage":
            await _answer(send, 200, b"<html>not at all JSON")
        elif fails == "break":
            await _answer(send, 200, b'{"jsonrpc"', length=1000)
            raise RuntimeError("the connection breaks here")
        elif fails == "ok" or await self._released(receive):
            await self.app(scope, again, self._counting(scope["method"], headers, send))

    async def _released(self, receive: Any) -> bool:
        """Hang until released; False when the caller is gone before."""
        gone = False
        self.hanging += 1
        try:
            async with anyio.create_task_group() as group:

                async def listen() -> None:
                    nonlocal gone
                    gone = (await receive())["type"] == "http.disconnect"
                    group.cancel_scope.cancel()

                group.start_soon(listen)
                await self.release.wait()
                group.cancel_scope.cancel()
        finally:
            self.hanging -= 1
        return not gone

    def _counting(self, method: str, headers: dict[str, str], send: Any) -> Any:
        async def counted(message: Any) -> None:
            if message["type"] == "http.response.start":
                for key, value in message["headers"]:
                    if key.lower() == b"mcp-session-id" and value.decode() not in self.sessions and method == "POST":
                        self.sessions.add(value.decode())
                        self.opened += 1
                if method == "DELETE" and message["status"] < 300:
                    self.sessions.discard(headers.get("mcp-session-id", ""))
            await send(message)

        return counted

    @property
    def open(self) -> int:
        """How many requests are being answered now."""
        return self.answering.total()

    async def nothing_open(self) -> None:
        """Return once no session and no stream is open any more; sessions must have ended already."""
        assert not self.sessions
        await until(lambda: self.open == 0)

    def calls(self, method: str = "tools/call") -> list[Any]:
        """Return the bodies of the requests of that method."""
        return [body for name, _, body in self.requests if name == method]


async def _read(receive: Any) -> tuple[bytes, Any]:
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    body, given = b"".join(parts), False

    async def again() -> Any:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return body, again


async def _answer(
    send: Any, status: int, body: bytes, kind: bytes = b"application/json", length: int | None = None
) -> None:
    size = str(len(body) if length is None else length).encode()
    headers = [(b"content-type", kind), (b"content-length", size)]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": length is not None})


@asynccontextmanager
async def fronted(server: Any, *, handshake: bool = False) -> AsyncIterator[tuple[str, Front]]:
    """Serve a specialist behind a front; yields its URL and the front."""
    front = Front(server.asgi(host="127.0.0.1"), handshake=handshake)
    async with http_app(front) as origin:
        front.url = f"{origin}/mcp"
        yield front.url, front


@asynccontextmanager
async def over_sse(server: Any) -> AsyncIterator[tuple[str, list[int]]]:
    """Serve a specialist over the old HTTP+SSE transport alone; yields its URL and the open streams."""
    low = getattr(server, "lowlevel", None) or server.server
    transport = SseServerTransport("/messages/")
    streams: list[int] = []

    async def stream(request: Request) -> Response:
        streams.append(1)
        try:
            async with transport.connect_sse(request.scope, request.receive, request._send) as (read, write):
                await low.run(read, write, low.create_initialization_options())
        finally:
            streams.pop()
        return Response()

    app = Starlette(routes=[Route("/sse", stream), Mount("/messages/", app=transport.handle_post_message)])
    async with http_app(app) as origin:
        yield f"{origin}/sse", streams


KINDS = ("stateless", "sessions", "old sse", "in process")
"""The ways to a specialist: without sessions (2026-07-28), with them (2025-11-25), HTTP+SSE, a server object."""


@asynccontextmanager
async def reached(server: Any, kind: str) -> AsyncIterator[Any]:
    """Have a specialist reached in one of `KINDS`; yields its registry entry. In the end nothing is open at it."""
    if kind == "in process":
        yield {"server": getattr(server, "server", server)}
    elif kind == "old sse":
        async with over_sse(server) as (url, streams):
            yield {"url": url, "transport": "sse"}
            await until(lambda: not streams)
    else:
        async with fronted(server, handshake=kind == "sessions") as (url, front):
            yield url
            await until(lambda: not front.sessions)
            await front.nothing_open()


def be_fronted(port: int, name: str, handshake: bool) -> None:
    """Be a process with a specialist behind a front, which says at `/counts` what is open."""
    import uvicorn

    front = Front(specialist(name).asgi(host="127.0.0.1"), handshake=handshake)
    uvicorn.run(front, port=port, log_level="critical", lifespan="on", timeout_graceful_shutdown=1)


async def counts(url: str) -> dict[str, int]:
    """Return what is open at a `be_fronted`: sessions, how many were opened in all, and requests."""
    async with httpx2.AsyncClient() as http:
        found = (await http.get(url.replace("/mcp", "/counts"))).json()
    return dict(zip(("sessions", "opened", "requests"), found, strict=True))


@contextmanager
def deaf() -> Iterator[str]:
    """Accept connections and never answer; yields the URL."""
    kept: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            while True:
                try:
                    kept.append(listening.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            for each in kept:
                each.close()
            thread.join(5)
