"""A call that mints a handle opens a workflow, and says its handle wherever a client may look."""

import base64
from typing import Any

import pytest

from mcpfusion import Context
from tests.gate_identity.minting import handle_in_text, orders
from tests.gate_identity.users import AUTH, Verifier, as_user, block, code, menu
from tests.support.serving import ERAS, http_app, http_client, sdk_client

pytestmark = pytest.mark.anyio

OPENING = ["order.open", "order.place", "order.text", "order.list", "order.prices", "order.loose"]


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("key", [None, "order_id"])
async def test_the_handle_is_in_meta_in_text_and_in_structured_content(mode: str, key: str | None) -> None:
    f, gate = orders()
    server = f.server(fsm=gate, state_handle_key=key)
    name = key or "handle"
    async with sdk_client(server.lowlevel, mode) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        for tool, arguments in {
            "order.open": {"item": "pen"},
            "order.place": {"item": "pen"},
            "order.list": {},
            "order.prices": {},
            "order.loose": {},
        }.items():
            # The client validates the structured content against the output schema, and raises where it does not fit.
            result = await client.call_tool(tool, arguments)
            assert not result.is_error, tool
            handle = block(result)["handle"]
            assert result.structured_content[name] == handle, tool
            assert handle_in_text(result) == handle, tool
            assert f'"{name}"' in result.content[-1].text, tool
            assert name not in listed[tool].input_schema["properties"], tool
            if (schema := listed[tool].output_schema) is not None:
                assert schema["properties"][name]["type"] == "string", tool
        plain = await client.call_tool("order.text", {})
        assert handle_in_text(plain) == block(plain)["handle"]
        assert plain.structured_content is None


async def test_a_handle_has_at_least_128_random_bits() -> None:
    f, gate = orders()
    server = f.server(fsm=gate)
    async with sdk_client(server.lowlevel, "2026-07-28") as client:
        handles = {block(await client.call_tool("order.text", {}))["handle"] for _ in range(50)}
    assert len(handles) == 50
    tails = [base64.urlsafe_b64decode(handle.removeprefix("wf_") + "==") for handle in handles]
    assert {len(tail) for tail in tails} == {16}
    for at in range(16):
        assert len({tail[at] for tail in tails}) > 10, "a byte of the handle hardly varies"


@pytest.mark.parametrize("mode", ERAS)
async def test_the_workflow_opens_in_the_initial_state_or_where_its_transition_leads(mode: str) -> None:
    f, gate = orders()
    server = f.server(fsm=gate)
    async with sdk_client(server.lowlevel, mode) as client:
        opened = block(await client.call_tool("order.open", {"item": "pen"}))
        placed = block(await client.call_tool("order.place", {"item": "pen"}))
        assert (opened["state"], opened["allowedActions"]) == ("cart", ["order.checkout"])
        assert (placed["state"], placed["allowedActions"]) == ("placed", ["order.ship"])
        assert opened["handle"] != placed["handle"]
        assert block(await client.call_tool("order.checkout", {"handle": opened["handle"]}))["state"] == "placed"
        assert block(await client.call_tool("order.ship", {"handle": placed["handle"]}))["final"] is True
        assert server.store is not None
        steps = await server.store.history("", placed["handle"])
        assert [(step.from_state, step.to_state, step.tool) for step in steps] == [
            ("cart", "placed", "order.place"),
            ("placed", "shipped", "order.ship"),
        ]


@pytest.mark.parametrize("mode", ERAS)
async def test_two_calls_open_two_workflows_even_with_the_same_arguments_at_once(mode: str) -> None:
    import anyio

    f, gate = orders()
    server = f.server(fsm=gate)
    handles: list[str] = []
    async with sdk_client(server.lowlevel, mode) as client:

        async def one() -> None:
            handles.append(block(await client.call_tool("order.place", {"item": "pen"}))["handle"])

        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(one)
    assert len(set(handles)) == 8
    assert server.store is not None
    assert {workflow.state for workflow in await server.store.list_workflows()} == {"placed"}


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize(
    ("item", "why"), [("anvil", "SOLD_OUT"), ("bomb", "INTERNAL_ERROR"), (None, "INVALID_ARGUMENTS")]
)
async def test_a_minting_call_that_fails_opens_nothing(mode: str, item: Any, why: str) -> None:
    f, gate = orders()
    server = f.server(fsm=gate)
    async with sdk_client(server.lowlevel, mode) as client:
        before = await menu(client)
        result = await client.call_tool("order.open", {"item": item})
        assert code(result) == why
        assert "wf_" not in " ".join(part.text for part in result.content)
        assert await menu(client) == before == OPENING


@pytest.mark.parametrize("mode", ERAS)
async def test_over_http_a_session_whose_minting_call_fails_sees_the_menu_it_saw_before(mode: str) -> None:
    f, gate = orders()
    server = f.server(fsm=gate, auth=AUTH, token_verifier=Verifier())
    async with (
        http_app(server.asgi(host="127.0.0.1")) as origin,
        as_user(f"{origin}/mcp", mode, "alice") as client,
    ):
        assert await menu(client) == OPENING
        assert code(await client.call_tool("order.open", {"item": "anvil"})) == "SOLD_OUT"
        assert await menu(client) == OPENING
        assert not (await client.call_tool("order.open", {"item": "pen"})).is_error
        assert await menu(client) == [*OPENING, "order.checkout"]


async def test_nobody_in_particular_opens_a_workflow_and_goes_on_with_its_handle() -> None:
    f, gate = orders()
    server = f.server(fsm=gate)
    async with http_app(server.asgi(host="0.0.0.0")) as origin:
        async with http_client(f"{origin}/mcp", "2026-07-28") as client:
            handle = handle_in_text(await client.call_tool("order.open", {"item": "pen"}))
        async with http_client(f"{origin}/mcp", "2026-07-28") as another:
            assert code(await another.call_tool("order.checkout", {})) == "INVALID_HANDLE"
            result = await another.call_tool("order.checkout", {"handle": handle})
            assert (block(result)["handle"], block(result)["state"]) == (handle, "placed")


@pytest.mark.parametrize("mode", ERAS)
async def test_a_handle_given_to_a_tool_that_mints_one_is_refused(mode: str) -> None:
    f, gate = orders()
    server = f.server(fsm=gate)
    async with sdk_client(server.lowlevel, mode) as client:
        result = await client.call_tool("order.open", {"item": "pen", "handle": "mine"})
        assert code(result) == "INVALID_ARGUMENTS"
        assert "handle" in result.content[0].text


@pytest.mark.parametrize("mode", ERAS)
async def test_the_minted_handle_is_the_one_a_handler_returns_under_the_key(mode: str) -> None:
    f, gate = orders()

    @f.mutation("order.import").mints_handle().handle
    async def import_(ctx: Context) -> dict[str, str]:
        assert ctx.workflow is not None
        return {"handle": ctx.workflow.handle, "from": "elsewhere"}

    server = f.server(fsm=gate)
    async with sdk_client(server.lowlevel, mode) as client:
        result = await client.call_tool("order.import", {})
        assert result.structured_content == {"handle": block(result)["handle"], "from": "elsewhere"}
