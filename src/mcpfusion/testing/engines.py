"""What a store's `Bus` and `EngineClock` must do, where it offers them; a store without them passes."""

import math
import time
from collections.abc import Sequence
from contextlib import aclosing

import anyio
import anyio.abc
import pytest

from mcpfusion.stores import VersionedFsmStateStore
from mcpfusion.stores.protocol import Bus, EngineClock

_PATIENCE = 30.0


class Listener:
    """Hears a bus, from `started` on until its task is cancelled."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._new = anyio.Event()
        self.items: list[str | None] = []

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        async with aclosing(self._bus.listen()) as messages:
            async for message in messages:
                self.items.append(message)
                if len(self.items) == 1:
                    task_status.started()
                self._new.set()
                self._new = anyio.Event()

    def heard(self, among: Sequence[str]) -> list[str]:
        return [message for message in self.items if message is not None and message in among]

    async def wait_for(self, messages: Sequence[str]) -> None:
        """Wait until all of `messages` were heard, and assert that they came in this order."""
        with anyio.fail_after(_PATIENCE):
            while len(self.heard(messages)) < len(messages):
                await self._new.wait()
        assert self.heard(messages) == list(messages)


async def bus_tells_everybody(bus: Bus) -> None:
    """Assert what `Bus` says, with two listeners."""
    await bus.publish(["before anybody listens"])
    first, second = Listener(bus), Listener(bus)
    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(_PATIENCE):
            await tasks.start(first.run)
            await tasks.start(second.run)
        assert first.items[0] is None
        assert second.items[0] is None
        await bus.publish([])
        many = [f"message {number}" for number in range(200)]
        await bus.publish(many)
        odd = ['{"a": "b"}', "'; --", "рахунок 🧾", "a\nb\r\n", " ", "100% \\ \u2028"]
        await bus.publish(odd)
        big = ["x" * 7000, "ж" * 3500, "\U0010ffff" * 1750]
        await bus.publish(big)
        for listener in (first, second):
            await listener.wait_for(many)
            await listener.wait_for(odd)
            await listener.wait_for(big)
        tasks.cancel_scope.cancel()


async def bus_outlives_a_listener(bus: Bus) -> None:
    """Assert that a listener who leaves takes nothing away from the others."""
    stays = Listener(bus)
    async with anyio.create_task_group() as tasks:
        await tasks.start(stays.run)
        for number in range(3):
            leaves = Listener(bus)
            async with anyio.create_task_group() as short:
                await short.start(leaves.run)
                await bus.publish([f"both {number}"])
                await leaves.wait_for([f"both {number}"])
                short.cancel_scope.cancel()
            await bus.publish([f"one {number}"])
            await stays.wait_for([f"both {number}", f"one {number}"])
            assert leaves.heard([f"one {number}"]) == []
        tasks.cancel_scope.cancel()
    await bus.publish(["after everybody left"])


class EnginesContract:
    """The protocols that a store may offer besides."""

    pytestmark = pytest.mark.anyio

    async def test_a_bus_tells_everybody(self, store: VersionedFsmStateStore):
        if isinstance(store, Bus):
            await bus_tells_everybody(store)

    async def test_a_bus_outlives_a_listener(self, store: VersionedFsmStateStore):
        if isinstance(store, Bus):
            await bus_outlives_a_listener(store)

    async def test_an_engines_clock_goes_on(self, store: VersionedFsmStateStore):
        if not isinstance(store, EngineClock):
            return
        assert math.isfinite(store.now())
        await store.read("ann", "INV-1")
        here, there = time.monotonic(), store.now()
        assert store.now() >= there
        await anyio.sleep(0.05)
        between = store.now()
        assert between - there >= 0.04
        await store.read("ann", "INV-1")
        # It may lag by a round trip, and the two clocks may be set; they do not run at different speeds.
        assert abs((store.now() - there) - (time.monotonic() - here)) < 5
