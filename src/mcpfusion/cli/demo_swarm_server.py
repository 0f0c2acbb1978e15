"""The servers of the demo's second half: a triage gateway, a specialist that is a gateway itself, and one behind it.

Run as `python -m mcpfusion.cli.demo_swarm_server ROLE PORT`, with the secret and the ports in the environment.
"""

import os
import sys
from typing import Any

from mcpfusion import Context, Fusion, handoff
from mcpfusion.swarm import SwarmGateway, require_gateway_clearance

SECRET = "MCPFUSION_DELEGATION_SECRET"  # noqa: S105 - the name of a variable
PORTS = "MCPFUSION_DEMO_PORTS"


def url_of(role: str) -> str:
    """Return where a role of the demo listens."""
    ports = dict(pair.split("=") for pair in os.environ[PORTS].split(","))
    return f"http://127.0.0.1:{ports[role]}/mcp"


def triage() -> Any:
    """Return the gateway that callers meet."""
    f = Fusion("triage")

    @f.action("triage.route").describe("Route the request to the right specialist").handle
    async def route(domain: str, context: str) -> Any:
        return handoff(f"mcp://{domain}-agent", carry_over_state={"intent": context}, reason=f"Triage to {domain}")

    gateway = SwarmGateway({"finance": url_of("finance")}, os.environ[SECRET], "triage", connect_timeout_ms=20_000)
    return f.server(swarm_gateway=gateway)


def finance() -> Any:
    """Return the specialist, which hands on to another one."""
    f = Fusion("finance")

    @f.action("invoice.refund").describe("Refund an invoice").handle
    async def refund(id: str, ctx: Context) -> dict[str, Any]:
        return {"id": id, "refunded": True, "intent": ctx.handoff.state["intent"]}

    @f.action("invoice.audit").describe("Have an invoice audited").handle
    async def audit(id: str) -> Any:
        return handoff("audit", carry_over_state={"invoice": id}, reason="An audit is due")

    gateway = SwarmGateway({"audit": url_of("audit")}, os.environ[SECRET], "finance", connect_timeout_ms=20_000)
    clearance = require_gateway_clearance(os.environ[SECRET], scope="finance")
    return f.server(middleware=[clearance], swarm_gateway=gateway)


def audit() -> Any:
    """Return the specialist behind the specialist."""
    f = Fusion("audit")

    @f.query("ledger.check").describe("Check the ledger").handle
    async def check(ctx: Context) -> dict[str, Any]:
        return {"invoice": ctx.handoff.state["invoice"], "balanced": True}

    return f.server(middleware=[require_gateway_clearance(os.environ[SECRET], scope="audit")])


if __name__ == "__main__":
    {"triage": triage, "finance": finance, "audit": audit}[sys.argv[1]]().run("http", port=int(sys.argv[2]))
