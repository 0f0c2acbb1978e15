"""The code that users of a gateway are promised: it runs as it is written, in processes over HTTP, in both eras."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.support.serving import ERAS, http_process, sdk_client
from tests.swarm.parts import SECRET, Talk, code_of, served, text_of

pytestmark = pytest.mark.anyio

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

# From here to the end of the string: word for word.
GATEWAY = """
from mcpfusion import Fusion, handoff
from mcpfusion.swarm import SwarmGateway, require_gateway_clearance

# gateway.py
f = Fusion("triage")

@f.action("triage.route").describe("Route the request to the right specialist").handle
async def route(domain: Literal["finance", "support"], context: str):
    return handoff(f"mcp://{domain}-agent", carry_over_state={"intent": context},
                   reason=f"Triage to {domain}", model_hint="balanced")

gateway = SwarmGateway(
    registry={"finance": "http://127.0.0.1:8081/mcp", "support": "http://127.0.0.1:8082/mcp"},
    delegation_secret=os.environ["MCPFUSION_DELEGATION_SECRET"],
    gateway_name="triage", token_ttl_seconds=60, connect_timeout_ms=5_000,
    idle_timeout_ms=300_000, max_sessions=100,
)
server = f.server(swarm_gateway=gateway)
"""

# The same.
FINANCE = """
server = f.server(middleware=[require_gateway_clearance(os.environ["MCPFUSION_DELEGATION_SECRET"], scope="finance")])
"""

ACTIONS = """
from mcpfusion import Context, Fusion
from mcpfusion.swarm import require_gateway_clearance

f = Fusion("finance")

@f.action("pay.refund").describe("Refund").handle
async def refund(amount: int, ctx: Context) -> dict:
    h = ctx.handoff
    return {"amount": amount, "state": h.state, "scope": h.scope, "tid": h.tid, "traceparent": h.traceparent,
            "issuer": h.issuer}
"""

RUN = """
if __name__ == "__main__":
    server.run("http", port=int(sys.argv[2]))
"""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Run triage, finance and support; yields the URLs of the first two."""
    head = "import os\nimport sys\nfrom typing import Literal\n"
    specialist = head + ACTIONS + FINANCE + RUN
    files = {"finance": specialist, "support": specialist.replace('"finance"', '"support"')}
    env = {"MCPFUSION_DELEGATION_SECRET": SECRET}
    with ExitStack() as stack:
        urls = []
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text)
            urls.append(stack.enter_context(http_process(tmp_path / f"{name}.py", env=env))[0])
        # Only the ports are those that are free.
        gateway = head + GATEWAY + RUN
        for port, url in zip((8081, 8082), urls, strict=True):
            gateway = gateway.replace(f"http://127.0.0.1:{port}/mcp", url)
        (tmp_path / "gateway.py").write_text(gateway)
        triage, _ = stack.enter_context(http_process(tmp_path / "gateway.py", env=env))
        yield triage, urls[0]


async def test_the_gateway_and_its_specialists_run_as_they_are_written(running: tuple[str, str]) -> None:
    gate, finance = running
    for era in ERAS:
        async with sdk_client(gate, era) as raw:
            client = Talk(raw)
            own = await client.names()
            assert "triage.route" in own
            assert code_of(await raw.call_tool("triage.route", {"domain": "legal", "context": ""})) == (
                "INVALID_ARGUMENTS"
            )
            for domain in ("finance", "support"):
                result = await client.route(domain, f"pay back at {domain}")
                assert not result.is_error, result
                data = result.structured_content["handoff"]
                assert [tool["name"] for tool in data["tools"]] == [f"{domain}.pay.refund"]
                assert (data["reason"], data["modelHint"]) == (f"Triage to {domain}", "balanced")
                if era == "legacy":
                    assert await client.names() == [f"{domain}.pay.refund", "triage.return_to_triage"]
                meta: Any = {"traceparent": TRACE}
                answers = [await client.call(f"{domain}.pay.refund", {"amount": n}, meta=meta) for n in (1, 2)]
                tids = {answer.structured_content.pop("tid") for answer in answers}
                assert len(tids) == 1
                assert [answer.structured_content for answer in answers] == [
                    {
                        "amount": n,
                        "state": {"intent": f"pay back at {domain}"},
                        "scope": domain,
                        "traceparent": TRACE,
                        "issuer": "triage",
                    }
                    for n in (1, 2)
                ]
                back = await client.back("<done>")
                assert "&lt;done&gt;" in text_of(back)
                assert await client.names() == own
        async with sdk_client(finance, era) as direct:
            assert code_of(await direct.call_tool("pay.refund", {"amount": 1})) == "FORBIDDEN"


async def test_without_a_gateway_a_handoff_is_a_clear_error() -> None:
    written: dict[str, Any] = {"Literal": Literal}
    exec(GATEWAY[: GATEWAY.index("gateway = ")], written)
    async with served(written["f"].server()) as (url,):
        for era in ERAS:
            async with sdk_client(url, era) as client:
                result = await client.call_tool("triage.route", {"domain": "finance", "context": "PRIVATE"})
                assert code_of(result) == "NO_GATEWAY"
                assert "PRIVATE" not in str(result)
                assert "MCPFUSION_handoff" not in str(result)
