"""Replicas of a gateway that share a store: any of them serves any conversation, and the limits hold for all."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcpfusion.swarm import SwarmGateway
from mcpfusion.swarm.route_store import InMemoryRouteStore
from tests.gate_identity.users import AUTH, TOKENS, Verifier
from tests.support.engines import ENGINES, shared_engine
from tests.support.hearing import Heard
from tests.support.serving import ERAS, http_client
from tests.swarm.faults import fronted
from tests.swarm.parts import code_of, process, served, specialist, talk, text_of, triage, until

pytestmark = pytest.mark.anyio
both_upstreams = pytest.mark.parametrize("handshake", [False, True], ids=["stateless", "sessions"])
MODERN = "2026-07-28"


@pytest.fixture(params=["sqlite", *ENGINES])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/swarm.db"
    return shared_engine(request.param).new_store()


@asynccontextmanager
async def replicas(
    store: str, registry: dict[str, Any], **options: Any
) -> AsyncIterator[list[tuple[str, SwarmGateway]]]:
    """Serve two replicas of one gateway."""
    servers = [triage(registry, store=store, **options) for _ in range(2)]
    async with served(*servers) as urls:
        yield [(url, server.swarm) for url, server in zip(urls, servers, strict=True)]


@both_upstreams
async def test_another_replica_goes_on_with_a_conversation_and_takes_it_back(store: str, handshake: bool) -> None:
    async with (
        fronted(specialist("finance"), handshake=handshake) as (url, front),
        replicas(store, {"finance": url}) as ((here, first), (there, second)),
        talk(here, MODERN) as one,
        talk(there, MODERN) as other,
    ):
        assert not (await one.route("finance", "refund 42")).is_error
        other.extra = one.extra
        for client in (one, other, one, other):
            answer = await client.call("finance.pay.refund", {"amount": 5})
            assert answer.structured_content["state"] == {"intent": "refund 42"}
        assert not (await other.back()).is_error
        assert second.session_count == 0
        assert code_of(await one.call("finance.pay.refund", {"amount": 5})) == "NO_HANDOFF"
        assert first.session_count == 0
        if handshake:
            assert front.opened >= 3  # one to see the tools of everybody, and one for each replica
            await until(lambda: not front.sessions)


async def test_large_state_is_seen_by_calls_through_every_replica(store: str) -> None:
    async with (
        served(specialist("finance", store=store)) as (url,),
        replicas(store, {"finance": url}) as ((here, _), (there, _)),
        talk(here, MODERN) as one,
        talk(there, MODERN) as other,
    ):
        assert not (await one.route("finance", size=100_000)).is_error
        other.extra = one.extra
        for client in (one, other, other, one):
            assert (await client.call("finance.pay.size")).structured_content == {"result": 100_000}


async def test_the_limit_of_sessions_holds_for_all_replicas_together(store: str) -> None:
    async with (
        served(specialist("finance")) as (url,),
        replicas(store, {"finance": url}, max_sessions=3) as ((here, _), (there, _)),
        talk(here, MODERN) as one,
        talk(there, MODERN) as other,
    ):
        results: list[Any] = []

        async def route(client: Any) -> None:
            results.append(await client.route("finance"))

        async with anyio.create_task_group() as group:
            for client in [one, other] * 5:
                group.start_soon(route, client)
        assert sum(not result.is_error for result in results) == 3
        assert {code_of(result) for result in results if result.is_error} == {"TOO_MANY_SESSIONS"}
        handoffs = [each.structured_content["handoff"]["handoff_id"] for each in results if not each.is_error]
        for handoff_id in handoffs:
            other.extra = {"handoff_id": handoff_id}
            assert not (await other.back()).is_error
        assert not (await one.route("finance")).is_error


async def test_of_handoffs_made_on_two_replicas_at_once_none_is_lost(store: str) -> None:
    from mcpfusion import handoff

    servers = [triage({"finance": specialist("finance").lowlevel}, store=store) for _ in range(2)]
    first, second = (server.swarm for server in servers)
    async with first, second:
        for n in range(10):
            key, made = f"principal:{n}", []

            async def activate(gateway: SwarmGateway, key: str = key, made: list[str] = made) -> None:
                try:
                    made.append((await gateway.activate_handoff(key, handoff("finance"))).handoff_id)
                except Exception as error:
                    assert getattr(error, "code", None) == "HANDOFF_BUSY"  # noqa: PT017

            async with anyio.create_task_group() as group:
                group.start_soon(activate, first)
                group.start_soon(activate, second)
            assert made
            for gateway in (first, second):
                assert await gateway.is_handed_over(key)
            for _ in made:
                await second.return_to_gateway(key)
            assert not await first.is_handed_over(key)
        assert await first._conversations._store.places_taken("triage") == 0


async def test_a_replica_that_stops_leaves_its_conversations_to_the_others(store: str) -> None:
    async with (
        fronted(specialist("finance"), handshake=True) as (url, front),
        served(triage({"finance": url}, store=store)) as (there,),
        talk(there, MODERN) as other,
    ):
        async with served(triage({"finance": url}, store=store)) as (here,), talk(here, MODERN) as one:
            assert not (await one.route("finance", "refund 42")).is_error
            assert not (await one.call("finance.pay.refund", {"amount": 5})).is_error
            other.extra = one.extra
        await until(lambda: not front.sessions)
        answer = await other.call("finance.pay.refund", {"amount": 5})
        assert answer.structured_content["state"] == {"intent": "refund 42"}
        assert not (await other.back()).is_error


def be_gateway(port: int, store: str, url: str) -> None:
    triage({"finance": url}, store=store, idle_timeout_ms=2_000, connect_timeout_ms=2_000, max_sessions=1).run(
        "http", port=port
    )


@both_upstreams
async def test_when_a_replica_is_killed_another_goes_on(store: str, handshake: bool) -> None:
    async with fronted(specialist("finance"), handshake=handshake) as (url, _):
        with process(be_gateway, store, url) as (there, _):
            with process(be_gateway, store, url) as (here, victim):
                async with talk(here, MODERN) as one:
                    assert not (await one.route("finance", "refund 42")).is_error
                    assert not (await one.call("finance.pay.refund", {"amount": 5})).is_error
                    handoff_id = one.extra
                    victim.kill()
            async with talk(there, MODERN) as other:
                other.extra = handoff_id
                answer = await other.call("finance.pay.refund", {"amount": 5})
                assert answer.structured_content["state"] == {"intent": "refund 42"}


async def test_the_place_of_a_replica_that_was_killed_is_free_after_the_idle_time(store: str) -> None:
    async with fronted(specialist("finance")) as (url, _):
        with process(be_gateway, store, url) as (there, _):
            with process(be_gateway, store, url) as (here, victim):
                async with talk(here, MODERN) as one:
                    assert not (await one.route("finance")).is_error
                    victim.kill()
            async with talk(there, MODERN) as other:
                assert code_of(await other.route("finance")) == "TOO_MANY_SESSIONS"
                with anyio.fail_after(30):
                    while (await other.route("finance")).is_error:  # noqa: ASYNC110 - it runs out by itself
                        await anyio.sleep(0.5)


async def test_a_conversation_that_one_replica_uses_is_not_ended_by_another_where_it_is_idle(store: str) -> None:
    async with (
        served(specialist("finance")) as (url,),
        replicas(store, {"finance": url}, idle_timeout_ms=1_000) as ((here, first), (there, second)),
        talk(here, MODERN) as one,
        talk(there, MODERN) as other,
    ):
        assert not (await one.route("finance")).is_error
        other.extra = one.extra
        for _ in range(16):
            assert not (await other.call("finance.pay.refund", {"amount": 5})).is_error
            await anyio.sleep(0.25)
        assert first.session_count == 0  # it has let go of it
        assert not (await one.call("finance.pay.refund", {"amount": 5})).is_error
        await until(lambda: first.session_count == second.session_count == 0)  # and now nobody uses it
        assert code_of(await one.call("finance.pay.refund", {"amount": 5})) == "NO_HANDOFF"


class AwayRoutes(InMemoryRouteStore):
    """A store that can be taken away."""

    away = False

    async def read_routes(self, gateway: str, conversation: str) -> Any:
        self._reach()
        return await super().read_routes(gateway, conversation)

    async def take_place(self, *given: Any, **options: Any) -> bool:
        self._reach()
        return await super().take_place(*given, **options)

    def _reach(self) -> None:
        if self.away:
            raise ConnectionError("db-7.internal refused s3cret")


@pytest.mark.parametrize("era", ERAS)
async def test_while_the_store_is_away_callers_are_told_when_to_come_again(era: str) -> None:
    server = triage({"finance": specialist("finance").lowlevel})
    async with served(server) as (url,), talk(url, era) as client:
        routes = server.swarm._conversations.store = AwayRoutes()
        routes.away = True
        unavailable = [await client.route("finance")]
        routes.away = False
        assert not (await client.route("finance")).is_error
        routes.away = True
        call = await client.call("finance.pay.refund", {"amount": 5})
        if era == MODERN:  # where a session's conversation is, the gateway's own process knows
            unavailable.append(call)
        for answer in unavailable:
            assert code_of(answer) == "STORE_UNAVAILABLE"
            assert answer.structured_content["retryAfter"] == 2
            assert "Retry after 2 s" in text_of(answer)
            assert "s3cret" not in text_of(answer)
        routes.away = False
        assert not (await client.call("finance.pay.refund", {"amount": 5})).is_error


@pytest.mark.parametrize("engine", ENGINES)
async def test_who_listens_on_one_replica_hears_of_his_handoffs_on_another(engine: str) -> None:
    auth = {"auth": AUTH, "token_verifier": Verifier()}
    store = shared_engine(engine).new_store()
    heard = {user: Heard() for user in TOKENS}
    async with (
        served(specialist("finance")) as (url,),
        replicas(store, {"finance": url}, auth=auth) as ((here, _), (there, _)),
        http_client(here, MODERN, token=TOKENS["alice"]) as alice,
        http_client(there, MODERN, token=TOKENS["alice"], message_handler=heard["alice"]) as listener,
        http_client(there, MODERN, token=TOKENS["bob"], message_handler=heard["bob"]) as stranger,
        listener.listen(tools_list_changed=True),
        stranger.listen(tools_list_changed=True),
    ):
        for n in (1, 2):
            assert not (await alice.call_tool("triage.route", {"domain": "finance"})).is_error
            await heard["alice"].wait(2 * n - 1)
            assert "finance.pay.refund" in {tool.name for tool in (await listener.list_tools()).tools}
            assert (await listener.call_tool("finance.pay.refund", {"amount": 5})).structured_content["amount"] == 5
            assert not (await alice.call_tool("triage.return_to_triage", {"summary": "done"})).is_error
            await heard["alice"].wait(2 * n)
            assert "triage.route" in {tool.name for tool in (await listener.list_tools()).tools}
        assert heard["bob"].count() == 0
