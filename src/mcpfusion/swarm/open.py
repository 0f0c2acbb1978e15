"""From a store's URL to what gateways and specialists keep there."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from mcpfusion.stores.protocol import Bus
from mcpfusion.stores.urls import REDIS_SCHEMES, check_memory, opener_for, sqlite_path
from mcpfusion.swarm.pins import InMemoryPinStore, PinStore
from mcpfusion.swarm.route_store import InMemoryRouteStore, RouteStore
from mcpfusion.swarm.state import HandoffStateStore, InMemoryHandoffStateStore, InMemoryReplayStore, ReplayStore


async def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class SwarmStores:
    """What one URL gives a gateway or a specialist.

    Attributes:
        states: Carried state that is too large for a token.
        replays: Marks of used tokens.
        pins: Accepted definitions of specialists' tools.
        routes: Where conversations are, and the places that handoffs take.
        bus: How processes tell each other about changes; None where the engine has no such thing.
        close: What `aclose` does.
    """

    states: HandoffStateStore
    replays: ReplayStore
    pins: PinStore
    routes: RouteStore
    bus: Bus | None = None
    close: Callable[[], Awaitable[None]] = _nothing

    async def aclose(self) -> None:
        """Let go of files and connections. The stores are not used afterwards; calling it again does nothing."""
        await self.close()


def open_swarm_stores(url: str, *, create: bool = True) -> SwarmStores:
    """Return the stores that `url` names. Nothing is opened before it is first used.

    Args:
        url: As `mcpfusion.stores.open_store` takes it; it may be the URL of the workflows' store.
        create: False refuses, at the first use, a file that does not exist yet.

    Raises:
        ValueError: The URL names no store. The message never repeats what stands before an `@`.
    """
    return opener_for(url, _OPENERS)(url, create)


def _open_memory(url: str, create: bool) -> SwarmStores:
    check_memory(url)
    return SwarmStores(InMemoryHandoffStateStore(), InMemoryReplayStore(), InMemoryPinStore(), InMemoryRouteStore())


def _open_sqlite(url: str, create: bool) -> SwarmStores:
    from mcpfusion.swarm.sqlite_state import SqliteSwarmStore

    store = SqliteSwarmStore(sqlite_path(url), create=create)
    return SwarmStores(store, store, store, store, close=store.aclose)


def _open_postgres(url: str, create: bool) -> SwarmStores:
    from mcpfusion.swarm.postgres_state import PostgresSwarmStore

    store = PostgresSwarmStore(url)
    return SwarmStores(store, store, store, store, bus=store, close=store.aclose)


def _open_redis(url: str, create: bool) -> SwarmStores:
    from mcpfusion.swarm.redis_state import RedisSwarmStore

    store = RedisSwarmStore(url)
    return SwarmStores(store, store, store, store, bus=store, close=store.aclose)


_OPENERS: dict[str, Callable[[str, bool], SwarmStores]] = {
    "memory": _open_memory,
    "sqlite": _open_sqlite,
    "postgresql": _open_postgres,
    "postgres": _open_postgres,
    **dict.fromkeys(REDIS_SCHEMES, _open_redis),
}
