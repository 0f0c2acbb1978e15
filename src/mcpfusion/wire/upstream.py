"""Connections to specialists, by the SDK's client: one for each where there are no sessions, else one a handoff."""

import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any, cast

import anyio
import httpx2
import mcp_types as types
from anyio.abc import TaskGroup, TaskStatus
from mcp import Client, StdioServerParameters
from mcp.client.session import ClientSession
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ListenNotSupportedError, listen
from mcp.shared.dispatcher import CallOptions, ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcpfusion.swarm.registry import Specialist, Transport
from mcpfusion.swarm.upstream import DELEGATION_HEADER, Renew, Upstream, UpstreamError, UpstreamRequest
from mcpfusion.wire.isolation import REFUSED, isolated_http_client
from mcpfusion.wire.lowlevel import lowlevel_of

_log = logging.getLogger(__name__)

MAX_PAGES = 100
"""Pages of a specialist's list that are read."""

LISTEN_AGAIN_AFTER = 2.0
CLOSE_TIMEOUT = 5.0

_LOST = {
    types.CONNECTION_CLOSED,
    types.PARSE_ERROR,
}
_NOT_PROTOCOL = {"Server returned an error response"}


_FAILURES = (MCPError, httpx2.HTTPError, OSError, RuntimeError, ValueError)


class Link:
    """One SDK client, living in a task of its own from `start` to `close`."""

    def __init__(self, name: str, specialist: Specialist, transport: Transport) -> None:
        self.name = name
        self.ask: list[Any] = []
        self.listeners: set[Callable[[], None]] = set()
        self.users = 0
        self._specialist = specialist
        self._transport = transport
        self._closing = anyio.Event()
        self._closed = anyio.Event()
        self.client: Client | None = None

    @property
    def session(self) -> ClientSession:
        """The SDK's session.

        Raises:
            UpstreamError: The connection is closed.
        """
        if self.client is None or self._closed.is_set():
            raise UpstreamError("the connection is closed", refused=True)
        return self.client.session

    @property
    def modern(self) -> bool:
        """Whether the specialist is called without a session (2026-07-28)."""
        return self.session.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def open(self) -> bool:
        """Whether it can be used."""
        return self.client is not None and not self._closed.is_set() and not self._closing.is_set()

    @property
    def by_header(self) -> bool:
        """Whether each request has HTTP headers of its own."""
        return self._specialist.url is not None and self._transport != "sse"

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Open the connection, say that it is ready, and hold it until it is closed."""
        try:
            async with AsyncExitStack() as stack:
                server = await self._server(stack)
                client = Client(
                    server,
                    mode="auto" if self._transport != "sse" else "legacy",
                    elicitation_callback=self._on_elicit,
                    message_handler=self._on_message,
                    cache=None,
                )
                self.client = await stack.enter_async_context(client)
                task_status.started()
                await self._closing.wait()
        finally:
            self._closed.set()

    async def _server(self, stack: AsyncExitStack) -> Any:
        specialist = self._specialist
        url = specialist.url
        if url is not None:
            if self._transport == "sse":
                return sse_client(url)
            http = await stack.enter_async_context(isolated_http_client())
            return streamable_http_client(url, http_client=http)
        command = specialist.command
        if command is not None:
            return StdioServerParameters(command=command[0], args=command[1:])
        server = specialist.at
        return lowlevel_of(getattr(server, "lowlevel", server))

    async def close(self) -> None:
        """End the connection, and the session with it; wait a bounded time for that."""
        self._closing.set()
        with anyio.move_on_after(CLOSE_TIMEOUT):
            await self._closed.wait()

    async def _on_message(self, message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            for listener in list(self.listeners):
                listener()

    async def _on_elicit(self, context: Any, params: Any) -> types.ElicitResult | types.ErrorData:
        """A specialist of the handshake eras asks in the middle of a call: the newest call's person is asked."""
        ask = self.ask[-1] if self.ask else None
        if ask is None:
            return types.ElicitResult(action="cancel")
        answer = await ask(params.model_dump(by_alias=True, mode="json", exclude_none=True))
        return types.ElicitResult.model_validate(answer, by_name=False)


class LinkedUpstream:
    """A handoff's use of a link."""

    def __init__(self, link: Link, owner: "SdkConnector", changed: Callable[[], None]) -> None:
        self._link = link
        self._owner = owner
        self._changed = changed
        self._listening: anyio.CancelScope | None = None
        link.users += 1
        link.listeners.add(changed)

    async def list_tools(self, renew: Renew) -> list[dict[str, Any]]:
        """See `Upstream.list_tools`."""
        tools: list[dict[str, Any]] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            params: dict[str, Any] = {} if cursor is None else {"cursor": cursor}
            try:
                page = await self._send("tools/list", params, await renew())
            except MCPError as error:
                raise UpstreamError(f"tools/list: {error}", refused=True, answer=error.message) from error
            listed = page.get("tools")
            if not isinstance(listed, list):
                raise UpstreamError("tools/list was answered without tools")
            tools += [cast(dict[str, Any], tool) for tool in cast(list[Any], listed) if isinstance(tool, dict)]
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str):
                return tools
        raise UpstreamError(f"its list has more than {MAX_PAGES} pages")

    async def call_tool(self, name: str, arguments: Mapping[str, Any], request: UpstreamRequest) -> dict[str, Any]:
        """See `Upstream.call_tool`."""
        params: dict[str, Any] = {"name": name, "arguments": dict(arguments)}
        if request.input_responses is not None:
            params["inputResponses"] = dict(request.input_responses)
        if request.request_state is not None:
            params["requestState"] = request.request_state
        self._link.ask.append(request.ask)
        try:
            return await self._send("tools/call", params, request)
        finally:
            self._link.ask.remove(request.ask)

    async def _send(self, method: str, params: dict[str, Any], request: UpstreamRequest) -> dict[str, Any]:
        session = self._link.session
        meta = {**request.meta, **({"traceparent": request.traceparent} if request.traceparent else {})}
        data: dict[str, Any] = {"method": method, "params": {**params, "_meta": meta}}
        opts: CallOptions = {"timeout": request.timeout}
        if request.progress is not None:
            opts["on_progress"] = cast(ProgressFnT, request.progress)
        session._stamp(data, opts)  # pyright: ignore[reportPrivateUsage]
        self._delegate(request, data["params"]["_meta"], opts)
        if self._link.modern and request.ask is None:
            capabilities = {**data["params"]["_meta"].get(types.CLIENT_CAPABILITIES_META_KEY, {})}
            capabilities.pop("elicitation", None)
            data["params"]["_meta"][types.CLIENT_CAPABILITIES_META_KEY] = capabilities
        dispatcher = session._dispatcher  # pyright: ignore[reportPrivateUsage]
        try:
            return await dispatcher.send_raw_request(method, data["params"], opts)
        except MCPError as error:
            raise _understood(error) from error
        except (httpx2.HTTPError, OSError, anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
            raise UpstreamError(type(error).__name__) from error

    def _delegate(self, request: UpstreamRequest, meta: dict[str, Any], opts: CallOptions) -> None:
        if self._link.by_header:
            headers = opts.setdefault("headers", {})
            headers[DELEGATION_HEADER] = request.token
            if request.traceparent:
                headers["traceparent"] = request.traceparent
        else:
            meta[DELEGATION_HEADER] = request.token

    async def listen(self, renew: Renew) -> None:
        """Hear of the specialist's list changes until closed, where it has no session to tell them on."""
        with anyio.CancelScope() as self._listening:
            while self._link.open:
                try:
                    request = await renew()
                    delegated = _Delegated(self._link.session, partial(self._delegate, request))
                    async with listen(cast(ClientSession, delegated), tools_list_changed=True) as changes:
                        async for _ in changes:
                            self._changed()
                except ListenNotSupportedError:
                    return
                except Exception:
                    _log.debug("specialist %r is not listened to", self._link.name, exc_info=True)
                await anyio.sleep(LISTEN_AGAIN_AFTER)
                self._changed()  # what happened in between is not known

    async def aclose(self) -> None:
        """See `Upstream.aclose`."""
        if self._listening is not None:
            self._listening.cancel()
        self._link.listeners.discard(self._changed)
        self._link.users -= 1
        await self._owner.released(self._link)


class _Delegated:
    """A session that stamps a delegation on what it sends; everything else is the session's own."""

    def __init__(self, session: ClientSession, stamp: Callable[[dict[str, Any], CallOptions], None]) -> None:
        self._session = session
        self._extra = stamp

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def _stamp(self, data: dict[str, Any], opts: CallOptions) -> None:
        self._session._stamp(data, opts)  # pyright: ignore[reportPrivateUsage]
        self._extra(data["params"]["_meta"], opts)


class SdkConnector:
    """Opens and owns links."""

    def __init__(self, transport: Transport) -> None:
        self._transport: Transport = transport
        self._group: TaskGroup | None = None
        self._shared: dict[str, Link] = {}
        self._with_sessions: set[str] = set()
        self._opening: dict[str, anyio.Lock] = {}

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """See `Connector.run`."""
        async with anyio.create_task_group() as self._group:
            task_status.started()
            await anyio.sleep_forever()

    async def connect(
        self,
        name: str,
        specialist: Specialist,
        renew: Renew,
        on_tools_changed: Callable[[], None],
    ) -> Upstream:
        """See `Connector.connect`."""
        if self._group is None:
            raise RuntimeError("the connector is not running")
        link = await self._link(name, specialist)
        upstream = LinkedUpstream(link, self, on_tools_changed)
        if link.modern:
            self._group.start_soon(upstream.listen, renew)
        return upstream

    async def _link(self, name: str, specialist: Specialist) -> Link:
        """Return the one link to a specialist without sessions, or a new one with a session of its own."""
        if name not in self._with_sessions:
            async with self._opening.setdefault(name, anyio.Lock()):  # who come together share what the first opens
                if name not in self._with_sessions:
                    link = self._shared.get(name)
                    if link is None or not link.open:
                        link = await self._opened(name, specialist)
                    if link.modern:
                        self._shared[name] = link
                    else:
                        self._with_sessions.add(name)
                    return link
        link = await self._opened(name, specialist)
        if link.modern:
            self._with_sessions.discard(name)  # it was renewed in the meantime
        return link

    async def _opened(self, name: str, specialist: Specialist) -> Link:
        transport = specialist.transport or self._transport
        try:
            return await self._started(Link(name, specialist, transport))
        except _FAILURES as error:
            if transport == "auto" and specialist.url is not None and _knows_no_post(error):
                with suppress(*_FAILURES):
                    return await self._started(Link(name, specialist, "sse"))
            raise UpstreamError(f"{type(error).__name__}: {error}", refused=True) from error

    async def _started(self, link: Link) -> Link:
        assert self._group is not None
        await _start(self._group, link)
        return link

    async def released(self, link: Link) -> None:
        """A handoff does not use the link any more; one with a session ends with it."""
        if link.users:
            return
        if self._shared.get(link.name) is link:
            if link.open and link.by_header:
                return  # nothing is kept for it on the other side, and the next handoff finds it ready
            del self._shared[link.name]
        await link.close()


async def _start(group: TaskGroup, link: Link) -> None:
    """Start a link in the owner's group; what goes wrong there is raised here and does not end the others."""
    ready = anyio.Event()
    failure: list[BaseException] = []

    class _Status:
        def started(self, value: None = None) -> None:
            ready.set()

    async def live() -> None:
        try:
            await link.run(task_status=cast(TaskStatus[None], _Status()))
        except Exception as error:
            failure.append(_first(error))
            if ready.is_set():
                _log.warning("the connection to specialist %r ended: %s", link.name, type(_first(error)).__name__)
        finally:
            ready.set()

    scope = anyio.CancelScope()

    async def scoped() -> None:
        with scope:
            await live()

    group.start_soon(scoped)
    try:
        await ready.wait()
    except BaseException:
        scope.cancel()
        raise
    if failure:
        raise failure[0]


def _knows_no_post(error: BaseException) -> bool:
    """Return whether a server answered as one of the old HTTP+SSE transport does, which only has its GET there (MCP
    2025-11-25, Transports, Backwards Compatibility)."""
    return isinstance(error, MCPError) and (
        error.error.code == types.METHOD_NOT_FOUND or error.message in _NOT_PROTOCOL
    )


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = cast(BaseExceptionGroup[BaseException], error).exceptions[0]
    return error


def _understood(error: MCPError) -> Exception:
    """Return what an error means: the specialist's own protocol error, or a connection that is lost."""
    data = error.error.data
    if isinstance(data, dict) and cast(dict[str, Any], data).get("reason") == REFUSED:
        return UpstreamError(error.message, refused=True)
    if error.code in _LOST or error.message in _NOT_PROTOCOL:
        return UpstreamError(error.message)
    return error
