"""Connections of routes: made within a time limit, a token for every request, and ended with what they carried."""

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio

from mcpfusion import telemetry
from mcpfusion.swarm import observing
from mcpfusion.swarm.errors import HandoffError
from mcpfusion.swarm.handoffs import Handoff
from mcpfusion.swarm.keyring import Secrets
from mcpfusion.swarm.open import SwarmStores
from mcpfusion.swarm.return_trip import visible_text
from mcpfusion.swarm.routes import Route
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

LIST_ACT = Act.of("tools/list", {})


@dataclass(frozen=True, slots=True)
class Passing:
    """What goes through with a call: the caller's `_meta` without the gateway's own entries, progress, questions."""

    meta: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    traceparent: str | None = None
    progress: SendProgress | None = None
    ask: Ask | None = None
    input_responses: Mapping[str, Any] | None = field(default=None, repr=False)
    request_state: str | None = field(default=None, repr=False)


class Connections:
    """Makes, uses and ends the connections of a gateway's routes.

    Args:
        issuer: The gateway's name.
        reserved: Names that no specialist's tool may have on the wire.
        state_ttl: Seconds that carried state is kept after its last use.
    """

    connector: Connector | None = None
    stores: SwarmStores

    def __init__(
        self,
        issuer: str,
        secrets: Secrets,
        *,
        token_ttl: float,
        connect_timeout: float,
        state_ttl: float,
        reserved: frozenset[str],
    ) -> None:
        self._issuer = issuer
        self._secrets = secrets
        self._token_ttl = token_ttl
        self._connect_timeout = connect_timeout
        self._state_ttl = state_ttl
        self._reserved = reserved

    async def carry(self, route: Route, handoff: Handoff) -> dict[str, Any]:
        """Return the claims that carry a handoff's state along; state that is too large for a token is stored.

        Raises:
            HandoffError: It is too large, and the specialist does not see the store.
        """
        if handoff.carry_over_state is None:
            return {}
        states = self.stores.states
        claims = await carried(handoff.carry_over_state, states, self._state_ttl, lambda: str(uuid.uuid4()))
        if "state_id" in claims and not states.shared and not route.specialist.in_process:
            await states.delete(claims["state_id"])
            raise HandoffError(
                "STATE_NOT_SHARED",
                "the carried state is too large for the token, and the gateway's store is in its own memory: "
                "give gateway and specialist a shared store (store='sqlite:///…')",
            )
        route.state_kept_at = time.monotonic()
        return claims

    async def _keep_state(self, route: Route) -> None:
        """Keep carried state for as long as the handoff is in use, not for as long as it was when it began."""
        now = time.monotonic()
        if "state_id" in route.state and now - route.state_kept_at > self._state_ttl / 8:
            route.state_kept_at = now
            state = await self.stores.states.get(route.state["state_id"])
            if state is not None:
                await self.stores.states.set(route.state["state_id"], state, self._state_ttl)

    async def connect(self, route: Route, changed: Callable[[], None]) -> None:
        """Connect and list, within the connect timeout. `changed` is called when the specialist's list changed.

        Raises:
            HandoffError: It cannot be done.
        """
        if self.connector is None:
            raise RuntimeError("the gateway is not running: serve it, or enter it with `async with gateway:`")
        try:
            with anyio.fail_after(self._connect_timeout):
                renew = self._renew(route)
                route.upstream = await self.connector.connect(route.domain, route.specialist, renew, changed)
                await self.list_tools(route)
        except TimeoutError:
            raise HandoffError(
                "UPSTREAM_TIMEOUT", f"specialist {route.domain!r} did not answer within {self._connect_timeout:g} s"
            ) from None
        except UpstreamError as error:
            _log.warning("specialist %r cannot be reached: %s", route.domain, telemetry.kind_of(error))
            if error.answer is not None:
                said = visible_text(error.answer, 200)
                raise HandoffError("UPSTREAM_REFUSED", f"specialist {route.domain!r} refused: {said}") from None
            raise HandoffError("UPSTREAM_UNAVAILABLE", f"specialist {route.domain!r} cannot be reached") from None

    async def list_tools(self, route: Route) -> None:
        """List the specialist's tools again, under its namespace, as far as it is trusted.

        Raises:
            UpstreamError: It does not answer.
            HandoffError: What it lists cannot be told apart.
        """
        with observing.request(route.domain, "tools/list", route.traceparent):
            listed = await self.upstream(route).list_tools(self._renew(route))
        trusted = await trusted_tools(route.domain, route.specialist, listed, self.stores.pins)
        try:
            tools = route.rewriter.rewrite_tools(trusted)
        except ValueError as error:
            raise HandoffError("UPSTREAM_REFUSED", str(error)) from None
        # A specialist must not offer what leads back, or to itself, under the gateway's own name.
        route.tools = [tool for tool in tools if tool["name"] not in self._reserved]
        for name in route.rewriter.too_long():
            _log.warning("tool name %r is longer than many clients accept", name)

    def _renew(self, route: Route) -> Renew:
        """Return what gives requests for the list of a route's tools, each with a token of its own."""
        return partial(self.request, route, LIST_ACT, Passing(traceparent=route.traceparent))

    async def request(self, route: Route, act: Act, passing: Passing) -> UpstreamRequest:
        """Return a request with a token of its own."""
        await self._keep_state(route)
        traceparent = telemetry.traceparent() or passing.traceparent or route.traceparent
        token = await mint_delegation_token(
            route.domain,
            self._token_ttl,
            Secrets(route.specialist.secret) if route.specialist.secret is not None else self._secrets,
            self._issuer,
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

    def upstream(self, route: Route) -> Upstream:
        """Return a route's connection.

        Raises:
            UpstreamError: It is closed.
        """
        if route.upstream is None:
            raise UpstreamError("the connection is closed", refused=True)
        return route.upstream

    async def release(self, route: Route) -> None:
        """End this process's connection of a route, within a time limit. Never raises."""
        upstream, route.upstream = route.upstream, None
        if upstream is None:
            return
        try:
            with anyio.move_on_after(self._connect_timeout):
                await upstream.aclose()
        except Exception:
            _log.warning("the end of the connection to %r was not clean", route.domain, exc_info=True)

    async def close(self, route: Route) -> None:
        """The handoff is over: end its connection and forget its state, within a time limit. Never raises."""
        await self.release(route)
        if "state_id" not in route.state:
            return
        try:
            with anyio.move_on_after(self._connect_timeout):
                await self.stores.states.delete(route.state["state_id"])
        except Exception:  # it runs out in the store
            _log.warning("the state that was carried to %r cannot be deleted now", route.domain, exc_info=True)
