"""Every specialist's tools at once, for callers whose list may not depend on who they are."""

import logging
import time
import uuid
from typing import Any

import anyio

from mcpfusion.swarm.connections import Connections
from mcpfusion.swarm.errors import HandoffError
from mcpfusion.swarm.namespace import NamespaceRewriter
from mcpfusion.swarm.registry import Registry, Specialist
from mcpfusion.swarm.routes import Route

_log = logging.getLogger(__name__)

CATALOGUE_AGE = 60.0
"""Seconds after which a specialist is asked again."""


class Catalogue:
    """Asks the specialists for their tools, now and then."""

    def __init__(self, registry: Registry, connections: Connections, separator: str) -> None:
        self._registry = registry
        self._connections = connections
        self._separator = separator
        self._tools: dict[str, list[dict[str, Any]]] = {}
        self._due: dict[str, float] = {}
        self._asking: dict[str, anyio.Lock] = {}

    async def tools(self) -> list[dict[str, Any]]:
        """Return every specialist's tools under its namespace, for callers whose list may not depend on who they are.

        Each specialist is asked once a minute at most; one that does not answer is left out meanwhile.
        """
        async with anyio.create_task_group() as group:
            for domain, specialist in self._registry.specialists.items():
                group.start_soon(self._refresh, domain, specialist)
        return [tool for domain in self._registry.specialists for tool in self._tools.get(domain, ())]

    async def _refresh(self, domain: str, specialist: Specialist) -> None:
        # Who comes while a specialist is asked waits for the answer too, so that all see the same list.
        async with self._asking.setdefault(domain, anyio.Lock()):
            if time.monotonic() >= self._due.get(domain, 0):
                await self._look_up(domain, specialist)
                self._due[domain] = time.monotonic() + CATALOGUE_AGE

    async def _look_up(self, domain: str, specialist: Specialist) -> None:
        rewriter = NamespaceRewriter(domain, separator=self._separator)
        route = Route(str(uuid.uuid4()), domain, specialist, rewriter, depth=1)
        try:
            await self._connections.connect(route, lambda: None)
            self._tools[domain] = list(route.tools or ())
        except HandoffError as error:
            _log.warning("the tools of %r are not known: %s", domain, error.code)
        finally:
            with anyio.CancelScope(shield=True):
                await self._connections.close(route)
