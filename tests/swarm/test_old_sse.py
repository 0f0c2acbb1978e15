"""Specialists that speak the old HTTP+SSE transport."""

from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp.server.sse import SseServerTransport
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from tests.support.serving import ERAS, http_app
from tests.swarm.parts import code_of, gateway_to, specialist, talk, until

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def sse_specialist() -> Any:
    """Serve a specialist over the old transport alone; yields its URL and the open streams."""
    server = specialist()
    transport = SseServerTransport("/messages/")
    streams: list[int] = []

    async def stream(request: Request) -> Response:
        streams.append(1)
        try:
            async with transport.connect_sse(request.scope, request.receive, request._send) as (read, write):
                low = server.lowlevel
                await low.run(read, write, low.create_initialization_options())
        finally:
            streams.pop()
        return Response()

    app = Starlette(routes=[Route("/sse", stream), Mount("/messages/", app=transport.handle_post_message)])
    async with http_app(app) as origin:
        yield f"{origin}/sse", streams


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("transport", ["sse", "auto"])
async def test_a_specialist_of_the_old_transport_is_reached(era: str, transport: Any) -> None:
    async with (
        sse_specialist() as (url, streams),
        gateway_to({"finance": url}, upstream_transport=transport) as (gate, gateway),
        talk(gate, era) as client,
    ):
        result = await client.route("finance", "x")
        assert not result.is_error, result
        for amount in (1, 2):
            answer = await client.call("finance.pay.refund", {"amount": amount})
            assert answer.structured_content["state"] == {"intent": "x"}
        await client.back()
        assert gateway.session_count == 0
        await until(lambda: not streams)


async def test_one_that_is_set_to_http_is_not_tried_in_the_old_way() -> None:
    async with (
        sse_specialist() as (url, streams),
        gateway_to({"finance": {"url": url, "transport": "http"}}) as (gate, gateway),
        talk(gate, "legacy") as client,
    ):
        assert code_of(await client.route("finance")) == "UPSTREAM_UNAVAILABLE"
        assert gateway.session_count == 0
        assert streams == []
