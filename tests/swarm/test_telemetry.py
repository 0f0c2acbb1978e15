"""What operators see of a gateway: the trace goes on at the specialist, and handoffs are counted."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from mcpfusion.swarm import connections, mint_delegation_token
from tests.support.recording import Recording, recording
from tests.support.serving import ERAS, http_client
from tests.swarm.parts import SECRET, served, specialist, triage

pytestmark = pytest.mark.anyio

CANARY = "canary-of-the-carried-state"
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recording]:
    with recording(monkeypatch) as recorded:
        yield recorded


@pytest.mark.parametrize("mode", ERAS)
async def test_a_handoff_is_one_trace_and_is_counted(
    mode: str, seen: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens: list[str] = []

    async def minted(*given: Any, **options: Any) -> str:
        tokens.append(await mint_delegation_token(*given, **options))
        return tokens[-1]

    monkeypatch.setattr(connections, "mint_delegation_token", minted)
    async with served(specialist("finance")) as (upstream,):
        gateway = triage({"finance": upstream})
        async with served(gateway) as (url,), http_client(url, mode) as client:
            meta = {"traceparent": TRACEPARENT}
            made = await client.call_tool("triage.route", {"domain": "finance", "context": CANARY}, meta=meta)
            handoff = made.structured_content["handoff"]
            extra = {"handoff_id": handoff["handoff_id"]} if "handoff_id" in handoff else {}
            paid = await client.call_tool("finance.pay.refund", {"amount": 7, **extra}, meta=meta)
            assert paid.structured_content["amount"] == 7
            assert [n for at, n in seen.metric("mcpfusion.swarm.handoffs.active")] == [1]
            async with httpx2.AsyncClient() as http:
                ready = await http.get(url.removesuffix("/mcp") + "/readyz")
            assert ready.json() == {"status": "ok", "checks": {"gateway": "ok"}}
    (call,) = [s for s in seen.spans("swarm.upstream") if s.attributes["mcp.method.name"] == "tools/call"]
    assert f"{call.context.trace_id:032x}" == paid.structured_content["traceparent"][3:35]
    assert call.attributes["gen_ai.tool.name"] == "pay.refund"
    assert call.attributes["mcpfusion.specialist"] == "finance"
    assert call.attributes["mcpfusion.outcome"] == "answered"
    # The token carries the span's own context, so that the specialist's spans are below it.
    assert paid.structured_content["traceparent"][36:52] == f"{call.context.span_id:016x}"
    assert seen.metric("mcpfusion.swarm.handoffs") == [
        ({"mcpfusion.specialist": "finance", "mcpfusion.outcome": "made"}, 1)
    ]
    assert {at["mcp.method.name"] for at, _ in seen.metric("mcp.client.operation.duration")} == {
        "tools/list",
        "tools/call",
    }
    everything = seen.everything()
    assert CANARY not in everything
    assert SECRET not in everything
    assert len(tokens) >= 2  # for the list, and for the call
    for token in tokens:
        for part in token.split("."):
            assert part not in everything
    assert json.dumps(seen.logs()).count("x-mcpfusion-delegation") == 0


async def test_a_specialist_that_is_away_is_counted(seen: Recording) -> None:
    gateway = triage({"finance": "http://127.0.0.1:9/mcp"})
    async with served(gateway) as (url,), http_client(url, ERAS[1]) as client:
        made = await client.call_tool("triage.route", {"domain": "finance"})
        assert made.structured_content["code"] == "UPSTREAM_UNAVAILABLE"
    assert seen.metric("mcpfusion.swarm.handoffs") == [
        ({"mcpfusion.specialist": "finance", "mcpfusion.outcome": "UPSTREAM_UNAVAILABLE"}, 1)
    ]
