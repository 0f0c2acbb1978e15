"""Routes: where a conversation is handed to. They stack, and returning restores the one below."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from mcpfusion.swarm.namespace import NamespaceRewriter
from mcpfusion.swarm.registry import Specialist
from mcpfusion.swarm.upstream import Upstream


@dataclass(eq=False, slots=True)
class Route:
    """One handoff that is in force.

    Attributes:
        handoff_id: Its random name, the `tid` of its tokens.
        tools: The specialist's tools under the namespace, or None when they have to be listed again.
        state: The claims that carry the state along.
        state_kept_at: When the state that the claims refer to was last kept, seconds of the monotonic clock.
        upstream: This process's connection to the specialist, made when it is first needed.
        calls: The scopes of the calls in flight; a route with one is not idle.
        mending: Held while the connection is made again, so that calls that lost it together do that once.
    """

    handoff_id: str
    domain: str
    specialist: Specialist
    rewriter: NamespaceRewriter
    depth: int
    traceparent: str | None = None
    state: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    state_kept_at: float = 0.0
    upstream: Upstream | None = None
    tools: list[dict[str, Any]] | None = None
    calls: list[anyio.CancelScope] = field(default_factory=list[anyio.CancelScope], repr=False)
    mending: anyio.Lock = field(default_factory=anyio.Lock, repr=False)

    def give_up_calls(self) -> None:
        """Cancel the calls in flight: where there is no session, none ends under them."""
        for scope in self.calls:
            scope.cancel()


@dataclass(eq=False, slots=True)
class Conversation:
    """One conversation: its routes, the newest last, and how often it was handed over.

    Attributes:
        connecting: The scope of the handoff that is being made, to be cancelled when it is taken back.
        last_used: Seconds of the monotonic clock, when it was last with a specialist.
        version: Of what is kept of it; 0 when nothing is.
        record: What is kept of it, as far as this process knows.
        keeper: The process that kept it last.
        kept_at: When this process kept it last, seconds of the monotonic clock.
        changes: Counts what this process has learned of it, so that what was read before is known to be old.
    """

    key: str
    routes: list[Route] = field(default_factory=list[Route])
    connecting: anyio.CancelScope | None = None
    handoffs: Counter[str] = field(default_factory=Counter[str])
    last_used: float = 0.0
    version: int = 0
    record: str | None = field(default=None, repr=False)
    keeper: str = ""
    kept_at: float = 0.0
    changes: int = 0

    @property
    def top(self) -> Route | None:
        """The route in force."""
        return self.routes[-1] if self.routes else None


def to_record(keeper: str, routes: Sequence[Route], handoffs: Mapping[str, int]) -> str:
    """Return the JSON text that keeps a conversation's routes."""
    kept = [
        {
            "handoff_id": route.handoff_id,
            "domain": route.domain,
            "depth": route.depth,
            "traceparent": route.traceparent,
            "state": route.state,
        }
        for route in routes
    ]
    return json.dumps({"keeper": keeper, "routes": kept, "handoffs": dict(handoffs)}, separators=(",", ":"))


def from_record(
    record: str, new_route: Callable[..., Route | None]
) -> tuple[str, list[tuple[str, Callable[[], Route | None]]], Counter[str]]:
    """Return who kept a record, its routes by id, and how often the conversation was handed over.

    Args:
        new_route: Makes a route of `handoff_id`, `domain`, `depth`, `traceparent` and `state`.

    Raises:
        ValueError: It is no such record.
    """
    try:
        data = json.loads(record)
        routes = [(str(each["handoff_id"]), _maker(new_route, each)) for each in data["routes"]]
        return str(data["keeper"]), routes, Counter({str(key): int(count) for key, count in data["handoffs"].items()})
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a conversation's record: {type(error).__name__}") from None


def _maker(new_route: Callable[..., Route | None], each: Mapping[str, Any]) -> Callable[[], Route | None]:
    fields = {name: each[name] for name in ("handoff_id", "domain", "depth", "traceparent", "state")}
    return lambda: new_route(**fields)
