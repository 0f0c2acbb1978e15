"""Gating a server as it stands: its tools are there already, and only the gate is new."""

from collections.abc import Iterable
from typing import Any

from mcpfusion.actions.middleware import Middleware
from mcpfusion.gate.gate import StateMachineGate
from mcpfusion.wire.attachment import Attachment, attach
from mcpfusion.wire.options import Store, options_of


def gate_server(
    server: Any,
    gate: StateMachineGate,
    *,
    store: Store = "memory://",
    middleware: Iterable[Middleware] = (),
    **options: Any,
) -> Attachment:
    """Gate the tools that a server has already, by the names that `gate.bind_tool` was given.

    Args:
        server: `fastmcp.FastMCP`, the SDK's `MCPServer`, or its low-level `Server`. It is gated where its
            clients reach it: calls that go past that door, from a server it is mounted in, are not seen.
        gate: The machine and the bindings.
        store: Where workflows are kept: a URL, or a store of one's own.
        middleware: Async callables around every call, the first one outermost.
        options: How to gate, see `mcpfusion.wire.options.GateOptions`.

    Raises:
        TypeError: A server or an option that there is not.
        ValueError: The server is gated already, or the store's URL is wrong.
    """
    return attach(server, gate=gate, store=store, middleware=middleware, options=options_of(**options))
