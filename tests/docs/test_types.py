"""What users write in their handlers passes a strict type checker as it stands."""

import subprocess
import sys
from pathlib import Path

USER_CODE = """# pyright: strict
from typing import Any, TypedDict

from mcpfusion import Context, Fusion
from mcpfusion.swarm import require_gateway_clearance

f = Fusion("invoices")
gate = f.fsm({"id": "i", "initial": "approved", "states": {"approved": {"on": {"DISCHARGE": "paid"}}, "paid": {}}})


class Receipt(TypedDict):
    id: str
    paid: bool


async def pay(id: str, *, key: str) -> Receipt:
    return {"id": id, "paid": bool(key)}


@f.mutation("invoice.discharge").describe("Discharge").bind_state("approved", "DISCHARGE").handle
async def discharge(id: str, ctx: Context) -> Receipt:
    return await pay(id, key=ctx.workflow.idempotency_key)


@f.query("invoice.view").handle
def view(id: str, ctx: Context) -> dict[str, Any]:
    where = ctx.workflow.state if ctx.has_workflow else "nowhere"
    why = ctx.handoff.state["intent"] if ctx.has_handoff else None
    return {"id": id, "where": where, "why": why, "for": ctx.handoff.scope, "trace": ctx.handoff.traceparent}


server = f.server(fsm=gate, state_handle_key="id", expires_after=86_400.0)
specialist = f.server(fsm=gate, middleware=[require_gateway_clearance("s" * 32, scope="finance")])

if __name__ == "__main__":
    server.run("http", port=8000)
"""


def test_handlers_are_written_without_casts_and_asserts(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(USER_CODE)
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "user.py"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
