"""The gateway: hands conversations to specialists, calls them there, and takes them back."""

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel

from mcpfusion.actions.results import ToolResult
from mcpfusion.swarm.errors import HandoffError
from mcpfusion.swarm.handoffs import Handoff
from mcpfusion.swarm.keyring import Secrets
from mcpfusion.swarm.namespace import NamespaceError, NamespaceRewriter, wire_name
from mcpfusion.swarm.pins import InMemoryPinStore, PinStore, SqlitePinStore
from mcpfusion.swarm.registry import Registry, Specialist, Transport
from mcpfusion.swarm.return_trip import (
    format_safe_return,
    inject_return_trip_tool,
    return_tool_name,
    visible_text,
)
from mcpfusion.swarm.routes import Conversation, Conversations, Route
from mcpfusion.swarm.sqlite_state import open_handoff_store
from mcpfusion.swarm.state import HandoffStateStore
from mcpfusion.swarm.tokens import Act, carried, mint_delegation_token
from mcpfusion.swarm.trust import trusted_tools
from mcpfusion.swarm.upstream import (
    Ask,
    Connector,
    Renew,
    SendProgress,
    Upstream,
    UpstreamError,
    UpstreamRequest,
)

_log = logging.getLogger(__name__)

SHUTDOWN_TIMEOUT = 15.0
CATALOGUE_AGE = 60.0

LIST_ACT = Act.of("tools/list", {})


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


@dataclass(frozen=True, slots=True)
class Passing:
    """What goes through with a call: the caller's `_meta` without the gateway's own entries, progress, questions."""

    meta: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    traceparent: str | None = None
    progress: SendProgress | None = None
    ask: Ask | None = None
    input_responses: Mapping[str, Any] | None = field(default=None, repr=False)
    request_state: str | None = field(default=None, repr=False)


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
        max_sessions: Handoffs in force and being made at once.
        upstream_transport: How URLs are spoken to: `auto`, `http` or `sse`.
        store: Where carried state above 2,048 bytes and pins are: a URL, or a `HandoffStateStore`.
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
        self.registry = Registry(registry)
        self.name = gateway_name
        self.separator = separator
        self.dispatcher = dispatcher
        self.return_tool = return_tool_name(gateway_name, separator)
        self.dispatcher_tool = wire_name(gateway_name, separator, "call_specialist")
        self._secrets = Secrets(delegation_secret)
        self._token_ttl = token_ttl_seconds
        self._connect_timeout = connect_timeout_ms / 1000
        self._idle_timeout = idle_timeout_ms / 1000
        self._max_sessions = max_sessions
        self._transport: Transport = upstream_transport
        self._store = open_handoff_store(store) if isinstance(store, str) else store
        self._pins = pins or _pins_at(store)
        self._max_depth = max_depth
        self._max_handoffs = max_handoffs
        self._max_returns = max_returns_to_same
        self._given_connector = connector
        self._connector: Connector | None = None
        self._users = 0
        self._stop = anyio.Event()
        self._life: asyncio.Task[None] | None = None
        self._conversations = Conversations()
        self._catalogue: dict[str, list[dict[str, Any]]] = {}
        self._catalogue_due: dict[str, float] = {}
        self._looking_up: dict[str, anyio.Lock] = {}
        self._changes: dict[str, None] = {}
        self._changed = anyio.Event()
        self.on_changed: Callable[[str], Awaitable[None]] | None = None
        _check_namespaces(self.registry, separator)

    def __repr__(self) -> str:
        return f"SwarmGateway({self.name!r}, {list(self.registry.specialists)})"

    # The operations.

    def has_active_handoff(self, conversation: str) -> bool:
        """Return whether the conversation is with a specialist."""
        found = self._conversations.get(conversation)
        return found is not None and bool(found.routes)

    def is_connecting(self, conversation: str) -> bool:
        """Return whether a handoff of the conversation is being made."""
        found = self._conversations.get(conversation)
        return found is not None and found.connecting is not None

    @property
    def session_count(self) -> int:
        """How many handoffs are in force."""
        return self._conversations.routes

    @property
    def connecting_count(self) -> int:
        """How many handoffs are being made."""
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
        found = self._conversations.open(conversation)
        self._check_limits(found, domain, specialist, depth)
        route = Route(
            handoff_id=str(uuid.uuid4()),
            domain=domain,
            specialist=specialist,
            rewriter=NamespaceRewriter(domain, separator=self.separator),
            depth=depth + len(found.routes) + 1,
            traceparent=traceparent,
        )
        with anyio.CancelScope() as scope:
            found.connecting, found.connecting_to = scope, domain
            try:
                route.state = await self._carried(route, handoff)
                await self._connect(found, route)
                # It may have been taken back at the very moment when it was made.
                await anyio.lowlevel.checkpoint_if_cancelled()
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await self._close(route)
                raise
            finally:
                found.connecting = found.connecting_to = None
            found.routes.append(route)
            found.handoffs[domain] += 1
            _log.info("handed over to %r (%s)", domain, route.handoff_id)
            self._note_change(conversation)
            return Activation(domain, route.handoff_id, list(route.tools or ()), self.return_tool)
        raise HandoffError("NO_HANDOFF", f"the handoff to {domain!r} was taken back before it was made")

    async def catalogue(self) -> list[dict[str, Any]]:
        """Return every specialist's tools under its namespace, for callers whose list may not depend on who they are.

        Each specialist is asked once a minute at most; one that does not answer is left out meanwhile.
        """
        async with anyio.create_task_group() as group:
            for domain, specialist in self.registry.specialists.items():
                group.start_soon(self._refresh, domain, specialist)
        return [tool for domain in self.registry.specialists for tool in self._catalogue.get(domain, ())]

    async def _refresh(self, domain: str, specialist: Specialist) -> None:
        # Who comes while a specialist is asked waits for the answer too, so that all see the same list.
        async with self._looking_up.setdefault(domain, anyio.Lock()):
            if time.monotonic() >= self._catalogue_due.get(domain, 0):
                await self._look_up(domain, specialist)
                self._catalogue_due[domain] = time.monotonic() + CATALOGUE_AGE

    async def _look_up(self, domain: str, specialist: Specialist) -> None:
        rewriter = NamespaceRewriter(domain, separator=self.separator)
        route = Route(str(uuid.uuid4()), domain, specialist, rewriter, depth=1)
        try:
            await self._connect(Conversation(""), route)
            self._catalogue[domain] = list(route.tools or ())
        except HandoffError as error:
            _log.warning("the tools of %r are not known: %s", domain, error)
        finally:
            with anyio.CancelScope(shield=True):
                await self._close(route)

    async def proxy_tools_list(self, conversation: str) -> list[dict[str, Any]]:
        """Return the specialist's tools under its namespace, and the tool that leads back.

        Raises:
            HandoffError: The conversation is with no specialist, or it does not answer.
        """
        found, route = self._route(conversation)
        if route.tools is None:
            async with self._used(route):
                await self._recovering(found, route, lambda: self._list(route))
        return inject_return_trip_tool(route.tools or (), self.name, separator=self.separator)

    async def proxy_tools_call(
        self, conversation: str, name: str, arguments: Mapping[str, Any], passing: Passing | None = None
    ) -> dict[str, Any]:
        """Call a tool of the specialist that the conversation is with; returns its result as it came.

        Raises:
            HandoffError: The name is not in its namespace, the tool has changed against its pin, or the specialist
                does not answer; the message says whether the call may have run.
        """
        found, route = self._route(conversation)

        async def call() -> dict[str, Any]:
            original = self._original(route, name)
            request = await self._request(route, Act.of(original, arguments), passing or Passing())
            return await self._connection(route).call_tool(original, arguments, request)

        async with self._used(route):
            if route.tools is None:  # the list changed: a name may be new in it, or gone
                await self._recovering(found, route, lambda: self._list(route))
            return await self._recovering(found, route, call)

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
        found, route = self._route(conversation)
        await self._end(found, route)
        below = found.top.domain if found.top else self.name
        answer = format_safe_return(summary, route.domain)
        return ToolResult([answer], {"returnedFrom": route.domain, "nowWith": below})

    async def dispose(self) -> None:
        """End every handoff and close every connection."""
        for conversation in self._conversations:
            await self.forget(conversation.key)

    async def forget(self, conversation: str) -> None:
        """The conversation is over: its handoffs are ended and their slots free."""
        found = self._conversations.get(conversation)
        if found is None:
            return
        if found.connecting is not None:
            found.connecting.cancel()
        while found.top is not None:
            await self._end(found, found.top)
        self._conversations.forget(conversation)

    # Its life.

    async def __aenter__(self) -> "SwarmGateway":
        self._users += 1
        if self._users == 1:
            # In process a server's lifespan is entered once for each client, in tasks that end in any order, so that
            # what lives as long as all of them needs a task of its own. It is awaited when the last one leaves.
            self._stop = anyio.Event()
            ready = anyio.Event()
            self._life = asyncio.create_task(self._live(ready), name=f"gateway {self.name}")
            await ready.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._users -= 1
        if self._users == 0 and self._life is not None:
            life, self._life = self._life, None
            self._stop.set()
            with anyio.CancelScope(shield=True), anyio.move_on_after(SHUTDOWN_TIMEOUT):
                await life

    async def _live(self, ready: anyio.Event) -> None:
        connector = self._given_connector or _sdk_connector(self._transport)
        async with anyio.create_task_group() as group:
            await group.start(_run_connector, connector)
            group.start_soon(self._look_after)
            self._connector = connector
            ready.set()
            await self._stop.wait()
            await self.dispose()
            self._connector = None
            group.cancel_scope.cancel()

    async def _look_after(self) -> None:
        """End what has been idle for too long, and tell about lists that changed."""
        period = min(max(self._idle_timeout / 4, 0.05), 5.0)
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
        now = time.monotonic()
        for conversation in self._conversations:
            route = conversation.top  # those below wait for it, and are in use as long as it is
            if route is not None and not route.calls and now - route.last_used > self._idle_timeout:
                _log.info("the handoff to %r (%s) was idle for too long", route.domain, route.handoff_id)
                await self._end(conversation, route)

    async def _tell(self, conversation: str) -> None:
        if self.on_changed is not None:
            try:
                await self.on_changed(conversation)
            except Exception:  # who cannot be told must not keep the others from being told
                _log.warning("cannot tell about a list that changed", exc_info=True)

    def _note_change(self, conversation: str) -> None:
        self._changes[conversation] = None
        self._changed.set()

    # Making and ending routes.

    def _check_limits(self, found: Conversation, domain: str, specialist: Specialist, depth: int) -> None:
        if found.connecting is not None:
            raise HandoffError("HANDOFF_BUSY", "another handoff of this conversation is being made")
        if not found.routes and time.monotonic() - found.last_used > self._idle_timeout:
            found.handoffs.clear()  # what one user asks of a gateway over months is not one conversation
        if depth + len(found.routes) >= self._max_depth:
            raise HandoffError("TOO_DEEP", f"at most {self._max_depth} handoffs on top of each other")
        if found.handoffs.total() >= self._max_handoffs:
            raise HandoffError("TOO_MANY_HANDOFFS", f"at most {self._max_handoffs} handoffs in one conversation")
        if found.handoffs[domain] >= self._max_returns:
            raise HandoffError("PING_PONG", f"this conversation went to {domain!r} {self._max_returns} times already")
        full = self.session_count + self.connecting_count >= self._max_sessions
        limit = specialist.max_sessions
        if full or (limit is not None and self._conversations.routes_to(domain) >= limit):
            raise HandoffError("TOO_MANY_SESSIONS", "all places are taken; try again later")

    async def _carried(self, route: Route, handoff: Handoff) -> dict[str, Any]:
        if handoff.carry_over_state is None:
            return {}
        claims = await carried(handoff.carry_over_state, self._store, self._state_ttl, lambda: str(uuid.uuid4()))
        if "state_id" in claims and not self._store.shared and not route.specialist.in_process:
            await self._store.delete(claims["state_id"])
            raise HandoffError(
                "STATE_NOT_SHARED",
                "the carried state is too large for the token, and the gateway's store is in its own memory: "
                "give gateway and specialist a shared store (store='sqlite:///…')",
            )
        if "state_id" in claims:
            route.state_kept = handoff.carry_over_state
        return claims

    @property
    def _state_ttl(self) -> float:
        return self._idle_timeout + self._token_ttl + self._connect_timeout

    async def _connect(self, found: Conversation, route: Route) -> None:
        """Connect and list, within the connect timeout.

        Raises:
            HandoffError: It cannot be done.
        """
        if self._connector is None:
            raise RuntimeError("the gateway is not running: serve it, or enter it with `async with gateway:`")
        try:
            with anyio.fail_after(self._connect_timeout):

                def changed() -> None:
                    route.tools = None
                    self._note_change(found.key)

                route.upstream = await self._connector.connect(
                    route.domain, route.specialist, self._renew(route), changed
                )
                await self._list(route)
        except TimeoutError:
            raise HandoffError(
                "UPSTREAM_TIMEOUT", f"specialist {route.domain!r} did not answer within {self._connect_timeout:g} s"
            ) from None
        except UpstreamError as error:
            _log.warning("specialist %r cannot be reached: %s", route.domain, error)
            if error.answer is not None:
                said = visible_text(error.answer, 200)
                raise HandoffError("UPSTREAM_REFUSED", f"specialist {route.domain!r} refused: {said}") from None
            raise HandoffError("UPSTREAM_UNAVAILABLE", f"specialist {route.domain!r} cannot be reached") from None
        route.last_used = found.last_used = time.monotonic()

    async def _list(self, route: Route) -> None:
        listed = await self._connection(route).list_tools(self._renew(route))
        trusted = await trusted_tools(route.domain, route.specialist, listed, self._pins)
        try:
            tools = route.rewriter.rewrite_tools(trusted)
        except ValueError as error:
            raise HandoffError("UPSTREAM_REFUSED", str(error)) from None
        # A specialist must not offer what leads back, or to itself, under the gateway's own name.
        route.tools = [tool for tool in tools if tool["name"] not in (self.return_tool, self.dispatcher_tool)]
        for name in route.rewriter.too_long():
            _log.warning("tool name %r is longer than many clients accept", name)

    def _renew(self, route: Route) -> Renew:
        """Return what gives requests for the list of a route's tools, each with a token of its own."""
        return partial(self._request, route, LIST_ACT, Passing(traceparent=route.traceparent))

    async def _request(self, route: Route, act: Act, passing: Passing) -> UpstreamRequest:
        """Return a request with a token of its own."""
        if "state_id" in route.state and route.state_kept is not None:
            # Kept for as long as the handoff is in use, not for as long as it was when it began.
            await self._store.set(route.state["state_id"], route.state_kept, self._state_ttl)
        traceparent = passing.traceparent or route.traceparent
        token = await mint_delegation_token(
            route.domain,
            self._token_ttl,
            Secrets(route.specialist.secret) if route.specialist.secret is not None else self._secrets,
            self.name,
            traceparent=traceparent,
            tid=route.handoff_id,
            audience=route.domain,
            act=act,
            single_use=True,
            more={**route.state, "depth": route.depth},
        )
        return UpstreamRequest(
            token=token,
            traceparent=traceparent,
            meta=passing.meta,
            progress=passing.progress,
            ask=passing.ask,
            input_responses=passing.input_responses,
            request_state=passing.request_state,
        )

    async def _recovering(self, found: Conversation, route: Route, work: Callable[[], Awaitable[Any]]) -> Any:
        """Do `work`; when the connection is gone, connect once more, and do it again if it certainly did not run."""
        before = route.upstream
        try:
            return await work()
        except UpstreamError as error:
            _log.warning("specialist %r was lost: %s", route.domain, error)
            lost = error
        await self._reconnect(found, route, before)
        if not lost.refused:
            raise HandoffError(
                "UPSTREAM_UNAVAILABLE",
                f"the connection to {route.domain!r} broke during the call, which may or may not have run; "
                "the connection is there again",
            )
        try:
            return await work()
        except UpstreamError as error:
            _log.warning("specialist %r was lost again: %s", route.domain, error)
            await self._end(found, route)
            raise HandoffError("UPSTREAM_UNAVAILABLE", self._lost(found, route)) from None

    async def _reconnect(self, found: Conversation, route: Route, lost: Upstream | None) -> None:
        """Replace the connection `lost`, unless that was done already."""
        async with route.mending:
            if route not in found.routes:
                raise _ended(route)
            if route.upstream is not None and route.upstream is not lost:
                return
            if route.upstream is not None:
                await route.upstream.aclose()
                route.upstream = None
            try:
                await self._connect(found, route)
            except HandoffError as error:
                await self._end(found, route)
                raise HandoffError(error.code, self._lost(found, route)) from None
            if route not in found.routes:
                await self._close(route)
                raise _ended(route)

    def _connection(self, route: Route) -> Upstream:
        if route.upstream is None:
            raise UpstreamError("the connection is closed", refused=True)
        return route.upstream

    def _lost(self, found: Conversation, route: Route) -> str:
        back = found.top.domain if found.top else self.name
        return f"specialist {route.domain!r} cannot be reached any more; the conversation is back with {back!r}"

    async def _end(self, found: Conversation, route: Route) -> None:
        """Take a route away, and free its slot before anything that may fail."""
        if route in found.routes:
            found.routes.remove(route)
            found.last_used = time.monotonic()
            if found.top is not None:
                found.top.last_used = found.last_used
            self._note_change(found.key)
        with anyio.CancelScope(shield=True):
            await self._close(route)

    async def _close(self, route: Route) -> None:
        upstream, route.upstream = route.upstream, None
        try:
            with anyio.move_on_after(self._connect_timeout):
                if upstream is not None:
                    await upstream.aclose()
                if "state_id" in route.state:
                    await self._store.delete(route.state["state_id"])
        except Exception:
            _log.warning("the end of the handoff to %r was not clean", route.domain, exc_info=True)

    def _route(self, conversation: str) -> tuple[Conversation, Route]:
        found = self._conversations.get(conversation)
        if found is None or found.top is None:
            raise HandoffError("NO_HANDOFF", "this conversation is not with a specialist")
        return found, found.top

    def _original(self, route: Route, name: str) -> str:
        try:
            return route.rewriter.original(name)
        except NamespaceError:
            raise HandoffError(
                "NOT_IN_NAMESPACE",
                f"{name[:128]!r} is no tool of {route.domain!r}, which this conversation is with; "
                f"'{self.return_tool}' leads back",
            ) from None

    @asynccontextmanager
    async def _used(self, route: Route) -> AsyncGenerator[None]:
        route.calls += 1
        try:
            yield
        finally:
            route.calls -= 1
            route.last_used = time.monotonic()


def _check_namespaces(registry: Registry, separator: str) -> None:
    heads: dict[str, str] = {}
    for name in registry.specialists:
        head = NamespaceRewriter(name, separator=separator).wire_name("")
        if head in heads:
            raise ValueError(f"registry: {heads[head]!r} and {name!r} both become {head!r}")
        heads[head] = name


def _ended(route: Route) -> HandoffError:
    return HandoffError("NO_HANDOFF", f"the handoff to {route.domain!r} ended during the call, which may have run")


def _pins_at(store: "str | HandoffStateStore") -> PinStore:
    if isinstance(store, str) and store.startswith("sqlite:///"):
        return SqlitePinStore(store.removeprefix("sqlite:///"))
    return InMemoryPinStore()


def _sdk_connector(transport: Transport) -> Connector:
    from mcpfusion.wire.upstream import SdkConnector

    return SdkConnector(transport)


async def _run_connector(connector: Connector, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    await connector.run(task_status=task_status)
