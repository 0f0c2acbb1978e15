"""What the stores of carried state, used tokens and pins must do, sentence by sentence of their protocols."""

import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from mcpfusion.swarm.open import SwarmStores
from mcpfusion.swarm.pins import Pin, PinStore
from mcpfusion.swarm.route_store import RouteStore
from mcpfusion.swarm.state import HandoffStateStore, ReplayStore
from mcpfusion.testing.engines import bus_outlives_a_listener, bus_tells_everybody

ODD_KEYS = ["a:b", "a", "b", "a b", "{a}", "*", "'; --", "ключ 🧾", "a/b", "x" * 1024]


async def eventually(holds: Callable[[], Awaitable[Any]]) -> None:
    """Wait until `holds` gives something true."""
    with anyio.fail_after(30):
        while not await holds():  # noqa: ASYNC110 - it is an engine's clock that is waited for
            await anyio.sleep(0.02)


class SwarmStoresContract:
    """Carried state, used tokens, pins, and the bus."""

    pytestmark = pytest.mark.anyio

    async def test_they_are_what_a_gateway_needs(self, stores: SwarmStores):
        assert isinstance(stores.states, HandoffStateStore)
        assert isinstance(stores.replays, ReplayStore)
        assert isinstance(stores.pins, PinStore)
        assert isinstance(stores.routes, RouteStore)
        assert isinstance(stores.states.shared, bool)
        assert isinstance(stores.routes.shared, bool)

    # carried state

    async def test_state_is_kept_as_it_was_given(self, stores: SwarmStores):
        assert await stores.states.get("key") is None
        given: dict[str, Any] = {"a": {"b": [1, 2.5, None, True, "é \u2028 \0 🧾"]}, "big": "x" * 100_000, "": {}}
        await stores.states.set("key", given, 60)
        given["a"]["b"].append("by the writer")
        for _ in range(2):  # reading does not remove it
            found: Any = await stores.states.get("key")
            assert found == {**given, "a": {"b": [1, 2.5, None, True, "é \u2028 \0 🧾"]}}
            found["a"]["b"].append("by a reader")

    async def test_state_is_replaced_and_forgotten(self, stores: SwarmStores):
        await stores.states.set("key", {"n": 1}, 60)
        await stores.states.set("key", {"n": 2}, 60)
        assert await stores.states.get("key") == {"n": 2}
        await stores.states.delete("key")
        assert await stores.states.get("key") is None
        await stores.states.delete("key")

    async def test_state_is_gone_when_its_time_is_over(self, stores: SwarmStores):
        await stores.states.set("long", {}, 60)
        await stores.states.set("short", {}, 0.05)
        await stores.states.set("shortened", {}, 60)
        await stores.states.set("shortened", {}, 0.05)

        async def gone() -> bool:
            return await stores.states.get("short") is None and await stores.states.get("shortened") is None

        await eventually(gone)
        assert await stores.states.get("long") == {}

    async def test_keys_do_not_mix(self, stores: SwarmStores):
        for key in ODD_KEYS:
            await stores.states.set(key, {"key": key}, 60)
            assert await stores.replays.add(key, time.time() + 60)
        for key in ODD_KEYS:
            assert await stores.states.get(key) == {"key": key}
            assert not await stores.replays.add(key, time.time() + 60)

    # used tokens

    async def test_a_token_is_used_once(self, stores: SwarmStores):
        until = time.time() + 60
        assert await stores.replays.add("one", until)
        assert not await stores.replays.add("one", until)
        assert not await stores.replays.add("one", until + 60)
        assert await stores.replays.add("two", until)

    async def test_of_many_who_use_a_token_one_does(self, stores: SwarmStores):
        until = time.time() + 60
        won: list[bool] = []

        async def use() -> None:
            won.append(await stores.replays.add("one", until))

        async with anyio.create_task_group() as tasks:
            for _ in range(40):
                tasks.start_soon(use)
        assert won.count(True) == 1

    # pins

    async def test_the_first_definition_is_pinned(self, stores: SwarmStores):
        pins = stores.pins
        assert await pins.pins() == []
        assert await pins.check("legal", "sue", "d1")
        assert await pins.check("finance", "refund", "d1")
        assert await pins.check("finance", "pay", "d2")
        assert await pins.check("finance", "pay", "d2")
        assert list(await pins.pins()) == [
            Pin("finance", "pay", "d2"),
            Pin("finance", "refund", "d1"),
            Pin("legal", "sue", "d1"),
        ]

    async def test_a_changed_definition_waits_to_be_accepted(self, stores: SwarmStores):
        pins = stores.pins
        assert not await pins.accept("finance", "pay")
        assert await pins.check("finance", "pay", "d1")
        assert not await pins.accept("finance", "pay")
        assert not await pins.check("finance", "pay", "d2")
        assert not await pins.check("finance", "pay", "d3")
        assert await pins.check("finance", "pay", "d1")
        assert list(await pins.pins()) == [Pin("finance", "pay", "d1", refused="d3")]
        assert await pins.accept("finance", "pay")
        assert list(await pins.pins()) == [Pin("finance", "pay", "d3")]
        assert await pins.check("finance", "pay", "d3")
        assert not await pins.check("finance", "pay", "d1")

    async def test_of_many_first_definitions_one_is_pinned(self, stores: SwarmStores):
        accepted: list[str] = []

        async def check(digest: str) -> None:
            if await stores.pins.check("finance", "pay", digest):
                accepted.append(digest)

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(check, f"d{number}")
        (pin,) = await stores.pins.pins()
        assert accepted == [pin.digest]

    # the bus

    async def test_a_bus_tells_everybody(self, stores: SwarmStores):
        if stores.bus is not None:
            await bus_tells_everybody(stores.bus)

    async def test_a_bus_outlives_a_listener(self, stores: SwarmStores):
        if stores.bus is not None:
            await bus_outlives_a_listener(stores.bus)

    async def test_closing_twice_does_nothing(self, stores: SwarmStores):
        await stores.states.set("key", {}, 60)
        await stores.aclose()
        await stores.aclose()

    async def test_closing_before_the_first_use(self, stores: SwarmStores):
        await stores.aclose()
