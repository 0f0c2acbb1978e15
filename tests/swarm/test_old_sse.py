"""Specialists that speak the old HTTP+SSE transport."""

from typing import Any

import pytest

from tests.support.serving import ERAS
from tests.swarm.faults import over_sse
from tests.swarm.parts import code_of, gateway_to, specialist, talk, until

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("transport", ["sse", "auto"])
async def test_a_specialist_of_the_old_transport_is_reached(era: str, transport: Any) -> None:
    async with (
        over_sse(specialist()) as (url, streams),
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
        over_sse(specialist()) as (url, streams),
        gateway_to({"finance": {"url": url, "transport": "http"}}) as (gate, gateway),
        talk(gate, "legacy") as client,
    ):
        assert code_of(await client.route("finance")) == "UPSTREAM_UNAVAILABLE"
        assert gateway.session_count == 0
        assert streams == []
