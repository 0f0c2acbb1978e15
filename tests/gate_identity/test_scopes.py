"""Whose workflows they are: each principal's own, everybody's, or a tenant's; over HTTP with authentication."""

import pytest

from mcpfusion import Identity
from tests.gate_identity.users import TOKENS, approvals, as_user, authenticated, block, code, menu
from tests.support.serving import ERAS, call, post

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("mode", ERAS)
async def test_owner_a_stranger_who_uses_a_handle_meets_a_workflow_of_his_own(mode: str) -> None:
    ran: list[str] = []
    async with (
        authenticated(approvals(ran), state_handle_key="id", access="owner") as url,
        as_user(url, mode, "alice") as alice,
        as_user(url, mode, "bob") as bob,
    ):
        await alice.call_tool("approval.submit", {"id": "A-1"})
        await alice.call_tool("approval.approve", {"id": "A-1"})

        unused = await bob.call_tool("approval.pay", {"id": "B-9"})
        theirs = await bob.call_tool("approval.pay", {"id": "A-1"})
        # What the stranger is told of a handle that somebody uses is what he is told of one that nobody does.
        told = [result.model_dump_json().replace(name, "ID") for result, name in ((unused, "B-9"), (theirs, "A-1"))]
        assert told[0] == told[1]
        assert code(theirs) == "FORBIDDEN"
        assert block(theirs) == {
            "handle": "A-1",
            "state": "draft",
            "allowedActions": ["approval.submit"],
            "final": False,
        }
        assert await menu(bob) == ["approval.submit", "approval.help"]

        assert block(await bob.call_tool("approval.submit", {"id": "A-1"}))["state"] == "review"
        assert block(await alice.call_tool("approval.pay", {"id": "A-1"}))["state"] == "paid"
        assert len(ran) == 4


@pytest.mark.parametrize("mode", ERAS)
async def test_shared_two_principals_take_part_in_one_approval(mode: str) -> None:
    ran: list[str] = []
    async with (
        authenticated(approvals(ran), state_handle_key="id", access="shared") as url,
        as_user(url, mode, "alice") as alice,
        as_user(url, mode, "bob") as bob,
    ):
        assert block(await alice.call_tool("approval.submit", {"id": "A-1"}))["state"] == "review"
        assert block(await bob.call_tool("approval.approve", {"id": "A-1"}))["state"] == "approved"
        assert block(await alice.call_tool("approval.pay", {"id": "A-1"}))["state"] == "paid"
        assert [line.split()[0] for line in ran] == ["approval.submit", "approval.approve", "approval.pay"]
        assert [user in line for line, user in zip(ran, ("alice", "bob", "alice"), strict=True)] == [True] * 3


@pytest.mark.parametrize("mode", ERAS)
async def test_shared_a_repeat_is_already_done_for_the_same_principal_and_forbidden_for_another(mode: str) -> None:
    ran: list[str] = []
    async with (
        authenticated(approvals(ran), state_handle_key="id", access="shared") as url,
        as_user(url, mode, "alice") as alice,
        as_user(url, mode, "bob") as bob,
    ):
        await alice.call_tool("approval.submit", {"id": "A-1"})
        assert code(await bob.call_tool("approval.submit", {"id": "A-1"})) == "FORBIDDEN"
        assert code(await alice.call_tool("approval.submit", {"id": "A-1"})) == "ALREADY_DONE"
    async with (
        authenticated(approvals(ran), state_handle_key="id", access="shared") as url,
        as_user(url, mode, "bob") as bob,
    ):
        assert not (await bob.call_tool("approval.submit", {"id": "A-1"})).is_error
    assert len(ran) == 2


def by_header(identity: Identity) -> str:
    return identity.headers["x-tenant"]


@pytest.mark.parametrize("mode", ERAS)
async def test_a_tenant_from_a_header_separates_and_joins(mode: str) -> None:
    async with (
        authenticated(approvals(), state_handle_key="id", access=by_header) as url,
        as_user(url, mode, "alice", headers={"X-Tenant": "acme"}) as alice,
        as_user(url, mode, "bob", headers={"X-Tenant": "acme"}) as bob,
        as_user(url, mode, "bob", headers={"X-Tenant": "globex"}) as elsewhere,
    ):
        assert block(await alice.call_tool("approval.submit", {"id": "A-1"}))["state"] == "review"
        assert block(await elsewhere.call_tool("approval.approve", {"id": "A-1"}))["state"] == "draft"
        assert block(await bob.call_tool("approval.approve", {"id": "A-1"}))["state"] == "approved"
        assert "approval.pay" in await menu(alice)
        assert "approval.pay" in await menu(bob)
        assert "approval.pay" not in await menu(elsewhere)


def by_principal(identity: Identity) -> str:
    assert identity.principal is not None
    return "women" if "alice" in identity.principal else "men"


@pytest.mark.parametrize("mode", ERAS)
async def test_a_team_from_the_principal_separates(mode: str) -> None:
    async with (
        authenticated(approvals(), state_handle_key="id", access=by_principal) as url,
        as_user(url, mode, "alice") as alice,
        as_user(url, mode, "bob") as bob,
    ):
        assert block(await alice.call_tool("approval.submit", {"id": "A-1"}))["state"] == "review"
        assert block(await bob.call_tool("approval.approve", {"id": "A-1"}))["state"] == "draft"


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer guessed"}, {"Authorization": "Basic YTpi"}])
async def test_nobody_gets_in_without_a_token_that_the_verifier_knows(headers: dict[str, str]) -> None:
    async with authenticated(approvals(), state_handle_key="id") as url:
        response = await post(url, call("approval.submit", {"id": "A-1"}), headers)
        assert response.status_code == 401
        assert "approval" not in response.text


async def test_another_principals_token_does_not_open_a_session() -> None:
    async with authenticated(approvals()) as url, as_user(url, "legacy", "alice") as alice:
        session = block(await alice.call_tool("approval.submit"))["handle"].removeprefix("@session:")
        headers = {"Mcp-Session-Id": session, "MCP-Protocol-Version": "2025-11-25"}
        stolen = await post(url, call("approval.approve"), {**headers, "Authorization": f"Bearer {TOKENS['bob']}"})
        assert stolen.status_code == 404
        assert block(await alice.call_tool("approval.approve"))["state"] == "approved"
