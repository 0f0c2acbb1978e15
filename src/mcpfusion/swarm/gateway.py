"""The gateway: hands conversations to specialists, calls them there, and takes them back."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcpfusion.actions.results import ToolResult
from mcpfusion.swarm import observing
from mcpfusion.swarm.catalogue import Catalogue
from mcpfusion.swarm.connections import Connections, Passing
from mcpfusion.swarm.conversations import Conversations
from mcpfusion.swarm.errors import HandoffError
from mcpfusion.swarm.handoffs import Handoff
from mcpfusion.swarm.keyring import Secrets
from mcpfusion.swarm.life import Life
from mcpfusion.swarm.namespace import LONGEST_PORTABLE_NAME, NamespaceError, NamespaceRewriter, wire_name
from mcpfusion.swarm.pins import PinStore
from mcpfusion.swarm.registry import Registry, Transport, check_transport
from mcpfusion.swarm.return_trip import (
    format_safe_return,
    inject_return_trip_tool,
    return_tool_name,
)
from mcpfusion.swarm.routes import Route
from mcpfusion.swarm.routing import Limits, Routing
from mcpfusion.swarm.state import HandoffStateStore
from mcpfusion.swarm.tokens import Act
from mcpfusion.swarm.upstream import (
    Connector,
)

_log = logging.getLogger(__name__)

SHUTDOWN_TIMEOUT = 15.0


@dataclass(frozen=True, slots=True)
class Activation:
    """A handoff that was made.

    Attributes:
        handoff_id: Names the handoff, for callers that have neither a session nor an identity.
        tools: The specialist's tools under its namespace.
        return_tool: The tool that leads back.
    """

    domain: str
    handoff_id: str
    tools: list[dict[str, Any]]
    return_tool: str


class SwarmGateway:
    """A gateway over a registry of specialists.

    Serve it with `f.server(swarm_gateway=…)`, or enter it (`async with gateway:`) and call its operations.

    Args:
        registry: Specialists by name: a URL, a command for stdio, a server object, or a `Specialist`.
        delegation_secret: Shared with the specialists, at least 32 bytes; several for rotation, the newest first.
        gateway_name: The issuer of its tokens, and the namespace of its return tool.
        token_ttl_seconds: Lifetime of a token; each request to a specialist gets its own.
        connect_timeout_ms: How long a handoff may take.
        idle_timeout_ms: After how long without a call a handoff is ended.
        max_sessions: Handoffs in force and being made at once, in all replicas that share the store.
        upstream_transport: How URLs are spoken to: `auto`, `http` or `sse`.
        store: Where routes, carried state above 2,048 bytes and pins are kept. A URL of an engine that replicas share
            lets any of them serve any conversation, but for those that end with their own session. A
            `HandoffStateStore` keeps the carried state alone.
        separator: What stands between a specialist's name and its tool's.
        dispatcher: Offer the stable tool `call_specialist`, for clients that never look at the list again.
        max_depth: Handoffs on top of each other, across gateways.
        max_handoffs: Handoffs of one conversation.
        max_returns_to_same: Handoffs of one conversation to the same specialist.

    Raises:
        ValueError: A secret that is too short, a registry entry or a limit that cannot be right.
    """

    def __init__(
        self,
        registry: Mapping[str, Any],
        delegation_secret: "str | Sequence[str] | Secrets",
        gateway_name: str = "gateway",
        token_ttl_seconds: float = 60,
        connect_timeout_ms: float = 5_000,
        idle_timeout_ms: float = 300_000,
        max_sessions: int = 100,
        upstream_transport: Transport = "auto",
        *,
        store: "str | HandoffStateStore" = "memory://",
        pins: PinStore | None = None,
        separator: str = ".",
        dispatcher: bool = False,
        max_depth: int = 8,
        max_handoffs: int = 50,
        max_returns_to_same: int = 10,
        connector: Connector | None = None,
    ) -> None:
        for name, value in (
            ("token_ttl_seconds", token_ttl_seconds),
            ("connect_timeout_ms", connect_timeout_ms),
            ("idle_timeout_ms", idle_timeout_ms),
            ("max_sessions", max_sessions),
            ("max_depth", max_depth),
            ("max_handoffs", max_handoffs),
            ("max_returns_to_same", max_returns_to_same),
        ):
            if not value > 0:
                raise ValueError(f"{name} must be positive, not {value!r}")
        check_transport("upstream_transport", upstream_transport)
        self.registry = Registry(registry)
        self.name = gateway_name
        self.separator = separator
        self.dispatcher = dispatcher
        self.return_tool = return_tool_name(gateway_name, separator)
        self.dispatcher_tool = wire_name(gateway_name, separator, "call_specialist")
        self._connections = Connections(
            gateway_name,
            Secrets(delegation_secret),
            token_ttl=token_ttl_seconds,
            connect_timeout=connect_timeout_ms / 1000,
            state_ttl=(2 * idle_timeout_ms + connect_timeout_ms) / 1000 + token_ttl_seconds,
            reserved=frozenset({self.return_tool, self.dispatcher_tool}),
        )
        self._catalogue = Catalogue(self.registry, self._connections, separator)
        self._conversations = Conversations(
            gateway_name,
            self.registry,
            separator,
            idle_timeout=idle_timeout_ms / 1000,
            slack=connect_timeout_ms / 1000,
            release=self._connections.release,
        )
        limits = Limits(max_sessions, max_depth, max_handoffs, max_returns_to_same, idle_timeout_ms / 1000)
        self._routing = Routing(
            gateway_name,
            separator,
            self._conversations,
            self._connections,
            limits,
            changed=lambda conversation: self._life.note_change(conversation),
        )
        self._life = Life(
            gateway_name,
            self._conversations,
            self._connections,
            transport=upstream_transport,
            connector=connector,
            store=store,
            pins=pins,
            idle=idle_timeout_ms / 1000,
            end=self._routing.end,
            dispose=self.dispose,
            tell=self._tell,
        )
        self.on_changed: Callable[[str | None], Awaitable[None]] | None = None
        _check_namespaces(self.registry, separator)
        _warn_of_long_names(self.return_tool, *([self.dispatcher_tool] if dispatcher else ()))

    def __repr__(self) -> str:
        return f"SwarmGateway({self.name!r}, {list(self.registry.specialists)})"

    # The operations.

    def has_active_handoff(self, conversation: str) -> bool:
        """Return whether the conversation is with a specialist, as far as this process knows."""
        found = self._conversations.get(conversation)
        return found is not None and bool(found.routes)

    def is_connecting(self, conversation: str) -> bool:
        """Return whether a handoff of the conversation is being made by this process."""
        found = self._conversations.get(conversation)
        return found is not None and found.connecting is not None

    @property
    def session_count(self) -> int:
        """How many handoffs are in force, as far as this process knows."""
        return self._conversations.routes

    @property
    def connecting_count(self) -> int:
        """How many handoffs are being made by this process."""
        return self._conversations.connecting

    def domain_of(self, conversation: str) -> str | None:
        """Return the specialist that the conversation is with."""
        found = self._conversations.get(conversation)
        return found.top.domain if found and found.top else None

    async def activate_handoff(
        self, conversation: str, handoff: Handoff, *, traceparent: str | None = None, depth: int = 0
    ) -> Activation:
        """Hand a conversation over, on top of where it is now. Done when the specialist is connected and has listed
        its tools; when that fails, everything is as before.

        Args:
            conversation: The conversation's key.
            traceparent: The trace that goes on at the specialist.
            depth: How many gateways the conversation has come through already.

        Raises:
            HandoffError: Why it could not be done, within the connect timeout.
        """
        domain, specialist = self.registry.find(handoff)
        with observing.handoff(domain):
            route = await self._routing.make(conversation, domain, specialist, handoff, traceparent, depth)
            return Activation(domain, route.handoff_id, list(route.tools or ()), self.return_tool)

    async def catalogue(self) -> list[dict[str, Any]]:
        """Return every specialist's tools under its namespace, for callers whose list may not depend on who they are.

        Each specialist is asked once a minute at most; one that does not answer is left out meanwhile.
        """
        return await self._catalogue.tools()

    async def is_handed_over(self, conversation: str) -> bool:
        """Return whether the conversation is with a specialist, whichever replica handed it over.

        While the store cannot tell, what this process knows counts.
        """
        try:
            return bool((await self._conversations.current(conversation)).routes)
        except HandoffError:
            return self.has_active_handoff(conversation)

    async def proxy_tools_list(self, conversation: str) -> list[dict[str, Any]]:
        """Return the specialist's tools under its namespace, and the tool that leads back.

        Raises:
            HandoffError: The conversation is with no specialist, or it does not answer.
        """
        found, route = await self._routing.current(conversation)
        if route.tools is None:
            async with self._routing.used(found, route):
                await self._routing.recovering(found, route, lambda: self._connections.list_tools(route))
        return inject_return_trip_tool(route.tools or (), self.name, separator=self.separator)

    async def proxy_tools_call(
        self, conversation: str, name: str, arguments: Mapping[str, Any], passing: Passing | None = None
    ) -> dict[str, Any]:
        """Call a tool of the specialist that the conversation is with; returns its result as it came.

        Raises:
            HandoffError: The name is not in its namespace, the tool has changed against its pin, or the specialist
                does not answer; the message says whether the call may have run.
        """
        found, route = await self._routing.current(conversation)

        async def call() -> dict[str, Any]:
            original, passed = self._original(route, name), passing or Passing()
            with observing.request(route.domain, "tools/call", passed.traceparent or route.traceparent) as asked:
                asked.names(original, route.tools or (), name)
                request = await self._connections.request(route, Act.of(original, arguments), passed)
                result = await self._connections.upstream(route).call_tool(original, arguments, request)
                asked.answered(result)
                return result

        async with self._routing.used(found, route):
            if route.tools is None:  # the list changed: a name may be new in it, or gone
                await self._routing.recovering(found, route, lambda: self._connections.list_tools(route))
            return await self._routing.recovering(found, route, call)

    async def return_to_gateway(self, conversation: str, summary: str = "") -> ToolResult:
        """Take the conversation back from the specialist; the route below is in force again.

        The answer carries the summary as data from outside. A handoff that is just being made is given up.

        Raises:
            HandoffError: The conversation is with no specialist.
        """
        found = self._conversations.get(conversation)
        if found is not None and found.connecting is not None:
            found.connecting.cancel()
            return ToolResult([{"type": "text", "text": "The handoff that was being made is given up."}])
        found, route = await self._routing.current(conversation)
        route.give_up_calls()
        await self._routing.end(found, route)
        below = found.top.domain if found.top else self.name
        answer = format_safe_return(summary, route.domain)
        return ToolResult([answer], {"returnedFrom": route.domain, "nowWith": below})

    async def dispose(self) -> None:
        """End every handoff, but for those that other replicas can go on with, and close every connection."""
        for conversation in self._conversations:
            if conversation.connecting is None and self._conversations.is_shared(conversation):
                await self._conversations.let_go(conversation)
            else:
                await self.forget(conversation.key)

    async def forget(self, conversation: str) -> None:
        """The conversation is over: its handoffs are ended and their slots free."""
        found = self._conversations.get(conversation)
        if found is None:
            return
        if found.connecting is not None:
            found.connecting.cancel()
        while (route := found.top) is not None:
            route.give_up_calls()
            await self._routing.end(found, route)
        self._conversations.forget(conversation)

    async def answers(self, within: float) -> bool:
        """Return whether the gateway is running, and its store answers within so many seconds. Never raises."""
        return await self._life.answers(within)

    async def __aenter__(self) -> "SwarmGateway":
        await self._life.enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._life.leave()

    async def _tell(self, conversation: str | None) -> None:
        if self.on_changed is not None:
            try:
                await self.on_changed(conversation)
            except Exception:  # who cannot be told must not keep the others from being told
                _log.warning("cannot tell about a list that changed", exc_info=True)

    def _original(self, route: Route, name: str) -> str:
        try:
            return route.rewriter.original(name)
        except NamespaceError:
            raise HandoffError(
                "NOT_IN_NAMESPACE",
                f"{name[:128]!r} is no tool of {route.domain!r}, which this conversation is with; "
                f"'{self.return_tool}' leads back",
            ) from None


def _check_namespaces(registry: Registry, separator: str) -> None:
    heads: dict[str, str] = {}
    for name in registry.specialists:
        head = NamespaceRewriter(name, separator=separator).wire_name("")
        if head in heads:
            raise ValueError(f"registry: {heads[head]!r} and {name!r} both become {head!r}")
        heads[head] = name


def _warn_of_long_names(*names: str) -> None:
    for name in names:
        if len(name) > LONGEST_PORTABLE_NAME:
            _log.warning("tool name %r is longer than many clients accept", name)
