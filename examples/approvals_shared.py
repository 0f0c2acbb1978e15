"""Approvals that several people take part in: one workflow for all callers, each of whom says who he is.

With `access="shared"` the handle names the same workflow for everybody. Who may take which step is the handlers'
business: here nobody approves what he asked for himself.

Run it over HTTP: `python examples/approvals_shared.py 8000`, with the tokens `alice-token` and `bob-token`.
"""

import sys

from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from pydantic import AnyHttpUrl

from mcpfusion import Context, Fusion, ToolError

f = Fusion("approvals", version="1.0.0")

gate = f.fsm(
    {
        "id": "request",
        "initial": "requested",
        "states": {
            "requested": {"on": {"ASK": "pending"}},
            "pending": {"on": {"APPROVE": "approved", "REJECT": "rejected"}},
            "approved": {"on": {"RELEASE": "released"}},
            "rejected": {"type": "final"},
            "released": {"type": "final"},
        },
    }
)

askers: dict[str, str | None] = {}
"""Who asked for what: your database, in a real server."""


@f.action("budget.ask").describe("Ask for a budget").mints_handle().bind_state("requested", "ASK").handle
def ask(amount: int, ctx: Context) -> dict:
    askers[ctx.workflow.handle] = ctx.principal
    return {"amount": amount}


def other_than_asker(ctx: Context) -> None:
    if askers.get(ctx.workflow.handle) == ctx.principal:
        raise ToolError("Somebody else has to decide on what you asked for.", code="OWN_REQUEST")


@f.action("budget.approve").describe("Approve a request").bind_state("pending", "APPROVE").handle
def approve(ctx: Context) -> str:
    other_than_asker(ctx)
    return "approved"


@f.action("budget.reject").describe("Reject a request").bind_state("pending", "REJECT").handle
def reject(reason: str, ctx: Context) -> str:
    other_than_asker(ctx)
    return f"rejected: {reason}"


@f.mutation("budget.release").describe("Pay an approved budget out").bind_state("approved", "RELEASE").handle
def release(ctx: Context) -> dict:
    return {"paid": True, "key": ctx.workflow.idempotency_key}


class Tokens:
    """Stands for your identity provider: the token `alice-token` is Alice's."""

    async def verify_token(self, token: str) -> AccessToken | None:
        name, _, rest = token.partition("-")
        return AccessToken(token=token, client_id="desk", scopes=[], subject=name) if rest == "token" else None


url = AnyHttpUrl(f"http://127.0.0.1:{sys.argv[1] if len(sys.argv) > 1 else 8000}/mcp")
server = f.server(
    fsm=gate,
    state_handle_key="request",
    access="shared",
    store="sqlite:///approvals.db",
    auth=AuthSettings(issuer_url=url, resource_server_url=url, validate_token_resource=False),
    token_verifier=Tokens(),
)

if __name__ == "__main__":
    server.run("http", port=url.port or 80)
