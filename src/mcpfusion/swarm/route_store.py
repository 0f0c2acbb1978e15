"""Where gateways keep their routes, so that every replica of a gateway knows where a conversation is."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class KeptRoutes:
    """The routes of one conversation as they are kept.

    Attributes:
        version: 1 for the first that is written; each write adds one.
        record: JSON text. It is opaque to the store and may hold what users said.
    """

    version: int
    record: str


@runtime_checkable
class RouteStore(Protocol):
    """Keeps routes, and counts the places that handoffs take.

    A conversation and a place belong to a gateway by its name; gateways of different names never meet. Times to
    live count by the engine's own clock. Any method may raise.

    Attributes:
        shared: Whether other processes see what this one keeps.
    """

    shared: bool

    async def read_routes(self, gateway: str, conversation: str) -> KeptRoutes | None:
        """Return what is kept of a conversation, or None when there is nothing (any more)."""
        ...

    async def write_routes(
        self, gateway: str, conversation: str, record: str | None, *, expected_version: int, ttl_seconds: float
    ) -> bool:
        """Keep `record` for that long if the stored version is still `expected_version` (0: nothing is kept).

        None removes what is kept. False when the version is another one. Atomic across processes.
        """
        ...

    async def keep_routes(self, gateway: str, conversation: str, ttl_seconds: float) -> None:
        """Keep what is there for that long from now on; the version stays. Nothing there is no error."""
        ...

    async def take_place(
        self, gateway: str, domain: str, handoff_id: str, *, limit: int, domain_limit: int | None, ttl_seconds: float
    ) -> bool:
        """Take a place for a handoff to a specialist, unless the gateway has `limit` places taken already, or
        `domain_limit` to this specialist. Atomic across processes. A place frees itself when its time is over."""
        ...

    async def keep_place(self, gateway: str, domain: str, handoff_id: str, ttl_seconds: float) -> None:
        """Keep a place for that long from now on; one that ran out meanwhile is taken again, whatever the limits."""
        ...

    async def free_place(self, gateway: str, domain: str, handoff_id: str) -> None:
        """Free a place; one that is not taken is no error."""
        ...

    async def places_taken(self, gateway: str, domain: str | None = None) -> int:
        """Return how many places are taken: in all, or to one specialist."""
        ...


class InMemoryRouteStore:
    """Routes in this process.

    Args:
        clock: Gives seconds, in any steady count.
    """

    shared = False

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[tuple[str, str], tuple[float, KeptRoutes]] = {}
        self._places: dict[str, dict[tuple[str, str], float]] = {}
        self._sweep_at = 0.0

    async def read_routes(self, gateway: str, conversation: str) -> KeptRoutes | None:
        """See `RouteStore.read_routes`."""
        return self._current(gateway, conversation)

    async def write_routes(
        self, gateway: str, conversation: str, record: str | None, *, expected_version: int, ttl_seconds: float
    ) -> bool:
        """See `RouteStore.write_routes`."""
        self._sweep()
        known = self._current(gateway, conversation)
        if (known.version if known else 0) != expected_version:
            return False
        if record is None:
            self._kept.pop((gateway, conversation), None)
        else:
            kept = KeptRoutes(expected_version + 1, record)
            self._kept[gateway, conversation] = (self._clock() + ttl_seconds, kept)
        return True

    async def keep_routes(self, gateway: str, conversation: str, ttl_seconds: float) -> None:
        """See `RouteStore.keep_routes`."""
        known = self._current(gateway, conversation)
        if known is not None:
            self._kept[gateway, conversation] = (self._clock() + ttl_seconds, known)

    async def take_place(
        self, gateway: str, domain: str, handoff_id: str, *, limit: int, domain_limit: int | None, ttl_seconds: float
    ) -> bool:
        """See `RouteStore.take_place`."""
        taken = self._taken(gateway)
        to_domain = sum(place[0] == domain for place in taken)
        if len(taken) >= limit or (domain_limit is not None and to_domain >= domain_limit):
            return False
        taken[domain, handoff_id] = self._clock() + ttl_seconds
        return True

    async def keep_place(self, gateway: str, domain: str, handoff_id: str, ttl_seconds: float) -> None:
        """See `RouteStore.keep_place`."""
        self._taken(gateway)[domain, handoff_id] = self._clock() + ttl_seconds

    async def free_place(self, gateway: str, domain: str, handoff_id: str) -> None:
        """See `RouteStore.free_place`."""
        self._taken(gateway).pop((domain, handoff_id), None)

    async def places_taken(self, gateway: str, domain: str | None = None) -> int:
        """See `RouteStore.places_taken`."""
        taken = self._taken(gateway)
        return len(taken) if domain is None else sum(place[0] == domain for place in taken)

    def _current(self, gateway: str, conversation: str) -> KeptRoutes | None:
        expires, kept = self._kept.get((gateway, conversation), (0.0, None))
        return kept if expires > self._clock() else None

    def _taken(self, gateway: str) -> dict[tuple[str, str], float]:
        now = self._clock()
        taken = {place: expires for place, expires in self._places.get(gateway, {}).items() if expires > now}
        self._places[gateway] = taken
        return taken

    def _sweep(self) -> None:
        now = self._clock()
        if now >= self._sweep_at:
            self._kept = {key: item for key, item in self._kept.items() if item[0] > now}
            self._sweep_at = now + 60
