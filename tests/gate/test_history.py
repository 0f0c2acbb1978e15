"""The history: what is kept of each step, and what never is unless the user's hook says so."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from mcpfusion import Fusion, ToolError
from mcpfusion.stores.memory import MemoryStore
from tests.gate_identity.users import AUTH, Verifier, as_user
from tests.support.serving import ERAS, http_app

pytestmark = pytest.mark.anyio

CONFIG = {
    "id": "invoice",
    "initial": "draft",
    "states": {
        "draft": {"on": {"SUBMIT": "review"}},
        "review": {"on": {"APPROVE": "approved", "REJECT": "draft", "HOLD": "review"}},
        "approved": {"type": "final"},
    },
}
CARD = "4111 1111 1111 1111"
RECEIPT = "receipt for Ms Smith"


class Shop:
    def __init__(self, **options: Any) -> None:
        self.store = MemoryStore()
        self.now = 1000.5
        self.fails = False
        f = Fusion("shop")

        @f.action("invoice.submit", bind_state=("draft", "SUBMIT")).handle
        async def submit(id: str, card: str = "") -> dict:
            if self.fails:
                raise ToolError("no")
            return {"receipt": RECEIPT, "tags": ["a"]}

        @f.action("invoice.decide", bind_state=("review", lambda arguments, result: result["event"])).handle
        async def decide(id: str, event: str | None) -> dict:
            return {"event": event}

        @f.action("invoice.look", bind_state="*").handle
        async def look(id: str) -> dict:
            return {}

        options = {"store": self.store, "clock": lambda: self.now, **options}
        self.server = f.server(fsm=f.fsm(CONFIG), state_handle_key="id", **options)

    async def call(self, tool: str, mode: str = ERAS[1], **arguments: Any) -> Any:
        async with Client(self.server.lowlevel, mode=mode) as client:
            return await client.call_tool(tool, {"id": "i1", **arguments})


@pytest.mark.parametrize("mode", ERAS)
async def test_each_committed_step_is_kept_with_all_that_an_auditor_asks_for(mode: str) -> None:
    shop = Shop()
    await shop.call("invoice.submit", mode, card=CARD)
    shop.now += 10
    await shop.call("invoice.decide", mode, event="REJECT")
    shop.now += 10
    await shop.call("invoice.submit", mode)
    await shop.call("invoice.decide", mode, event="HOLD")
    steps = await shop.store.history("", "i1")
    assert [(step.handle, step.from_state, step.event, step.to_state, step.tool, step.at) for step in steps] == [
        ("i1", "draft", "SUBMIT", "review", "invoice.submit", 1000.5),
        ("i1", "review", "REJECT", "draft", "invoice.decide", 1010.5),
        ("i1", "draft", "SUBMIT", "review", "invoice.submit", 1020.5),
        ("i1", "review", "HOLD", "review", "invoice.decide", 1020.5),
    ]
    assert {step.outcome for step in steps} == {"committed"}
    assert {step.principal for step in steps} == {None}
    assert len({step.call_id for step in steps}) == 4
    assert all(step.call_id for step in steps)


@pytest.mark.parametrize("mode", ERAS)
async def test_what_moves_nothing_leaves_no_trace(mode: str) -> None:
    shop = Shop()
    shop.fails = True
    await shop.call("invoice.submit", mode)  # raises
    await shop.call("invoice.look", mode)  # has no transition
    await shop.call("invoice.decide", mode, event="APPROVE")  # forbidden
    await shop.call("invoice.submit", mode, card=[1])  # bad arguments
    assert await shop.store.history("", "i1") == []
    shop.fails = False
    await shop.call("invoice.submit", mode)
    await shop.call("invoice.submit", mode)  # a repeat
    await shop.call("invoice.decide", mode, event=None)  # decides that nothing follows
    await shop.call("invoice.decide", mode, event="SUBMIT")  # an event that the state does not take
    assert [step.event for step in await shop.store.history("", "i1")] == ["SUBMIT"]


async def test_the_principal_is_kept() -> None:
    shop = Shop(access="shared", auth=AUTH, token_verifier=Verifier())
    async with (
        http_app(shop.server.asgi(host="127.0.0.1")) as origin,
        as_user(f"{origin}/mcp", ERAS[1], "alice") as alice,
        as_user(f"{origin}/mcp", ERAS[0], "bob") as bob,
    ):
        await alice.call_tool("invoice.submit", {"id": "i1"})
        await bob.call_tool("invoice.decide", {"id": "i1", "event": "APPROVE"})
    first, second = [step.principal for step in await shop.store.history("", "i1")]
    assert "alice" in first
    assert "bob" in second


@pytest.mark.parametrize("mode", ERAS)
async def test_neither_arguments_nor_results_are_anywhere_in_the_store(tmp_path: Path, mode: str) -> None:
    shop = Shop(store=f"sqlite:///{tmp_path}/shop.db")
    result = await shop.call("invoice.submit", mode, card=CARD)
    assert result.structured_content["receipt"] == RECEIPT
    for file in tmp_path.iterdir():
        content = file.read_bytes()
        assert CARD.encode() not in content
        assert b"Ms Smith" not in content


def last_four(tool: str, arguments: Any, result: Any) -> tuple[Any, Any]:
    return {"tool": tool, "card": arguments["card"][-4:]}, {"ok": not result.is_error}


def in_place(tool: str, arguments: Any, result: Any) -> tuple[Any, Any]:
    arguments.pop("card")
    result.structured.pop("receipt")
    result.structured["tags"].append("redacted")
    result.content.clear()
    return arguments, result.structured


@pytest.mark.parametrize("mode", ERAS)
async def test_the_hook_decides_what_is_kept(mode: str) -> None:
    shop = Shop(redact=last_four)
    result = await shop.call("invoice.submit", mode, card=CARD)
    assert result.structured_content["receipt"] == RECEIPT
    [step] = await shop.store.history("", "i1")
    assert step.arguments == {"tool": "invoice.submit", "card": "1111"}
    assert step.result == {"ok": True}


@pytest.mark.parametrize("mode", ERAS)
async def test_a_hook_that_redacts_in_place_takes_nothing_from_the_client(mode: str) -> None:
    shop = Shop(redact=in_place)
    result = await shop.call("invoice.submit", mode, card=CARD)
    assert result.structured_content == {"receipt": RECEIPT, "tags": ["a"]}
    assert RECEIPT in result.content[0].text
    [step] = await shop.store.history("", "i1")
    assert (step.arguments, step.result) == ({"id": "i1"}, {"tags": ["a", "redacted"]})


def endless() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


BAD_HOOKS: dict[str, Callable[..., Any]] = {
    "raises": lambda *_: 1 / 0,
    "returns nothing": lambda *_: None,
    "returns one thing": lambda *_: ({},),
    "returns an object": lambda *_: (object(), None),
    "returns not a number": lambda *_: (float("nan"), None),
    "returns bytes": lambda *_: ({"a": b"x"}, None),
    "returns itself": lambda *_: (endless(), None),
    "takes nothing": lambda: ({}, {}),
}


@pytest.mark.parametrize("hook", BAD_HOOKS.values(), ids=BAD_HOOKS)
async def test_a_hook_that_fails_keeps_nothing_and_breaks_nothing(
    hook: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop(redact=hook)
    assert not (await shop.call("invoice.submit", card=CARD)).is_error
    [step] = await shop.store.history("", "i1")
    assert (step.event, step.arguments, step.result) == ("SUBMIT", None, None)
    assert "the redaction hook failed" in caplog.text
    assert CARD not in caplog.text


@pytest.mark.parametrize(
    "kept", [None, "", 0, False, [], {}, "\ud800", {"a": ["b", {"c": 1.5}]}, "x" * 100_000], ids=repr
)
async def test_whatever_json_the_hook_returns_is_what_is_kept(kept: Any) -> None:
    shop = Shop(redact=lambda *_: (kept, kept))
    assert not (await shop.call("invoice.submit")).is_error
    [step] = await shop.store.history("", "i1")
    assert (step.arguments, step.result) == (kept, kept)
