"""The server of `mcpfusion demo`: an invoice is submitted, approved, and paid once.

The demo starts it as `python -m mcpfusion.cli.demo_server stdio`, or `... http PORT [tokens]`. Everything it keeps is
in the folder that the environment variable MCPFUSION_DEMO names.
"""

import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio

from mcpfusion import Context, Fusion

FOLDER = "MCPFUSION_DEMO"

PAYING = 0.3
"""Seconds that a payment takes."""

TIME_LIMIT = 5.0
"""Seconds after which a payment that has not ended is in doubt."""

LEASE_MARGIN = 1.0
CONFLICT_WAIT = 1.0


@dataclass(frozen=True, slots=True)
class Provider:
    """Stands for a payment provider, whose books are a file: who asked for a payment, and what was paid."""

    folder: Path

    @property
    def books(self) -> list[str]:
        """The lines of the books, oldest first."""
        book = self.folder / "provider.log"
        return book.read_text().splitlines() if book.exists() else []

    def stick(self, invoice: str, where: str) -> None:
        """Let the payment of this invoice stick, `before` or `after` it is made."""
        (self.folder / f"{invoice}.{where}").touch()

    def unstick(self) -> None:
        """Let every payment go on."""
        for path in [*self.folder.glob("*.before"), *self.folder.glob("*.after")]:
            path.unlink()

    async def pay(self, invoice: str, key: str | None) -> None:
        """Make the payment that `key` names, once."""
        self._write(f"asked {invoice} {key}")
        await anyio.sleep(PAYING)
        await self._stuck(invoice, "before")
        paid = f"paid  {invoice} {key}"
        if paid not in self.books:
            self._write(paid)
        await self._stuck(invoice, "after")

    def _write(self, line: str) -> None:
        with (self.folder / "provider.log").open("a") as book:
            book.write(f"{line}\n")

    async def _stuck(self, invoice: str, where: str) -> None:
        while (self.folder / f"{invoice}.{where}").exists():  # noqa: ASYNC110 - the demo is another process
            await anyio.sleep(0.02)


@asynccontextmanager
async def _lifespan(server: Any) -> AsyncGenerator[Provider]:
    yield Provider(Path(os.environ[FOLDER]))


f = Fusion("invoices", version="1.0.0", lifespan=_lifespan)

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


@f.mutation("invoice.submit").describe("Submit a draft invoice for review").bind_state("draft", "SUBMIT").handle
async def submit(id: str) -> dict[str, str]:
    return {"id": id, "status": "in review"}


@f.action("invoice.approve").describe("Approve an invoice in review").bind_state("review", "APPROVE").handle
async def approve(id: str) -> dict[str, str]:
    return {"id": id, "status": "approved"}


@f.action("invoice.reject").describe("Send an invoice back to draft").bind_state("review", "REJECT").handle
async def reject(id: str) -> dict[str, str]:
    return {"id": id, "status": "draft"}


@(
    f.action("invoice.discharge", time_limit=TIME_LIMIT)
    .describe("Discharge an approved invoice")
    .bind_state("approved", "DISCHARGE")
    .handle
)
async def discharge(id: str, ctx: Context) -> dict[str, str]:
    await ctx.lifespan.pay(id, ctx.workflow.idempotency_key)
    return {"id": id, "status": "paid"}


@f.query("invoice.view").handle
def view(id: str) -> dict[str, str]:
    """Show an invoice."""
    return {"id": id}


def store_url(folder: Path) -> str:
    """Return the URL of the demo's store."""
    return f"sqlite:///{quote(str(folder / 'invoices.db'))}"


class _Tokens:
    """Takes `NAME-token` for a token of NAME. A real verifier asks who issued it (see the SDK's `TokenVerifier`)."""

    async def verify_token(self, token: str) -> Any:
        from mcp.server.auth.provider import AccessToken

        name, dash, rest = token.partition("-")
        return (
            AccessToken(token=token, client_id="demo", scopes=[], subject=name) if dash and rest == "token" else None
        )


def _authentication(port: int) -> dict[str, Any]:
    from mcp.server.auth.settings import AuthSettings
    from pydantic import AnyHttpUrl

    url = AnyHttpUrl(f"http://127.0.0.1:{port}/mcp")
    auth = AuthSettings(issuer_url=url, resource_server_url=url, validate_token_resource=False)
    return {"auth": auth, "token_verifier": _Tokens()}


def main(transport: str, port: str = "0", tokens: str = "") -> None:
    """Run the server until its client leaves, or the process is told to stop."""
    auth = _authentication(int(port)) if tokens else {}
    server = f.server(
        fsm=gate,
        state_handle_key="id",
        store=store_url(Path(os.environ[FOLDER])),
        lease_margin=LEASE_MARGIN,
        conflict_wait=CONFLICT_WAIT,
        **auth,
    )
    server.run(transport, port=int(port))


if __name__ == "__main__":
    main(*sys.argv[1:])
