"""A gateway's life: its connections and stores, and what it does by itself while it runs."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import anyio
from anyio.abc import TaskStatus

from mcpfusion import telemetry
from mcpfusion.stores.relay import Relay
from mcpfusion.swarm.connections import Connections
from mcpfusion.swarm.conversations import Conversations
from mcpfusion.swarm.errors import HandoffError
from mcpfusion.swarm.open import SwarmStores, open_swarm_stores
from mcpfusion.swarm.pins import PinStore
from mcpfusion.swarm.registry import Transport
from mcpfusion.swarm.routes import Conversation, Route
from mcpfusion.swarm.state import HandoffStateStore
from mcpfusion.swarm.upstream import Connector
from mcpfusion.telemetry import SPECIALIST

_log = logging.getLogger(__name__)

SHUTDOWN_TIMEOUT = 15.0


class Life:
    """What runs for as long as a gateway is entered, however many enter it.

    Args:
        gateway: The gateway's name.
        transport: How URLs of specialists are spoken to, unless a connector is given.
        store: A URL, or a store for the carried state alone.
        idle: Seconds without a call after which a handoff ends.
        end: Ends a route.
        dispose: Ends what belongs to this process, when the last one leaves.
        tell: Awaited with the key of a conversation whose list changed; None stands for any.
    """

    def __init__(
        self,
        gateway: str,
        conversations: Conversations,
        connections: Connections,
        *,
        transport: Transport,
        connector: Connector | None,
        store: str | HandoffStateStore,
        pins: PinStore | None,
        idle: float,
        end: Callable[[Conversation, Route], Awaitable[None]],
        dispose: Callable[[], Awaitable[None]],
        tell: Callable[[str | None], Coroutine[Any, Any, None]],
    ) -> None:
        self._gateway = gateway
        self._conversations = conversations
        self._connections = connections
        self._transport: Transport = transport
        self._given_connector = connector
        self._store = store
        self._pins = pins
        self._idle = idle
        self._end = end
        self._dispose = dispose
        self._tell = tell
        self._stores: SwarmStores | None = None
        self._users = 0
        self._stop = anyio.Event()
        self._task: asyncio.Task[None] | None = None
        self._relay: Relay | None = None
        self._changes: dict[str, None] = {}
        self._changed = anyio.Event()
        self._use_stores()

    async def enter(self) -> None:
        """Begin to live, unless another has entered before."""
        self._users += 1
        if self._users == 1:
            # In process a server's lifespan is entered once for each client, in tasks that end in any order, so that
            # what lives as long as all of them needs a task of its own. It is awaited when the last one leaves.
            self._stop = anyio.Event()
            ready = anyio.Event()
            self._task = asyncio.create_task(self._live(ready), name=f"gateway {self._gateway}")
            await ready.wait()

    async def leave(self) -> None:
        """End, within a bounded time, when the last one leaves."""
        self._users -= 1
        if self._users == 0 and self._task is not None:
            life, self._task = self._task, None
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
                    self._relay = Relay(stores.bus, f"routes:{self._gateway}", self._heard)
                    await group.start(self._relay.run)
                self._connections.connector = connector
                ready.set()
                with telemetry.ACTIVE_HANDOFFS.told_by(self._active):
                    await self._stop.wait()
                    await self._dispose()
                self._connections.connector = None
                group.cancel_scope.cancel()
        finally:
            self._relay = None
            await self._close_stores(stores)

    async def answers(self, within: float) -> bool:
        """Return whether the gateway is running, and its store answers within so many seconds. Never raises."""
        if self._connections.connector is None or self._stores is None:
            return False
        try:
            with anyio.fail_after(within):
                await self._stores.routes.read_routes(self._gateway, "")
        except Exception:
            _log.debug("the store of the routes does not answer", exc_info=True)
            return False
        return True

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
        period = min(max(self._idle / 4, 0.05), 5.0)
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

    def note_change(self, conversation: str) -> None:
        """A conversation's list changed: who listens is told soon. Never waits."""
        self._changes[conversation] = None
        self._changed.set()
        if self._relay is not None:
            self._relay.tell(conversation)


def _sdk_connector(transport: Transport) -> Connector:
    from mcpfusion.wire.upstream import SdkConnector

    return SdkConnector(transport)


async def _run_connector(connector: Connector, *, task_status: TaskStatus[None]) -> None:
    await connector.run(task_status=task_status)
