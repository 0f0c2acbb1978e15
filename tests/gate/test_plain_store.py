"""A store of two methods, as a user writes it in ten lines: passages are serialised within the process."""

from datetime import datetime
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client

from mcpfusion import Context, FsmSnapshot, FsmStateStore, Fusion, ToolError, VersionedFsmStateStore
from mcpfusion.gate.plain import PlainStore, plain_key
from mcpfusion.machine import Machine
from tests.gate.payments import CONFIG
from tests.support.serving import ERAS

pytestmark = pytest.mark.anyio


class SlowStore:
    """A load/save store over the network: each operation takes a while, and not always the same."""

    def __init__(self) -> None:
        self.kept: dict[str, FsmSnapshot] = {}
        self.saved: list[tuple[str, FsmSnapshot]] = []
        self.broken = False
        self._turn = 0

    async def _travel(self) -> None:
        self._turn += 1
        await anyio.sleep((0.001, 0.008, 0.003, 0.0005)[self._turn % 4])

    async def load(self, handle: str) -> FsmSnapshot | None:
        found = self.kept.get(handle)
        await self._travel()
        return found

    async def save(self, handle: str, snapshot: FsmSnapshot) -> None:
        await self._travel()
        if self.broken:
            raise ConnectionError("dsn=hunter2")
        self.kept[handle] = snapshot
        self.saved.append((handle, snapshot))
        await self._travel()


class Shop:
    def __init__(self, store: Any = None, **options: Any) -> None:
        self.store = SlowStore() if store is None else store
        self.runs: list[str] = []
        self.keys: set[str] = set()
        f = Fusion("shop")

        @f.action("payment.capture", bind_state=("due", "PAY")).handle
        async def capture(id: str, ctx: Context, note: str = "") -> dict:
            self.runs.append(note)
            self.keys.add(ctx.workflow.idempotency_key)
            await anyio.sleep(0.01)
            if note == "declined":
                raise ToolError("declined")
            return {"note": note}

        @f.action("payment.void", bind_state=("due", "VOID")).handle
        async def void(id: str) -> dict:
            self.runs.append("void")
            return {}

        @f.action("payment.refund", bind_state=("paid", "REFUND")).handle
        async def refund(id: str) -> dict:
            self.runs.append("refund")
            return {}

        self.server = f.server(fsm=f.fsm(CONFIG), state_handle_key="id", store=self.store, **options)


async def test_a_store_of_two_methods_is_a_store_and_no_more() -> None:
    assert isinstance(SlowStore(), FsmStateStore)
    assert not isinstance(SlowStore(), VersionedFsmStateStore)


@pytest.mark.parametrize("mode", ERAS)
async def test_of_50_concurrent_calls_one_runs(mode: str) -> None:
    shop = Shop()
    codes: list[str] = []
    async with Client(shop.server.lowlevel, mode=mode) as client:

        async def call(place: int) -> None:
            tool = "payment.void" if place % 3 == 0 else "payment.capture"
            arguments = {"id": "p1"} if place % 3 == 0 else {"id": "p1", "note": str(place % 7)}
            result = await client.call_tool(tool, arguments)
            codes.append(result.structured_content["code"] if result.is_error else "OK")

        async with anyio.create_task_group() as group:
            for place in range(50):
                group.start_soon(call, place)
    assert len(shop.runs) == 1
    assert codes.count("OK") == 1
    assert set(codes) <= {"OK", "FORBIDDEN", "ALREADY_DONE", "CONFLICT"}
    assert shop.store.kept["p1"].state in ("paid", "void")
    assert {snapshot.state for _, snapshot in shop.store.saved} <= {"due", shop.store.kept["p1"].state}


async def test_a_state_read_before_a_step_and_used_after_it_admits_nothing() -> None:
    """A load that was under way while another call's step was committed must not bring the old state back."""
    store = SlowStore()
    shop = Shop(store)
    loading, go_on = anyio.Event(), anyio.Event()
    load = store.load
    first = True

    async def late(handle: str) -> FsmSnapshot | None:
        nonlocal first
        found = await load(handle)
        if first:
            first = False
            loading.set()
            await go_on.wait()
        return found

    async with Client(shop.server.lowlevel, mode=ERAS[1]) as client:
        await client.call_tool("payment.capture", {"id": "p1", "note": "declined"})
        store.load = late
        answers: list[Any] = []

        async def call(note: str) -> None:
            answers.append(await client.call_tool("payment.capture", {"id": "p1", "note": note}))

        async with anyio.create_task_group() as group:
            group.start_soon(call, "late")
            await loading.wait()
            await call("early")
            go_on.set()
    assert shop.runs == ["declined", "early"]
    assert [answer.is_error for answer in answers] == [False, True]
    assert store.kept["p1"].state == "paid"


@pytest.mark.parametrize("mode", ERAS)
async def test_a_workflow_that_another_call_is_writing_for_the_first_time_is_not_free(mode: str) -> None:
    """The store has it already, and the call that saves it has not heard so yet: its claim is not to be seen."""
    store = SlowStore()
    shop = Shop(store)
    saved, go_on = anyio.Event(), anyio.Event()
    save = store.save
    loads = 0

    async def late(handle: str, snapshot: FsmSnapshot) -> None:
        await save(handle, snapshot)
        if not saved.is_set():
            saved.set()
            await go_on.wait()

    async def load(handle: str) -> FsmSnapshot | None:
        nonlocal loads
        loads += 1
        return store.kept.get(handle)

    store.save, store.load = late, load
    answers: list[Any] = []
    async with Client(shop.server.lowlevel, mode=mode) as client:

        async def call(note: str) -> None:
            answers.append(await client.call_tool("payment.capture", {"id": "p1", "note": note}))

        async with anyio.create_task_group() as group:
            group.start_soon(call, "first")
            await saved.wait()
            before = loads
            group.start_soon(call, "second")
            with anyio.fail_after(20):
                while loads == before:
                    await anyio.lowlevel.checkpoint()
            go_on.set()
    assert shop.runs == ["first"]
    assert sorted(answer.is_error for answer in answers) == [False, True]


async def test_steps_are_saved_with_their_time_and_found_again_by_another_process() -> None:
    store = SlowStore()
    async with Client(Shop(store, clock=lambda: 1_800_000_000.25).server.lowlevel, mode=ERAS[1]) as client:
        await client.call_tool("payment.capture", {"id": "p1"})
    kept = store.kept["p1"]
    assert kept.state == "paid"
    assert datetime.fromisoformat(kept.updated_at).timestamp() == 1_800_000_000.25
    other = Shop(store)
    async with Client(other.server.lowlevel, mode=ERAS[1]) as client:
        assert (await client.call_tool("payment.capture", {"id": "p1"})).structured_content["code"] == "FORBIDDEN"
        assert not (await client.call_tool("payment.refund", {"id": "p1"})).is_error
    assert other.runs == ["refund"]


async def test_a_step_by_another_process_is_seen() -> None:
    store = SlowStore()
    ours, theirs = Shop(store), Shop(store)
    async with Client(ours.server.lowlevel, mode=ERAS[1]) as one, Client(theirs.server.lowlevel, mode=ERAS[1]) as two:
        assert not (await one.call_tool("payment.capture", {"id": "p1"})).is_error
        assert not (await two.call_tool("payment.refund", {"id": "p1"})).is_error
        answer = await one.call_tool("payment.refund", {"id": "p1"})
        assert answer.structured_content["code"] == "FORBIDDEN"
    assert (ours.runs, theirs.runs) == ([""], ["refund"])


async def test_a_handler_that_fails_leaves_the_slot_free_and_the_key_as_it_was() -> None:
    shop = Shop()
    async with Client(shop.server.lowlevel, mode=ERAS[0]) as client:
        assert (await client.call_tool("payment.capture", {"id": "p1", "note": "declined"})).is_error
        assert not (await client.call_tool("payment.capture", {"id": "p1", "note": "n"})).is_error
    assert shop.runs == ["declined", "n"]
    assert len(shop.keys) == 1


async def test_a_save_that_fails_after_the_handler_does_not_repeat_the_effect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop = Shop(conflict_wait=0.02)
    async with Client(shop.server.lowlevel, mode=ERAS[0]) as client:
        await client.call_tool("payment.capture", {"id": "p1", "note": "declined"})
        shop.store.broken = True
        answer = await client.call_tool("payment.capture", {"id": "p1", "note": "n"})
        assert answer.structured_content["code"] == "IN_DOUBT"
        assert "hunter2" not in str(answer)
        assert "hunter2" in caplog.text
        shop.store.broken = False
        assert (await client.call_tool("payment.capture", {"id": "p1"})).structured_content["code"] == "CONFLICT"
    assert shop.runs == ["declined", "n"]


async def test_a_step_whose_save_raised_and_was_carried_out_does_not_lend_its_key_to_the_next() -> None:
    """Two steps of one tool: the second must not look to a payment provider like a repeat of the first."""
    store = SlowStore()
    keys: list[str] = []
    states = {"first": {"on": {"NEXT": "second"}}, "second": {"on": {"NEXT": "third"}}, "third": {}}
    f = Fusion("rates")

    @f.action("rate.pay", bind_state=("*", "NEXT")).handle
    async def pay(ctx: Context) -> dict:
        keys.append(ctx.workflow.idempotency_key)
        return {}

    async def save_and_raise(handle: str, snapshot: FsmSnapshot) -> None:
        store.kept[handle] = snapshot
        if snapshot.state != "first":
            raise ConnectionError("the answer was lost")

    store.save = save_and_raise
    gate = f.fsm({"id": "rates", "initial": "first", "states": states})
    server = f.server(fsm=gate, store=store, clock=lambda: 1000.0)
    async with Client(server.lowlevel, mode=ERAS[1]) as client:
        for _ in range(2):
            await client.call_tool("rate.pay", {})
    assert store.kept["@process"].state == "third"
    assert len(keys) == len(set(keys)) == 2


async def test_the_whole_list_is_shown_because_a_plain_store_cannot_say_what_it_holds() -> None:
    async with Client(Shop().server.lowlevel, mode=ERAS[1]) as client:
        tools = (await client.list_tools()).tools
    assert [tool.name for tool in tools] == ["payment.capture", "payment.void", "payment.refund"]
    assert all("Works in state" in tool.description for tool in tools)


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.text("/%2F:@a", max_size=8)
pairs = st.tuples(names, names.filter(bool))


@given(pairs, pairs)
def test_no_two_workflows_share_a_key(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (plain_key(*one) == plain_key(*other)) == (one == other)


@given(st.text("/%2Fa", min_size=1, max_size=10))
def test_no_two_ways_of_cutting_a_text_in_two_share_a_key(text: str) -> None:
    escaped = text.replace("/", "%2F")
    cut = {(text[:at], text[at:]) for at in range(len(text))}
    at_slashes = {(text[:at], text[at + 1 :]) for at in range(len(text) - 1) if text[at] == "/"}
    workflows = cut | at_slashes | {(scope.replace("/", "%2F"), handle) for scope, handle in cut} | {("", escaped)}
    assert len({plain_key(*workflow) for workflow in workflows}) == len(workflows)


@given(names.filter(bool))
def test_without_a_scope_the_key_is_the_handle_as_users_know_it(handle: str) -> None:
    assert plain_key("", handle) == (handle if "/" not in handle else f"/{handle}")


async def test_what_is_remembered_of_workflows_is_bounded_and_claims_are_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mcpfusion.gate.plain._REMEMBERED", 5)
    shop = Shop()
    async with Client(shop.server.lowlevel, mode=ERAS[1]) as client:
        for place in range(20):
            await client.call_tool("payment.capture", {"id": f"p{place}"})
        assert (await client.call_tool("payment.capture", {"id": "p0"})).structured_content["code"] == "FORBIDDEN"
        assert (await client.call_tool("payment.capture", {"id": "p19"})).structured_content["code"] == "ALREADY_DONE"
    assert len(shop.runs) == 20


def test_a_machine_whose_snapshots_are_more_than_a_state_needs_another_store() -> None:
    machine = Machine({"initial": "a", "context": {"n": 1}, "states": {"a": {}}})
    with pytest.raises(ValueError, match="VersionedFsmStateStore"):
        PlainStore(SlowStore(), machine)
