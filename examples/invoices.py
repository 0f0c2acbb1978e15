"""An invoice is submitted, approved, and discharged once: the server of the README.

Run it for one client over stdio: python invoices.py. Or over HTTP: python invoices.py http 8000.
"""

import sys
from typing import TypedDict

from mcpfusion import Context, Fusion

f = Fusion("invoices", version="1.0.0")

gate = f.fsm(
    {
        "id": "invoice",
        "initial": "draft",
        "states": {
            "draft": {"on": {"SUBMIT": "review"}},
            "review": {"on": {"APPROVE": "approved", "REJECT": "draft"}},
            "approved": {"on": {"DISCHARGE": "discharged"}},
            "discharged": {"type": "final"},
        },
    }
)


class Receipt(TypedDict):
    id: str
    paid: bool
    key: str


async def pay(id: str, *, key: str) -> Receipt:
    """Stands for a payment provider, which pays once for each idempotency key."""
    return {"id": id, "paid": True, "key": key}


@f.mutation("invoice.submit").describe("Submit a draft invoice for review").bind_state("draft", "SUBMIT").handle
async def submit(id: str) -> dict:
    return {"id": id, "status": "in review"}


@f.action("invoice.approve").describe("Approve an invoice in review").bind_state("review", "APPROVE").handle
async def approve(id: str) -> dict:
    return {"id": id, "status": "approved"}


@f.action("invoice.reject").describe("Send an invoice back to draft").bind_state("review", "REJECT").handle
async def reject(id: str, reason: str) -> dict:
    return {"id": id, "status": "draft", "reason": reason}


@f.action("invoice.discharge").describe("Discharge an approved invoice").bind_state("approved", "DISCHARGE").handle
async def discharge(id: str, ctx: Context) -> Receipt:
    return await pay(id, key=ctx.workflow.idempotency_key)


@f.query("invoice.view").handle
def view(id: str) -> dict:
    """Show an invoice."""
    return {"id": id}


server = f.server(fsm=gate, state_handle_key="id", store="sqlite:///invoices.db")

if __name__ == "__main__":
    server.run(*sys.argv[1:2], port=int(sys.argv[2]) if len(sys.argv) > 2 else 8000)
