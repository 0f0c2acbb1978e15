"""`subscriptions/listen` (2026-07-28): a stream that hears when its own caller's menu changed."""

from collections.abc import Awaitable, Callable
from typing import Any

import mcp_types as types
from mcp.server.lowlevel.server import HandlerEntry
from mcp.server.subscriptions import ListenHandler, ServerEvent, SubscriptionBus, ToolsListChanged
from mcp.shared.exceptions import MCPError

from mcpfusion.wire.request import RequestContext, connection_of, current_request

MAX_STREAMS = 1024
"""Listen streams a server holds at once."""

Send = Callable[[], Awaitable[None]]
Listen = Callable[[RequestContext, Send], Awaitable[Callable[[], None]]]
"""Begins to tell a stream of its caller's changes; returns what ends that."""


class _OneStream:
    """The bus of a single listen stream: its own caller's changes, and whatever the server publishes itself."""

    def __init__(self, bus: SubscriptionBus | None) -> None:
        self._bus = bus
        self._deliver: Callable[[ServerEvent], None] | None = None

    async def changed(self) -> None:
        """Tell the stream that its caller's list changed."""
        if self._deliver is not None:
            self._deliver(ToolsListChanged())

    async def publish(self, event: ServerEvent) -> None:
        """Nothing is published here; the events come from the audience and the server's own bus."""

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """Deliver both sources to `listener`."""
        self._deliver = listener
        return (lambda: None) if self._bus is None else self._bus.subscribe(listener)


def bus_of(entry: HandlerEntry[Any] | None) -> SubscriptionBus | None:
    """Return the bus behind a server's own listen handler, or None when it has none.

    Raises:
        TypeError: The handler is not the SDK's, so that its stream cannot be shared.
    """
    if entry is None:
        return None
    if isinstance(entry.handler, ListenHandler):
        return entry.handler._bus  # pyright: ignore[reportPrivateUsage]
    raise TypeError(
        "the server answers subscriptions/listen with a handler of its own, on which menu changes cannot be "
        "delivered; register the SDK's ListenHandler instead"
    )


class Listening:
    """Serves `subscriptions/listen`."""

    def __init__(self, bus: SubscriptionBus | None, listen: Listen) -> None:
        self._bus = bus
        self._listen = listen
        self._open = 0

    async def __call__(
        self, ctx: RequestContext, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Serve one stream until the client leaves."""
        if self._open >= MAX_STREAMS:
            raise MCPError(types.INTERNAL_ERROR, "Subscription limit reached")
        self._open += 1
        leave: Callable[[], None] | None = None
        try:
            stream = _OneStream(self._bus)
            if params.notifications.tools_list_changed:
                leave = await self._listen(ctx, stream.changed)
            return await ListenHandler(stream)(ctx, params)
        finally:
            self._open -= 1
            if leave is not None:
                leave()


def sender_of(ctx: RequestContext) -> Send:
    """Return what tells a session that its list changed: on the stream it is reading right now, or on its own."""
    connection, session = connection_of(ctx), ctx.session

    async def send() -> None:
        request = current_request.get()
        related = None
        if request is not None and connection_of(request) is connection and request.session.can_send_request:
            related = request.request_id
        channel = request.session if request is not None and related is not None else session
        await channel.send_notification(types.ToolListChangedNotification(), related_request_id=related)

    return send
