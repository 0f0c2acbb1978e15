"""The short description while every workflow of the caller stands in its initial state, the full one later."""

import anyio
import pytest

from mcpfusion import Fusion
from tests.gate_identity.users import APPROVAL, anonymous, as_user, authenticated
from tests.support.serving import ERAS, http_client, sdk_client

pytestmark = pytest.mark.anyio

SHORT, FULL = "Help.", "Help with what may be done in the state at hand, at length and with examples."


def helpful() -> Fusion:
    f = Fusion("helpful")

    @f.query("approval.guide").describe(FULL).compact_description(SHORT).bind_state("*").handle
    async def guide() -> str:
        return "go on"

    @f.mutation("approval.submit").describe("Submit it").bind_state("draft", "SUBMIT").handle
    async def submit() -> str:
        return "submitted"

    @f.mutation("approval.reject").describe("Reject it").bind_state("review", "REJECT").handle
    async def reject() -> str:
        return "rejected"

    return f


async def text_of(client: object, tool: str = "approval.guide") -> str:
    listed = await client.list_tools()  # type: ignore[attr-defined]
    return next(each.description for each in listed.tools if each.name == tool)


@pytest.mark.parametrize("mode", ERAS)
async def test_short_while_initial_and_full_later_and_short_again(mode: str) -> None:
    f = helpful()
    server = f.server(fsm=f.fsm(APPROVAL))
    async with sdk_client(server.lowlevel, mode) as client:
        assert await text_of(client) == SHORT
        await client.call_tool("approval.submit")
        assert await text_of(client) == FULL
        await client.call_tool("approval.reject")
        assert await text_of(client) == SHORT


async def test_full_as_soon_as_one_of_a_principals_workflows_has_left_its_initial_state() -> None:
    async with (
        authenticated(helpful(), state_handle_key="id") as url,
        as_user(url, "2026-07-28", "alice") as alice,
        as_user(url, "2026-07-28", "bob") as bob,
    ):
        assert await text_of(alice) == SHORT
        await alice.call_tool("approval.guide", {"id": "A-1"})
        assert await text_of(alice) == SHORT
        await alice.call_tool("approval.submit", {"id": "A-1"})
        assert await text_of(alice) == FULL
        assert await text_of(bob) == SHORT


async def test_nobody_in_particular_gets_the_full_one() -> None:
    async with anonymous(helpful(), state_handle_key="id") as url, http_client(url, "2026-07-28") as client:
        assert (await text_of(client)).startswith(FULL)


async def test_a_change_of_nothing_but_the_description_is_told() -> None:
    f = Fusion("only")

    @(
        f.action("approval.step")
        .describe(FULL)
        .compact_description(SHORT)
        .bind_state("draft", "SUBMIT")
        .bind_state("review", "APPROVE")
        .bind_state("approved")
        .handle
    )
    async def step() -> str:
        return "done"

    async with (
        authenticated(f) as url,
        as_user(url, "2026-07-28", "alice") as alice,
        alice.listen(tools_list_changed=True) as stream,
    ):
        assert await text_of(alice, "approval.step") == SHORT
        await alice.call_tool("approval.step")
        with anyio.fail_after(20):
            await anext(aiter(stream))
        assert await text_of(alice, "approval.step") == FULL
