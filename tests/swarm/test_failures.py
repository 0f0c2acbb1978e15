"""Specialists that fail: what the client is told, what becomes of the slot, and which sessions stay open."""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.support.serving import ERAS, free_port
from tests.swarm.faults import Front, be_fronted, counts, deaf, fronted
from tests.swarm.parts import (
    PATIENCE,
    SECRET,
    Talk,
    code_of,
    gateway_to,
    process,
    specialist,
    talk,
    text_of,
    until,
)

pytestmark = pytest.mark.anyio

both_upstreams = pytest.mark.parametrize("handshake", [False, True], ids=["stateless", "sessions"])
both_eras = pytest.mark.parametrize("era", ERAS)


async def nothing_held(gateway: Any, *fronts: Front) -> None:
    """No slot is taken, and nothing is open at the specialists."""
    assert (gateway.session_count, gateway.connecting_count) == (0, 0)
    for front in fronts:
        await front.nothing_open()


async def returned(client: Talk, own: list[str]) -> None:
    """The conversation is with the gateway again."""
    assert await client.names() == own
    assert text_of(await client.client.call_tool("triage.hello", {})) == "hello from triage"


@both_eras
@both_upstreams
async def test_an_unknown_target_and_one_that_refuses_connections_are_told_apart(era: str, handshake: bool) -> None:
    async with (
        fronted(specialist(), handshake=handshake) as (url, front),
        gateway_to({"finance": url, "dead": f"http://127.0.0.1:{free_port()}"}) as (gate, gateway),
        talk(gate, era) as client,
    ):
        own = await client.names()
        known = len(front.requests)
        unknown = await client.route("financ")
        assert code_of(unknown) == "UNKNOWN_TARGET"
        assert "finance" in text_of(unknown)
        assert code_of(await client.route("dead")) == "UPSTREAM_UNAVAILABLE"
        assert len(front.requests) == known
        await nothing_held(gateway, front)
        await returned(client, own)
        assert not (await client.route("finance")).is_error


@both_eras
async def test_one_that_accepts_and_never_answers_fails_within_the_connect_timeout(era: str) -> None:
    with deaf() as url:
        async with gateway_to({"finance": url}, connect_timeout_ms=400) as (gate, gateway), talk(gate, era) as client:
            own = await client.names()
            result = await client.route("finance")
            assert code_of(result) == "UPSTREAM_TIMEOUT"
            assert "0.4 s" in text_of(result)
            await nothing_held(gateway)
            await returned(client, own)


@pytest.mark.parametrize("method", [None, "tools/list"])
@both_upstreams
@both_eras
async def test_one_that_stops_answering_while_it_is_connected_fails_within_the_connect_timeout(
    era: str, handshake: bool, method: str | None
) -> None:
    async with (
        fronted(specialist(), handshake=handshake) as (url, front),
        gateway_to({"finance": url}, connect_timeout_ms=500) as (gate, gateway),
        talk(gate, era) as client,
    ):
        own = await client.names()
        front.mode, front.only = "hang", method
        assert code_of(await client.route("finance")) == "UPSTREAM_TIMEOUT"
        await nothing_held(gateway, front)
        await returned(client, own)


@pytest.mark.parametrize("mode", ["500", "garbage", "break"])
@pytest.mark.parametrize("only", [None, "tools/list"])
@both_upstreams
@both_eras
async def test_one_that_answers_nonsense_to_the_handoff_fails_it_at_once(
    mode: str, only: str | None, handshake: bool, era: str
) -> None:
    async with (
        fronted(specialist(), handshake=handshake) as (url, front),
        gateway_to({"finance": url}) as (gate, gateway),
        talk(gate, era) as client,
    ):
        own = await client.names()
        front.mode, front.only = mode, only
        result = await client.route("finance")
        assert code_of(result) in {"UPSTREAM_UNAVAILABLE", "UPSTREAM_REFUSED"}
        assert "finance" in text_of(result)
        await nothing_held(gateway, front)
        await returned(client, own)
        front.mode = "ok"  # no harm is left behind
        assert not (await client.route("finance")).is_error
        assert (await client.call("finance.pay.refund", {"amount": 1})).structured_content["amount"] == 1


@pytest.mark.parametrize("mode", ["500", "garbage", "break"])
@both_upstreams
@both_eras
async def test_one_that_breaks_in_a_call_has_maybe_done_it_and_is_not_asked_again(
    mode: str, handshake: bool, era: str
) -> None:
    async with (
        fronted(specialist(), handshake=handshake) as (url, front),
        gateway_to({"finance": url}) as (gate, gateway),
        talk(gate, era) as client,
    ):
        await client.route("finance", "x")
        front.mode, front.only = mode, "tools/call"
        result = await client.call("finance.pay.refund", {"amount": 1})
        assert code_of(result) == "UPSTREAM_UNAVAILABLE"
        assert "may or may not have run" in text_of(result)
        assert len(front.calls()) == 1
        assert gateway.session_count == 1  # the route is kept
        assert len(front.sessions) == int(handshake)
        front.mode = "ok"
        again = await client.call("finance.pay.refund", {"amount": 1})
        assert again.structured_content["state"] == {"intent": "x"}
        await client.back()
        await nothing_held(gateway, front)


@both_eras
@both_upstreams
async def test_one_that_hangs_in_a_call_is_let_go_of_when_the_client_cancels(era: str, handshake: bool) -> None:
    async with (
        fronted(specialist(), handshake=handshake) as (url, front),
        gateway_to({"finance": url}) as (gate, gateway),
        talk(gate, era) as client,
    ):
        await client.route("finance")
        front.mode, front.only = "hang", "tools/call"
        async with anyio.create_task_group() as group:
            group.start_soon(client.call, "finance.pay.refund", {"amount": 1})
            await until(lambda: front.hanging == 1)
            group.cancel_scope.cancel()
        front.mode = "ok"
        assert not (await client.call("finance.pay.refund", {"amount": 1})).is_error
        await client.back()
        await nothing_held(gateway, front)


@both_eras
@both_upstreams
async def test_one_that_restarts_is_connected_once_more_and_the_route_is_kept(era: str, handshake: bool) -> None:
    port, sessions = free_port(), int(handshake)
    serving = partial(process, be_fronted, "finance", handshake, port=port)
    async with gateway_to({"finance": f"http://127.0.0.1:{port}"}) as (gate, gateway), talk(gate, era) as client:
        own = []
        with serving() as (url, _):
            own = await client.names()
            await client.route("finance", "x")
            first = await client.call("finance.pay.refund", {"amount": 1})
            assert (await counts(url))["sessions"] == sessions
        with serving() as (url, _):
            # A connection that was kept open may only be found dead by a call, which may then have run.
            second = await client.call("finance.pay.refund", {"amount": 2})
            if second.is_error:
                assert "may or may not have run" in text_of(second)
                second = await client.call("finance.pay.refund", {"amount": 2})
            assert second.structured_content["tid"] == first.structured_content["tid"]
            assert second.structured_content["state"] == {"intent": "x"}
            assert (gateway.session_count, gateway.connecting_count) == (1, 0)
            found = await counts(url)
            assert (found["sessions"], found["opened"]) == (sessions, sessions)  # connected once, not twice
            await client.back()
            await nothing_held(gateway)
            await nothing_open(url)
            await client.route("finance", "y")
        # Gone for good: the call says so, and the conversation is back.
        gone = await client.call("finance.pay.refund", {"amount": 3})
        assert code_of(gone) == "UPSTREAM_UNAVAILABLE"
        assert "back with 'triage'" in text_of(gone)
        await nothing_held(gateway)
        assert await client.names() == own
        assert text_of(await client.client.call_tool("triage.hello", {})) == "hello from triage"


async def nothing_open(url: str) -> None:
    """Return once no stream is open at the specialist any more; sessions must have ended already."""
    with anyio.fail_after(PATIENCE):
        while (found := await counts(url))["requests"]:  # noqa: ASYNC110 - it is in another process
            await anyio.sleep(0.02)
    assert found["sessions"] == 0


@both_eras
async def test_one_whose_sessions_are_gone_gets_a_new_one_without_the_client_noticing(era: str) -> None:
    async with (
        fronted(specialist(), handshake=True) as (url, front),
        gateway_to({"finance": url}) as (gate, gateway),
        talk(gate, era) as client,
    ):
        await client.route("finance", "x")
        assert len(front.sessions) == 1
        await _forget_sessions(front)
        for _ in range(3):
            answer = await client.call("finance.pay.refund", {"amount": 1})
            assert answer.structured_content["state"] == {"intent": "x"}
        assert front.opened - front.base == 2
        await client.back()
        assert not front.sessions - front.lost
        assert gateway.session_count == 0


async def _forget_sessions(front: Any) -> None:
    """End the specialist's sessions behind the gateway's back, as a restart does."""
    import httpx2

    front.base, front.lost = front.opened - len(front.sessions), set(front.sessions)
    async with httpx2.AsyncClient() as http:
        for session in list(front.sessions):
            await http.delete(front.url, headers={"mcp-session-id": session})


async def test_calls_that_lose_a_session_together_make_one_new_one() -> None:
    async with (
        fronted(specialist(), handshake=True) as (url, front),
        gateway_to({"finance": url}) as (gate, gateway),
        talk(gate, "legacy") as client,
    ):
        await client.route("finance", "x")
        await _forget_sessions(front)
        answers: list[Any] = []

        async def call() -> None:
            answers.append(await client.call("finance.pay.refund", {"amount": 1}))

        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(call)
        done = [answer for answer in answers if not answer.is_error]
        for answer in answers:
            assert not answer.is_error or "may or may not have run" in text_of(answer), answer
        assert len(answers) == 8
        assert done
        assert front.opened - front.base == 2
        await client.back()
        assert not front.sessions - front.lost
        assert gateway.session_count == 0


@both_eras
async def test_a_refusal_by_the_specialist_is_said_in_the_handoffs_answer(era: str) -> None:
    async with (
        fronted(specialist("legal")) as (url, _),
        gateway_to({"finance": url}) as (gate, gateway),
        talk(gate, era) as client,
    ):
        result = await client.route("finance")
        assert code_of(result) == "UPSTREAM_REFUSED"
        assert "FORBIDDEN" in text_of(result)
        await nothing_held(gateway)


COMMAND = """
import os

from mcpfusion import Fusion
from mcpfusion.swarm import require_gateway_clearance

f = Fusion("finance")


@f.action("pay.pid").describe("Say which process this is").handle
async def pid() -> int:
    return os.getpid()


@f.action("pay.die").describe("End in the middle of a call").handle
async def die() -> None:
    os._exit(1)


f.server(middleware=[require_gateway_clearance(SECRET, scope="finance")]).run()
"""


@both_eras
async def test_a_command_that_dies_in_a_call_is_started_once_more_and_ends_with_the_handoff(
    era: str, tmp_path: Path
) -> None:
    file = tmp_path / "finance.py"
    file.write_text(f"SECRET = {SECRET!r}\n{COMMAND}")
    async with (
        gateway_to({"finance": [sys.executable, str(file)]}) as (gate, gateway),
        talk(gate, era) as client,
    ):
        await client.route("finance")
        first = (await client.call("finance.pay.pid")).structured_content["result"]
        answer = await client.call("finance.pay.die")
        assert code_of(answer) == "UPSTREAM_UNAVAILABLE"
        assert "may or may not have run" in text_of(answer)
        second = (await client.call("finance.pay.pid")).structured_content["result"]
        assert second != first
        assert (gateway.session_count, gateway.connecting_count) == (1, 0)
        await client.back()
        await nothing_held(gateway)
        await until(lambda: not is_alive(first) and not is_alive(second))


async def test_a_command_that_cannot_be_started_or_says_nothing_fails_the_handoff() -> None:
    registry = {"finance": ["/no/such/program"], "support": [sys.executable, "-c", "print('no server')"]}
    async with gateway_to(registry) as (gate, gateway), talk(gate, "legacy") as client:
        own = await client.names()
        for domain in registry:
            result = await client.route(domain)
            assert code_of(result) == "UPSTREAM_UNAVAILABLE"
            assert domain in text_of(result)
            assert "/no/such" not in text_of(result)
            await nothing_held(gateway)
        await returned(client, own)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
