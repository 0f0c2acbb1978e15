"""Replicas of a server on one store with a bus: what one of them committed, the others' listeners hear of."""

import itertools
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import pytest
from mcp import Client
from mcp.server.auth.provider import AccessToken

from mcpfusion.cli.workflows.access import now_of
from mcpfusion.gate import operator
from mcpfusion.machine import Machine
from mcpfusion.stores import open_store
from tests.gate_identity.users import APPROVAL, AUTH, approvals, code, menu
from tests.support.engines import ENGINES, Engine, shared_engine
from tests.support.hearing import Heard
from tests.support.serving import ERAS, http_client
from tests.swarm.parts import process

pytestmark = pytest.mark.anyio
SESSIONS, MODERN = ERAS


class Everybody:
    """Knows every user: his name is his token."""

    async def verify_token(self, token: str) -> AccessToken | None:
        return AccessToken(token=token, client_id="app", scopes=[], subject=token)


def be_replica(port: int, store: str) -> None:
    f = approvals()
    server = f.server(fsm=f.fsm(APPROVAL), store=store, state_handle_key="id", auth=AUTH, token_verifier=Everybody())
    server.run("http", port=port)


@dataclass(frozen=True)
class Pair:
    """Two replicas, and the engine that they share."""

    engine: Engine
    store: str
    here: str
    there: str


@pytest.fixture(scope="module", params=ENGINES)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    engine = shared_engine(request.param)
    store = engine.new_store()
    with process(be_replica, store) as (here, _), process(be_replica, store) as (there, _):
        yield Pair(engine, store, here, there)


_numbers = itertools.count()


def new_user(name: str) -> str:
    """Return a user who has no workflows yet."""
    return f"{name}-{next(_numbers)}"


@asynccontextmanager
async def listening(url: str, mode: str, user: str, *handles: str) -> AsyncIterator[tuple[Client, Heard]]:
    """Yield a client that hears of its menu's changes; one with a session names the workflows first."""
    heard = Heard()
    async with http_client(url, mode, token=user, message_handler=heard) as client:
        if mode == SESSIONS:
            await client.list_tools()
            for handle in handles:
                assert code(await client.call_tool("approval.pay", {"id": handle})) == "FORBIDDEN"
            yield client, heard
            return
        async with client.listen(tools_list_changed=True):
            yield client, heard


async def step(client: Client, tool: str, handle: str) -> None:
    result = await client.call_tool(f"approval.{tool}", {"id": handle})
    assert not result.is_error, result.content


@pytest.mark.parametrize("mode", ERAS)
async def test_who_listens_on_another_replica_hears_of_his_own_menu_and_of_no_others(pair: Pair, mode: str) -> None:
    user, stranger = new_user("alice"), new_user("bob")
    async with (
        http_client(pair.here, mode, token=user) as mover,
        http_client(pair.here, mode, token=stranger) as other,
        listening(pair.there, MODERN, user) as (client, stream),
        listening(pair.there, SESSIONS, user, "A-1") as (partner, session),
        listening(pair.there, SESSIONS, user, "A-2") as (_, uninvolved),
        listening(pair.there, MODERN, stranger) as (_, strangers),
    ):
        await step(mover, "submit", "A-1")
        await stream.wait(1)
        await session.wait(1)
        for listener in (client, partner):
            assert "approval.approve" in await menu(listener)
        # What changes no menu is not told: a refusal, and a second workflow where there is one already.
        assert code(await mover.call_tool("approval.pay", {"id": "A-1"})) == "FORBIDDEN"
        await step(mover, "submit", "A-3")
        await step(other, "submit", "A-1")
        await strangers.wait(1)
        await step(mover, "approve", "A-1")
        await stream.wait(2)
        await session.wait(2)
        assert (stream.count(), session.count(), uninvolved.count(), strangers.count()) == (2, 2, 0, 1)


async def test_what_an_operator_does_is_heard(pair: Pair) -> None:
    user = new_user("alice")
    async with (
        http_client(pair.here, MODERN, token=user) as mover,
        listening(pair.here, MODERN, user) as (client, here),
        listening(pair.there, SESSIONS, user, handle := new_user("A")) as (_, there),
    ):
        await step(mover, "submit", handle)
        await here.wait(1)
        await there.wait(1)
        store = open_store(pair.store)
        try:
            (record,) = await store.find(handle)
            data = Machine(APPROVAL).initial().to_json()
            await operator.reset(store, record, snapshot=data, operator="olga", now=await now_of(store))
        finally:
            await store.aclose()
        await here.wait(2)
        await there.wait(2)
        assert "approval.submit" in await menu(client)


async def test_hundreds_of_steps_are_told_in_a_few_notifications(pair: Pair) -> None:
    user = new_user("busy")
    handles = [f"A-{n}" for n in range(4)]
    async with (
        listening(pair.there, MODERN, user) as (client, stream),
        listening(pair.there, SESSIONS, user, *handles) as (_, session),
    ):

        async def to_and_fro(handle: str) -> None:
            async with http_client(pair.here, MODERN, token=user) as mover:
                for _ in range(20):
                    await step(mover, "submit", handle)
                    await step(mover, "reject", handle)

        began = time.monotonic()
        async with anyio.create_task_group() as group:
            for handle in handles:
                group.start_soon(to_and_fro, handle)
        took = time.monotonic() - began
        await anyio.sleep(0.5)
        for heard in (stream, session):
            assert 1 <= heard.count() <= 3 + 10 * (took + 0.5)
        assert await menu(client) == ["approval.submit", "approval.help"]
        told = stream.count(), session.count()
        async with http_client(pair.here, MODERN, token=user) as mover:
            await step(mover, "submit", handles[0])
        await stream.wait(told[0] + 1)
        await session.wait(told[1] + 1)


async def test_after_the_bus_was_lost_every_listener_is_told_once_to_look_again(pair: Pair) -> None:
    user = new_user("carol")
    async with (
        http_client(pair.here, MODERN, token=user) as mover,
        listening(pair.here, MODERN, user) as (_, near),
        listening(pair.there, MODERN, user) as (_, stream),
        listening(pair.there, SESSIONS, user, "A-1") as (_, session),
    ):
        pair.engine.cut_listeners()
        for heard in (near, stream, session):
            await heard.wait(1)
        await anyio.sleep(0.3)
        assert (near.count(), stream.count(), session.count()) == (1, 1, 1)
        await step(mover, "submit", "A-1")
        for heard in (near, stream, session):
            await heard.wait(2)
        await step(mover, "reject", "A-1")  # where it was when the bus was lost
        for heard in (near, stream, session):
            await heard.wait(3)
        assert (near.count(), stream.count(), session.count()) == (3, 3, 3)


async def test_steps_while_the_bus_is_lost_are_looked_at_afterwards(pair: Pair) -> None:
    user = new_user("dave")
    async with (
        http_client(pair.here, MODERN, token=user) as mover,
        listening(pair.there, MODERN, user) as (client, heard),
    ):
        pair.engine.cut_listeners()
        await step(mover, "submit", "A-1")
        await heard.wait(1)
        with anyio.fail_after(10):
            while "approval.approve" not in await menu(client):  # noqa: ASYNC110 - there is no event
                await anyio.sleep(0.05)
        await step(mover, "approve", "A-1")
        await heard.wait(2)
