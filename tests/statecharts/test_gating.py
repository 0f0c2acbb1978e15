"""Gating by nested and parallel states, over a real client in both eras."""

from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from tests.support.serving import ERAS, sdk_client

from .approvals import Clock, server

pytestmark = pytest.mark.anyio

WORKFLOW = "io.mcpfusion/workflow"


async def allowed(client: Client, tool: str, handle: str = "a-1") -> Any:
    """Call a tool and return what may come next."""
    result = await client.call_tool(tool, {"id": handle})
    assert not result.is_error, result.content
    return result.meta[WORKFLOW]["allowedActions"]


@pytest.mark.parametrize("era", ERAS)
async def test_regions_open_their_tools_side_by_side(era: str, tmp_path: Path):
    made = server(f"sqlite:///{tmp_path}/a.db", Clock())
    async with sdk_client(made.lowlevel, era) as client:
        assert await allowed(client, "review.look") == ["review.legal", "review.finance", "review.look"]
        assert await allowed(client, "review.legal") == ["review.finance", "review.look"]
        refused = await client.call_tool("review.legal", {"id": "a-1", "again": 1})
        assert refused.structured_content["code"] == "FORBIDDEN"
        assert refused.structured_content["state"] == {"review": {"legal": "ok", "finance": "pending"}}
        early = await client.call_tool("review.pay", {"id": "a-1"})
        assert early.structured_content["code"] == "FORBIDDEN"
        assert await allowed(client, "review.finance") == ["review.pay"]
        last = await client.call_tool("review.pay", {"id": "a-1"})
        assert last.meta[WORKFLOW] == {"handle": "a-1", "state": "paid", "allowedActions": [], "final": True}


@pytest.mark.parametrize("era", ERAS)
async def test_the_menu_is_the_union_of_the_regions(era: str, tmp_path: Path):
    made = server(f"sqlite:///{tmp_path}/a.db", Clock())
    async with sdk_client(made.lowlevel, era) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names == ["review.legal", "review.finance", "review.look"]
        await allowed(client, "review.legal")
        await allowed(client, "review.finance")
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert "review.pay" in names  # of a-1, beside what opens another one
        assert "review.resume" not in names


async def test_guards_see_the_arguments_and_the_result_and_actions_keep_what_they_assign(tmp_path: Path):
    from mcpfusion import Fusion

    f = Fusion("carts")
    gate = f.fsm(
        {
            "id": "cart",
            "initial": "open",
            "context": {"total": 0},
            "states": {
                "open": {
                    "on": {
                        "ADD": {"actions": "add"},
                        "PAY": {"target": "paid", "guard": "covered"},
                    }
                },
                "paid": {"type": "final"},
            },
        },
        guards={"covered": lambda context, event, params: event["arguments"]["amount"] >= context["total"]},
        actions={"add": lambda context, event, params: {"total": context["total"] + event["result"]["price"]}},
    )

    @f.action("cart.add", bind_state=("open", "ADD")).handle
    def add(price: int) -> dict[str, int]:
        return {"price": price}

    ran: list[int] = []

    @f.action("cart.pay", bind_state=("open", "PAY")).handle
    def pay(amount: int) -> dict[str, int]:
        ran.append(amount)
        return {"amount": amount}

    made = f.server(fsm=gate, store=f"sqlite:///{tmp_path}/carts.db", state_handle_key="cart")
    async with sdk_client(made.lowlevel, "2026-07-28") as client:
        for price in (3, 4):
            assert not (await client.call_tool("cart.add", {"cart": "c", "price": price})).is_error
        refused = await client.call_tool("cart.pay", {"cart": "c", "amount": 6})
        assert refused.structured_content["code"] == "FORBIDDEN"
        assert ran == []
        paid = await client.call_tool("cart.pay", {"cart": "c", "amount": 7})
        assert paid.meta[WORKFLOW]["final"]
        assert ran == [7]
        record = await made.store.read("", "c")
        assert record.snapshot["context"] == {"total": 7}


async def test_a_guard_that_raises_denies_and_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    from mcpfusion import Fusion

    def broken(context: Any, event: Any, params: Any) -> bool:
        raise RuntimeError("no such account")

    f = Fusion("x")
    config = {"initial": "a", "states": {"a": {"on": {"GO": {"target": "b", "guard": "g"}}}, "b": {"type": "final"}}}
    f.action("x.go", bind_state=("a", "GO")).handle(lambda: "ran")
    made = f.server(fsm=f.fsm(config, guards={"g": broken}), store=f"sqlite:///{tmp_path}/x.db")
    async with sdk_client(made.lowlevel, "2026-07-28") as client:
        answer = await client.call_tool("x.go", {})
        assert answer.structured_content["code"] == "FORBIDDEN"
        assert "account" not in str(answer)
    assert "no such account" in caplog.text
