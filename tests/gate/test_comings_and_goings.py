"""Clients in one process that come while others go: each has a store that is open for as long as it is there."""

from pathlib import Path

import anyio
import pytest
from mcp import Client

from mcpfusion import Fusion
from mcpfusion.stores.sqlite import SqliteStore
from tests.gate.payments import CONFIG
from tests.support.serving import ERAS

pytestmark = pytest.mark.anyio


def shop(path: Path) -> tuple[object, list[str]]:
    f = Fusion("shop")
    runs: list[str] = []

    @f.action("payment.capture", bind_state=("due", "PAY")).handle
    async def capture(id: str) -> dict:
        runs.append(id)
        return {"id": id}

    return f.server(fsm=f.fsm(CONFIG), state_handle_key="id", store=f"sqlite:///{path}"), runs


@pytest.mark.parametrize("mode", ERAS)
async def test_a_client_that_comes_while_the_last_one_goes_has_a_store(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, runs = shop(tmp_path / "shop.db")
    closing, go_on = anyio.Event(), anyio.Event()
    aclose = SqliteStore.aclose

    async def slowly(self: SqliteStore) -> None:
        closing.set()
        with anyio.CancelScope(shield=True):
            await go_on.wait()
        await aclose(self)

    async def first() -> None:
        async with Client(server.lowlevel, mode=mode) as client:
            await client.call_tool("payment.capture", {"id": "a"})

    async with anyio.create_task_group() as group:
        monkeypatch.setattr(SqliteStore, "aclose", slowly)
        group.start_soon(first)
        await closing.wait()
        async with Client(server.lowlevel, mode=mode) as client:
            assert not (await client.call_tool("payment.capture", {"id": "b"})).is_error
            go_on.set()
            await anyio.wait_all_tasks_blocked()
            assert not (await client.call_tool("payment.capture", {"id": "c"})).is_error
    assert runs == ["a", "b", "c"]


async def test_clients_come_and_go_at_random(tmp_path: Path) -> None:
    server, runs = shop(tmp_path / "shop.db")

    async def one(place: int) -> None:
        await anyio.sleep(place % 7 * 0.01)
        async with Client(server.lowlevel, mode=ERAS[place % 2]) as client:
            assert not (await client.call_tool("payment.capture", {"id": str(place)})).is_error

    async with anyio.create_task_group() as group:
        for place in range(30):
            group.start_soon(one, place)
    assert sorted(runs, key=int) == [str(place) for place in range(30)]
