"""The trace of a request, where a client names it in an HTTP header instead of in `_meta`."""

from mcp.server.context import CallNext, HandlerResult

from mcpfusion import telemetry
from mcpfusion.wire.request import RequestContext


async def continue_trace(ctx: RequestContext, call_next: CallNext) -> HandlerResult:
    """Let everything below be a part of the trace that the request came with (W3C Trace Context).

    The SDK looks in `_meta` (SEP-414), and that comes first here too.
    """
    headers = getattr(ctx.request, "headers", None)
    given = headers.get("traceparent") if headers is not None else None
    if given is None or "traceparent" in (ctx.meta or {}):
        return await call_next(ctx)
    with telemetry.continued(given):
        return await call_next(ctx)
