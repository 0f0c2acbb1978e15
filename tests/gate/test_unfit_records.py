"""What is stored and does not fit: another machine's state, another version's record, rubbish."""

import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from mcpfusion import FsmSnapshot, Fusion
from mcpfusion.gate import records
from mcpfusion.machine import Machine
from mcpfusion.stores.memory import InMemoryFsmStateStore, MemoryStore
from mcpfusion.telemetry import workflow_name
from tests.gate.payments import CONFIG
from tests.support.serving import ERAS

pytestmark = pytest.mark.anyio


class Shop:
    """A server with a step out of every state, so that only what is stored can keep it from running."""

    def __init__(self, store: Any, **options: Any) -> None:
        self.runs: list[str] = []
        f = Fusion("shop")

        @f.action("payment.capture", bind_state=("due", "PAY")).handle
        async def capture() -> None:
            self.runs.append("capture")

        @f.action("payment.look", bind_state="*").handle
        async def look() -> None:
            self.runs.append("look")

        @f.query("shop.hours").handle
        async def hours() -> str:
            return "always"

        options = {"state_handle_key": "id", **options}
        self.server = f.server(fsm=f.fsm(CONFIG), store=store, **options)


def unfit(**changes: Any) -> Any:
    """Return a record that a store holds and this machine does not fit."""
    record = records.new_record("", "p1", Machine(CONFIG).initial(), 1.0)
    return replace(record, version=1, **changes)


SNAPSHOTS = {
    "a state that there is not": {"value": "captured", "status": "active"},
    "a name that is no state": {"value": "constructor", "status": "active"},
    "no state": {"status": "active"},
    "null": {"value": None},
    "a nested state": {"value": {"due": "inner"}},
    "a number": {"value": 7},
    "an empty object": {},
    "a status that cannot be": {**Machine(CONFIG).initial().to_json(), "status": "done"},
    "rubbish everywhere": {"value": "due", "context": 3, "history": [1], "timers": "x"},
}


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("snapshot", SNAPSHOTS.values(), ids=SNAPSHOTS)
async def test_a_state_the_machine_does_not_have_is_refused_and_nothing_runs(
    snapshot: Any, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    record = unfit(state="captured", snapshot=snapshot)
    assert await store.write(record, expected_version=0)
    shop = Shop(store)
    async with Client(shop.server.lowlevel, mode=mode) as client:
        for tool in ("payment.capture", "payment.look"):
            answer = await client.call_tool(tool, {"id": "p1"})
            assert answer.is_error
            assert answer.structured_content["code"] == "UNKNOWN_STATE"
            assert answer.structured_content["allowedActions"] == []
            assert "nothing ran" in answer.structured_content["message"]
        assert shop.runs == []
        assert workflow_name("", "p1") in caplog.text
        # The list says what opens a workflow, and the other workflows work.
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names == ["payment.capture", "payment.look", "shop.hours"]
        assert not (await client.call_tool("payment.capture", {"id": "p2"})).is_error
        assert (await client.call_tool("shop.hours", {})).content[0].text == "always"
    assert await store.read("", "p1") == record


@pytest.mark.parametrize("mode", ERAS)
async def test_the_only_workflow_of_a_process_does_not_take_the_list_with_it(mode: str) -> None:
    store = MemoryStore()
    record = replace(unfit(state="captured", snapshot={"value": "captured"}), handle="@process")
    assert await store.write(record, expected_version=0)
    async with Client(Shop(store, state_handle_key=None).server.lowlevel, mode=mode) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["shop.hours"]
        answer = await client.call_tool("payment.capture", {})
        assert answer.structured_content["code"] == "UNKNOWN_STATE"


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("state", ["captured", "", "{", "[]", '{"due":"x"}', "due ", "\x00"])
async def test_a_plain_store_with_a_state_that_there_is_not_is_refused(state: str, mode: str) -> None:
    store = InMemoryFsmStateStore()
    await store.save("p1", FsmSnapshot(state, "2026-01-01T00:00:00Z"))
    shop = Shop(store)
    async with Client(shop.server.lowlevel, mode=mode) as client:
        answer = await client.call_tool("payment.capture", {"id": "p1"})
        assert answer.structured_content["code"] == "UNKNOWN_STATE"
        assert "payment.capture" in [tool.name for tool in (await client.list_tools()).tools]
    assert shop.runs == []
    assert await store.load("p1") == FsmSnapshot(state, "2026-01-01T00:00:00Z")


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize(
    ("how", "said"),
    [
        (lambda record: {**record, "lane": 1}, "lane"),
        (lambda record: {key: value for key, value in record.items() if key != "snapshot"}, "snapshot"),
        (lambda record: {**record, "steps": "one"}, "steps"),
        (lambda record: {**record, "claim": {"call_id": "c"}}, "claim"),
        (lambda record: [record], "object"),
    ],
    ids=["newer", "older", "wrong type", "half a claim", "no object"],
)
async def test_a_record_of_another_shape_is_refused_and_nothing_runs(
    how: Any, said: str, mode: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "shop.db"
    shop = Shop(f"sqlite:///{path}")
    async with Client(shop.server.lowlevel, mode=mode) as client:
        await client.call_tool("payment.look", {"id": "p1"})
        assert not (await client.call_tool("payment.capture", {"id": "p1"})).is_error
    with sqlite3.connect(path) as file:
        [[text]] = file.execute("SELECT record FROM workflow").fetchall()
        file.execute("UPDATE workflow SET record = ?", [json.dumps(how(json.loads(text)))])
    file.close()
    shop.runs.clear()
    async with Client(shop.server.lowlevel, mode=mode) as client:
        answer = (await client.call_tool("payment.look", {"id": "p1"})).structured_content
        assert answer["code"] == "STORE_UNAVAILABLE"
        assert said not in answer["message"]
        assert said in caplog.text
        assert shop.runs == []
        assert len((await client.list_tools()).tools) == 3
        assert not (await client.call_tool("payment.capture", {"id": "p2"})).is_error
