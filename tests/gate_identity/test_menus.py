"""The menu of each kind of caller: a session, a principal, the one caller of a process, and nobody in particular."""

from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from mcpfusion import Fusion
from tests.gate_identity.users import APPROVAL, anonymous, approvals, as_user, authenticated, menu
from tests.support.serving import ERAS, http_client, post, sdk_client, stdio_server

pytestmark = pytest.mark.anyio

INITIAL = ["approval.submit", "approval.help"]


async def test_a_session_sees_what_opens_a_workflow_and_what_its_own_workflows_admit() -> None:
    async with (
        anonymous(approvals(), state_handle_key="id") as url,
        http_client(url, "legacy") as one,
        http_client(url, "legacy") as other,
    ):
        assert await menu(one) == INITIAL
        await one.call_tool("approval.submit", {"id": "A-1"})
        assert await menu(one) == ["approval.submit", "approval.approve", "approval.reject", "approval.help"]
        await one.call_tool("approval.submit", {"id": "A-2"})
        await one.call_tool("approval.approve", {"id": "A-2"})
        whole = ["approval.submit", "approval.approve", "approval.reject", "approval.pay", "approval.help"]
        assert await menu(one) == whole
        assert await menu(other) == INITIAL
        await one.call_tool("approval.pay", {"id": "A-2"})
        assert await menu(one) == ["approval.submit", "approval.approve", "approval.reject", "approval.help"]


async def test_a_principal_sees_the_union_over_the_open_workflows_in_his_scope() -> None:
    async with (
        authenticated(approvals(), state_handle_key="id") as url,
        as_user(url, "2026-07-28", "alice") as alice,
        as_user(url, "2026-07-28", "bob") as bob,
    ):
        assert await menu(alice) == INITIAL
        for handle in ("A-1", "A-2"):
            await alice.call_tool("approval.submit", {"id": handle})
        await alice.call_tool("approval.approve", {"id": "A-2"})
        whole = ["approval.submit", "approval.approve", "approval.reject", "approval.pay", "approval.help"]
        assert await menu(alice) == whole
        assert await menu(bob) == INITIAL
        async with as_user(url, "2026-07-28", "alice") as again:
            assert await menu(again) == whole
        await alice.call_tool("approval.pay", {"id": "A-2"})
        assert await menu(alice) == ["approval.submit", "approval.approve", "approval.reject", "approval.help"]


@pytest.mark.parametrize("mode", ERAS)
async def test_shared_every_principal_sees_what_any_open_workflow_admits(mode: str) -> None:
    async with (
        authenticated(approvals(), state_handle_key="id", access="shared") as url,
        as_user(url, "2026-07-28", "alice") as alice,
        as_user(url, mode, "bob") as bob,
    ):
        await alice.call_tool("approval.submit", {"id": "A-1"})
        seen = await menu(bob)
        assert ("approval.approve" in seen) == (mode != "legacy")
        assert not (await bob.call_tool("approval.approve", {"id": "A-1"})).is_error
        assert "approval.pay" in await menu(bob)


@pytest.mark.parametrize("mode", ERAS)
async def test_the_one_caller_of_a_process_sees_the_workflow_of_the_process(mode: str) -> None:
    f = approvals()
    server = f.server(fsm=f.fsm(APPROVAL))
    async with sdk_client(server.lowlevel, mode) as client:
        assert await menu(client) == INITIAL
        await client.call_tool("approval.submit")
        assert await menu(client) == ["approval.approve", "approval.reject", "approval.help"]
        await client.call_tool("approval.approve")
        await client.call_tool("approval.pay")
        assert await menu(client) == ["approval.help"]


@pytest.mark.parametrize("mode", ERAS)
async def test_over_stdio_the_handles_of_the_one_caller_join_their_menus(mode: str, tmp_path: Any) -> None:
    script = tmp_path / "server.py"
    script.write_text(
        "from tests.gate_identity.users import APPROVAL, approvals\n"
        "f = approvals()\n"
        "f.server(fsm=f.fsm(APPROVAL), state_handle_key='id').run('stdio')\n"
    )
    here = __file__.rsplit("/tests/", 1)[0]
    async with sdk_client(stdio_server(script, env={"PYTHONPATH": here}), mode) as client:
        assert await menu(client) == INITIAL
        await client.call_tool("approval.submit", {"id": "A-1"})
        assert await menu(client) == ["approval.submit", "approval.approve", "approval.reject", "approval.help"]


async def test_nobody_in_particular_gets_the_whole_list_which_says_where_each_tool_works() -> None:
    async with anonymous(approvals(), state_handle_key="id") as url, http_client(url, "2026-07-28") as client:
        before = await client.list_tools()
        texts = {tool.name: tool.description for tool in before.tools}
        assert texts == {
            "approval.submit": "Submit it\n\nWorks in state: draft.",
            "approval.approve": "Approve it\n\nWorks in state: review.",
            "approval.reject": "Reject it\n\nWorks in state: review.",
            "approval.pay": "Pay it\n\nWorks in state: approved.",
            "approval.help": "Say how it goes",
        }
        await client.call_tool("approval.submit", {"id": "A-1"})
        async with http_client(url, "2026-07-28") as other:
            for who in (client, other):
                assert (await who.list_tools()).model_dump() == before.model_dump()


async def test_single_tenant_nobody_in_particular_is_always_the_same() -> None:
    async with anonymous(approvals(), state_handle_key="id", single_tenant=True) as url:
        async with http_client(url, "2026-07-28") as client:
            await client.call_tool("approval.submit", {"id": "A-1"})
        async with http_client(url, "2026-07-28") as again:
            assert await menu(again) == ["approval.submit", "approval.approve", "approval.reject", "approval.help"]


async def test_a_gated_list_is_fresh_and_private_on_the_wire_in_both_eras() -> None:
    async with (
        authenticated(approvals(), state_handle_key="id") as url,
        as_user(url, "2026-07-28", "alice") as modern,
        as_user(url, "legacy", "alice") as legacy,
    ):
        result = await modern.list_tools()
        assert (result.ttl_ms, result.cache_scope) == (0, "private")
        assert (await legacy.list_tools()).tools
    async with anonymous(approvals(), state_handle_key="id") as url, http_client(url, "2026-07-28") as nobody:
        result = await nobody.list_tools()
        assert (result.ttl_ms, result.cache_scope) == (0, "private")


@pytest.mark.parametrize("mode", ERAS)
async def test_list_changed_is_advertised_where_there_is_a_gate(mode: str) -> None:
    f = approvals()
    async with anonymous(f, state_handle_key="id") as url:
        negotiated = "auto" if mode != "legacy" else mode
        async with http_client(url, negotiated) as client:
            assert client.server_capabilities.tools is not None
            assert client.server_capabilities.tools.list_changed is True


def many(count: int) -> Fusion:
    f = Fusion("many")
    for number in range(count):

        @f.action(f"tool.n{(number * 7919) % count:04d}", describe="Do it", bind_state="draft").handle
        async def tool() -> str:
            return "done"

    return f


@pytest.mark.parametrize("mode", ERAS)
async def test_the_menu_of_500_tools_has_one_order_and_comes_in_pages(mode: str) -> None:
    async def whole(f: Fusion) -> tuple[list[str], int]:
        server = f.server(fsm=f.fsm(APPROVAL), page_size=150)
        async with sdk_client(server.lowlevel, mode) as client:
            names, cursor, pages = [], None, 0
            while pages == 0 or cursor:
                page = await client.list_tools(cursor=cursor)
                names += [tool.name for tool in page.tools]
                cursor, pages = page.next_cursor, pages + 1
            return names, pages

    names, pages = await whole(many(500))
    assert len(names) == len(set(names)) == 500
    assert pages == 4
    assert await whole(many(500)) == (names, pages)


@pytest.mark.parametrize("cursor", ["", "rubbish", "bnVsbA==", "é", "base:", "x" * 5000, "Ingi"])
@pytest.mark.parametrize("mode", ERAS)
async def test_a_cursor_that_is_not_ours_is_refused_or_starts_over(mode: str, cursor: str) -> None:
    f = many(10)
    server = f.server(fsm=f.fsm(APPROVAL), page_size=4)
    async with sdk_client(server.lowlevel, mode) as client:
        if cursor == "":
            assert len((await client.list_tools(cursor=cursor)).tools) == 4
            return
        with pytest.raises(MCPError, match=r"(?i)cursor") as refused:
            await client.list_tools(cursor=cursor)
        assert refused.value.error.code == -32602


async def test_a_list_before_the_handshake_is_refused_and_tells_no_menu() -> None:
    async with anonymous(approvals(), state_handle_key="id") as url:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        response = await post(url, body, {"MCP-Protocol-Version": "2025-11-25"})
        assert "approval.submit" not in response.text
