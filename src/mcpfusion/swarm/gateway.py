"""The gateway: hands conversations to specialists, calls them there, and takes them back."""

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.lowlevel

from mcpfusion.actions.results import ToolResult
from mcpfusion.swarm.catalogue import Catalogue
from mcpfusion.swarm.connections import Connections, Passing
from mcpfusion.swarm.errors import HandoffError
from mcpfusion.swarm.handoffs import Handoff
from mcpfusion.swarm.keyring import Secrets
from mcpfusion.swarm.namespace import NamespaceError, NamespaceRewriter, wire_name
from mcpfusion.swarm.pins import InMemoryPinStore, PinStore, SqlitePinStore
from mcpfusion.swarm.registry import Registry, Specialist, Transport
from mcpfusion.swarm.return_trip import (
    format_safe_return,
    inject_return_trip_tool,
    return_tool_name,
)
from mcpfusion.swarm.routes import Conversation, Conversations, Route
from mcpfusion.swarm.sqlite_state import open_handoff_store
from mcpfusion.swarm.state import HandoffStateStore
from mcpfusion.swarm.tokens import Act
from mcpfusion.swarm.upstream import (
    Connector,
    Upstream,
    UpstreamError,
)

_log = logging.getLogger(__name__)

SHUTDOWN_TIMEOUT = 15.0


@dataclass(frozen=True, slots=True)
class Activation:
    """A handoff that was made.

    Attributes:
        handoff_id: Names the handoff, for callers that have neither a session nor an identity.
        tools: The specialist's tools under its namespace.
        return_tool: The tool that leads back.
    """

    domain: str
    handoff_id: str
    tools: list[dict[str, Any]]
    return_tool: str


class SwarmGateway:
    """A gateway over a registry of specialists.

    Serve it with `f.server(swarm_gateway=…)`, or enter it (`async with gateway:`) and call its operations.

    Args:
        registry: Specialists by name: a URL, a command for stdio, a server object, or a `Specialist`.
        delegation_secret: Shared with the specialists, at least 32 bytes; several for rotation, the newest first.
        gateway_name: The issuer of its tokens, and the namespace of its return tool.
        token_ttl_seconds: Lifetime of a token; each request to a specialist gets its own.
        connect_timeout_ms: How long a handoff may take.
        idle_timeout_ms: After how long without a call a handoff is ended.
        max_sessions: Handoffs in force and being made at once.
        upstream_transport: How URLs are spoken to: `auto`, `http` or `sse`.
        store: Where carried state above 2,048 bytes and pins are: a URL, or a `HandoffStateStore`.
        separator: What stands between a specialist's name and its tool's.
        dispatcher: Offer the stable tool `call_specialist`, for clients that never look at the list again.
        max_depth: Handoffs on top of each other, across gateways.
        max_handoffs: Handoffs of one conversation.
        max_returns_to_same: Handoffs of one conversation to the same specialist.

    Raises:
        ValueError: A secret that is too short, a registry entry or a limit that cannot be right.
    """

    def __init__(
        self,
        registry: Mapping[str, Any],
        delegation_secret: "str | Sequence[str] | Secrets",
        gateway_name: str = "gateway",
        token_ttl_seconds: float = 60,
        connect_timeout_ms: float = 5_000,
        idle_timeout_ms: float = 300_000,
        max_sessions: int = 100,
        upstream_transport: Transport = "auto",
        *,
        store: "str | HandoffStateStore" = "memory://",
        pins: PinStore | None = None,
        separator: str = ".",
        dispatcher: bool = False,
        max_depth: int = 8,
        max_handoffs: int = 50,
        max_returns_to_same: int = 10,
        connector: Connector | None = None,
    ) -> None:
        for name, value in (
            ("token_ttl_seconds", token_ttl_seconds),
            ("connect_timeout_ms", connect_timeout_ms),
            ("idle_timeout_ms", idle_timeout_ms),
            ("max_sessions", max_sessions),
            ("max_depth", max_depth),
            ("max_handoffs", max_handoffs),
            ("max_returns_to_same", max_returns_to_same),
        ):
            if not value > 0:
                raise ValueError(f"{name} must be positive, not {value!r}")
        self.registry = Registry(registry)
        self.name = gateway_name
        self.separator = separator
        self.dispatcher = dispatcher
        self.return_tool = return_tool_name(gateway_name, separator)
        self.dispatcher_tool = wire_name(gateway_name, separator, "call_specialist")
        self._idle_timeout = idle_timeout_ms / 1000
        self._max_sessions = max_sessions
        self._transport: Transport = upstream_transport
        self._max_depth = max_depth
        self._max_handoffs = max_handoffs
        self._max_returns = max_returns_to_same
        self._given_connector = connector
        self._connections = Connections(
            gateway_name,
            Secrets(delegation_secret),
            token_ttl=token_ttl_seconds,
            connect_timeout=connect_timeout_ms / 1000,
            state_ttl=(idle_timeout_ms + connect_timeout_ms) / 1000 + token_ttl_seconds,
            store=open_handoff_store(store) if isinstance(store, str) else store,
            pins=pins or _pins_at(store),
            reserved=frozenset({self.return_tool, self.dispatcher_tool}),
        )
        self._catalogue = Catalogue(self.registry, self._connections, separator)
        self._users = 0
        self._stop = anyio.Event()
        self._life: asyncio.Task[None] | None = None
        self._conversations = Conversations()
        self._changes: dict[str, None] = {}
        self._changed = anyio.Event()
        self.on_changed: Callable[[str], Awaitable[None]] | None = None
        _check_namespaces(self.registry, separator)

    def __repr__(self) -> str:
        return f"SwarmGateway({self.name!r}, {list(self.registry.specialists)})"

    # The operations.

    def has_active_handoff(self, conversation: str) -> bool:
        """Return whether the conversation is with a specialist."""
        found = self._conversations.get(conversation)
        return found is not None and bool(found.routes)

    def is_connecting(self, conversation: str) -> bool:
        """Return whether a handoff of the conversation is being made."""
        found = self._conversations.get(conversation)
        return found is not None and found.connecting is not None

    @property
    def session_count(self) -> int:
        """How many handoffs are in force."""
        return self._conversations.routes

    @property
    def connecting_count(self) -> int:
        """How many handoffs are being made."""
        return self._conversations.connecting

    def domain_of(self, conversation: str) -> str | None:
        """Return the specialist that the conversation is with."""
        found = self._conversations.get(conversation)
        return found.top.domain if found and found.top else None

    async def activate_handoff(
        self, conversation: str, handoff: Handoff, *, traceparent: str | None = None, depth: int = 0
    ) -> Activation:
        """Hand a conversation over, on top of where it is now. Done when the specialist is connected and has listed
        its tools; when that fails, everything is as before.

        Args:
            conversation: The conversation's key.
            traceparent: The trace that goes on at the specialist.
            depth: How many gateways the conversation has come through already.

        Raises:
            HandoffError: Why it could not be done, within the connect timeout.
        """
        domain, specialist = self.registry.find(handoff)
        found = self._conversations.open(conversation)
        self._check_limits(found, domain, specialist, depth)
        route = Route(
            handoff_id=str(uuid.uuid4()),
            domain=domain,
            specialist=specialist,
            rewriter=NamespaceRewriter(domain, separator=self.separator),
            depth=depth + len(found.routes) + 1,
            traceparent=traceparent,
        )
        with anyio.CancelScope() as scope:
            found.connecting, found.connecting_to = scope, domain
            try:
                route.state = await self._connections.carry(route, handoff)
                await self._connect(found, route)
                # It may have been taken back at the very moment when it was made.
                await anyio.lowlevel.checkpoint_if_cancelled()
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await self._connections.close(route)
                raise
            finally:
                found.connecting = found.connecting_to = None
            found.routes.append(route)
            found.handoffs[domain] += 1
            _log.info("handed over to %r (%s)", domain, route.handoff_id)
            self._note_change(conversation)
            return Activation(domain, route.handoff_id, list(route.tools or ()), self.return_tool)
        raise HandoffError("NO_HANDOFF", f"the handoff to {domain!r} was taken back before it was made")

    async def catalogue(self) -> list[dict[str, Any]]:
        """Return every specialist's tools under its namespace, for callers whose list may not depend on who they are.

        Each specialist is asked once a minute at most; one that does not answer is left out meanwhile.
        """
        return await self._catalogue.tools()

    async def proxy_tools_list(self, conversation: str) -> list[dict[str, Any]]:
        """Return the specialist's tools under its namespace, and the tool that leads back.

        Raises:
            HandoffError: The conversation is with no specialist, or it does not answer.
        """
        found, route = self._route(conversation)
        if route.tools is None:
            async with self._used(route):
                await self._recovering(found, route, lambda: self._connections.list_tools(route))
        return inject_return_trip_tool(route.tools or (), self.name, separator=self.separator)

    async def proxy_tools_call(
        self, conversation: str, name: str, arguments: Mapping[str, Any], passing: Passing | None = None
    ) -> dict[str, Any]:
        """Call a tool of the specialist that the conversation is with; returns its result as it came.

        Raises:
            HandoffError: The name is not in its namespace, the tool has changed against its pin, or the specialist
                does not answer; the message says whether the call may have run.
        """
        found, route = self._route(conversation)

        async def call() -> dict[str, Any]:
            original = self._original(route, name)
            request = await self._connections.request(route, Act.of(original, arguments), passing or Passing())
            return await self._connections.upstream(route).call_tool(original, arguments, request)

        async with self._used(route):
            if route.tools is None:  # the list changed: a name may be new in it, or gone
                await self._recovering(found, route, lambda: self._connections.list_tools(route))
            return await self._recovering(found, route, call)

    async def return_to_gateway(self, conversation: str, summary: str = "") -> ToolResult:
        """Take the conversation back from the specialist; the route below is in force again.

        The answer carries the summary as data from outside. A handoff that is just being made is given up.

        Raises:
            HandoffError: The conversation is with no specialist.
        """
        found = self._conversations.get(conversation)
        if found is not None and found.connecting is not None:
            found.connecting.cancel()
            return ToolResult([{"type": "text", "text": "The handoff that was being made is given up."}])
        found, route = self._route(conversation)
        await self._end(found, route)
        below = found.top.domain if found.top else self.name
        answer = format_safe_return(summary, route.domain)
        return ToolResult([answer], {"returnedFrom": route.domain, "nowWith": below})

    async def dispose(self) -> None:
        """End every handoff and close every connection."""
        for conversation in self._conversations:
            await self.forget(conversation.key)

    async def forget(self, conversation: str) -> None:
        """The conversation is over: its handoffs are ended and their slots free."""
        found = self._conversations.get(conversation)
        if found is None:
            return
        if found.connecting is not None:
            found.connecting.cancel()
        while found.top is not None:
            await self._end(found, found.top)
        self._conversations.forget(conversation)

    # Its life.

    async def __aenter__(self) -> "SwarmGateway":
        self._users += 1
        if self._users == 1:
            # In process a server's lifespan is entered once for each client, in tasks that end in any order, so that
            # what lives as long as all of them needs a task of its own. It is awaited when the last one leaves.
            self._stop = anyio.Event()
            ready = anyio.Event()
            self._life = asyncio.create_task(self._live(ready), name=f"gateway {self.name}")
            await ready.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._users -= 1
        if self._users == 0 and self._life is not None:
            life, self._life = self._life, None
            self._stop.set()
            with anyio.CancelScope(shield=True), anyio.move_on_after(SHUTDOWN_TIMEOUT):
                await life

    async def _live(self, ready: anyio.Event) -> None:
        connector = self._given_connector or _sdk_connector(self._transport)
        async with anyio.create_task_group() as group:
            await group.start(_run_connector, connector)
            group.start_soon(self._look_after)
            self._connections.connector = connector
            ready.set()
            await self._stop.wait()
            await self.dispose()
            self._connections.connector = None
            group.cancel_scope.cancel()

    async def _look_after(self) -> None:
        """End what has been idle for too long, and tell about lists that changed."""
        period = min(max(self._idle_timeout / 4, 0.05), 5.0)
        while True:
            with anyio.move_on_after(period):
                await self._changed.wait()
            self._changed = anyio.Event()
            changes, self._changes = list(self._changes), {}
            async with anyio.create_task_group() as group:
                for conversation in changes:
                    group.start_soon(self._tell, conversation)
            await self._end_idle()

    async def _end_idle(self) -> None:
        now = time.monotonic()
        for conversation in self._conversations:
            route = conversation.top  # those below wait for it, and are in use as long as it is
            if route is not None and not route.calls and now - route.last_used > self._idle_timeout:
                _log.info("the handoff to %r (%s) was idle for too long", route.domain, route.handoff_id)
                await self._end(conversation, route)

    async def _tell(self, conversation: str) -> None:
        if self.on_changed is not None:
            try:
                await self.on_changed(conversation)
            except Exception:  # who cannot be told must not keep the others from being told
                _log.warning("cannot tell about a list that changed", exc_info=True)

    def _note_change(self, conversation: str) -> None:
        self._changes[conversation] = None
        self._changed.set()

    # Making and ending routes.

    def _check_limits(self, found: Conversation, domain: str, specialist: Specialist, depth: int) -> None:
        if found.connecting is not None:
            raise HandoffError("HANDOFF_BUSY", "another handoff of this conversation is being made")
        if not found.routes and time.monotonic() - found.last_used > self._idle_timeout:
            found.handoffs.clear()  # what one user asks of a gateway over months is not one conversation
        if depth + len(found.routes) >= self._max_depth:
            raise HandoffError("TOO_DEEP", f"at most {self._max_depth} handoffs on top of each other")
        if found.handoffs.total() >= self._max_handoffs:
            raise HandoffError("TOO_MANY_HANDOFFS", f"at most {self._max_handoffs} handoffs in one conversation")
        if found.handoffs[domain] >= self._max_returns:
            raise HandoffError("PING_PONG", f"this conversation went to {domain!r} {self._max_returns} times already")
        full = self.session_count + self.connecting_count >= self._max_sessions
        limit = specialist.max_sessions
        if full or (limit is not None and self._conversations.routes_to(domain) >= limit):
            raise HandoffError("TOO_MANY_SESSIONS", "all places are taken; try again later")

    async def _connect(self, found: Conversation, route: Route) -> None:
        def changed() -> None:
            route.tools = None
            self._note_change(found.key)

        await self._connections.connect(route, changed)
        found.last_used = route.last_used

    async def _recovering(self, found: Conversation, route: Route, work: Callable[[], Awaitable[Any]]) -> Any:
        """Do `work`; when the connection is gone, connect once more, and do it again if it certainly did not run."""
        before = route.upstream
        try:
            return await work()
        except UpstreamError as error:
            _log.warning("specialist %r was lost: %s", route.domain, error)
            lost = error
        await self._reconnect(found, route, before)
        if not lost.refused:
            raise HandoffError(
                "UPSTREAM_UNAVAILABLE",
                f"the connection to {route.domain!r} broke during the call, which may or may not have run; "
                "the connection is there again",
            )
        try:
            return await work()
        except UpstreamError as error:
            _log.warning("specialist %r was lost again: %s", route.domain, error)
            await self._end(found, route)
            raise HandoffError("UPSTREAM_UNAVAILABLE", self._lost(found, route)) from None

    async def _reconnect(self, found: Conversation, route: Route, lost: Upstream | None) -> None:
        """Replace the connection `lost`, unless that was done already."""
        async with route.mending:
            if route not in found.routes:
                raise _ended(route)
            if route.upstream is not None and route.upstream is not lost:
                return
            if route.upstream is not None:
                await route.upstream.aclose()
                route.upstream = None
            try:
                await self._connect(found, route)
            except HandoffError as error:
                await self._end(found, route)
                raise HandoffError(error.code, self._lost(found, route)) from None
            if route not in found.routes:
                await self._connections.close(route)
                raise _ended(route)

    def _lost(self, found: Conversation, route: Route) -> str:
        back = found.top.domain if found.top else self.name
        return f"specialist {route.domain!r} cannot be reached any more; the conversation is back with {back!r}"

    async def _end(self, found: Conversation, route: Route) -> None:
        """Take a route away, and free its slot before anything that may fail."""
        if route in found.routes:
            found.routes.remove(route)
            found.last_used = time.monotonic()
            if found.top is not None:
                found.top.last_used = found.last_used
            self._note_change(found.key)
        with anyio.CancelScope(shield=True):
            await self._connections.close(route)

    def _route(self, conversation: str) -> tuple[Conversation, Route]:
        found = self._conversations.get(conversation)
        if found is None or found.top is None:
            raise HandoffError("NO_HANDOFF", "this conversation is not with a specialist")
        return found, found.top

    def _original(self, route: Route, name: str) -> str:
        try:
            return route.rewriter.original(name)
        except NamespaceError:
            raise HandoffError(
                "NOT_IN_NAMESPACE",
                f"{name[:128]!r} is no tool of {route.domain!r}, which this conversation is with; "
                f"'{self.return_tool}' leads back",
            ) from None

    @asynccontextmanager
    async def _used(self, route: Route) -> AsyncGenerator[None]:
        route.calls += 1
        try:
            yield
        finally:
            route.calls -= 1
            route.last_used = time.monotonic()


def _check_namespaces(registry: Registry, separator: str) -> None:
    heads: dict[str, str] = {}
    for name in registry.specialists:
        head = NamespaceRewriter(name, separator=separator).wire_name("")
        if head in heads:
            raise ValueError(f"registry: {heads[head]!r} and {name!r} both become {head!r}")
        heads[head] = name


def _ended(route: Route) -> HandoffError:
    return HandoffError("NO_HANDOFF", f"the handoff to {route.domain!r} ended during the call, which may have run")


def _pins_at(store: "str | HandoffStateStore") -> PinStore:
    if isinstance(store, str) and store.startswith("sqlite:///"):
        return SqlitePinStore(store.removeprefix("sqlite:///"))
    return InMemoryPinStore()


def _sdk_connector(transport: Transport) -> Connector:
    from mcpfusion.wire.upstream import SdkConnector

    return SdkConnector(transport)


async def _run_connector(connector: Connector, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    await connector.run(task_status=task_status)
