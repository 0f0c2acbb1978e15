"""Replicas that are replaced while clients are at work: what they serve, and clients that send again what broke."""

import os
from collections import Counter
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.auth.provider import AccessToken
from mcp.shared.exceptions import MCPError

from mcpfusion import Context, Fusion, handoff
from mcpfusion.swarm import SwarmGateway
from tests.gate_identity.users import APPROVAL, AUTH
from tests.swarm.parts import SECRET

STEPS = ("submit", "approve", "pay")
RETRIES = 40
PAUSE = 0.25

_BROKEN = (MCPError, httpx2.HTTPError, anyio.BrokenResourceError, anyio.ClosedResourceError)


class Everybody:
    """Knows every user: his name is his token."""

    async def verify_token(self, token: str) -> AccessToken | None:
        return AccessToken(token=token, client_id="app", scopes=[], subject=token)


def be_replica(port: int, store: str, specialist: str, ledger: str) -> None:
    """Be a replica: a gated server that is a gateway too, without sessions."""
    f = Fusion("rolling")

    async def work(ctx: Context) -> dict[str, str]:
        await anyio.sleep(0.15)
        line = f"{ctx.principal} {ctx.workflow.handle} {ctx.tool} {ctx.workflow.idempotency_key}\n"
        out = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(out, line.encode())
        os.close(out)
        return {"done": ctx.tool}

    for tool, (state, event) in zip(
        STEPS, (("draft", "SUBMIT"), ("review", "APPROVE"), ("approved", "PAY")), strict=True
    ):
        f.mutation(f"approval.{tool}").describe(tool).bind_state(state, event).handle(work)

    @f.action("triage.route").describe("Hand over").handle
    async def route(intent: str) -> Any:
        return handoff("mcp://finance-agent", carry_over_state={"intent": intent})

    gateway = SwarmGateway({"finance": specialist}, SECRET, "triage", store=store)
    server = f.server(
        fsm=f.fsm(APPROVAL),
        store=store,
        state_handle_key="id",
        swarm_gateway=gateway,
        auth=AUTH,
        token_verifier=Everybody(),
    )
    server.run("http", port=port, stateless_http=True)


Calls = Generator[tuple[str, dict[str, Any]], Any, None]
"""Yields calls, and is sent their answers."""


@dataclass
class Caller:
    """One user's client. A call that breaks is sent again, by a client that is made anew.

    Attributes:
        broken: What calls broke with.
        done: The workflows that were taken to their end.
        handed: How many calls the specialist answered.
    """

    url: str
    mode: str
    user: str
    broken: Counter[str] = field(default_factory=Counter[str])
    done: list[str] = field(default_factory=list[str])
    handed: int = 0

    async def make(self, calls: Calls) -> None:
        """Make all calls, each as often as it takes."""
        call: tuple[str, dict[str, Any]] | None = next(calls)
        failures = 0
        while call is not None:
            try:
                async with self._client() as client:
                    while call is not None:
                        answer = await self._patient(client, *call)
                        failures = 0
                        call = _next(calls, answer)
            except* _BROKEN as errors:
                self.broken.update(_kinds(errors))
                failures += 1
            assert failures < RETRIES, f"{call} broke every time: {self.broken}"
            await anyio.sleep(PAUSE if failures else 0)

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        # Without a look at the system's certificates, which takes longer than all the rest.
        headers = {"Authorization": f"Bearer {self.user}"}
        async with httpx2.AsyncClient(headers=headers, verify=False, timeout=60) as http:
            transport = streamable_http_client(self.url, http_client=http)
            async with Client(transport, mode=self.mode, read_timeout_seconds=60) as client:
                yield client

    async def _patient(self, client: Client, tool: str, arguments: dict[str, Any]) -> Any:
        while True:
            answer = await client.call_tool(tool, arguments)
            again = answer.is_error and (answer.structured_content or {}).get("code") in ("CONFLICT", "UNAVAILABLE")
            if not again:
                return answer
            self.broken[answer.structured_content["code"]] += 1
            await anyio.sleep(PAUSE)

    def orders(self, stop: anyio.Event) -> Calls:
        """Take one workflow after the other through all its steps."""
        while not stop.is_set():
            handle = f"W-{len(self.done)}"
            for tool in STEPS:
                answer = yield f"approval.{tool}", {"id": handle}
                if answer.is_error:
                    assert answer.structured_content["code"] == "ALREADY_DONE", answer
            self.done.append(handle)

    def conversation(self, stop: anyio.Event) -> Calls:
        """Be handed over, stay with the specialist, and come back."""
        answer = yield "triage.route", {"intent": self.user}
        assert not answer.is_error, answer
        while not stop.is_set():
            answer = yield "finance.pay.look", {}
            assert not answer.is_error, answer
            assert answer.structured_content["state"] == {"intent": self.user}
            self.handed += 1
        answer = yield "triage.return_to_triage", {"summary": "done"}
        assert not answer.is_error or "NO_HANDOFF" in str(answer.content), answer  # it broke, and was done
        answer = yield "approval.submit", {"id": "own"}
        assert answer.structured_content == {"done": "approval.submit"}


def _next(calls: Calls, answer: Any) -> tuple[str, dict[str, Any]] | None:
    try:
        return calls.send(answer)
    except StopIteration:
        return None


def _kinds(errors: BaseExceptionGroup[Any]) -> list[str]:
    leaves: list[str] = []
    for error in errors.exceptions:
        leaves += _kinds(error) if isinstance(error, BaseExceptionGroup) else [f"{type(error).__name__}: {error}"]
    return leaves


def ran(ledger: Path) -> Counter[tuple[str, ...]]:
    """Return how often each step of each workflow ran, by user, handle, tool."""
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    return Counter(tuple(line.rsplit(" ", 3)[:3]) for line in lines)
