"""The SSE transport of 2024, which the SDK still serves: its sessions have no id, and are sessions all the same."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import Client
from mcp.client.sse import sse_client
from mcp.server.mcpserver import MCPServer

from tests.gate_identity.users import APPROVAL, AUTH, TOKENS, Verifier, approvals, block, code, menu
from tests.support.hearing import Heard
from tests.support.serving import http_app

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def served(*, auth: bool = False, **options: Any) -> AsyncIterator[str]:
    base = MCPServer("old", **({"auth": AUTH, "token_verifier": Verifier()} if auth else {}))
    f = approvals()
    f.server(fsm=f.fsm(APPROVAL), base=base, **options)
    async with http_app(base.sse_app()) as origin:
        yield f"{origin}/sse"


@asynccontextmanager
async def connected(url: str, user: str | None = None) -> AsyncIterator[tuple[Client, Heard]]:
    heard = Heard()
    headers = {"Authorization": f"Bearer {TOKENS[user]}"} if user else {}
    transport = sse_client(url, headers=headers)
    async with Client(transport, mode="legacy", message_handler=heard, read_timeout_seconds=60) as client:
        await client.list_tools()
        yield client, heard


async def test_two_anonymous_sessions_have_a_workflow_each_and_hear_of_their_own() -> None:
    async with served() as url, connected(url) as (one, ones), connected(url) as (other, others):
        moved = block(await one.call_tool("approval.submit"))
        assert moved["handle"].startswith("@session:")
        await ones.wait(1)
        assert await menu(one) == ["approval.approve", "approval.reject", "approval.help"]
        assert await menu(other) == ["approval.submit", "approval.help"]
        assert block(await other.call_tool("approval.submit"))["handle"] != moved["handle"]
        await others.wait(1)
        await one.call_tool("approval.approve")
        await ones.wait(2)
        assert (ones.count(), others.count()) == (2, 1)


async def test_a_handle_in_the_arguments_comes_first() -> None:
    async with served(state_handle_key="id") as url, connected(url) as (one, _), connected(url) as (other, _):
        assert block(await one.call_tool("approval.submit", {"id": "A-1"}))["state"] == "review"
        assert "approval.approve" in await menu(one)
        assert "approval.approve" not in await menu(other)
        assert block(await other.call_tool("approval.approve", {"id": "A-1"}))["state"] == "approved"
        assert code(await other.call_tool("approval.submit", {"id": "@session:1"})) == "INVALID_HANDLE"


async def test_principals_are_kept_apart() -> None:
    async with (
        served(auth=True, state_handle_key="id") as url,
        connected(url, "alice") as (alice, _),
        connected(url, "bob") as (bob, _),
    ):
        await alice.call_tool("approval.submit", {"id": "A-1"})
        assert block(await bob.call_tool("approval.approve", {"id": "A-1"}))["state"] == "draft"
