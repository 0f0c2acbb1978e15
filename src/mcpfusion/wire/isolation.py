"""An HTTP client in which one failing request fails alone.

The SDK's transport ends as a whole when a request cannot be sent; with one client shared by all conversations with a
specialist, that would fail their calls too. Here such a request gets an answer that says so.
"""

import json
import ssl
from collections.abc import AsyncIterator
from functools import cache

import httpx2
from mcp.shared._httpx_utils import MCP_DEFAULT_SSE_READ_TIMEOUT, MCP_DEFAULT_TIMEOUT
from mcp_types import CONNECTION_CLOSED

REFUSED = "io.mcpfusion/refused"
"""In the `reason` of an error's data: the request was not sent, or not to a session that there is."""

_SESSION = "mcp-session-id"

_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)


class _Isolated(httpx2.AsyncBaseTransport):
    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            response = await self._inner.handle_async_request(request)
        except httpx2.TransportError as error:
            return _failed(request, type(error).__name__, sent=not isinstance(error, _NOT_SENT))
        if response.status_code == 404 and request.method == "POST" and _SESSION in request.headers:
            # Only the status says it in every language (MCP, Streamable HTTP, Session Management); the words differ.
            await response.aclose()
            return _failed(request, "its session is over", sent=False)
        if isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _Ending(response.stream)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Ending(httpx2.AsyncByteStream):
    """A body that ends where its connection broke; what is missing is found by whoever reads the message."""

    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._inner:
                yield chunk
        except httpx2.TransportError:
            return

    async def aclose(self) -> None:
        await self._inner.aclose()


def _failed(request: httpx2.Request, message: str, *, sent: bool) -> httpx2.Response:
    data = None if sent else {"reason": REFUSED}
    body = {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": CONNECTION_CLOSED, "message": message, "data": data},
    }
    return httpx2.Response(
        503, headers={"content-type": "application/json"}, content=json.dumps(body).encode(), request=request
    )


def isolated_http_client() -> httpx2.AsyncClient:
    """Return a client for the SDK's streamable HTTP transport."""
    timeout = httpx2.Timeout(MCP_DEFAULT_TIMEOUT, read=MCP_DEFAULT_SSE_READ_TIMEOUT)
    client = httpx2.AsyncClient(timeout=timeout, verify=_certificates())
    client._transport = _Isolated(client._transport)  # pyright: ignore[reportPrivateUsage]
    return client


@cache
def _certificates() -> ssl.SSLContext:
    # Reading them takes 30 ms in which nothing else runs, so that it is not done for every session.
    return httpx2.create_ssl_context()
