"""Attaching actions and a gate to a server: the handlers it gets, and what they share."""

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import mcp_types as types
from mcp.server import Server
from mcp.server.context import CallNext, HandlerResult
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.shared.exceptions import MCPError
from mcp_types import methods
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from mcpfusion.actions.middleware import Middleware
from mcpfusion.actions.registry import ActionRegistry
from mcpfusion.gate.actions import compiled
from mcpfusion.gate.binding import BindingError, Bindings
from mcpfusion.gate.gate import StateMachineGate
from mcpfusion.gate.identity import Identity, ScopeError, scope_of
from mcpfusion.gate.menu import Menu, Menus
from mcpfusion.gate.passage import Passages
from mcpfusion.gate.plain import PlainStore
from mcpfusion.gate.workflows import Moved, StoreUnavailable, Workflows
from mcpfusion.stores import open_store
from mcpfusion.stores.protocol import EngineClock, FsmStateStore, VersionedFsmStateStore
from mcpfusion.swarm.clearance import GatewayClearance, in_use
from mcpfusion.swarm.connections import LIST_ACT
from mcpfusion.swarm.errors import HandoffAuthError
from mcpfusion.swarm.gateway import SwarmGateway
from mcpfusion.swarm.tokens import Delegation
from mcpfusion.wire.answering import Answering
from mcpfusion.wire.audience import Audience, Listener
from mcpfusion.wire.calling import Calling, Gated, unsendable
from mcpfusion.wire.handover import Handover
from mcpfusion.wire.listening import Listening, Send, bus_of, sender_of
from mcpfusion.wire.listing import Listing, cursor_of, no_such_tool, ready
from mcpfusion.wire.lowlevel import lowlevel_of
from mcpfusion.wire.options import GateOptions, Store
from mcpfusion.wire.outage import ANSWER_WITHIN, Outage
from mcpfusion.wire.replicas import Replicas
from mcpfusion.wire.request import (
    RequestContext,
    connection_of,
    has_session,
    headers_of,
    identity_of,
    session_handles,
)
from mcpfusion.wire.timers import upkeep
from mcpfusion.wire.tracing import continue_trace

_log = logging.getLogger(__name__)

_ATTACHED = "_mcpfusion_attachment"
_HEARING_KEY = "io.mcpfusion/hearing"


class Attachment:
    """A server with its actions and its gate. Made by `attach`, and lives as long as the server does."""

    def __init__(
        self,
        server: Any,
        registry: ActionRegistry,
        gate: StateMachineGate | None,
        store: Store,
        middleware: Sequence[Middleware],
        options: GateOptions,
        gateway: SwarmGateway | None = None,
    ) -> None:
        self.lowlevel: Server[Any] = lowlevel_of(server)
        if hasattr(self.lowlevel, _ATTACHED):
            raise ValueError(f"server {self.lowlevel.name!r} is attached already: attach everything in one call")
        self.options = options
        if options.passage.clock is time.time:
            self.options = replace(options, passage=replace(options.passage, clock=self._now))
        registry.complete()
        self._registry = registry
        self._base_schema = self.lowlevel.get_tool_input_schema
        self.bindings = compiled(gate, registry)
        self.store: VersionedFsmStateStore | None = None
        self._url: str | None = None
        self._time: Callable[[], float] = time.time
        self._closed = False
        self._users = 0
        self.answering = Answering()
        self.carries_handles = bool(options.state_handle_key or (self.bindings and self.bindings.minting))
        self._gated = self._build_gate(store) if self.bindings else None
        self._handover = Handover(gateway, options.page_size, registry.tools) if gateway else None
        own = [layer for action in registry.tools.values() for layer in action.middleware]
        self._layers = [*middleware, *own]
        self._clearances = [layer for layer in middleware if isinstance(layer, GatewayClearance)]
        self._install(tuple(middleware))
        setattr(self.lowlevel, _ATTACHED, self)

    def _build_gate(self, store: Store) -> Gated:
        assert self.bindings is not None
        options = self.options
        self.store = self._open(store, self.bindings)
        ends = options.passage.expires_after
        self._workflows = Workflows(self.bindings, self.store, options.passage.clock, self._moved, ends)
        passages = Passages(self.bindings, self._workflows, options.passage)
        menus = Menus(
            self.bindings,
            self._workflows,
            carries_handles=self.carries_handles,
            single_tenant=options.single_tenant,
        )
        self._audience = Audience(self.bindings, menus, carries_handles=self.carries_handles)
        self._replicas = Replicas(self._audience)
        self._outage = Outage(self._audience, self._workflows)
        key = options.state_handle_key or ("handle" if self.bindings.minting else None)
        return Gated(self.bindings.tools, passages, menus, options.access, key, self._named)

    def _open(self, store: Store, bindings: Bindings) -> VersionedFsmStateStore:
        if isinstance(store, str):
            self._url = store
            store = open_store(store)
        if isinstance(store, VersionedFsmStateStore):
            self._time = store.now if isinstance(store, EngineClock) else time.time
            return store
        if isinstance(store, FsmStateStore):  # pyright: ignore[reportUnnecessaryIsInstance]
            if self.options.passage.expires_after is not None:
                raise ValueError("expires_after: a load/save store keeps no time of expiry; use a store by URL")
            return PlainStore(store, bindings.machine)
        raise TypeError(f"store: expected a URL or an object with load() and save(), got {type(store).__name__}")

    def _now(self) -> float:
        """Return the time by which leases and timers go: that of the store's engine where it has a clock."""
        return self._time()

    def use_store(self, url: str) -> None:
        """Keep the workflows in another store. Before the server runs.

        Raises:
            ValueError: The URL names no store, or the server has no gate.
        """
        if self.bindings is None:
            raise ValueError(f"server {self.lowlevel.name!r} has no machine, so that there is nothing to store")
        self.store = self._workflows.store = self._open(url, self.bindings)

    def _install(self, middleware: tuple[Middleware, ...]) -> None:
        """Put our handlers in front of the server's own."""
        server, gated = self.lowlevel, self._gated
        base_list, base_call = (
            server.get_request_handler("tools/list"),
            server.get_request_handler("tools/call"),
        )
        key = gated.handle_key if gated else None
        expected = self._unlisted() if self._handover is None else frozenset[str]()
        if expected and base_list is None:
            raise BindingError(no_such_tool(min(expected), self._registry.tools))
        self._listing = Listing(self._registry, self.bindings, key, base_list, self.options.page_size, expected)
        self._calling = Calling(self._registry, gated, base_call, middleware, self._takes, self._handover)
        server.add_request_handler("tools/list", types.PaginatedRequestParams, self._list)
        server.add_request_handler("tools/call", types.CallToolRequestParams, self._calling)
        if self._base_schema is not None or base_list is None:
            server.get_tool_input_schema = self._schema
        if not any(isinstance(layer, RequestStateBoundary) for layer in server.middleware):
            security = self.options.request_state_security or RequestStateSecurity.ephemeral()
            server.middleware.append(RequestStateBoundary(security, default_audience=server.name))
        server.middleware.insert(0, continue_trace)
        server.middleware.extend([self.answering, self._shortcut])
        if self._changes:
            listening = Listening(bus_of(server.get_request_handler("subscriptions/listen")), self._listen)
            server.add_request_handler("subscriptions/listen", types.SubscriptionsListenRequestParams, listening)
        server.lifespan = self._lifespan(server.lifespan)

    def _unlisted(self) -> frozenset[str]:
        """Return the bound tools that are no actions; the server's own list has to have them."""
        return frozenset(self.bindings.tools) - frozenset(self._registry.tools) if self.bindings else frozenset()

    @property
    def _changes(self) -> bool:
        """Whether what a caller may see can change."""
        return self._gated is not None or self._handover is not None

    @property
    def _pages_ready(self) -> bool:
        """Whether a list is the same for all callers with the same menu, so that its pages are built once."""
        return self._listing.own_only and self._handover is None and not self._clearances

    async def _shortcut(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Answer a list that is all ours from pages built before; advertise `listChanged` in the handshake."""
        if ctx.method == "tools/list" and ctx.request_id is not None and self._pages_ready and ready(ctx):
            cursor = cursor_of(ctx)
            if cursor is not None:
                page = self._listing.page(await self._menu(ctx), ctx.protocol_version, cursor)
                return self._stamped(page, ctx.protocol_version)
        try:
            result = await call_next(ctx)
        except (MCPError, ValidationError):
            raise
        except Exception:
            if ctx.method != "tools/call":
                raise
            answer = unsendable(str((ctx.params or {}).get("name"))[:128])
            sent = methods.serialize_server_result("tools/call", ctx.protocol_version, answer)
            return self._stamped(sent, ctx.protocol_version)
        if ctx.method == "initialize" and self._changes and isinstance(result, dict):
            capabilities = dict(result.get("capabilities") or {})
            return {**result, "capabilities": {**capabilities, "tools": {"listChanged": True}}}
        return result

    def _stamped(self, page: dict[str, Any], version: str) -> dict[str, Any]:
        if version not in MODERN_PROTOCOL_VERSIONS:
            return page
        return {**page, "_meta": {types.SERVER_INFO_META_KEY: self.lowlevel.server_info_stamp}}

    async def _list(self, ctx: RequestContext, params: types.PaginatedRequestParams) -> dict[str, Any]:
        cursor = params.cursor or ""
        delegation = await self._cleared(ctx)
        if self._handover is None:
            return await self._listing.list(ctx, await self._menu(ctx), cursor)
        conversation = self._handover.conversation(ctx, identity_of(ctx), delegation)
        if conversation is not None:
            if has_session(ctx):
                self._hear(ctx, conversation)
            page = await self._handover.page(conversation, cursor)
            if page is not None:
                return page
        result = await self._listing.list(ctx, await self._menu(ctx), cursor)
        if "nextCursor" not in result:
            result["tools"] = [*result["tools"], *await self._handover.beside(conversation)]
        return result

    async def _cleared(self, ctx: RequestContext) -> Delegation | None:
        """Demand clearance for the list where the server demands it for its calls.

        Raises:
            MCPError: There is no valid delegation.
        """
        delegation = None
        for layer in self._clearances:
            if layer.covers_list:
                try:
                    delegation = await layer.check(headers_of(ctx), dict(ctx.meta or {}), LIST_ACT)
                except HandoffAuthError:
                    message = "FORBIDDEN: this server shows its tools to its gateway only"
                    raise MCPError(types.INVALID_REQUEST, message) from None
        return delegation

    def _hear(self, ctx: RequestContext, conversation: str) -> None:
        """Tell a session from now on when its conversation's list changed."""
        assert self._handover is not None
        connection = connection_of(ctx)
        if _HEARING_KEY not in connection.state:
            connection.state[_HEARING_KEY] = True
            connection.exit_stack.callback(self._handover.listen(conversation, sender_of(ctx)))

    async def _menu(self, ctx: RequestContext) -> Menu | None:
        """Return the caller's menu, and note what his session has been shown."""
        if self._gated is None:
            return None
        identity = identity_of(ctx)
        with _untold():
            scope = scope_of(self.options.access, identity)
        try:
            menu = await self._gated.menus.menu(identity, scope, list(session_handles(ctx)))
        except StoreUnavailable:  # logged where it happened; other tools are not affected
            menu = self._outage.hide_from(scope)
        if has_session(ctx):
            listener = partial(self._session_listener, ctx, identity, scope, menu)
            self._audience.shown(id(connection_of(ctx)), listener, menu)
        return menu

    def _session_listener(self, ctx: RequestContext, identity: Identity, scope: str, menu: Menu) -> Listener:
        connection = connection_of(ctx)
        connection.exit_stack.callback(self._audience.forget, id(connection))
        return Listener(identity, scope, sender_of(ctx), menu, session_handles(ctx))

    async def _listen(self, ctx: RequestContext, send: Send) -> Callable[[], None]:
        """Tell a listen stream from now on when its caller's list changed; returns what ends that."""
        ends: list[Callable[[], None]] = []
        identity = identity_of(ctx)
        if self._gated is not None:
            with _untold():
                listener = Listener(identity, scope_of(self.options.access, identity), send)
                await self._audience.listen(listener)
            ends.append(partial(self._audience.leave, listener))
        if self._handover is not None:
            conversation = self._handover.conversation(ctx, identity, await self._delegation(ctx))
            if conversation is not None:
                ends.append(self._handover.listen(conversation, send))

        def leave() -> None:
            for end in ends:
                end()

        return leave

    async def _delegation(self, ctx: RequestContext) -> Delegation | None:
        for layer in self._clearances:
            with suppress(HandoffAuthError):
                return await layer.check(headers_of(ctx), dict(ctx.meta or {}), LIST_ACT)
        return None

    async def _named(self, ctx: RequestContext, handle: str) -> None:
        await self._audience.named(id(connection_of(ctx)), handle)

    async def _moved(self, step: Moved) -> None:
        await self._replicas.moved(step)

    def _schema(self, name: str) -> Any:
        own = self._listing.schema(name)
        return own if own is not None or self._base_schema is None else self._base_schema(name)

    async def _takes(self, ctx: RequestContext, tool: str, argument: str) -> bool:
        schema = self._base_schema(tool) if self._base_schema else None
        if schema is None:
            schema = await self._listing.base_schema(ctx, tool)
        return argument in schema.get("properties", {})

    def _lifespan(self, inner: Any) -> Any:
        """Return the server's lifespan with the store's around it; in process it is entered once a client."""

        @asynccontextmanager
        async def lifespan(server: Server[Any]) -> AsyncGenerator[Any]:
            self._users += 1
            self.reopen()
            try:
                context: AbstractAsyncContextManager[Any] = inner(server)
                async with in_use(self._layers), context as state, self._upkeep(), self._swarm():
                    yield state
            finally:
                self._users -= 1
                await self._close()

        return lifespan

    @asynccontextmanager
    async def _swarm(self) -> AsyncGenerator[None]:
        if self._handover is None:
            yield
            return
        async with self._handover.gateway:
            yield

    @asynccontextmanager
    async def _upkeep(self) -> AsyncGenerator[None]:
        if self.bindings is None or self.store is None:
            yield
            return
        timers = not self.bindings.machine.bare
        living = upkeep(self._workflows, self.options.passage, timers=timers)
        async with self._replicas.joined(self.store), self._outage.watched(), living:
            yield

    @property
    def parts(self) -> dict[str, Callable[[], Awaitable[bool]]]:
        """What has to work for the server to do its work, by name; each tells whether it does, and never raises."""
        found: dict[str, Callable[[], Awaitable[bool]]] = {}
        if self.bindings is not None:
            found["store"] = self._store_answers
        if self._handover is not None:
            found["gateway"] = partial(self._handover.gateway.answers, ANSWER_WITHIN)
        return found

    async def _store_answers(self) -> bool:
        return self._users > 0 and await self._workflows.answers(ANSWER_WITHIN)

    async def _close(self) -> None:
        """Close the store that was opened here, when nobody uses it any more; one in memory stays."""
        if self._users == 0 and self.store and self._url and not self._url.startswith("memory:"):
            self._closed = True  # before the wait, so that whoever comes meanwhile opens it again
            await self.store.aclose()

    def reopen(self) -> None:
        """Open the store again that was closed when the last client had gone."""
        if self._closed and self._url is not None:
            self._closed = False
            self.use_store(self._url)


def attachment_of(server: Any) -> Attachment | None:
    """Return what was attached to a server, None when nothing was.

    Raises:
        TypeError: The server is of no kind that can be attached to.
    """
    return getattr(lowlevel_of(server), _ATTACHED, None)


@contextmanager
def _untold() -> Generator[None]:
    """Tell the client nothing of why a menu cannot be worked out; the log knows."""
    try:
        yield
    except (ScopeError, StoreUnavailable) as error:
        if isinstance(error, ScopeError):  # the other was logged where it happened
            _log.exception("a caller has no scope")
        raise MCPError(types.INTERNAL_ERROR, "The menu cannot be worked out now; try again") from None


def attach(
    server: Any,
    *,
    actions: ActionRegistry | None = None,
    gate: StateMachineGate | None = None,
    store: Store = "memory://",
    middleware: Iterable[Middleware] = (),
    options: GateOptions | None = None,
    gateway: SwarmGateway | None = None,
) -> Attachment:
    """Give a server actions, a gate or both. Tools, resources and prompts it has already stay.

    Args:
        server: The SDK's `Server` or `MCPServer`, or `fastmcp.FastMCP`.

    Raises:
        BindingError: A binding does not fit the machine, or there are bindings and no machine.
        ValueError: The server is attached already, or the store's URL is wrong.
        TypeError: The server is of no kind that can be attached to.
    """
    registry = actions if actions is not None else ActionRegistry()
    return Attachment(server, registry, gate, store, list(middleware), options or GateOptions(), gateway)
