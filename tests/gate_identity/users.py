"""Two users, whose tokens the SDK's own bearer authentication checks, and the approvals they take part in."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp import Client
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings

from mcpfusion import Context, Fusion
from tests.support.serving import http_app, http_client

TOKENS = {"alice": "tok-alice-1f6c9d", "bob": "tok-bob-88ab21"}

AUTH = AuthSettings(
    issuer_url="https://login.example.com",
    resource_server_url="https://mcp.example.com/mcp",
    validate_token_resource=False,
)

APPROVAL = {
    "id": "approval",
    "initial": "draft",
    "states": {
        "draft": {"on": {"SUBMIT": "review"}},
        "review": {"on": {"APPROVE": "approved", "REJECT": "draft"}},
        "approved": {"on": {"PAY": "paid"}},
        "paid": {"type": "final"},
    },
}


class Verifier:
    """Knows the two tokens, as an authorization server's introspection would."""

    async def verify_token(self, token: str) -> AccessToken | None:
        for user, known in TOKENS.items():
            if token == known:
                claims = {"iss": "https://login.example.com", "tenant": "acme"}
                return AccessToken(token=token, client_id="app", scopes=[], subject=user, claims=claims)
        return None


def approvals(ran: list[str] | None = None) -> Fusion:
    """Declare the actions of an approval; `ran` hears of each handler that runs, and for whom."""
    f = Fusion("approvals", version="1.0.0")
    heard: list[str] = [] if ran is None else ran

    def note(ctx: Context) -> dict[str, str]:
        assert ctx.workflow is not None
        heard.append(f"{ctx.tool} {ctx.workflow.handle} {ctx.principal}")
        return {"handle": ctx.workflow.handle}

    @f.mutation("approval.submit").describe("Submit it").bind_state("draft", "SUBMIT").handle
    async def submit(ctx: Context) -> dict[str, str]:
        return note(ctx)

    @f.mutation("approval.approve").describe("Approve it").bind_state("review", "APPROVE").handle
    async def approve(ctx: Context) -> dict[str, str]:
        return note(ctx)

    @f.mutation("approval.reject").describe("Reject it").bind_state("review", "REJECT").handle
    async def reject(ctx: Context) -> dict[str, str]:
        return note(ctx)

    @f.mutation("approval.pay").describe("Pay it").bind_state("approved", "PAY").handle
    async def pay(ctx: Context) -> dict[str, str]:
        return note(ctx)

    @f.query("approval.help").describe("Say how it goes").handle
    async def help_() -> str:
        return "submit, approve, pay"

    return f


@asynccontextmanager
async def authenticated(f: Fusion, **options: Any) -> AsyncIterator[str]:
    """Serve the actions over HTTP to the two users, and yield the URL."""
    server = f.server(fsm=f.fsm(APPROVAL), auth=AUTH, token_verifier=Verifier(), **options)
    async with http_app(server.asgi(host="127.0.0.1")) as origin:
        yield f"{origin}/mcp"


@asynccontextmanager
async def anonymous(f: Fusion, **options: Any) -> AsyncIterator[str]:
    """Serve the actions over HTTP to whoever comes, and yield the URL."""
    server = f.server(fsm=f.fsm(APPROVAL), **options)
    async with http_app(server.asgi(host="127.0.0.1")) as origin:
        yield f"{origin}/mcp"


@asynccontextmanager
async def as_user(url: str, mode: str, user: str, **options: Any) -> AsyncIterator[Client]:
    """Connect as one of the two users."""
    async with http_client(url, mode, token=TOKENS[user], **options) as client:
        yield client


async def menu(client: Client) -> list[str]:
    """Return the names of the tools the client sees now."""
    return [tool.name for tool in (await client.list_tools()).tools]


def block(result: Any) -> dict[str, Any]:
    """Return the workflow block of an answer."""
    return result.meta["io.mcpfusion/workflow"]


def code(result: Any) -> str | None:
    """Return the code of a refusal, or None for a success."""
    return result.structured_content["code"] if result.is_error else None
