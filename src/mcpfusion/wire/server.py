"""A server of our own, or one that a user brought: over stdio, over HTTP, or in any ASGI host."""

import gc
import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from mcp.server import Server
from mcp.server.stdio import stdio_server

from mcpfusion.actions.middleware import Middleware
from mcpfusion.gate.gate import StateMachineGate
from mcpfusion.stores.protocol import VersionedFsmStateStore
from mcpfusion.wire.anonymous import authenticates, check_anonymous, is_loopback
from mcpfusion.wire.answering import Answering
from mcpfusion.wire.attachment import Attachment, attach
from mcpfusion.wire.health import health_routes
from mcpfusion.wire.options import Store, options_of

if TYPE_CHECKING:
    from mcpfusion.fusion import Fusion
    from mcpfusion.swarm.gateway import SwarmGateway

SHUTDOWN_GRACE = 5
"""Seconds that open requests have when the HTTP server is told to stop; a step that takes longer is in doubt."""


class FusionServer:
    """A server with its actions and gate, ready to run. Made by `Fusion.server`.

    Attributes:
        base: The server the actions were added to.
        lowlevel: The SDK's low-level server inside: `mcp.Client(server.lowlevel)` talks to it in process.
    """

    def __init__(
        self,
        fusion: "Fusion",
        *,
        gate: StateMachineGate | None,
        store: Store,
        base: Any,
        middleware: Sequence[Middleware],
        auth: Any,
        token_verifier: Any,
        gateway: "SwarmGateway | None",
        options: dict[str, Any],
    ) -> None:
        if base is not None and (auth is not None or token_verifier is not None):
            raise ValueError("auth belongs to the server given as base; set it there")
        if (auth is None) != (token_verifier is None):
            raise ValueError("auth and token_verifier go together: give both or neither")
        self.base = _new_server(fusion) if base is None else base
        self._auth = {} if auth is None else {"auth": auth, "token_verifier": token_verifier}
        self.attachment: Attachment = attach(
            self.base,
            actions=fusion.registry(),
            gate=gate,
            store=store,
            middleware=middleware,
            options=options_of(**options),
            gateway=gateway,
        )
        self.lowlevel = self.attachment.lowlevel

    def __repr__(self) -> str:
        return f"FusionServer({self.lowlevel.name!r})"

    @property
    def store(self) -> VersionedFsmStateStore | None:
        """Where the workflows are; None without a gate."""
        self.attachment.reopen()
        return self.attachment.store

    def use_store(self, url: str) -> None:
        """Keep the workflows elsewhere than the server was made with. Before it runs.

        Raises:
            ValueError: The URL names no store, or the server has no gate.
        """
        self.attachment.use_store(url)

    def asgi(self, *, host: str | None = None, path: str = "/mcp", health: bool = True, **options: Any) -> Any:
        """Return an ASGI app that serves MCP over streamable HTTP at `path`.

        Args:
            host: The address it will be reachable at, where that is known: the loopback addresses turn the
                protection against DNS rebinding on, others refuse callers who would share one workflow.
            health: Serve `/healthz` and `/readyz` beside it, unless the server has such routes itself.
            options: Passed on to the server's own maker of HTTP apps.

        Raises:
            AnonymousCallersError: See `host`.
        """
        check_anonymous(self.attachment, host, authenticated=bool(self._auth) or authenticates(self.base))
        app = http_app_of(self.base, host, path, **self._auth, **options)
        if health:
            app.router.routes.extend(health_routes(self))  # last, so that a route of the user's own comes first
        return app

    def run(self, transport: str = "stdio", *, host: str = "127.0.0.1", port: int = 8000, **options: Any) -> None:
        """Run until the client leaves (stdio) or the process is told to stop (http).

        Args:
            transport: `stdio` or `http`.
            host: The address to listen on, for http.
            port: The port to listen on, for http; 0 picks a free one.
            options: As `asgi` takes them, for http.

        Raises:
            ValueError: Another transport.
            AnonymousCallersError: The address is not loopback and callers would share one workflow.
        """
        if transport == "stdio":
            _settle_memory()
            anyio.run(self.run_stdio)
        elif transport == "http":
            anyio.run(partial(self.run_http, host, port, **options))
        else:
            raise ValueError(f"transport {transport!r}: expected 'stdio' or 'http'")

    async def run_stdio(self) -> None:
        """Serve one client over the process's standard input and output."""
        if hasattr(self.base, "run_stdio_async") and not isinstance(self.base, Server):
            quiet = {"show_banner": False} if hasattr(self.base, "http_app") else {}
            await self.base.run_stdio_async(**quiet)
            return
        async with stdio_server() as (read, write):
            await self.lowlevel.run(read, write, self.lowlevel.create_initialization_options())

    async def run_http(self, host: str = "127.0.0.1", port: int = 8000, **options: Any) -> None:
        """Serve over streamable HTTP at `/mcp`, with `/healthz` and `/readyz`, until the process is told to stop."""
        await serve_http(self.asgi(host=host, **options), host, port, self.attachment.answering)


def http_app_of(server: Any, host: str | None = None, path: str = "/mcp", **options: Any) -> Any:
    """Return the ASGI app that a server of any kind makes of itself; `host` and `options` as `FusionServer.asgi` has
    them."""
    if (http_app := getattr(server, "http_app", None)) is not None:  # FastMCP
        guard = {"host_origin_protection": True} if host is not None and is_loopback(host) else {}
        return http_app(path=path, **{**guard, **options})
    options = {"streamable_http_path": path, "host": host or "0.0.0.0", **options}  # noqa: S104 - names no address to bind
    return server.streamable_http_app(**options)


async def serve_http(app: Any, host: str, port: int, answering: Answering) -> None:
    """Serve an ASGI app until the process is told to stop, and then what `answering` has to answer still."""
    import uvicorn

    from mcpfusion.wire.stopping import HttpServer

    # Where the process's logs are set up, what uvicorn has to say goes there too.
    logs: dict[str, Any] = {"log_config": None} if logging.getLogger().handlers else {}
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        timeout_graceful_shutdown=SHUTDOWN_GRACE,
        lifespan="on",
        **logs,
    )
    _settle_memory()
    await HttpServer(config, answering).serve()


def _new_server(fusion: "Fusion") -> Server[Any]:
    server: Server[Any] = Server(
        fusion.name, version=fusion.version, title=fusion.title, instructions=fusion.instructions
    )
    if fusion.lifespan is not None:
        server.lifespan = fusion.lifespan
    return server


def _settle_memory() -> None:
    """Take what start-up made out of the collector's sight, so that a full collection makes no request wait."""
    gc.collect()
    gc.freeze()
