"""What a menu costs the store: as much with ten thousand workflows as with one."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from mcpfusion.stores import MemoryStore
from mcpfusion.stores.protocol import Step, Workflow
from tests.gate_identity.listening import listening
from tests.gate_identity.users import APPROVAL, anonymous, approvals, as_user, authenticated, menu
from tests.support.serving import http_client, sdk_client

pytestmark = pytest.mark.anyio


class Counted(MemoryStore):
    """A store that counts what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    async def read(self, scope: str, handle: str) -> Workflow | None:
        self.calls["read"] += 1
        return await super().read(scope, handle)

    async def write(self, workflow: Workflow, *, expected_version: int, step: Step | None = None) -> bool:
        self.calls["write"] += 1
        return await super().write(workflow, expected_version=expected_version, step=step)

    async def states_in_use(self, scope: str) -> Sequence[str]:
        self.calls["states_in_use"] += 1
        return await super().states_in_use(scope)

    async def list_workflows(self, **options: Any) -> Sequence[Workflow]:
        self.calls["list_workflows"] += 1
        return await super().list_workflows(**options)


async def test_a_principals_menu_is_one_query_however_many_workflows_are_open() -> None:
    store = Counted()
    async with (
        authenticated(approvals(), state_handle_key="id", store=store) as url,
        as_user(url, "2026-07-28", "alice") as alice,
    ):
        costs = []
        for opened in (1, 40):
            for number in range(opened):
                await alice.call_tool("approval.submit", {"id": f"A-{opened}-{number}"})
            store.calls.clear()
            assert "approval.approve" in await menu(alice)
            costs.append(dict(store.calls))
        assert costs == [{"states_in_use": 1}] * 2


async def test_the_menu_of_a_process_is_one_look_up() -> None:
    store = Counted()
    f = approvals()
    server = f.server(fsm=f.fsm(APPROVAL), store=store)
    async with sdk_client(server.lowlevel, "2026-07-28") as client:
        await client.call_tool("approval.submit")
        store.calls.clear()
        await menu(client)
        assert dict(store.calls) == {"read": 1}


async def test_nobody_in_particulars_menu_asks_the_store_nothing() -> None:
    store = Counted()
    async with (
        anonymous(approvals(), state_handle_key="id", store=store) as url,
        http_client(url, "2026-07-28") as client,
    ):
        await menu(client)
        assert dict(store.calls) == {}


async def test_a_call_costs_one_read_and_two_writes_and_no_query_over_all() -> None:
    store = Counted()
    f = approvals()
    server = f.server(fsm=f.fsm(APPROVAL), state_handle_key="id", store=store)
    async with sdk_client(server.lowlevel, "2026-07-28") as client:
        await menu(client)
        store.calls.clear()
        await client.call_tool("approval.submit", {"id": "A-1"})
        assert dict(store.calls) == {"read": 1, "write": 2}
        store.calls.clear()
        await client.call_tool("approval.pay", {"id": "A-1"})
        assert dict(store.calls) == {"read": 1}


async def test_a_step_asks_for_the_menus_of_its_own_scope_only() -> None:
    store = Counted()
    async with (
        authenticated(approvals(), state_handle_key="id", store=store) as url,
        listening(url, "2026-07-28", "alice") as (alice, heard),
        listening(url, "2026-07-28", "alice"),
        listening(url, "2026-07-28", "bob"),
    ):
        store.calls.clear()
        await alice.call_tool("approval.submit", {"id": "A-1"})
        await heard.wait(1)
        assert dict(store.calls) == {"read": 1, "write": 2, "states_in_use": 1}


async def test_a_sessions_menu_reads_its_own_workflows_only_and_a_bounded_number_of_them() -> None:
    store = Counted()
    async with (
        anonymous(approvals(), state_handle_key="id", store=store) as url,
        http_client(url, "legacy") as client,
        http_client(url, "legacy") as other,
    ):
        for number in range(3):
            await client.call_tool("approval.submit", {"id": f"A-{number}"})
        store.calls.clear()
        await menu(other)
        assert dict(store.calls) == {}
        await menu(client)
        assert dict(store.calls) == {"read": 3}
        for number in range(120):
            await client.call_tool("approval.approve", {"id": f"B-{number}"})
        store.calls.clear()
        await menu(client)
        assert dict(store.calls) == {"read": 100}
