"""Notifications where a look at the store is overtaken: nobody is left believing in an older menu."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import pytest

from mcpfusion import Fusion
from mcpfusion.stores import MemoryStore
from tests.gate_identity.listening import listening
from tests.gate_identity.users import AUTH, Verifier, menu
from tests.support.serving import http_app

pytestmark = pytest.mark.anyio

MACHINE = {
    "id": "door",
    "initial": "new",
    "states": {
        "new": {"on": {"HANG": "open"}},
        "open": {"on": {"CLOSE": "shut"}},
        "shut": {"on": {"OPEN": "open"}},
    },
}


class Slow(MemoryStore):
    """A store whose answers to one look can be kept on their way."""

    def __init__(self) -> None:
        super().__init__()
        self.hold: anyio.Event | None = None
        self.held = anyio.Event()

    async def states_in_use(self, scope: str) -> Sequence[str]:
        found = await super().states_in_use(scope)
        if self.hold is not None:
            hold, self.hold = self.hold, None
            self.held.set()
            await hold.wait()
        return found


def doors() -> Fusion:
    f = Fusion("doors")
    f.action("door.hang").bind_state("new", "HANG").handle(lambda: "hung")
    f.action("door.close").bind_state("open", "CLOSE").handle(lambda: "closed")
    f.action("door.open").bind_state("shut", "OPEN").handle(lambda: "opened")
    return f


async def test_an_older_look_that_ends_later_is_not_what_counts() -> None:
    store, f = Slow(), doors()
    server = f.server(fsm=f.fsm(MACHINE), state_handle_key="id", store=store, auth=AUTH, token_verifier=Verifier())
    async with (
        http_app(server.asgi(host="127.0.0.1")) as origin,
        listening(f"{origin}/mcp", "2026-07-28", "alice") as (alice, heard),
        anyio.create_task_group() as group,
    ):
        store.hold = hold = anyio.Event()
        group.start_soon(alice.call_tool, "door.hang", {"id": "D-1"})
        await store.held.wait()
        await alice.call_tool("door.close", {"id": "D-1"})
        await heard.wait(1)
        assert await menu(alice) == ["door.hang", "door.open"]
        hold.set()
        told = await settled(heard.count)
        await alice.call_tool("door.open", {"id": "D-1"})
        await heard.wait(told + 1)
        assert await menu(alice) == ["door.hang", "door.close"]


async def test_a_step_while_a_stream_is_being_opened_is_not_lost() -> None:
    store, f = Slow(), doors()
    server = f.server(fsm=f.fsm(MACHINE), state_handle_key="id", store=store, auth=AUTH, token_verifier=Verifier())
    heard: Any = None
    async with (
        http_app(server.asgi(host="127.0.0.1")) as origin,
        listening(f"{origin}/mcp", "2026-07-28", "alice") as (alice, _),
    ):
        await alice.call_tool("door.hang", {"id": "D-1"})
        store.held = anyio.Event()
        store.hold = hold = anyio.Event()
        opened, done = anyio.Event(), anyio.Event()

        async def listen_meanwhile() -> None:
            nonlocal heard
            async with listening(f"{origin}/mcp", "2026-07-28", "alice") as (_, heard):
                opened.set()
                await done.wait()

        async with anyio.create_task_group() as group:
            group.start_soon(listen_meanwhile)
            await store.held.wait()
            await alice.call_tool("door.close", {"id": "D-1"})
            hold.set()
            await opened.wait()
            await alice.call_tool("door.open", {"id": "D-1"})
            await heard.wait(1)
            done.set()


async def settled(count: Callable[[], int], again: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint) -> int:
    """Return a count when it has stood still for a while of turns of the event loop."""
    before = -1
    while before != (before := count()):
        for _ in range(200):
            await again()
    return before
