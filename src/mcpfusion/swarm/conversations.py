"""The conversations of a gateway, kept in line with what its other replicas do with them.

A conversation that any replica may serve is kept in the route store: read before each use, changed by
compare-and-set. One that ends with this process (a session's, a connection's) is kept here alone. The places that
handoffs take are counted in the store for both, since the limits hold for all replicas together.
"""

import logging
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import anyio

from mcpfusion.swarm.errors import HandoffError
from mcpfusion.swarm.namespace import NamespaceRewriter
from mcpfusion.swarm.registry import Registry
from mcpfusion.swarm.route_store import KeptRoutes, RouteStore
from mcpfusion.swarm.routes import Conversation, Route, from_record, to_record

_log = logging.getLogger(__name__)

STORE_TIMEOUT = 10.0
"""Seconds a single operation of the store may take."""

REMEMBERED = 10_000
"""Conversations without a route that this process remembers."""

_OF_THIS_PROCESS = ("session:", "connection:", "process")
_ATTEMPTS = 5


class Conversations:
    """All conversations by key.

    Args:
        gateway: The gateway's name, which its replicas share.
        idle_timeout: After how many seconds without a call a handoff ends.
        slack: Seconds that making a connection may take.
        release: Ends this process's connection of a route.
    """

    def __init__(
        self,
        gateway: str,
        registry: Registry,
        separator: str,
        *,
        idle_timeout: float,
        slack: float,
        release: Callable[[Route], Awaitable[None]],
    ) -> None:
        self._gateway = gateway
        self._registry = registry
        self._separator = separator
        self._idle_timeout = idle_timeout
        # Kept anew after a quarter of the idle time, so that a conversation in use never runs out.
        self._keep_every = idle_timeout / 4
        self._ttl = idle_timeout * 1.5 + slack
        self._release = release
        self._by_key: dict[str, Conversation] = {}
        self._replica = uuid.uuid4().hex
        self.store: RouteStore | None = None

    def __iter__(self) -> Iterator[Conversation]:
        return iter(list(self._by_key.values()))

    def get(self, key: str) -> Conversation | None:
        """Return a conversation as far as this process knows it."""
        return self._by_key.get(key)

    @property
    def routes(self) -> int:
        """How many handoffs are in force, as far as this process knows."""
        return sum(len(conversation.routes) for conversation in self._by_key.values())

    @property
    def connecting(self) -> int:
        """How many handoffs are being made by this process."""
        return sum(conversation.connecting is not None for conversation in self._by_key.values())

    @property
    def kept_here(self) -> Counter[str]:
        """How many handoffs are in force to each specialist: those that this one of the replicas keeps."""
        found = Counter(dict.fromkeys(self._registry.specialists, 0))
        for conversation in self:
            if conversation.keeper == self._replica or conversation.key.startswith(_OF_THIS_PROCESS):
                found.update(route.domain for route in list(conversation.routes))
        return found

    def is_shared(self, conversation: Conversation) -> bool:
        """Return whether other processes may serve it too."""
        return self._store.shared and not conversation.key.startswith(_OF_THIS_PROCESS)

    async def current(self, key: str) -> Conversation:
        """Return a conversation as it stands now, new if nothing is kept of it.

        Raises:
            HandoffError: The store cannot be reached, or what it keeps cannot be read.
        """
        found = self._open(key)
        if key.startswith(_OF_THIS_PROCESS):
            return found
        kept, mark = None, -1
        while found.changes != mark:  # else it was changed here in between, and what was read may be of before that
            mark = found.changes
            kept = await self._bounded(self._store.read_routes(self._gateway, key))
        if (kept.record if kept else None) != found.record:
            await self._adopt(found, kept)
        return found

    async def push(self, found: Conversation, route: Route) -> bool:
        """Put a route on top; False when the conversation was changed elsewhere meanwhile.

        Raises:
            HandoffError: The store cannot be reached.
        """
        return await self._write(found, [*found.routes, route], found.handoffs + Counter([route.domain]))

    async def pop(self, found: Conversation, route: Route) -> None:
        """Take a route away, wherever it stands, and free its place. What the store refuses, runs out in it."""
        try:
            for _ in range(_ATTEMPTS):
                rest = [each for each in found.routes if each is not route]
                if len(rest) == len(found.routes) or await self._write(found, rest, found.handoffs):
                    break
                await self.current(found.key)
            await self.free_place(route)
        except HandoffError as error:
            _log.warning("the end of the handoff to %r (%s) is not kept: %s", route.domain, route.handoff_id, error)
        if route in found.routes:
            found.routes.remove(route)
            found.changes, found.record = found.changes + 1, ""  # whatever is kept, it is to be read again

    async def used(self, found: Conversation) -> None:
        """The conversation is in use: what is kept of it must not run out. Never raises."""
        found.last_used = time.monotonic()
        if not found.routes or found.last_used - found.kept_at < self._keep_every:
            return
        found.kept_at = found.last_used
        try:
            if not found.key.startswith(_OF_THIS_PROCESS):
                if found.keeper != self._replica:
                    await self._write(found, found.routes, found.handoffs)
                else:
                    await self._bounded(self._store.keep_routes(self._gateway, found.key, self._ttl))
            for route in found.routes:
                place = self._store.keep_place(self._gateway, route.domain, route.handoff_id, self._ttl)
                await self._bounded(place)
        except HandoffError:
            found.kept_at = 0.0

    async def take_place(self, route: Route, *, limit: int) -> bool:
        """Take a place for a handoff; False when all are taken.

        Raises:
            HandoffError: The store cannot be reached.
        """
        return await self._bounded(
            self._store.take_place(
                self._gateway,
                route.domain,
                route.handoff_id,
                limit=limit,
                domain_limit=route.specialist.max_sessions,
                ttl_seconds=self._ttl,
            )
        )

    async def free_place(self, route: Route) -> None:
        """Free a handoff's place.

        Raises:
            HandoffError: The store cannot be reached; the place runs out in it.
        """
        await self._bounded(self._store.free_place(self._gateway, route.domain, route.handoff_id))

    async def is_idle(self, found: Conversation) -> bool:
        """Return whether nobody has used the conversation for too long. One that others may have used meanwhile, this
        process only lets go of."""
        route = found.top  # those below wait for it, and are in use as long as it is
        if route is None or route.calls:
            return False
        idle = time.monotonic() - found.last_used
        if not self.is_shared(found):
            return idle > self._idle_timeout
        if idle <= self._idle_timeout + self._keep_every:  # what others keep may be that much behind
            return False
        await self.current(found.key)
        if found.keeper == self._replica and found.top is route:
            return True
        await self.let_go(found)
        return False

    async def let_go(self, found: Conversation) -> None:
        """This process has no more to do with a conversation that others may go on with."""
        self._by_key.pop(found.key, None)
        for route in found.routes:
            await self._release(route)

    def forget(self, key: str) -> None:
        """The conversation is over."""
        self._by_key.pop(key, None)

    # Keeping.

    @property
    def _store(self) -> RouteStore:
        if self.store is None:
            raise RuntimeError("the gateway is not running: serve it, or enter it with `async with gateway:`")
        return self.store

    def _open(self, key: str) -> Conversation:
        found = self._by_key.pop(key, None) or Conversation(key)
        self._by_key[key] = found
        for other in list(self._by_key.values())[: max(len(self._by_key) - REMEMBERED, 0)]:
            if not other.routes and other.connecting is None:
                del self._by_key[other.key]
        return found

    async def _adopt(self, found: Conversation, kept: KeptRoutes | None) -> None:
        """Take over what is kept: routes that are known here go on, others are new, and what is gone is let go of."""
        keeper, kept_routes, handoffs = "", [], Counter[str]()
        if kept is not None:
            try:
                keeper, kept_routes, handoffs = from_record(kept.record, self._new_route)
            except ValueError:
                _log.exception("what is kept of a conversation of gateway %r cannot be read", self._gateway)
                raise _unavailable() from None
        known = {route.handoff_id: route for route in found.routes}
        routes = [known.pop(handoff_id, None) or make() for handoff_id, make in kept_routes]
        found.routes = [route for route in routes if route is not None]
        found.handoffs, found.keeper = handoffs, keeper
        found.version, found.record = (kept.version, kept.record) if kept else (0, None)
        found.changes += 1
        if kept is not None:
            found.last_used = max(found.last_used, time.monotonic() - self._keep_every)
        with anyio.CancelScope(shield=True):
            for route in known.values():
                await self._release(route)

    def _new_route(
        self, *, handoff_id: str, domain: str, depth: int, traceparent: str | None, state: dict[str, Any]
    ) -> Route | None:
        specialist = self._registry.specialists.get(domain)
        if specialist is None:  # the route below is in force then, so that nobody is caught
            _log.warning("a conversation is with %r, which is not in this replica's registry", domain)
            return None
        rewriter = NamespaceRewriter(domain, separator=self._separator)
        return Route(handoff_id, domain, specialist, rewriter, depth, traceparent, state)

    async def _write(self, found: Conversation, routes: Sequence[Route], handoffs: Counter[str]) -> bool:
        if found.key.startswith(_OF_THIS_PROCESS):
            found.routes, found.handoffs = list(routes), handoffs
            return True
        record = to_record(self._replica, routes, handoffs)
        expected = found.version
        found.changes += 1
        written = await self._bounded(
            self._store.write_routes(
                self._gateway, found.key, record, expected_version=expected, ttl_seconds=self._ttl
            )
        )
        found.changes += 1
        if written:
            found.routes, found.handoffs, found.keeper = list(routes), handoffs, self._replica
            found.version, found.record, found.kept_at = expected + 1, record, time.monotonic()
        return written

    async def _bounded(self, operation: Awaitable[Any]) -> Any:
        try:
            with anyio.fail_after(STORE_TIMEOUT):
                return await operation
        except Exception as error:
            _log.warning("the routes of gateway %r cannot be reached", self._gateway, exc_info=True)
            raise _unavailable() from error


def _unavailable() -> HandoffError:
    return HandoffError("STORE_UNAVAILABLE", "unavailable: where this conversation is cannot be told now.")
