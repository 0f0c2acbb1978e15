"""Routing: how the routes of conversations are made, used, mended and ended."""

import logging
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.lowlevel

from mcpfusion import telemetry
from mcpfusion.swarm.connections import Connections
from mcpfusion.swarm.conversations import Conversations
from mcpfusion.swarm.errors import HandoffError
from mcpfusion.swarm.handoffs import Handoff
from mcpfusion.swarm.namespace import NamespaceRewriter
from mcpfusion.swarm.registry import Specialist
from mcpfusion.swarm.routes import Conversation, Route
from mcpfusion.swarm.upstream import Upstream, UpstreamError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """How far conversations may be handed over.

    Attributes:
        sessions: Handoffs in force and being made at once, in all replicas.
        depth: Handoffs on top of each other, across gateways.
        handoffs: Handoffs of one conversation.
        returns: Handoffs of one conversation to the same specialist.
        idle: Seconds without a call after which a handoff ends.
    """

    sessions: int
    depth: int
    handoffs: int
    returns: int
    idle: float


class Routing:
    """Makes, uses, mends and ends the routes of a gateway's conversations.

    Args:
        gateway: The gateway's name.
        changed: Called with a conversation's key when its list changed.
    """

    def __init__(
        self,
        gateway: str,
        separator: str,
        conversations: Conversations,
        connections: Connections,
        limits: Limits,
        changed: Callable[[str], None],
    ) -> None:
        self._gateway = gateway
        self._separator = separator
        self._conversations = conversations
        self._connections = connections
        self._limits = limits
        self._changed = changed

    async def make(
        self,
        conversation: str,
        domain: str,
        specialist: Specialist,
        handoff: Handoff,
        traceparent: str | None,
        depth: int,
    ) -> Route:
        """Make a route on top of where the conversation is now, or leave everything as it was.

        Raises:
            HandoffError: Why it could not be made.
        """
        found = await self._conversations.current(conversation)
        self._check_limits(found, domain, depth)
        route = Route(
            handoff_id=str(uuid.uuid4()),
            domain=domain,
            specialist=specialist,
            rewriter=NamespaceRewriter(domain, separator=self._separator),
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
            self._changed(conversation)
            return route
        raise HandoffError("NO_HANDOFF", f"the handoff to {domain!r} was taken back before it was made")

    def _check_limits(self, found: Conversation, domain: str, depth: int) -> None:
        if found.connecting is not None:
            raise HandoffError("HANDOFF_BUSY", "another handoff of this conversation is being made")
        if not found.routes and time.monotonic() - found.last_used > self._limits.idle:
            found.handoffs.clear()  # what one user asks of a gateway over months is not one conversation
        if depth + len(found.routes) >= self._limits.depth:
            raise HandoffError("TOO_DEEP", f"at most {self._limits.depth} handoffs on top of each other")
        if found.handoffs.total() >= self._limits.handoffs:
            raise HandoffError("TOO_MANY_HANDOFFS", f"at most {self._limits.handoffs} handoffs in one conversation")
        if found.handoffs[domain] >= self._limits.returns:
            raise HandoffError(
                "PING_PONG", f"this conversation went to {domain!r} {self._limits.returns} times already"
            )

    async def _make(self, found: Conversation, route: Route, handoff: Handoff) -> None:
        """Take a place, connect, and put the route on top.

        Raises:
            HandoffError: One of these cannot be done; `_undo` takes back what was.
        """
        if not await self._conversations.take_place(route, limit=self._limits.sessions):
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
            self._changed(found.key)

        await self._connections.connect(route, changed)
        found.last_used = time.monotonic()

    async def recovering(self, found: Conversation, route: Route, work: Callable[[], Awaitable[Any]]) -> Any:
        """Do `work`; when the connection is gone, connect once more, and do it again if it certainly did not run.

        Raises:
            HandoffError: The specialist is lost, or the work may have run.
        """
        if route.upstream is None:  # another replica made the route, or this one has let go of it
            await self._reconnect(found, route, None)
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
            await self.end(found, route)
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
                await self.end(found, route)
                raise HandoffError(error.code, self._lost(found, route)) from None
            if route not in found.routes:
                await self._connections.close(route)
                raise _ended(route)

    def _lost(self, found: Conversation, route: Route) -> str:
        back = found.top.domain if found.top else self._gateway
        return f"specialist {route.domain!r} cannot be reached any more; the conversation is back with {back!r}"

    async def end(self, found: Conversation, route: Route) -> None:
        """Take a route away, and free its place before anything that may fail."""
        with anyio.CancelScope(shield=True):
            if route in found.routes:
                await self._conversations.pop(found, route)
                found.last_used = time.monotonic()
                self._changed(found.key)
            await self._connections.close(route)

    async def current(self, conversation: str) -> tuple[Conversation, Route]:
        """Return a conversation and the route in force.

        Raises:
            HandoffError: It is with no specialist, or that cannot be told now.
        """
        found = await self._conversations.current(conversation)
        if found.top is None:
            raise HandoffError("NO_HANDOFF", "this conversation is not with a specialist")
        return found, found.top

    @asynccontextmanager
    async def used(self, found: Conversation, route: Route) -> AsyncGenerator[None]:
        """A call goes through the route for as long as the context lasts: it is in use, and ends with the route.

        Raises:
            HandoffError: The route was ended during the call.
        """
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


def _ended(route: Route) -> HandoffError:
    return HandoffError("NO_HANDOFF", f"the handoff to {route.domain!r} ended during the call, which may have run")
