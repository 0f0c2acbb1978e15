"""The server in a module, of whichever kind, made ready to run."""

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import click

from mcpfusion.cli import load

_USUAL = ("server", "mcp", "app", "f", "fusion")

Run = Callable[..., None]
"""Called with the transport and, for http, `host` and `port`; returns when the server has ended."""


def server_in(module: ModuleType, name: str | None, store: str | None) -> Run:
    """Return what runs the server called `name`, or the one that is there, with its workflows in `store`.

    Where there are several kinds, a server of ours comes first, then one of the SDK's or of FastMCP's, then a
    Fusion, of which a server is made: that is the order from the most to the least finished.

    Raises:
        click.ClickException: There is none, there are several, or it cannot have this store.
    """
    kinds = (_ours, _theirs, _fusion)
    if name is None:
        values = list(vars(module).values())
        pick = next((kind for kind in kinds if any(kind(value) for value in values)), _ours)
    else:
        pick = _any
    found = load.find(module, name, pick, what="server", usual=_USUAL)
    try:
        return _ready(found, store)
    except (ValueError, TypeError) as error:
        raise click.ClickException(f"cannot make the server: {error}") from error


def _ready(found: Any, store: str | None) -> Run:
    if _ours(found):
        if store is not None:
            found.use_store(store)
        return found.run
    if _fusion(found):
        return (found.server() if store is None else found.server(store=store)).run
    if store is not None:
        _keep_in(found, store)
    return partial(_run_theirs, found)


def _keep_in(server: Any, store: str) -> None:
    from mcpfusion.wire.attachment import attachment_of

    attachment = attachment_of(server)
    if attachment is None:
        raise ValueError("the server has no gate, so that there is nothing to store")
    attachment.use_store(store)


def _run_theirs(server: Any, transport: str, **where: Any) -> None:
    if transport == "http":
        _serve_theirs(server, **where)
    elif hasattr(server, "http_app"):  # FastMCP
        server.run(transport, show_banner=False)
    else:
        server.run(transport)


def _serve_theirs(server: Any, host: str, port: int) -> None:
    """Serve over HTTP as a server of ours is: with its probes, its logs and its way of stopping."""
    import anyio

    from mcpfusion.wire.anonymous import authenticates, check_anonymous
    from mcpfusion.wire.answering import Answering
    from mcpfusion.wire.attachment import attachment_of
    from mcpfusion.wire.health import health_routes
    from mcpfusion.wire.server import http_app_of, serve_http

    attachment = attachment_of(server)
    app = http_app_of(server, host)
    if attachment is not None:
        check_anonymous(attachment, host, authenticated=authenticates(server))
        app.router.routes.extend(health_routes(attachment))  # last, so that a route of the server's own comes first
    anyio.run(serve_http, app, host, port, attachment.answering if attachment else Answering())


# Told by what they can do, so that nothing of the SDK is imported to find out.
def _ours(value: Any) -> Any:
    is_server = not isinstance(value, type) and hasattr(value, "lowlevel") and hasattr(value, "run")
    return value if is_server else None


def _theirs(value: Any) -> Any:
    is_server = not isinstance(value, type) and hasattr(value, "run_stdio_async") and hasattr(value, "run")
    return value if is_server else None


def _fusion(value: Any) -> Any:
    from mcpfusion.fusion import Fusion

    return value if isinstance(value, Fusion) else None


def _any(value: Any) -> Any:
    return _ours(value) or _theirs(value) or _fusion(value)
