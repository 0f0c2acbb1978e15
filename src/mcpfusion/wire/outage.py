"""While the store is away: what a list shows then, and who is told when it is back."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from mcpfusion.gate.menu import Menu
from mcpfusion.gate.workflows import Workflows
from mcpfusion.wire.audience import Audience

LOOK_AGAIN_AFTER = 1.0
"""Seconds between two looks for the store that is away."""

ANSWER_WITHIN = 2.0
"""Seconds in which a store that is there answers."""

HIDDEN = Menu(frozenset())
"""What can be shown without the store: no bound tool, and every other."""


class Outage:
    """Tells the callers who were shown no bound tools because the store was away that it is back."""

    def __init__(self, audience: Audience, workflows: Workflows) -> None:
        self._audience = audience
        self._workflows = workflows
        self._scopes: set[str] = set()
        self._away = anyio.Event()

    def hide_from(self, scope: str) -> Menu:
        """Return the menu for a caller whose own cannot be worked out now."""
        self._scopes.add(scope)
        self._away.set()
        return HIDDEN

    @asynccontextmanager
    async def watched(self) -> AsyncGenerator[None]:
        """Look for the store when it is away, for as long as the context lasts."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch)
            yield
            group.cancel_scope.cancel()

    async def _watch(self) -> None:
        while True:
            await self._away.wait()
            self._away = anyio.Event()
            if await self._workflows.answers(ANSWER_WITHIN):
                scopes, self._scopes = self._scopes, set()
                await self._audience.refetch(scopes)
            else:
                await anyio.sleep(LOOK_AGAIN_AFTER)
                self._away.set()
