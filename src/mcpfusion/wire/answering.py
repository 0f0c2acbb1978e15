"""Which requests a server is answering right now, so that it can stop when there are none."""

import anyio
from mcp.server.context import CallNext, HandlerResult

from mcpfusion.wire.request import RequestContext

_LOOK_EVERY = 0.05


class Answering:
    """A server's middleware that counts the requests being answered, streams that only listen apart."""

    def __init__(self) -> None:
        self._number = 0

    async def __call__(self, ctx: RequestContext, call_next: CallNext) -> HandlerResult:
        """Count one request while it is being answered."""
        if ctx.request_id is None or ctx.method == "subscriptions/listen":
            return await call_next(ctx)
        self._number += 1
        try:
            return await call_next(ctx)
        finally:
            self._number -= 1

    async def nothing(self) -> None:
        """Return once no request is being answered.

        That is so when it was so at two looks: one may have arrived and not begun, and an answer takes a moment to
        be sent.
        """
        quiet = 0
        while quiet < 2:
            await anyio.sleep(_LOOK_EVERY)
            quiet = 0 if self._number else quiet + 1
