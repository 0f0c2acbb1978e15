"""Who hears that a menu changed: those whose menu it is. Each test ends with a step that its listeners do hear of."""

import anyio
import pytest

from mcpfusion import Context, Fusion, ToolError
from tests.gate_identity.listening import listening
from tests.gate_identity.minting import orders
from tests.gate_identity.users import (
    APPROVAL,
    AUTH,
    Verifier,
    anonymous,
    approvals,
    as_user,
    authenticated,
    code,
    menu,
)
from tests.support.serving import ERAS, http_app

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("mode", ERAS)
async def test_a_principal_hears_of_his_own_workflows_and_of_nobody_elses(mode: str) -> None:
    async with (
        authenticated(approvals(), state_handle_key="id") as url,
        listening(url, mode, "alice") as (alice, alices),
        listening(url, mode, "bob") as (bob, bobs),
    ):
        await alice.call_tool("approval.submit", {"id": "A-1"})
        await alices.wait(1)
        await bob.call_tool("approval.submit", {"id": "A-1"})
        await bobs.wait(1)
        await alice.call_tool("approval.approve", {"id": "A-1"})
        await alices.wait(2)
        assert (alices.count(), bobs.count()) == (2, 1)


async def test_shared_everybody_without_a_session_hears_of_everybodys_workflows() -> None:
    async with (
        authenticated(approvals(), state_handle_key="id", access="shared") as url,
        listening(url, "2026-07-28", "alice") as (alice, alices),
        listening(url, "2026-07-28", "bob") as (bob, bobs),
    ):
        await alice.call_tool("approval.submit", {"id": "A-1"})
        await alices.wait(1)
        await bobs.wait(1)
        assert "approval.approve" in await menu(bob)
        await bob.call_tool("approval.approve", {"id": "A-1"})
        await alices.wait(2)
        await bobs.wait(2)
        assert (alices.count(), bobs.count()) == (2, 2)


@pytest.mark.parametrize("mode", ERAS)
async def test_nothing_on_a_call_that_changes_no_menu(mode: str) -> None:
    f = approvals()

    @f.query("approval.look").bind_state("*").handle
    async def look() -> str:
        return "as it was"

    @f.action("approval.fail").bind_state("draft", "SUBMIT").handle
    async def fail(how: str) -> str:
        if how == "tool error":
            raise ToolError("not today")
        raise RuntimeError(how)

    async with authenticated(f, state_handle_key="id") as url, listening(url, mode, "alice") as (alice, heard):
        await alice.call_tool("approval.look", {"id": "A-1"})
        for how in ("tool error", "bug"):
            assert (await alice.call_tool("approval.fail", {"id": "A-1", "how": how})).is_error
        assert code(await alice.call_tool("approval.submit", {"id": "A-1", "more": 1})) == "INVALID_ARGUMENTS"
        assert code(await alice.call_tool("approval.pay", {"id": "A-1"})) == "FORBIDDEN"
        assert code(await alice.call_tool("approval.pay", {"id": ""})) == "INVALID_HANDLE"
        await alice.call_tool("approval.help")
        await alice.call_tool("approval.submit", {"id": "A-1"})
        await heard.wait(1)
        assert code(await alice.call_tool("approval.submit", {"id": "A-1"})) == "ALREADY_DONE"
        await alice.call_tool("approval.look", {"id": "A-1"})
        # A second workflow where there is one already adds nothing to the menu.
        await alice.call_tool("approval.submit", {"id": "A-2"})
        await alice.call_tool("approval.approve", {"id": "A-2"})
        await heard.wait(2)
        assert heard.count() == 2


@pytest.mark.parametrize("mode", ERAS)
async def test_a_workflow_that_is_opened_where_it_stands_is_told(mode: str) -> None:
    f, gate = orders()
    server = f.server(fsm=gate, auth=AUTH, token_verifier=Verifier())
    async with (
        http_app(server.asgi(host="127.0.0.1")) as origin,
        listening(f"{origin}/mcp", mode, "alice") as (alice, alices),
        listening(f"{origin}/mcp", mode, "bob") as (bob, bobs),
    ):
        assert code(await alice.call_tool("order.open", {"item": "anvil"})) == "SOLD_OUT"
        assert "order.checkout" not in await menu(alice)
        assert not (await alice.call_tool("order.open", {"item": "pen"})).is_error
        await alices.wait(1)
        assert "order.checkout" in await menu(alice)
        await bob.call_tool("order.place", {"item": "pen"})
        await bobs.wait(1)
        assert "order.ship" in await menu(bob)
        await alice.call_tool("order.place", {"item": "pen"})
        await alices.wait(2)
        assert (alices.count(), bobs.count()) == (2, 1)


@pytest.mark.parametrize("tool", ["approval.submit", "approval.look"])
async def test_a_session_that_names_a_workflow_for_the_first_time_is_told_what_it_adds(tool: str) -> None:
    f = approvals()

    @f.query("approval.look").bind_state("*").handle
    async def look(ctx: Context) -> str:
        return "as it is"

    async with (
        authenticated(f, state_handle_key="id", access="shared") as url,
        as_user(url, "legacy", "alice") as alice,
        listening(url, "legacy", "bob") as (bob, heard),
    ):
        for name in ("A-1", "A-2"):
            await alice.call_tool("approval.submit", {"id": name})
        assert "approval.approve" not in await menu(bob)
        await bob.call_tool(tool, {"id": "A-1"})
        await heard.wait(1)
        assert "approval.approve" in await menu(bob)
        # What the next one adds is there already, and so is the first when it is named again.
        await bob.call_tool(tool, {"id": "A-2"})
        await bob.call_tool(tool, {"id": "A-1"})
        await bob.call_tool(tool, {"id": "unused"})
        await bob.call_tool("approval.approve", {"id": "A-1"})
        await heard.wait(2)
        assert heard.count() == 2


async def test_nobody_in_particular_hears_nothing_because_his_list_never_changes() -> None:
    async with (
        anonymous(approvals(), state_handle_key="id") as url,
        listening(url, "2026-07-28") as (nobody, nothing),
        listening(url, "legacy") as (session, heard),
    ):
        for tool in ("approval.submit", "approval.approve"):
            await nobody.call_tool(tool, {"id": "A-1"})
        await session.call_tool("approval.submit", {"id": "A-2"})
        await heard.wait(1)
        assert nothing.count() == 0


@pytest.mark.parametrize("mode", ERAS)
async def test_steps_at_the_same_time_leave_everybody_with_the_menu_that_is(mode: str) -> None:
    """However steps and looks interleave, whoever lists after the last notification has the list as it is."""
    handles = [f"A-{number}" for number in range(6)]
    async with (
        authenticated(approvals(), state_handle_key="id") as url,
        listening(url, mode, "alice") as (alice, heard),
    ):
        told = 0
        seen = await menu(alice)

        async def through(handle: str) -> None:
            for tool in ("approval.submit", "approval.approve", "approval.pay"):
                assert not (await alice.call_tool(tool, {"id": handle})).is_error

        async with anyio.create_task_group() as group:
            for handle in handles:
                group.start_soon(through, handle)
        told = heard.count()
        assert told >= 1
        seen = await menu(alice)
        assert seen == ["approval.submit", "approval.help"]
        await alice.call_tool("approval.submit", {"id": "B-1"})
        await heard.wait(told + 1)


@pytest.mark.parametrize("mode", ERAS)
async def test_a_tool_bound_everywhere_says_nothing_when_its_workflow_moves(mode: str) -> None:
    f = Fusion("everywhere")

    @f.action("approval.step").describe("Step").bind_state("draft", "SUBMIT").bind_state("review", "REJECT").handle
    async def step() -> str:
        return "stepped"

    @f.action("approval.approve").describe("Approve").bind_state("review", "APPROVE").bind_state("draft").handle
    async def approve() -> str:
        return "approved"

    server = f.server(fsm=f.fsm(APPROVAL), auth=AUTH, token_verifier=Verifier())
    async with (
        http_app(server.asgi(host="127.0.0.1")) as origin,
        listening(f"{origin}/mcp", mode, "alice") as (alice, heard),
    ):
        for _ in range(4):
            assert not (await alice.call_tool("approval.step")).is_error
        await alice.call_tool("approval.step")
        await alice.call_tool("approval.approve")
        await heard.wait(1)
        assert heard.count() == 1
