"""A client that knows no manners: whatever it calls with whatever arguments, the gate holds and says what is so."""

import json
import logging
from collections.abc import Iterator
from typing import Annotated, Any

import anyio
import mcp_types as types
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from mcp import Client
from mcp.shared.exceptions import MCPError
from pydantic import Field

from mcpfusion import Context, Fusion, ToolError
from mcpfusion.stores.protocol import VersionedFsmStateStore
from tests.support.serving import ERAS

STATES: dict[str, Any] = {
    "draft": {"on": {"SUBMIT": "review"}},
    "review": {"on": {"APPROVE": "approved", "REJECT": "draft"}},
    "approved": {"on": {"PAY": "paid", "REJECT": "draft"}},
    "paid": {"type": "final"},
}
MACHINE = {"id": "approval", "initial": "draft", "states": STATES}
TOOLS = ("flow.submit", "flow.approve", "flow.reject", "flow.pay", "flow.look", "flow.fail", "flow.free", "flow.open")


DUE = {
    "draft": ["flow.submit", "flow.look", "flow.fail"],
    "review": ["flow.approve", "flow.reject", "flow.look"],
    "approved": ["flow.reject", "flow.pay", "flow.look"],
    "paid": ["flow.look"],
}


def flow() -> Any:
    f = Fusion("flow")

    @f.mutation("flow.submit").bind_state("draft", "SUBMIT").handle
    async def submit(title: str, pages: Annotated[int, Field(ge=0)] = 1) -> dict[str, Any]:
        return {"title": title, "pages": pages}

    @f.mutation("flow.approve").bind_state("review", "APPROVE").handle
    def approve(ctx: Context) -> str:
        return "approved"

    @f.mutation("flow.reject").bind_state(["review", "approved"], "REJECT").handle
    async def reject(id: str, reason: str | None = None) -> list[str | None]:
        return [id, reason]

    @f.mutation("flow.pay").bind_state("approved", lambda arguments, result: "PAY" if result else None).handle
    async def pay(enough: bool = True) -> bool:
        return enough

    @f.query("flow.look").bind_state("*").handle
    async def look(anything=None):  # type: ignore[no-untyped-def]
        return anything

    @f.mutation("flow.fail").bind_state("draft", "SUBMIT").handle
    async def fail(how: Any = None) -> str:
        raise ToolError(str(how)) if isinstance(how, str) else RuntimeError("hidden")

    @f.query("flow.free").handle
    async def free(values: dict[str, float]) -> float:
        return sum(values.values())

    @f.mutation("flow.open").mints_handle().bind_state("draft", "SUBMIT").handle
    async def open_(title: str) -> dict[str, str]:
        return {"title": title}

    return f.server(fsm=f.fsm(MACHINE), state_handle_key="id")


# The SDK's client can send unpaired surrogates in values, and in nothing else.
names = st.text(max_size=8)
anything = st.text(st.characters(exclude_categories=()), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | anything,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
handles = st.sampled_from(["A", "B", "C"]) | st.sampled_from(["", 7, None, "@process", "x" * 2000, ["A"]]) | values
fields = st.sampled_from(["title", "pages", "id", "reason", "enough", "anything", "how", "values", "handle"])
rubbish = st.dictionaries(fields | names, values, max_size=4)
mannered: dict[str, dict[str, Any]] = {
    "flow.submit": {"title": "t"},
    "flow.free": {"values": {"a": 1}},
    "flow.open": {"title": "t"},
}
# A number stands for a tool that is due in the workflow at that time.
calls = st.tuples(
    st.integers(0, 1) | st.integers(0, 1) | st.sampled_from(TOOLS) | names,
    st.just(None) | rubbish,
    st.sampled_from(["A", "B"]) | handles,
)


def arguments_of(tool: str, given_: dict[str, Any] | None, handle: Any) -> dict[str, Any]:
    if given_ is None:
        own = {} if tool in ("flow.free", "flow.open") else {"id": handle}
        return {**mannered.get(tool, {}), **own}
    return {"id": handle, **given_}


async def check_answer(store: VersionedFsmStateStore, tool: str, result: types.CallToolResult) -> str | None:
    text = result.model_dump_json()
    for word in ("Traceback", "hidden", "mcpfusion.", "Exception"):
        assert word not in text
    code = result.structured_content.get("code") if result.is_error and result.structured_content else None
    if code == "INTERNAL_ERROR":
        assert tool == "flow.fail", text
    assert code not in ("STORE_UNAVAILABLE", "UNKNOWN_STATE", "IN_DOUBT", "CONFLICT"), text
    block = (result.meta or {}).get("io.mcpfusion/workflow")
    if tool == "flow.free" or code == "INVALID_HANDLE":
        assert block is None
        return code
    kept = await store.read("", block["handle"])
    state = kept.state if kept else "draft"
    assert block["state"] == state
    assert block["final"] == (state == "paid")
    assert block["allowedActions"] == DUE[state]
    return code


async def check_histories(store: VersionedFsmStateStore) -> None:
    for workflow in await store.list_workflows(limit=10_000):
        at = "draft"
        assert workflow.claim is None
        for step in await store.history(workflow.scope, workflow.handle):
            assert step.from_state == at
            assert STATES[at]["on"][step.event] == step.to_state
            at = step.to_state
        assert workflow.state == at


async def session(mode: str, made: list[tuple[str | int, dict[str, Any] | None, Any]], seen: set[Any]) -> None:
    server = flow()
    async with Client(server.lowlevel, mode=mode, read_timeout_seconds=30) as client:
        store = server.store
        for called, given_, handle in made:
            tool = called
            if isinstance(tool, int):
                kept = await store.read("", handle) if handle in ("A", "B") else None
                due = DUE[kept.state if kept else "draft"]
                tool = due[tool % len(due)]
            arguments = arguments_of(tool, given_, handle)
            # Below the client's own validation, which is not what is tried here.
            request = types.CallToolRequest(params=types.CallToolRequestParams(name=tool, arguments=arguments))
            if tool in TOOLS:
                answer = await client.session.send_request(request, types.CallToolResult)
                seen.add(await check_answer(store, tool, answer))
                continue
            with pytest.raises(MCPError) as refused:
                await client.session.send_request(request, types.CallToolResult)
            assert refused.value.error.code == -32602
        await check_histories(store)
        seen |= {workflow.state for workflow in await store.list_workflows()}
        names = [each.name for each in (await client.list_tools()).tools]
        states = set(await store.states_in_use(""))
        assert ("flow.approve" in names) == ("review" in states)
        assert ("flow.pay" in names) == ("approved" in states)


THROUGH: list[tuple[str | int, dict[str, Any] | None, Any]] = [
    *[(0, None, "A"), (0, None, "A"), (1, None, "A"), ("flow.pay", None, "A")],
    *[("flow.pay", None, "B"), ("flow.look", None, ""), ("flow.free", {}, "A")],
]


@pytest.mark.parametrize("mode", ERAS)
def test_no_call_gets_past_the_gate_or_behind_the_servers_back(mode: str) -> None:
    @settings(
        phases=[Phase.explicit, Phase.generate],
        max_examples=15,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @example(THROUGH)
    @given(st.lists(calls, min_size=10, max_size=40))
    def play(made: list[tuple[str | int, dict[str, Any] | None, Any]]) -> None:
        anyio.run(session, mode, made, seen)

    seen: set[Any] = set()
    play()
    # The play got far, or it would prove little.
    assert {"paid", None, "FORBIDDEN", "ALREADY_DONE", "INVALID_ARGUMENTS", "INVALID_HANDLE"} <= seen


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """A handler that raises is logged each time, as it should be; here that would be all there is to read."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("mode", ERAS)
def test_mannered_calls_at_once_leave_a_history_that_the_machine_allows(mode: str) -> None:
    @settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.tuples(st.sampled_from(TOOLS[:4]), st.sampled_from(["A", "B"])), min_size=20, max_size=60))
    def play(made: list[tuple[str, str]]) -> None:
        anyio.run(at_once, mode, made)

    play()


async def at_once(mode: str, made: list[tuple[str, str]]) -> None:
    server = flow()
    codes: list[str | None] = []

    async def one(client: Client, tool: str, handle: str) -> None:
        result = await client.call_tool(tool, {**mannered.get(tool, {}), "id": handle})
        codes.append(json.loads(json.dumps(result.structured_content or {})).get("code") if result.is_error else None)

    async with (
        Client(server.lowlevel, mode=mode, read_timeout_seconds=60) as client,
        anyio.create_task_group() as group,
    ):
        for tool, handle in made:
            group.start_soon(one, client, tool, handle)
    steps = sum([len(await server.store.history("", handle)) for handle in ("A", "B")])
    assert steps == codes.count(None)
    assert set(codes) <= {None, "FORBIDDEN", "CONFLICT", "ALREADY_DONE"}
    await check_histories(server.store)
