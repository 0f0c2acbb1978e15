"""Clearance: what a specialist demands before it lets anybody see or call its tools."""

import logging
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import anyio

from mcpfusion.actions.context import Context
from mcpfusion.actions.middleware import Call, CallNext, Middleware
from mcpfusion.actions.results import ToolResult, error_result
from mcpfusion.swarm.errors import HandoffAuthError
from mcpfusion.swarm.keyring import Secrets
from mcpfusion.swarm.open import SwarmStores, open_swarm_stores
from mcpfusion.swarm.state import HandoffStateStore, ReplayStore
from mcpfusion.swarm.tokens import MAX_LIFETIME, Act, Delegation, verify_delegation_token
from mcpfusion.swarm.upstream import DELEGATION_HEADER

_log = logging.getLogger(__name__)

LIST_ACT = "tools/list"
"""The act of a token that is for seeing the list."""

CLOSE_TIMEOUT = 5.0
"""Seconds that closing the stores may take."""

Cleared = dict[tuple["GatewayClearance", Act], Delegation]

cleared: ContextVar[Cleared | None] = ContextVar("cleared", default=None)
"""What was cleared for the request at hand: a call that asks the person and then runs again is still that call."""


class ClearanceStores:
    """Where a clearance looks. What it is given by URL is opened here, and closed when nobody serves with it any
    more; marks in memory stay.

    Args:
        store: Where large carried state is.
        replays: Where used tokens are marked.

    Raises:
        ValueError: A URL names no store.
    """

    def __init__(self, store: str | HandoffStateStore | None, replays: str | ReplayStore) -> None:
        self._store = store
        self._replays = replays
        self._opened: dict[str, SwarmStores] = {}
        self._users = 0
        for url in (store, replays):
            if isinstance(url, str):
                self._at(url)

    @property
    def states(self) -> HandoffStateStore | None:
        """Where large carried state is."""
        return self._at(self._store).states if isinstance(self._store, str) else self._store

    @property
    def replays(self) -> ReplayStore:
        """Where used tokens are marked."""
        return self._at(self._replays).replays if isinstance(self._replays, str) else self._replays

    @asynccontextmanager
    async def used(self) -> AsyncGenerator[None]:
        """Somebody serves with the clearance for as long as the context lasts."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                await self._close()

    def _at(self, url: str) -> SwarmStores:
        if url not in self._opened:  # the first time, or since it was closed
            self._opened[url] = open_swarm_stores(url)
        return self._opened[url]

    async def _close(self) -> None:
        # Taken out before the wait, so that whoever comes meanwhile opens them again.
        closing = [self._opened.pop(url) for url in list(self._opened) if not url.startswith("memory:")]
        with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
            for stores in closing:
                await stores.aclose()


class GatewayClearance:
    """Middleware that lets a call through only with a valid delegation. Made by `require_gateway_clearance`."""

    def __init__(
        self,
        secrets: Secrets,
        *,
        scope: str | None,
        audience: str | None,
        issuers: Sequence[str] | None,
        stores: "ClearanceStores",
        max_lifetime: float,
        covers_list: bool,
    ) -> None:
        self._secrets = secrets
        self._scope = scope
        self._audience = audience
        self._issuers = issuers
        self.stores = stores
        self._max_lifetime = max_lifetime
        self.covers_list = covers_list

    def __repr__(self) -> str:
        return f"<GatewayClearance for {self._scope or 'any scope'}>"

    async def __call__(self, call: Call, call_next: CallNext) -> ToolResult:
        """Verify the delegation before anything else sees the call, its arguments included."""
        context = call.context
        try:
            delegation = await self._once(context, Act.of(call.tool, call.arguments))
        except HandoffAuthError:
            return error_result("FORBIDDEN", "this server takes calls from its gateway only.")
        return await call_next(replace(call, context=context.again(handoff=delegation)))

    async def _once(self, context: Context, act: Act) -> Delegation:
        known = cleared.get()
        if known is None:
            return await self.check(context.headers, context.meta, act)
        if (self, act) not in known:
            known[self, act] = await self.check(context.headers, context.meta, act)
        return known[self, act]

    async def check(self, headers: Mapping[str, str], meta: Mapping[str, Any], act: Act) -> Delegation:
        """Return the delegation that a request carries.

        Raises:
            HandoffAuthError: There is none, or it is not accepted. The reason is logged.
        """
        try:
            return await verify_delegation_token(
                _token(headers, meta),
                self._secrets,
                scope=self._scope,
                audience=self._audience,
                issuers=self._issuers,
                store=self.stores.states,
                replays=self.stores.replays,
                act=act,
                max_lifetime=self._max_lifetime,
            )
        except HandoffAuthError as error:
            _log.warning("clearance refused for %r: %s", act.tool[:128], error)
            raise
        except Exception as error:
            _log.exception("clearance cannot be checked")
            raise HandoffAuthError("INVALID_DELEGATION_TOKEN", "it cannot be checked now") from error


@asynccontextmanager
async def in_use(layers: Iterable[Middleware]) -> AsyncGenerator[None]:
    """Somebody serves with this middleware for as long as the context lasts."""
    async with AsyncExitStack() as stack:
        for layer in layers:
            if isinstance(layer, GatewayClearance):
                await stack.enter_async_context(layer.stores.used())
        yield


def _token(headers: Mapping[str, str], meta: Mapping[str, Any]) -> str | None:
    value = headers.get(DELEGATION_HEADER) or meta.get(DELEGATION_HEADER)
    return value if isinstance(value, str) else None


def require_gateway_clearance(
    secret: "str | Sequence[str] | Secrets",
    *,
    scope: str | None = None,
    audience: str | None = None,
    issuers: Sequence[str] | None = None,
    store: "str | HandoffStateStore | None" = None,
    replays: "str | ReplayStore | None" = None,
    max_lifetime: float = MAX_LIFETIME,
    covers_list: bool = True,
) -> GatewayClearance:
    """Return middleware that demands a gateway's delegation for every call, and for the list of tools.

    Args:
        secret: Shared with the gateway; of several all are accepted.
        scope: The specialist's own name in the gateway's registry.
        audience: What a token's audience must be, where it has one.
        issuers: The gateways that are accepted, by name; None accepts all that hold the secret.
        store: Where large carried state is: a URL or a store, the same that the gateway was given.
        replays: Where used tokens are marked; a URL shares the marks between the processes that use it.
        max_lifetime: Longest lifetime of a token, in seconds.
        covers_list: Also demanded for `tools/list`.

    Raises:
        ValueError: A secret shorter than 32 bytes, or a URL that names no store.
    """
    return GatewayClearance(
        Secrets(secret),
        scope=scope,
        audience=audience,
        issuers=issuers,
        stores=ClearanceStores(store, replays or "memory://"),
        max_lifetime=max_lifetime,
        covers_list=covers_list,
    )
