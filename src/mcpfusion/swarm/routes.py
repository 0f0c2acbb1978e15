"""Routes: where a conversation is handed to. They stack, and returning restores the one below."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio

from mcpfusion.swarm.namespace import NamespaceRewriter
from mcpfusion.swarm.registry import Specialist
from mcpfusion.swarm.upstream import Upstream

REMEMBERED = 10_000
"""Conversations without a route whose counts are kept."""


@dataclass(eq=False, slots=True)
class Route:
    """One handoff that is in force.

    Attributes:
        handoff_id: Its random name, the `tid` of its tokens.
        tools: The specialist's tools under the namespace, or None when they have to be listed again.
        state: The claims that carry the state along.
        state_kept: The state itself where the claims only refer to it.
        last_used: Seconds of the monotonic clock.
        calls: Calls in flight; a route with one is not idle.
        mending: Held while the connection is made again, so that calls that lost it together do that once.
    """

    handoff_id: str
    domain: str
    specialist: Specialist
    rewriter: NamespaceRewriter
    depth: int
    traceparent: str | None = None
    state: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    state_kept: Mapping[str, Any] | None = field(default=None, repr=False)
    upstream: Upstream | None = None
    tools: list[dict[str, Any]] | None = None
    last_used: float = 0.0
    calls: int = 0
    mending: anyio.Lock = field(default_factory=anyio.Lock, repr=False)


@dataclass(eq=False, slots=True)
class Conversation:
    """One conversation: its routes, the newest last, and how often it was handed over.

    Attributes:
        connecting: The scope of the handoff that is being made, to be cancelled when it is taken back.
        connecting_to: The specialist that it is being made to.
        last_used: Seconds of the monotonic clock, when it was last with a specialist.
    """

    key: str
    routes: list[Route] = field(default_factory=list[Route])
    connecting: anyio.CancelScope | None = None
    connecting_to: str | None = None
    handoffs: Counter[str] = field(default_factory=Counter[str])
    last_used: float = 0.0

    @property
    def top(self) -> Route | None:
        """The route in force."""
        return self.routes[-1] if self.routes else None


class Conversations:
    """All conversations by key. One without a route is forgotten when too many others came after it."""

    def __init__(self) -> None:
        self._by_key: dict[str, Conversation] = {}

    def __iter__(self) -> Iterator[Conversation]:
        return iter(list(self._by_key.values()))

    def get(self, key: str) -> Conversation | None:
        """Return a conversation that is known."""
        return self._by_key.get(key)

    def open(self, key: str) -> Conversation:
        """Return a conversation, new if it is not known."""
        found = self._by_key.pop(key, None) or Conversation(key)
        self._by_key[key] = found
        for other in list(self._by_key.values())[: max(len(self._by_key) - REMEMBERED, 0)]:
            if not other.routes and other.connecting is None:
                del self._by_key[other.key]
        return found

    def forget(self, key: str) -> None:
        """The conversation is over."""
        self._by_key.pop(key, None)

    @property
    def routes(self) -> int:
        """How many handoffs are in force."""
        return sum(len(conversation.routes) for conversation in self._by_key.values())

    @property
    def connecting(self) -> int:
        """How many handoffs are being made."""
        return sum(conversation.connecting is not None for conversation in self._by_key.values())

    def routes_to(self, domain: str) -> int:
        """How many handoffs to one specialist are in force or being made."""
        return sum(
            sum(route.domain == domain for route in each.routes) + (each.connecting_to == domain)
            for each in self._by_key.values()
        )
