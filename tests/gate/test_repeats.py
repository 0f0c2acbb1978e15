"""The same call sent again: told that it is done, or given the first result where the action keeps it."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client

from mcpfusion import Fusion, ToolResult
from mcpfusion.gate import passage
from mcpfusion.gate.ticket import digest_of
from mcpfusion.stores.memory import MemoryStore
from tests.gate_identity.users import AUTH, Verifier, as_user
from tests.support.ids import case_name
from tests.support.serving import ERAS, http_app

pytestmark = pytest.mark.anyio

CONFIG = {
    "id": "shop",
    "initial": "cart",
    "states": {
        "cart": {"on": {"ADD": "cart", "CHECKOUT": "placed"}},
        "placed": {"on": {"SHIP": "shipped"}},
        "shipped": {"on": {"RETURN": "cart"}},
    },
}


class Shop:
    def __init__(self, keep_result: float | None = 60, result: Any = None, **options: Any) -> None:
        self.store = MemoryStore()
        self.now = 1000.0
        self.added: list[str] = []
        self.placed = 0
        f = Fusion("shop")
        keep = {} if keep_result is None else {"keep_result": keep_result}

        @f.action("cart.add", bind_state=("cart", "ADD")).handle
        async def add(id: str, item: str) -> dict:
            self.added.append(item)
            return {"items": len(self.added)}

        @f.action("cart.add_once", bind_state=("cart", "ADD"), **keep).handle
        async def add_once(id: str, item: str) -> dict:
            self.added.append(item)
            return {"items": len(self.added)}

        @f.action("cart.checkout", bind_state=("cart", "CHECKOUT"), **keep).handle
        async def checkout(id: str, note: str = "", options: dict[str, Any] | None = None) -> Any:
            self.placed += 1
            return {"number": self.placed} if result is None else result

        @f.action("order.ship", bind_state=("placed", "SHIP")).handle
        async def ship(id: str) -> dict:
            return {}

        options = {"store": self.store, "clock": lambda: self.now, **options}
        self.server = f.server(fsm=f.fsm(CONFIG), state_handle_key="id", **options)

    async def steps(self, scope: str = "") -> list[str | None]:
        return [step.event for step in await self.store.history(scope, "c1")]


def told(result: Any) -> Any:
    return result.structured_content["code"] if result.is_error else result.structured_content


@pytest.mark.parametrize("mode", ERAS)
async def test_without_a_kept_result_a_repeat_is_told_when_it_was_done_and_what_comes_next(mode: str) -> None:
    shop = Shop(keep_result=None)
    async with Client(shop.server.lowlevel, mode=mode) as client:
        await client.call_tool("cart.checkout", {"id": "c1", "note": "n"})
        shop.now += 1_000_000
        repeat = await client.call_tool("cart.checkout", {"note": "n", "id": "c1"})
    assert repeat.is_error
    said = repeat.structured_content
    assert said["code"] == "ALREADY_DONE"
    assert said["committedAt"] == "1970-01-01T00:16:40Z"
    assert (said["handle"], said["state"], said["allowedActions"]) == ("c1", "placed", ["order.ship"])
    assert "succeeded at 1970-01-01T00:16:40Z and was not run again" in repeat.content[0].text
    assert repeat.meta["io.mcpfusion/workflow"]["state"] == "placed"
    assert shop.placed == 1


@pytest.mark.parametrize("mode", ERAS)
async def test_a_kept_result_is_given_for_its_time_and_not_longer(mode: str) -> None:
    shop = Shop(keep_result=60)
    async with Client(shop.server.lowlevel, mode=mode) as client:
        call = ("cart.checkout", {"id": "c1", "note": "n"})
        first = await client.call_tool(*call)
        shop.now += 59.9
        repeat = await client.call_tool(*call)
        assert repeat == first
        shop.now += 0.1
        assert told(await client.call_tool(*call)) == "ALREADY_DONE"
    assert shop.placed == 1
    assert await shop.steps() == ["CHECKOUT"]


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize(
    "arguments",
    [{}, {"note": "m"}, {"note": "n", "options": {"a": 1}}, {"note": "n", "options": {"a": 1.0, "b": True}}],
    ids=case_name,
)
async def test_other_arguments_are_no_repeat(arguments: Any, mode: str) -> None:
    shop = Shop()
    async with Client(shop.server.lowlevel, mode=mode) as client:
        await client.call_tool("cart.checkout", {"id": "c1", "note": "n", "options": {"a": 1, "b": True}})
        same = {"options": {"b": True, "a": 1}, "note": "n", "id": "c1"}
        assert told(await client.call_tool("cart.checkout", same)) == {"number": 1}
        assert told(await client.call_tool("cart.checkout", {"id": "c1", **arguments})) == "FORBIDDEN"


async def test_after_another_step_it_is_no_repeat_any_more() -> None:
    shop = Shop()
    async with Client(shop.server.lowlevel, mode=ERAS[1]) as client:
        await client.call_tool("cart.checkout", {"id": "c1"})
        await client.call_tool("order.ship", {"id": "c1"})
        assert told(await client.call_tool("cart.checkout", {"id": "c1"})) == "FORBIDDEN"


@pytest.mark.parametrize("mode", ERAS)
async def test_another_principal_gets_nobody_elses_result(mode: str) -> None:
    shop = Shop(access="shared", auth=AUTH, token_verifier=Verifier())
    call = ("cart.checkout", {"id": "c1", "note": "n"})
    async with (
        http_app(shop.server.asgi(host="127.0.0.1")) as origin,
        as_user(f"{origin}/mcp", mode, "alice") as alice,
        as_user(f"{origin}/mcp", mode, "bob") as bob,
    ):
        first = await alice.call_tool(*call)
        assert told(await bob.call_tool(*call)) == "FORBIDDEN"
        assert told(await alice.call_tool(*call)) == first.structured_content == {"number": 1}
    assert shop.placed == 1


@pytest.mark.parametrize("mode", ERAS)
async def test_where_the_step_leads_back_to_its_state_the_same_call_is_a_new_step(mode: str) -> None:
    shop = Shop()
    async with Client(shop.server.lowlevel, mode=mode) as client:
        for count in (1, 2, 3):
            assert told(await client.call_tool("cart.add", {"id": "c1", "item": "pen"})) == {"items": count}
    assert shop.added == ["pen"] * 3
    assert await shop.steps() == ["ADD"] * 3


@pytest.mark.parametrize("mode", ERAS)
async def test_there_too_a_kept_result_answers_the_repeat_within_its_time(mode: str) -> None:
    shop = Shop(keep_result=60)
    async with Client(shop.server.lowlevel, mode=mode) as client:
        pen, ink = {"id": "c1", "item": "pen"}, {"id": "c1", "item": "ink"}
        assert told(await client.call_tool("cart.add_once", pen)) == {"items": 1}
        assert told(await client.call_tool("cart.add_once", pen)) == {"items": 1}
        assert shop.added == ["pen"]
        assert told(await client.call_tool("cart.add_once", ink)) == {"items": 2}
        assert told(await client.call_tool("cart.add_once", pen)) == {"items": 3}  # the last step was another one
        shop.now += 61
        assert told(await client.call_tool("cart.add_once", pen)) == {"items": 4}
    assert await shop.steps() == ["ADD"] * 4


BLOCK = {"type": "text", "text": "placed", "annotations": {"priority": 0.5}}


@pytest.mark.parametrize("mode", ERAS)
async def test_a_kept_result_is_the_whole_result(mode: str) -> None:
    shop = Shop(result=ToolResult([BLOCK], {"number": 7}, meta={"example.com/trace": {"id": [1, None]}}))
    async with Client(shop.server.lowlevel, mode=mode) as client:
        first = await client.call_tool("cart.checkout", {"id": "c1"})
        assert first.meta["example.com/trace"] == {"id": [1, None]}
        assert await client.call_tool("cart.checkout", {"id": "c1"}) == first
    assert shop.placed == 1


async def test_a_result_too_large_to_keep_is_given_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(passage, "KEPT_RESULT_LIMIT", 2000)
    shop = Shop(result={"text": "x" * 3000})
    async with Client(shop.server.lowlevel, mode=ERAS[1]) as client:
        assert not (await client.call_tool("cart.checkout", {"id": "c1"})).is_error
        assert told(await client.call_tool("cart.checkout", {"id": "c1"})) == "ALREADY_DONE"
    assert "too large to be kept" in caplog.text
    assert shop.placed == 1


@pytest.mark.parametrize("meta", [object(), float("nan"), {1, 2}], ids=case_name)
async def test_a_result_that_cannot_be_kept_is_given_once(meta: Any, caplog: pytest.LogCaptureFixture) -> None:
    """What a tool that the server had already puts into its result is looked at by nobody before."""
    shop = Shop()
    checkout = shop.server.attachment.bindings.tools["cart.checkout"]
    passages = shop.server.attachment._gated.passages

    async def work(view: Any) -> passage.Outcome:
        return passage.Outcome(ToolResult([BLOCK], meta={"x": meta}), True)

    ticket = passage.Ticket(checkout, "", "c1", None, {})
    first = await passages.run(ticket, lambda: None, work)
    assert first.meta["x"] is meta
    repeat = await passages.run(ticket, lambda: None, work)
    assert repeat.structured["code"] == "ALREADY_DONE"
    assert "cannot be kept" in caplog.text
    assert await shop.steps() == ["CHECKOUT"]


async def test_a_kept_result_outlives_the_process(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    call = ("cart.checkout", {"id": "c1", "note": "n"})
    async with Client(Shop(store=url).server.lowlevel, mode=ERAS[1]) as client:
        first = await client.call_tool(*call)
    later = Shop(store=url)
    async with Client(later.server.lowlevel, mode=ERAS[1]) as client:
        assert (await client.call_tool(*call)).structured_content == first.structured_content
    assert later.placed == 0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
arguments = st.dictionaries(st.text(max_size=3), json_values, max_size=4)


def shuffled(value: Any) -> Any:
    if isinstance(value, dict):
        keys = list(value)
        random.shuffle(keys)
        return {key: shuffled(value[key]) for key in keys}
    return [shuffled(member) for member in value] if isinstance(value, list) else value


@given(arguments)
def test_the_order_of_keys_makes_no_other_call(given_arguments: dict[str, Any]) -> None:
    assert digest_of("t", given_arguments) == digest_of("t", shuffled(given_arguments))


@given(arguments, arguments, st.sampled_from("ab"), st.sampled_from("ab"))
def test_calls_have_one_digest_only_if_they_are_the_same_json(one: Any, other: Any, tool: str, another: str) -> None:
    same = tool == another and json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (digest_of(tool, one) == digest_of(another, other)) == same
