"""The gateway: hands conversations to specialists, calls them there, and takes them back."""

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import anyio
import anyio.lowlevel

from mcpfusion import telemetry
from mcpfusion.actions.results import ToolResult
from mcpfusion.stores.relay import Relay
from mcpfusion.swarm import observing
from mcpfusion.swarm.catalogue import Catalogue
from mcpfusion.swarm.connections import Connections, Passing
from mcpfusion.swarm.conversations import Conversations
from mcpfusion.swarm.errors import HandoffError
from mcpfusion.swarm.handoffs import Handoff
from mcpfusion.swarm.keyring import Secrets
from mcpfusion.swarm.namespace import LONGEST_PORTABLE_NAME, NamespaceError, NamespaceRewriter, wire_name
from mcpfusion.swarm.open import SwarmStores, open_swarm_stores
from mcpfusion.swarm.pins import PinStore
from mcpfusion.swarm.registry import Registry, Specialist, Transport, check_transport
from mcpfusion.swarm.return_trip import (
    format_safe_return,
    inject_return_trip_tool,
    return_tool_name,
)
from mcpfusion.swarm.routes import Conversation, Route
from mcpfusion.swarm.state import HandoffStateStore
from mcpfusion.swarm.tokens import Act
from mcpfusion.swarm.upstream import (
    Connector,
    Upstream,
    UpstreamError,
)
from mcpfusion.telemetry import SPECIALIST

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
        max_sessions: Handoffs in force and being made at once, in all replicas that share the store.
        upstream_transport: How URLs are spoken to: `auto`, `http` or `sse`.
        store: Where routes, carried state above 2,048 bytes and pins are kept. A URL of an engine that replicas share
            lets any of them serve any conversation, but for those that end with their own session. A
            `HandoffStateStore` keeps the carried state alone.
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
        check_transport("upstream_transport", upstream_transport)
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
            state_ttl=(2 * idle_timeout_ms + connect_timeout_ms) / 1000 + token_ttl_seconds,
            reserved=frozenset({self.return_tool, self.dispatcher_tool}),
        )
        self._catalogue = Catalogue(self.registry, self._connections, separator)
        self._conversations = Conversations(
            gateway_name,
            self.registry,
            separator,
            idle_timeout=self._idle_timeout,
            slack=connect_timeout_ms / 1000,
            release=self._connections.release,
        )
        self._store = store
        self._pins = pins
        self._stores: SwarmStores | None = None
        self._use_stores()
        self._users = 0
        self._stop = anyio.Event()
        self._life: asyncio.Task[None] | None = None
        self._relay: Relay | None = None
        self._changes: dict[str, None] = {}
        self._changed = anyio.Event()
        self.on_changed: Callable[[str | None], Awaitable[None]] | None = None
        _check_namespaces(self.registry, separator)
        _warn_of_long_names(self.return_tool, *([self.dispatcher_tool] if dispatcher else ()))

    def __repr__(self) -> str:
        return f"SwarmGateway({self.name!r}, {list(self.registry.specialists)})"

    # The operations.

    def has_active_handoff(self, conversation: str) -> bool:
        """Return whether the conversation is with a specialist, as far as this process knows."""
        found = self._conversations.get(conversation)
        return found is not None and bool(found.routes)

    def is_connecting(self, conversation: str) -> bool:
        """Return whether a handoff of the conversation is being made by this process."""
        found = self._conversations.get(conversation)
        return found is not None and found.connecting is not None

    @property
    def session_count(self) -> int:
        """How many handoffs are in force, as far as this process knows."""
        return self._conversations.routes

    @property
    def connecting_count(self) -> int:
        """How many handoffs are being made by this process."""
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
        with observing.handoff(domain):
            return await self._activate(conversation, domain, specialist, handoff, traceparent, depth)

    async def _activate(
        self,
        conversation: str,
        domain: str,
        specialist: Specialist,
        handoff: Handoff,
        traceparent: str | None,
        depth: int,
    ) -> Activation:
        found = await self._conversations.current(conversation)
        self._check_limits(found, domain, depth)
        route = Route(
            handoff_id=str(uuid.uuid4()),
            domain=domain,
            specialist=specialist,
            rewriter=NamespaceRewriter(domain, separator=self.separator),
            depth=depth + len(found.routes) + 1,
            traceparent=traceparent,
        )
        with anyio.CancelScope() as scope:
            found.connecting = scope
            try:
                await self._make(found, route, handoff)
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await self._undo(route)
                raise
            finally:
                found.connecting = None
            _log.info("handed over to %r (%s)", domain, route.handoff_id)
            self._note_change(conversation)
            return Activation(domain, route.handoff_id, list(route.tools or ()), self.return_tool)
        raise HandoffError("NO_HANDOFF", f"the handoff to {domain!r} was taken back before it was made")

    async def catalogue(self) -> list[dict[str, Any]]:
        """Return every specialist's tools under its namespace, for callers whose list may not depend on who they are.

        Each specialist is asked once a minute at most; one that does not answer is left out meanwhile.
        """
        return await self._catalogue.tools()

    async def is_handed_over(self, conversation: str) -> bool:
        """Return whether the conversation is with a specialist, whichever replica handed it over.

        While the store cannot tell, what this process knows counts.
        """
        try:
            return bool((await self._conversations.current(conversation)).routes)
        except HandoffError:
            return self.has_active_handoff(conversation)

    async def proxy_tools_list(self, conversation: str) -> list[dict[str, Any]]:
        """Return the specialist's tools under its namespace, and the tool that leads back.

        Raises:
            HandoffError: The conversation is with no specialist, or it does not answer.
        """
        found, route = await self._route(conversation)
        if route.tools is None:
            async with self._used(found, route):
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
        found, route = await self._route(conversation)

        async def call() -> dict[str, Any]:
            original, passed = self._original(route, name), passing or Passing()
            with observing.request(route.domain, "tools/call", passed.traceparent or route.traceparent) as asked:
                asked.names(original, route.tools or (), name)
                request = await self._connections.request(route, Act.of(original, arguments), passed)
                result = await self._connections.upstream(route).call_tool(original, arguments, request)
                asked.answered(result)
                return result

        async with self._used(found, route):
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
        found, route = await self._route(conversation)
        route.give_up_calls()
        await self._end(found, route)
        below = found.top.domain if found.top else self.name
        answer = format_safe_return(summary, route.domain)
        return ToolResult([answer], {"returnedFrom": route.domain, "nowWith": below})

    async def dispose(self) -> None:
        """End every handoff, but for those that other replicas can go on with, and close every connection."""
        for conversation in self._conversations:
            if conversation.connecting is None and self._conversations.is_shared(conversation):
                await self._conversations.let_go(conversation)
            else:
                await self.forget(conversation.key)

    async def forget(self, conversation: str) -> None:
        """The conversation is over: its handoffs are ended and their slots free."""
        found = self._conversations.get(conversation)
        if found is None:
            return
        if found.connecting is not None:
            found.connecting.cancel()
        while (route := found.top) is not None:
            route.give_up_calls()
            await self._end(found, route)
        self._conversations.forget(conversation)

    async def answers(self, within: float) -> bool:
        """Return whether the gateway is running, and its store answers within so many seconds. Never raises."""
        if self._connections.connector is None or self._stores is None:
            return False
        try:
            with anyio.fail_after(within):
                await self._stores.routes.read_routes(self.name, "")
        except Exception:
            _log.debug("the store of the routes does not answer", exc_info=True)
            return False
        return True

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
        stores = self._use_stores()
        try:
            async with anyio.create_task_group() as group:
                await group.start(_run_connector, connector)
                group.start_soon(self._look_after)
                if stores.bus is not None:
                    self._relay = Relay(stores.bus, f"routes:{self.name}", self._heard)
                    await group.start(self._relay.run)
                self._connections.connector = connector
                ready.set()
                with telemetry.ACTIVE_HANDOFFS.told_by(self._active):
                    await self._stop.wait()
                    await self.dispose()
                self._connections.connector = None
                group.cancel_scope.cancel()
        finally:
            self._relay = None
            await self._close_stores(stores)

    def _active(self) -> list[tuple[int, dict[str, str]]]:
        return [(number, {SPECIALIST: name}) for name, number in self._conversations.kept_here.items()]

    def _use_stores(self) -> SwarmStores:
        """Return the stores, opened again where the gateway has ended before."""
        if self._stores is None:
            stores = open_swarm_stores(self._store if isinstance(self._store, str) else "memory://")
            if not isinstance(self._store, str):
                stores = replace(stores, states=self._store)
            self._stores = stores if self._pins is None else replace(stores, pins=self._pins)
            self._connections.stores = self._stores
            self._conversations.store = self._stores.routes
        return self._stores

    async def _close_stores(self, stores: SwarmStores) -> None:
        if isinstance(self._store, str) and not self._store.startswith("memory:"):
            self._stores = None
            with anyio.move_on_after(SHUTDOWN_TIMEOUT, shield=True):
                await stores.aclose()

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
        for conversation in self._conversations:
            route = conversation.top
            if route is None:
                continue
            if route.calls:
                await self._conversations.used(conversation)
                continue
            with suppress(HandoffError):  # logged where it happened; it is looked at again
                if await self._conversations.is_idle(conversation):
                    _log.info("the handoff to %r (%s) was idle for too long", route.domain, route.handoff_id)
                    await self._end(conversation, route)

    async def _heard(self, conversations: Sequence[tuple[str, ...]] | None) -> None:
        """Another replica changed conversations (None: nobody knows which): those that listen here are told."""
        known = [each.key for each in self._conversations]
        changed = None if conversations is None else [key for (key,) in conversations]
        for key in known if changed is None else set(known) & set(changed):
            with suppress(HandoffError):
                await self._conversations.current(key)  # what is gone there is let go of here
        async with anyio.create_task_group() as group:
            for key in [None] if changed is None else changed:
                group.start_soon(self._tell, key)

    async def _tell(self, conversation: str | None) -> None:
        if self.on_changed is not None:
            try:
                await self.on_changed(conversation)
            except Exception:  # who cannot be told must not keep the others from being told
                _log.warning("cannot tell about a list that changed", exc_info=True)

    def _note_change(self, conversation: str) -> None:
        self._changes[conversation] = None
        self._changed.set()
        if self._relay is not None:
            self._relay.tell(conversation)

    # Making and ending routes.

    def _check_limits(self, found: Conversation, domain: str, depth: int) -> None:
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

    async def _make(self, found: Conversation, route: Route, handoff: Handoff) -> None:
        """Take a place, connect, and put the route on top.

        Raises:
            HandoffError: One of these cannot be done; `_undo` takes back what was.
        """
        if not await self._conversations.take_place(route, limit=self._max_sessions):
            raise HandoffError("TOO_MANY_SESSIONS", "all places are taken; try again later")
        route.state = await self._connections.carry(route, handoff)
        await self._connect(found, route)
        # It may have been taken back at the very moment when it was made.
        await anyio.lowlevel.checkpoint_if_cancelled()
        if not await self._conversations.push(found, route):
            raise HandoffError("HANDOFF_BUSY", "another handoff of this conversation was made meanwhile")

    async def _undo(self, route: Route) -> None:
        await self._connections.close(route)
        with suppress(HandoffError):  # the place frees itself in time
            await self._conversations.free_place(route)

    async def _connect(self, found: Conversation, route: Route) -> None:
        def changed() -> None:
            route.tools = None
            self._note_change(found.key)

        await self._connections.connect(route, changed)
        found.last_used = time.monotonic()

    async def _recovering(self, found: Conversation, route: Route, work: Callable[[], Awaitable[Any]]) -> Any:
        """Do `work`; when the connection is gone, connect once more, and do it again if it certainly did not run."""
        before = route.upstream
        try:
            return await work()
        except UpstreamError as error:
            _log.warning("specialist %r was lost: %s", route.domain, telemetry.kind_of(error))
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
            _log.warning("specialist %r was lost again: %s", route.domain, telemetry.kind_of(error))
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
        """Take a route away, and free its place before anything that may fail."""
        with anyio.CancelScope(shield=True):
            if route in found.routes:
                await self._conversations.pop(found, route)
                found.last_used = time.monotonic()
                self._note_change(found.key)
            await self._connections.close(route)

    async def _route(self, conversation: str) -> tuple[Conversation, Route]:
        found = await self._conversations.current(conversation)
        if found.top is None:
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
    async def _used(self, found: Conversation, route: Route) -> AsyncGenerator[None]:
        with anyio.CancelScope() as scope:
            route.calls.append(scope)
            try:
                await self._conversations.used(found)
                yield
            finally:
                route.calls.remove(scope)
                found.last_used = time.monotonic()
        if scope.cancelled_caught:
            raise _ended(route)


def _check_namespaces(registry: Registry, separator: str) -> None:
    heads: dict[str, str] = {}
    for name in registry.specialists:
        head = NamespaceRewriter(name, separator=separator).wire_name("")
        if head in heads:
            raise ValueError(f"registry: {heads[head]!r} and {name!r} both become {head!r}")
        heads[head] = name


def _warn_of_long_names(*names: str) -> None:
    for name in names:
        if len(name) > LONGEST_PORTABLE_NAME:
            _log.warning("tool name %r is longer than many clients accept", name)


def _ended(route: Route) -> HandoffError:
    return HandoffError("NO_HANDOFF", f"the handoff to {route.domain!r} ended during the call, which may have run")


def _sdk_connector(transport: Transport) -> Connector:
    from mcpfusion.wire.upstream import SdkConnector

    return SdkConnector(transport)


async def _run_connector(connector: Connector, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    await connector.run(task_status=task_status)
