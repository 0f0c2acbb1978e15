"""Gateways and specialists for the tests: as processes of their own, or served over real HTTP from this one.

As a script: `parts.py {http PORT|stdio} ROLE [STORE]`; a specialist's role is its scope.
"""

import base64
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
from mcp.client.streamable_http import streamable_http_client

from mcpfusion import Context, Fusion, handoff
from mcpfusion.swarm import SwarmGateway, require_gateway_clearance
from tests.gate.processes import end, start
from tests.support.serving import free_port, http_app, sdk_client

SECRET = "a-secret-that-only-these-servers-share-0001"
PATIENCE = 60
"""Seconds to wait for what must happen; a failure, not a measurement."""

PARTS = Path(__file__)
ROOT = PARTS.parents[2]

PIXEL = base64.b64encode(b"\x89PNG pixel").decode()


def specialist(
    name: str = "finance",
    *,
    secret: Any = SECRET,
    store: str | None = None,
    replays: str | None = None,
    **options: Any,
) -> Any:
    """Return a specialist's server."""
    f = Fusion(name)
    ran: list[str] = []

    @f.action("pay.refund").describe("Refund an invoice").handle
    async def refund(amount: int, ctx: Context) -> dict[str, Any]:
        ran.append("refund")
        return {"amount": amount, "by": name, **seen(ctx)}

    @f.action("pay.look").describe("Say what arrived").handle
    async def look(ctx: Context) -> dict[str, Any]:
        return {
            "headers": dict(ctx.headers),
            "meta": {key: value for key, value in ctx.meta.items() if isinstance(value, str | int | dict)},
            **seen(ctx),
        }

    @f.action("pay.size").describe("The size of the carried state").handle
    async def size(ctx: Context) -> int:
        return len((ctx.handoff.state or {}).get("blob", ""))

    @f.action("pay.count").describe("Report progress").handle
    async def count(label: str, steps: int, ctx: Context) -> str:
        for step in range(1, steps + 1):
            await ctx.progress(step, steps, f"{label} {step}")
        return label

    middleware = [require_gateway_clearance(secret, scope=name, store=store, replays=replays)] if secret else []
    server = f.server(middleware=middleware, **options)
    server.ran = ran
    return server


def seen(ctx: Context) -> dict[str, Any]:
    if not ctx.has_handoff:
        return {"handoff": None}
    h = ctx.handoff
    return {"state": h.state, "scope": h.scope, "tid": h.tid, "traceparent": h.traceparent, "issuer": h.issuer}


def triage(
    registry: dict[str, Any],
    *,
    name: str = "triage",
    clearance: Any = None,
    auth: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Return a gateway's server; its `swarm` is the gateway."""
    f = Fusion(name)

    @f.action(f"{name}.route").describe("Route the request to the right specialist").handle
    async def route(domain: str, context: str = "", size: int = 0) -> Any:
        state = {"intent": context, **({"blob": "x" * size} if size else {})}
        target = domain if "." in domain else f"mcp://{domain}-agent"
        return handoff(target, carry_over_state=state, reason=f"Triage to {domain}")

    @f.action(f"{name}.hello").describe("The gateway's own").handle
    async def hello() -> str:
        return f"hello from {name}"

    gateway = SwarmGateway(registry, SECRET, name, **{"connect_timeout_ms": 20_000, **options})
    server = f.server(swarm_gateway=gateway, middleware=[clearance] if clearance else [], **(auth or {}))
    server.swarm = gateway
    return server


@asynccontextmanager
async def served(*servers: Any) -> AsyncIterator[list[str]]:
    """Serve each over HTTP on a port of its own, and yield the URLs."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(http_app(server.asgi(host="127.0.0.1"))) + "/mcp" for server in servers
        ]


@asynccontextmanager
async def gateway_to(registry: dict[str, Any], **options: Any) -> AsyncIterator[tuple[str, SwarmGateway]]:
    """Serve a triage gateway over HTTP; when its clients are gone it must hold nothing any more."""
    server = triage(registry, **options)
    async with served(server) as (url,):
        yield url, server.swarm


class Talk:
    """One client's conversation with a gateway, in either era: it passes the handoff's id on where there is one."""

    def __init__(self, client: Any, gateway: str = "triage") -> None:
        self.client = client
        self.gateway = gateway
        self.extra: dict[str, Any] = {}

    async def names(self) -> list[str]:
        found, cursor = [], None
        while True:
            page = await self.client.list_tools(cursor=cursor)
            found += [tool.name for tool in page.tools]
            cursor = page.next_cursor
            if cursor is None:
                return found

    async def route(self, domain: str, context: str = "", **more: Any) -> Any:
        result = await self.client.call_tool(f"{self.gateway}.route", {"domain": domain, "context": context, **more})
        if not result.is_error:
            handoff_id = result.structured_content["handoff"].get("handoff_id")
            self.extra = {"handoff_id": handoff_id} if handoff_id else {}
        return result

    async def call(self, tool: str, arguments: dict[str, Any] | None = None, **options: Any) -> Any:
        return await self.client.call_tool(tool, {**(arguments or {}), **self.extra}, **options)

    async def back(self, summary: str = "done") -> Any:
        return await self.call(f"{self.gateway}.return_to_{self.gateway}", {"summary": summary})


@asynccontextmanager
async def talk(url: Any, mode: str, *, gateway: str = "triage", **options: Any) -> AsyncIterator[Talk]:
    # Without a look at the system's certificates, which takes longer than all the rest.
    async with httpx2.AsyncClient(verify=False, timeout=PATIENCE) as http:
        transport = streamable_http_client(url, http_client=http)
        async with sdk_client(transport, mode, **options) as client:
            yield Talk(client, gateway)


async def until(condition: Callable[[], bool]) -> None:
    """Return when the condition holds."""
    with anyio.fail_after(PATIENCE):
        while not condition():  # noqa: ASYNC110 - what is watched has no event
            await anyio.sleep(0.02)


def text_of(result: Any) -> str:
    return "\n".join(block.text for block in result.content if block.type == "text")


def code_of(result: Any) -> str:
    """Return the code of a failed call."""
    assert result.is_error, result
    return text_of(result).partition(":")[0]


def be_specialist(port: int, *args: Any) -> None:
    """Be a process that is one."""
    specialist(args[0], store=args[1] if len(args) > 1 else None).run("http", port=port)


@contextmanager
def process(serve: Callable[..., None], *args: Any, port: int | None = None) -> Iterator[tuple[str, Any]]:
    """Run `serve(port, *args)` in a process of its own; yields its URL and the process, once it answers."""
    port = port or free_port()
    running = start(serve, port, *args)
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                httpx2.get(f"http://127.0.0.1:{port}/", timeout=1)
                break
            except httpx2.TransportError:
                if time.monotonic() > deadline or not running.is_alive():
                    raise
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp", running
    finally:
        end(running)


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    where = {"port": int(rest.pop(0))} if kind == "http" else {}
    role, *more = rest
    specialist(role, store=more[0] if more else None).run(kind, **where)
