"""Which workflow a call belongs to: named by an argument, else the session's, the principal's, the process's."""

import pytest

from tests.gate_identity.users import APPROVAL, anonymous, approvals, as_user, authenticated, block, code, menu
from tests.support.serving import ERAS, http_app, http_client, sdk_client

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("mode", ERAS)
async def test_an_argument_named_by_the_handle_key_comes_before_session_and_principal(mode: str) -> None:
    async with (
        authenticated(approvals(), state_handle_key="id") as url,
        as_user(url, mode, "alice") as alice,
    ):
        named = await alice.call_tool("approval.submit", {"id": "A-1"})
        assert block(named)["handle"] == "A-1"
        unnamed = await alice.call_tool("approval.submit", {})
        assert not unnamed.is_error
        assert block(unnamed)["handle"] != "A-1"
        assert code(await alice.call_tool("approval.submit", {"id": "A-1"})) == "ALREADY_DONE"


async def test_a_session_comes_before_its_principal() -> None:
    async with (
        authenticated(approvals()) as url,
        as_user(url, "legacy", "alice") as one,
        as_user(url, "legacy", "alice") as other,
    ):
        moved = block(await one.call_tool("approval.submit"))
        assert moved["handle"].startswith("@session:")
        assert moved["state"] == "review"
        assert await menu(other) == ["approval.submit", "approval.help"]
        assert block(await other.call_tool("approval.submit"))["handle"] != moved["handle"]


async def test_a_principal_without_a_session_has_one_workflow_that_a_reconnect_finds_again() -> None:
    async with authenticated(approvals()) as url:
        async with as_user(url, "2026-07-28", "alice") as alice:
            assert block(await alice.call_tool("approval.submit"))["handle"] == "@principal"
        async with as_user(url, "2026-07-28", "alice") as again, as_user(url, "2026-07-28", "bob") as bob:
            assert await menu(again) == ["approval.approve", "approval.reject", "approval.help"]
            assert block(await again.call_tool("approval.approve"))["state"] == "approved"
            assert await menu(bob) == ["approval.submit", "approval.help"]


@pytest.mark.parametrize("mode", ERAS)
async def test_a_caller_in_process_shares_the_workflow_of_the_process(mode: str) -> None:
    f = approvals()
    server = f.server(fsm=f.fsm(APPROVAL))
    async with sdk_client(server.lowlevel, mode) as one:
        assert block(await one.call_tool("approval.submit"))["handle"] == "@process"
    async with sdk_client(server.lowlevel, mode) as other:
        assert block(await other.call_tool("approval.approve"))["state"] == "approved"


async def test_two_anonymous_sessions_without_a_handle_key_have_a_workflow_each() -> None:
    async with (
        anonymous(approvals()) as url,
        http_client(url, "legacy") as one,
        http_client(url, "legacy") as other,
    ):
        assert block(await one.call_tool("approval.submit"))["state"] == "review"
        assert await menu(one) == ["approval.approve", "approval.reject", "approval.help"]
        assert await menu(other) == ["approval.submit", "approval.help"]
        assert code(await other.call_tool("approval.approve")) == "FORBIDDEN"


async def test_a_session_id_that_a_header_claims_names_nobody_elses_session() -> None:
    async with anonymous(approvals()) as url, http_client(url, "legacy") as victim:
        handle = block(await victim.call_tool("approval.submit"))["handle"]
        claimed = {"Mcp-Session-Id": handle.removeprefix("@session:")}
        async with http_client(url, "2026-07-28", headers=claimed) as thief:
            result = await thief.call_tool("approval.approve")
            assert code(result) == "FORBIDDEN"
            assert block(result)["handle"] != handle
        async with http_client(url, "legacy") as stranger:
            assert code(await stranger.call_tool("approval.approve")) == "FORBIDDEN"
        assert block(await victim.call_tool("approval.approve"))["state"] == "approved"


async def test_a_stateless_server_names_anonymous_callers_of_both_eras_by_the_argument_only() -> None:
    f = approvals()
    server = f.server(fsm=f.fsm(APPROVAL), state_handle_key="id")
    async with http_app(server.asgi(host="127.0.0.1", stateless_http=True)) as origin:
        for mode in ERAS:
            async with http_client(f"{origin}/mcp", mode) as client:
                assert code(await client.call_tool("approval.submit", {})) == "INVALID_HANDLE"
                assert block(await client.call_tool("approval.submit", {"id": mode}))["handle"] == mode
