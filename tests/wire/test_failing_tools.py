"""A bound tool that does not succeed, in each way of failing: the workflow stays, and the next call passes."""

from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from tests.support.hearing import Heard, hearing_client
from tests.support.serving import ERAS, http_app
from tests.wire.ways import SECRET, WAYS, make

pytestmark = pytest.mark.anyio

MASKS_ITSELF = ("gate-mcpserver", "gate-fastmcp")
"""Here the user's own server words what its tool raised, before the gate sees it."""


async def fails(client: Client, how: str, id: str, way: str) -> None:
    arguments = {"how": how, "id": id}
    if how == "protocol" and way in ("gate-lowlevel", "gate-mcpserver"):  # FastMCP makes a tool error of it
        with pytest.raises(MCPError) as raised:
            await client.call_tool("invoice.flaky", arguments)
        assert raised.value.error.message == "no such branch"
        assert raised.value.error.data == {"branch": 7}
        return
    result = await client.call_tool("invoice.flaky", arguments)
    assert result.is_error
    block = result.meta["io.mcpfusion/workflow"]
    assert (block["handle"], block["state"]) == (id, "draft")
    assert "invoice.flaky" in block["allowedActions"]
    if how == "error":
        assert "no ink left" in result.content[0].text
    elif way not in MASKS_ITSELF:
        assert SECRET not in result.model_dump_json()


async def stays_free(client: Client, heard: Heard, way: str, id: str) -> None:
    for how in ("error", "raise", "protocol"):
        await fails(client, how, id, way)
        assert heard.count() == 0
    # Were the claim still held, this would be a CONFLICT or in doubt.
    done = await client.call_tool("invoice.flaky", {"how": "well", "id": id})
    assert not done.is_error, done.content
    assert done.meta["io.mcpfusion/workflow"]["state"] == "review"


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("way", WAYS)
async def test_a_tool_that_fails_leaves_the_state_and_the_slot(way: str, mode: str) -> None:
    async with hearing_client(make(way, keyed=True).lowlevel, mode) as (client, heard):
        await stays_free(client, heard, way, "inv-1")


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("way", ["own", "gate-lowlevel", "gate-mcpserver", "gate-fastmcp"])
async def test_a_tool_that_fails_over_http_leaves_the_state_and_the_slot(way: str, mode: str) -> None:
    async with (
        http_app(make(way, keyed=True).asgi()) as origin,
        hearing_client(f"{origin}/mcp", mode) as (client, heard),
    ):
        await stays_free(client, heard, way, "inv-1")


async def failure(client: Client, tool: str, arguments: dict[str, Any]) -> str:
    """Return what a call that must fail is answered: by a tool error, or by an error of the protocol."""
    try:
        result = await client.call_tool(tool, arguments)
    except MCPError as error:
        return str(error)
    assert result.is_error, result
    return result.content[0].text


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("way", [way for way in WAYS if way != "gate-lowlevel"])  # that one validates nothing itself
async def test_arguments_that_do_not_fit_move_nothing(way: str, mode: str) -> None:
    async with hearing_client(make(way, keyed=True).lowlevel, mode) as (client, heard):
        await failure(client, "invoice.flaky", {"id": "inv-1"})
        await failure(client, "invoice.flaky", {"id": "inv-1", "how": ["raise"]})
        if way != "gate-mcpserver":  # which lets arguments pass that it does not know
            await failure(client, "invoice.submit", {"id": "inv-1", "extra": {"deep": [1]}, "id ": 0})
        assert heard.count() == 0
        done = await client.call_tool("invoice.submit", {"id": "inv-1"})
        assert not done.is_error, done.content


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("way", WAYS)
async def test_an_unknown_tool_is_refused_and_moves_nothing(way: str, mode: str) -> None:
    async with hearing_client(make(way, keyed=True).lowlevel, mode) as (client, _):
        for name in ("invoice.nothing", "", "\x00" * 3, "ü" * 4000, "__class__"):
            assert len(await failure(client, name, {"id": "inv-1"})) < 5000
        assert not (await client.call_tool("invoice.submit", {"id": "inv-1"})).is_error


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("way", ["own", "gate-lowlevel", "gate-mcpserver", "gate-fastmcp"])
@pytest.mark.parametrize(
    "handle",
    ["", "x" * 10_000, "@process", "@session:1", "@principal", ["a"], {"a": 1}, True, 1.5, "\ud800"],
    ids=["empty", "10kB", "process", "session", "principal", "list", "object", "bool", "float", "surrogate"],
)
async def test_a_handle_that_cannot_name_a_workflow_is_refused(way: str, mode: str, handle: Any) -> None:
    async with hearing_client(make(way, keyed=True).lowlevel, mode) as (client, heard):
        for tool in ("invoice.submit", "invoice.approve"):
            result = await client.call_tool(tool, {"id": handle})
            assert result.is_error
            assert result.content[0].text.startswith("INVALID_HANDLE: id: ")
            assert result.structured_content["code"] == "INVALID_HANDLE"
        assert heard.count() == 0


@pytest.mark.parametrize("mode", ERAS)
async def test_odd_but_valid_handles_name_workflows_of_their_own(mode: str) -> None:
    handles = [" ", "a/b", "../..", "constructor", "é", "e\u0301", "\x00", "'; drop table workflow;--", "x" * 1024]
    async with hearing_client(make("own", keyed=True).lowlevel, mode) as (client, _):
        for handle in handles:
            result = await client.call_tool("invoice.submit", {"id": handle})
            assert not result.is_error, (handle, result.content)
            assert result.meta["io.mcpfusion/workflow"]["handle"] == handle
