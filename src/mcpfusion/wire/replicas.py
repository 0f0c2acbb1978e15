"""Replicas: the processes that share a store tell each other which workflows' menus changed."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from mcpfusion.gate.workflows import MENUS, Moved
from mcpfusion.stores.protocol import Bus, VersionedFsmStateStore
from mcpfusion.stores.relay import Relay
from mcpfusion.wire.audience import Audience


class Replicas:
    """Tells an audience what other replicas committed, and them what was committed here."""

    def __init__(self, audience: Audience) -> None:
        self._audience = audience
        self._relays: list[Relay] = []

    @asynccontextmanager
    async def joined(self, store: VersionedFsmStateStore) -> AsyncGenerator[None]:
        """Tell and hear for as long as the context lasts, where the store has a bus."""
        if not isinstance(store, Bus):
            yield
            return
        relay = Relay(store, MENUS, self._audience.heard)
        async with anyio.create_task_group() as group:
            await group.start(relay.run)
            self._relays.append(relay)
            try:
                yield
            finally:
                self._relays.remove(relay)
                group.cancel_scope.cancel()

    async def moved(self, step: Moved) -> None:
        """Tell who listens here, at once, and the other replicas, soon."""
        if self._audience.affects_menus(step):
            for relay in self._relays[:1]:  # in process there is one for each client
                relay.tell(step.scope, step.handle)
            await self._audience.changed([(step.scope, step.handle)])
