"""Delays without a process: overdue timers are applied by whoever loads a workflow, in order, as committed steps."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.support.serving import ERAS, sdk_client

from .approvals import CONFIG, DAY, Clock, server

pytestmark = pytest.mark.anyio


async def steps(made: Any, handle: str = "a-1") -> list[tuple[str, str, float]]:
    return [(step.outcome, step.to_state, step.at) for step in await made.store.history("", handle)]


@pytest.mark.parametrize("era", ERAS)
async def test_a_long_downtime_is_made_up_for_in_order_at_the_times_it_was_due(era: str, tmp_path: Path):
    clock, url = Clock(), f"sqlite:///{tmp_path}/a.db"
    began = clock.now
    async with sdk_client(server(url, clock).lowlevel, era) as client:
        await client.call_tool("review.legal", {"id": "a-1"})
    clock.now += 30 * DAY
    made = server(url, clock)
    async with sdk_client(made.lowlevel, era) as client:
        refused = await client.call_tool("review.finance", {"id": "a-1"})
        assert refused.structured_content["code"] == "FORBIDDEN"
        assert refused.structured_content["state"] == "expired"
        committed = await steps(made)
        assert [(outcome, state) for outcome, state, _ in committed[1:]] == [
            ("elapsed", "escalated"),
            ("elapsed", "expired"),
        ]
        assert [at for _, _, at in committed[1:]] == [began + 2 * DAY, began + 7 * DAY]


async def test_a_clock_that_goes_back_lets_nothing_go_off(tmp_path: Path):
    clock = Clock()
    made = server(f"sqlite:///{tmp_path}/a.db", clock)
    async with sdk_client(made.lowlevel, "2026-07-28") as client:
        await client.call_tool("review.legal", {"id": "a-1"})
        clock.now -= 10 * DAY
        answer = await client.call_tool("review.finance", {"id": "a-1"})
        assert not answer.is_error
        assert [outcome for outcome, _, _ in await steps(made)] == ["committed", "committed"]


async def test_a_claimed_step_is_not_moved_away_by_a_timer(tmp_path: Path):
    from mcpfusion import Fusion

    clock, entered, go = Clock(), anyio.Event(), anyio.Event()
    f = Fusion("x")

    @f.action("x.finish", bind_state=("open", "FINISH")).handle
    async def finish() -> str:
        entered.set()
        await go.wait()
        return "finished"

    config = {
        "initial": "open",
        "states": {
            "open": {"on": {"FINISH": "done"}, "after": {"1000": "late"}},
            "late": {"type": "final"},
            "done": {"type": "final"},
        },
    }
    made = f.server(fsm=f.fsm(config), store=f"sqlite:///{tmp_path}/x.db", clock=clock, lease_margin=1e6)
    async with sdk_client(made.lowlevel, "2026-07-28") as client, anyio.create_task_group() as group:

        async def call() -> None:
            answer = await client.call_tool("x.finish", {})
            assert answer.meta["io.mcpfusion/workflow"]["state"] == "done"

        group.start_soon(call)
        await entered.wait()
        clock.now += 5
        await client.list_tools()
        go.set()
    history = await made.store.history("", "@process")
    assert [(step.outcome, step.to_state) for step in history] == [("committed", "done")]


@pytest.mark.parametrize("era", ERAS)
async def test_a_server_that_is_alive_lets_timers_go_off_and_tells_the_client(era: str, tmp_path: Path):
    config = {**CONFIG, "states": {**CONFIG["states"]}}
    config["states"]["review"] = {**config["states"]["review"], "after": {"300": "escalated"}}
    from .approvals import fusion

    f = fusion()
    made = f.server(fsm=f.fsm(config), store=f"sqlite:///{tmp_path}/a.db")
    told = anyio.Event()

    async def hear(message: Any) -> None:
        if type(message).__name__ == "ToolListChangedNotification":
            told.set()

    async with sdk_client(made.lowlevel, era, message_handler=hear) as client:
        if era == "legacy":
            await client.list_tools()
            await client.call_tool("review.legal", {})
            told = anyio.Event()
            with anyio.fail_after(30):
                await told.wait()
        else:
            async with client.listen(tools_list_changed=True) as changes:
                await client.call_tool("review.legal", {})
                with anyio.fail_after(30):
                    while [tool.name for tool in (await client.list_tools()).tools] != ["review.resume"]:
                        await changes.__anext__()
        assert [tool.name for tool in (await client.list_tools()).tools] == ["review.resume"]


async def test_machines_with_timers_or_context_are_refused_on_a_plain_store():
    from mcpfusion.stores import InMemoryFsmStateStore

    with pytest.raises(ValueError, match="a load/save store keeps"):
        server(InMemoryFsmStateStore(), Clock())
