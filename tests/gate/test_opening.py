"""A call that opens a workflow, and asks first: one handle for all its runs, and one workflow for all its repeats."""

from dataclasses import dataclass
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import ElicitRequestParams, ElicitResult, InputRequiredResult

from mcpfusion import Context, Fusion, ToolError
from mcpfusion.stores.memory import MemoryStore
from tests.support.serving import ERAS

pytestmark = pytest.mark.anyio

CONFIG = {
    "id": "order",
    "initial": "open",
    "states": {
        "open": {"on": {"PLACE": "placed"}},
        "placed": {"on": {"SHIP": "shipped"}},
        "shipped": {"type": "final"},
    },
}


@dataclass
class Sure:
    sure: bool


class Shop:
    def __init__(self, bound: bool, **action: Any) -> None:
        self.store = MemoryStore()
        self.handles: list[str] = []
        self.opened: list[str] = []
        f = Fusion("orders")
        binding = {"bind_state": ("open", "PLACE")} if bound else {}

        @f.action("order.open", mints_handle=True, **binding, **action).handle
        async def open_order(item: str, ctx: Context) -> dict:
            self.handles.append(ctx.workflow.handle)
            for place in range(2):
                if not (await ctx.elicit(f"Sure {place}?", Sure)).accepted:
                    raise ToolError("not opened", code="NOT_CONFIRMED")
            self.opened.append(ctx.workflow.handle)
            return {"item": item}

        @f.action("order.place", bind_state=("open", "PLACE")).handle
        async def place() -> dict:
            return {}

        @f.action("order.ship", bind_state=("placed", "SHIP")).handle
        async def ship() -> dict:
            return {}

        self.server = f.server(fsm=f.fsm(CONFIG), store=self.store)


def yes_until(last: int) -> Any:
    asked = 0

    async def answer(_: Any, params: ElicitRequestParams) -> ElicitResult:
        nonlocal asked
        asked += 1
        return (
            ElicitResult(action="accept", content={"sure": True}) if asked <= last else ElicitResult(action="decline")
        )

    return answer


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("bound", [True, False])
async def test_all_runs_of_one_call_mean_one_workflow(bound: bool, mode: str) -> None:
    shop = Shop(bound)
    async with Client(shop.server.lowlevel, mode=mode, elicitation_callback=yes_until(2)) as client:
        result = await client.call_tool("order.open", {"item": "pen"})
        handle = result.meta["io.mcpfusion/workflow"]["handle"]
        assert result.structured_content == {"item": "pen", "handle": handle}
        assert shop.handles == [handle] * 3
        assert shop.opened == [handle]
        assert [workflow.handle for workflow in await shop.store.list_workflows()] == [handle]
        following = "order.ship" if bound else "order.place"
        assert not (await client.call_tool(following, {"handle": handle})).is_error


@pytest.mark.parametrize("mode", ERAS)
async def test_a_no_opens_nothing(mode: str) -> None:
    shop = Shop(bound=False)
    async with Client(shop.server.lowlevel, mode=mode, elicitation_callback=yes_until(1)) as client:
        assert (await client.call_tool("order.open", {"item": "pen"})).structured_content["code"] == "NOT_CONFIRMED"
        assert await shop.store.states_in_use("") == []
    assert shop.opened == []


@pytest.mark.parametrize("further", ["no step", "one step", "two steps"])
@pytest.mark.parametrize("keep_result", [None, 60])
@pytest.mark.parametrize("bound", [True, False])
async def test_the_last_answer_sent_again_does_not_open_it_again(
    bound: bool, keep_result: float | None, further: str
) -> None:
    """A client of 2026-07-28 whose stream broke sends the call again, with the answers and the sealed state."""
    shop = Shop(bound, **({"keep_result": keep_result} if keep_result else {}))
    async with Client(shop.server.lowlevel, mode=ERAS[1], elicitation_callback=yes_until(9)) as client:

        async def send(asked: Any) -> Any:
            answers = {key: ElicitResult(action="accept", content={"sure": True}) for key in asked.input_requests}
            return await client.session.call_tool(
                "order.open", {"item": "pen"}, input_responses=answers, request_state=asked.request_state,
                allow_input_required=True,
            )  # fmt: skip

        first = await client.session.call_tool("order.open", {"item": "pen"}, allow_input_required=True)
        second = await send(first)
        assert isinstance(second, InputRequiredResult)
        opened = await send(second)
        handle = opened.structured_content["handle"]
        steps = {"no step": 0, "one step": 1, "two steps": 2}[further]
        for tool in ["order.ship"][:steps] if bound else ["order.place", "order.ship"][:steps]:
            assert not (await client.call_tool(tool, {"handle": handle})).is_error
        before = await shop.store.read("", handle)

        again = await send(second)

        assert shop.opened == [handle]
        assert await shop.store.read("", handle) == before
        kept = keep_result is not None and steps == 0
        assert again.structured_content == opened.structured_content if kept else again.is_error
        if not kept and steps == 0:
            assert again.structured_content["code"] == "ALREADY_DONE"
        assert again.meta["io.mcpfusion/workflow"]["handle"] == handle


async def test_the_sealed_state_of_one_call_is_no_other_calls() -> None:
    shop = Shop(bound=False)
    async with Client(shop.server.lowlevel, mode=ERAS[1], elicitation_callback=yes_until(9)) as client:
        first = await client.session.call_tool("order.open", {"item": "pen"}, allow_input_required=True)
        answers = {key: ElicitResult(action="accept", content={"sure": True}) for key in first.input_requests}
        for arguments in ({"item": "car"}, {"item": "pen", "handle": "mine"}):
            with pytest.raises(MCPError):
                await client.call_tool(
                    "order.open", arguments, input_responses=answers, request_state=first.request_state
                )
    assert shop.opened == []
