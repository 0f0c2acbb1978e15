"""No secret, token or carried state is in what is logged or answered while conversations go well and badly."""

import logging
from typing import Any

import pytest

from mcpfusion import Fusion, handoff
from mcpfusion.swarm import SwarmGateway
from tests.support.serving import ERAS, http_client
from tests.swarm.faults import fronted
from tests.swarm.parts import SECRET, Talk, served, specialist, talk

pytestmark = pytest.mark.anyio

PRIVATE = "PRIVATE-STATE-5d1f"
HEADER = "x-mcpfusion-delegation"
CALL: tuple[str, dict[str, Any]] = ("pay.count", {"label": "a", "steps": 2})


def gateway_server(url: str) -> Any:
    f = Fusion("triage")

    @f.action("triage.route").describe("Route").handle
    async def route(domain: str, context: str = "") -> Any:
        return handoff(domain, carry_over_state={"who": PRIVATE})

    return f.server(swarm_gateway=SwarmGateway({"finance": url}, SECRET, "triage", connect_timeout_ms=20_000))


@pytest.mark.parametrize("handshake", [False, True], ids=["stateless", "sessions"])
async def test_nothing_of_a_handoff_is_logged_or_answered(handshake: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    answers: list[Any] = []

    async def converse(client: Talk) -> None:
        tool, arguments = f"finance.{CALL[0]}", CALL[1]
        answers.append(await client.route("finance"))
        answers.append(await client.call(tool, arguments))
        answers.append(await client.call("finance.pay.refund", {"amount": "wrong"}))
        answers.append(await client.call("finance.nope"))
        for mode in ("garbage", "500", "break"):
            front.mode, front.only = mode, "tools/call"
            answers.append(await client.call(tool, arguments))
        front.mode = "ok"
        answers.append(await client.back())
        answers.append(await client.route("nobody"))
        front.mode, front.only = "500", None
        answers.append(await client.route("finance"))
        front.mode = "ok"

    async with fronted(specialist(), handshake=handshake) as (url, front), served(gateway_server(url)) as (gate,):
        for era in ERAS:
            async with talk(gate, era) as client:
                await converse(client)
        ((done, *_), *_) = [
            (headers[HEADER], body)
            for method, headers, body in front.requests
            if method == "tools/call" and body["params"]["name"] == CALL[0]
        ]
        for wrong in (done, done[:-4] + "AAAA"):  # replayed and forged
            async with http_client(url, "2026-07-28", headers={HEADER: wrong}) as direct:
                answers.append(await direct.call_tool(*CALL))
    used = {headers[HEADER] for _, headers, _ in front.requests if HEADER in headers}
    assert len(used) > 10
    assert "REPLAYED_DELEGATION_TOKEN" in caplog.text
    assert "INVALID_SIGNATURE" in caplog.text
    said = caplog.text + "".join(f"{answer!r}" for answer in answers)
    assert "finance" in said
    for private in (SECRET, PRIVATE, *used, *(token.partition(".")[2] for token in used)):
        assert private not in said
