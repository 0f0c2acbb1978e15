"""What an operator does to a workflow by hand, and what he cannot do."""

from dataclasses import replace
from typing import Any

import pytest
from mcp import Client

from mcpfusion import Context, Fusion, ToolError
from mcpfusion.gate import operator
from mcpfusion.gate.operator import OperatorError
from mcpfusion.stores.memory import MemoryStore
from mcpfusion.stores.protocol import Workflow
from tests.gate.payments import CONFIG
from tests.support.serving import ERAS

pytestmark = pytest.mark.anyio


class Shop:
    """A server whose `payment.capture` leaves its first step in doubt."""

    def __init__(self, transition: Any = "PAY") -> None:
        self.store = MemoryStore()
        self.now = 1000.0
        self.keys: list[str] = []
        f = Fusion("shop")

        @f.action("payment.capture", bind_state=("due", transition)).handle
        async def capture(id: str, ctx: Context) -> dict:
            self.keys.append(ctx.workflow.idempotency_key)
            if len(self.keys) == 1:
                raise ToolError("no answer", in_doubt=True)
            return {"paid": True}

        @f.action("payment.void", bind_state=("due", "VOID")).handle
        async def void(id: str) -> dict:
            return {}

        @f.action("payment.refund", bind_state=("paid", "REFUND")).handle
        async def refund(id: str) -> dict:
            return {}

        self.gate = f.fsm(CONFIG)
        options = {"clock": lambda: self.now, "conflict_wait": 0.02}
        self.server = f.server(fsm=self.gate, state_handle_key="id", store=self.store, **options)

    async def code(self, tool: str = "payment.capture") -> str:
        async with Client(self.server.lowlevel, mode=ERAS[1]) as client:
            result = await client.call_tool(tool, {"id": "p1"})
        return result.structured_content["code"] if result.is_error else "OK"

    async def record(self) -> Workflow:
        record = await self.store.read("", "p1")
        assert record is not None
        return record

    async def history(self) -> list[tuple[Any, ...]]:
        steps = await self.store.history("", "p1")
        return [(s.from_state, s.event, s.to_state, s.tool, s.principal, s.call_id, s.at, s.outcome) for s in steps]

    async def done(self, snapshot: Any = None) -> Workflow:
        record = await self.record()
        return await operator.resolve_done(self.store, record, snapshot=snapshot, operator="ann", now=self.now)

    async def not_done(self) -> Workflow:
        return await operator.resolve_not_done(self.store, await self.record(), operator="ann", now=self.now)


async def test_done_moves_the_workflow_as_the_call_would_have() -> None:
    shop = Shop()
    assert await shop.code() == "IN_DOUBT"
    shop.now += 60
    record = await shop.done()
    assert record == await shop.record()
    assert (record.state, record.claim, record.updated_at) == ("paid", None, 1060.0)
    line = ("due", "PAY", "paid", "payment.capture", "ann", "", 1060.0, "resolved_done")
    assert await shop.history() == [line]
    assert await shop.code() == "ALREADY_DONE"
    assert await shop.code("payment.void") == "FORBIDDEN"
    assert await shop.code("payment.refund") == "OK"
    assert len(shop.keys) == 1


async def test_not_done_frees_the_step_and_its_key_stays() -> None:
    shop = Shop()
    await shop.code()
    record = await shop.not_done()
    assert (record.state, record.claim) == ("due", None)
    assert await shop.history() == [("due", None, "due", "payment.capture", "ann", "", 1000.0, "resolved_not_done")]
    assert await shop.code() == "OK"
    assert shop.keys[0] == shop.keys[1]


async def test_not_done_frees_the_step_for_another_event_too() -> None:
    shop = Shop()
    await shop.code()
    await shop.not_done()
    assert await shop.code("payment.void") == "OK"


async def test_where_the_result_decides_the_operator_says_where_the_step_led() -> None:
    shop = Shop(transition=lambda arguments, result: "PAY")
    await shop.code()
    with pytest.raises(OperatorError, match="name the machine and the event"):
        await shop.done()
    machine = shop.gate.machine
    record = await shop.done(machine.transition(machine.initial(), "PAY").to_json())
    assert record.state == "paid"
    assert await shop.code() == "ALREADY_DONE"


@pytest.mark.parametrize("how", ["done", "not_done"])
async def test_where_nothing_is_in_doubt_nothing_is_resolved(how: str) -> None:
    shop = Shop()
    await shop.code()
    await shop.not_done()
    before = await shop.record()
    with pytest.raises(OperatorError, match="no step of workflow 'p1' is in doubt"):
        await getattr(shop, how)()
    assert await shop.record() == before


@pytest.mark.parametrize("how", ["done", "not_done"])
async def test_a_step_in_progress_is_nobodys_to_resolve(how: str) -> None:
    shop = Shop()
    await shop.code()
    record = await shop.record()
    running = replace(
        record, version=record.version + 1, claim=replace(record.claim, in_doubt=False, lease_until=1030.0)
    )
    assert await shop.store.write(running, expected_version=record.version)
    with pytest.raises(OperatorError, match=r"'payment.capture' is still in progress \(its lease ends in 30 s\)"):
        await getattr(shop, how)()
    assert await shop.record() == running
    shop.now = 1030.0
    assert (await getattr(shop, how)()).claim is None


@pytest.mark.parametrize("how", [operator.resolve_done, operator.resolve_not_done, operator.reset])
async def test_of_two_operators_at_once_one_is_told_to_look_again(how: Any) -> None:
    shop = Shop()
    await shop.code()
    seen = await shop.record()
    await shop.not_done()
    snapshot = {} if how is operator.resolve_not_done else {"snapshot": shop.gate.machine.initial().to_json()}
    with pytest.raises(OperatorError, match="'p1' changed meanwhile; look again"):
        await how(shop.store, seen, **snapshot, operator="bob", now=shop.now)
    assert len(await shop.history()) == 1


async def test_a_reset_puts_a_workflow_anywhere_and_gives_its_steps_new_keys() -> None:
    shop = Shop()
    await shop.code()
    initial = shop.gate.machine.initial().to_json()
    before = await shop.record()
    record = await operator.reset(shop.store, before, snapshot=initial, operator="ann", now=1001.0)
    assert (record.state, record.claim, record.last) == ("due", None, None)
    assert record.id != before.id
    assert await shop.history() == [("due", None, "due", "", "ann", "", 1001.0, "reset")]
    assert await shop.code() == "OK"
    assert shop.keys[0] != shop.keys[1]


async def test_after_a_reset_the_same_call_is_no_repeat() -> None:
    shop = Shop()
    await shop.code()
    await shop.done()
    initial = shop.gate.machine.initial().to_json()
    await operator.reset(shop.store, await shop.record(), snapshot=initial, operator="ann", now=1001.0)
    assert await shop.code() == "OK"
    assert len(set(shop.keys)) == 2


async def test_a_reset_under_a_running_call_wins_and_the_call_says_that_it_could_not_be_recorded() -> None:
    store = MemoryStore()
    f = Fusion("shop")
    gate = f.fsm(CONFIG)
    initial = gate.machine.initial().to_json()

    @f.action("payment.capture", bind_state=("due", "PAY")).handle
    async def capture(id: str) -> dict:
        record = await store.read("", "p1")
        await operator.reset(store, record, snapshot=initial, operator="ann", now=1.0)
        return {}

    async with Client(f.server(fsm=gate, state_handle_key="id", store=store).lowlevel, mode=ERAS[1]) as client:
        answer = (await client.call_tool("payment.capture", {"id": "p1"})).structured_content
    assert (answer["code"], answer["inDoubt"]) == ("IN_DOUBT", "payment.capture")
    assert "could not be recorded" in answer["message"]
    record = await store.read("", "p1")
    assert (record.state, record.claim) == ("due", None)
    assert [step.outcome for step in await store.history("", "p1")] == ["reset"]
