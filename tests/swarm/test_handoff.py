"""A handoff from end to end, over real HTTP, for clients of both eras."""

import base64
import json
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest

from mcpfusion.swarm import InMemoryHandoffStateStore
from tests.support.serving import ERAS
from tests.swarm.faults import Front, fronted
from tests.swarm.parts import (
    PARTS,
    PATIENCE,
    ROOT,
    be_specialist,
    code_of,
    gateway_to,
    process,
    served,
    specialist,
    talk,
    text_of,
    until,
)

pytestmark = pytest.mark.anyio


class Hearing:
    """A client's notifications that its list changed."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self, message: Any) -> None:
        self.count += isinstance(message, types.ToolListChangedNotification)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store") / "swarm.db"


@pytest.fixture(scope="module")
def finance(store: Path) -> Any:
    with process(be_specialist, "finance", f"sqlite:///{store}") as (url, _):
        yield url


@pytest.mark.parametrize("era", ERAS)
async def test_a_conversation_goes_to_a_specialist_and_comes_back(finance: str, era: str) -> None:
    async with gateway_to({"finance": finance}) as (url, gateway):
        async with talk(url, era) as client:
            own = await client.names()
            assert ("finance.pay.refund" in own) == (era != "legacy")
            result = await client.route("finance", "refund 42")
            assert not result.is_error
            data = result.structured_content["handoff"]
            offered = [tool["name"] for tool in data["tools"]]
            assert offered == ["finance.pay.refund", "finance.pay.look", "finance.pay.size", "finance.pay.count"]
            assert data["tools"][0]["inputSchema"]["properties"] == {"amount": {"type": "integer"}}
            assert all(name in text_of(result) for name in offered)
            assert data["returnTool"] == "triage.return_to_triage"
            assert data["reason"] == "Triage to finance"
            assert ("handoff_id" in data) == (era != "legacy")
            assert gateway.session_count == 1
            assert gateway.connecting_count == 0

            refund = await client.call("finance.pay.refund", {"amount": 5})
            assert refund.structured_content["amount"] == 5
            assert refund.structured_content["state"] == {"intent": "refund 42"}
            assert refund.structured_content["scope"] == "finance"
            assert refund.structured_content["issuer"] == "triage"
            wrong = await client.call("finance.pay.refund", {"amount": "five"})
            assert code_of(wrong) == "INVALID_ARGUMENTS"
            for name in ("finance.nope", "support.refund"):
                if name.startswith("finance") or era == "legacy":
                    assert code_of(await client.call(name)) == "NOT_IN_NAMESPACE"

            back = await client.back("all <done>")
            assert "all &lt;done&gt;" in text_of(back)
            assert back.structured_content == {"returnedFrom": "finance", "nowWith": "triage"}
            assert gateway.session_count == 0
            assert await client.names() == own
            assert code_of(await client.call("finance.pay.refund", {"amount": 5})) == "NO_HANDOFF"
            assert (await client.client.call_tool("triage.hello", {})).content
        assert gateway.session_count == 0


async def test_a_session_sees_the_specialists_tools_alone_and_is_told_of_each_change(finance: str) -> None:
    hearing = Hearing()
    async with (
        gateway_to({"finance": finance}) as (url, _),
        talk(url, "legacy", message_handler=hearing) as client,
    ):
        assert await client.names() == ["triage.route", "triage.hello"]
        await client.route("finance")
        await until(lambda: hearing.count == 1)
        assert await client.names() == [
            "finance.pay.refund",
            "finance.pay.look",
            "finance.pay.size",
            "finance.pay.count",
            "triage.return_to_triage",
        ]
        assert code_of(await client.call("triage.hello")) == "NOT_IN_NAMESPACE"
        await client.back()
        await until(lambda: hearing.count == 2)
        assert await client.names() == ["triage.route", "triage.hello"]


async def test_without_a_session_the_list_is_stable_and_the_handoffs_id_decides(finance: str) -> None:
    async with gateway_to({"finance": finance}) as (url, gateway), talk(url, "2026-07-28") as one:
        async with talk(url, "2026-07-28") as other:
            before = await one.names()
            tools = {tool.name: tool for tool in (await one.client.list_tools()).tools}
            for name in ("finance.pay.refund", "triage.return_to_triage"):
                assert "handoff_id" in tools[name].input_schema["required"]
            assert "handoff_id" not in str(tools["triage.route"].input_schema)
            await one.route("finance", "of one")
            await other.route("finance", "of the other")
            assert await one.names() == before
            assert gateway.session_count == 2
            for client, intent in ((one, "of one"), (other, "of the other"), (one, "of one")):
                refund = await client.call("finance.pay.refund", {"amount": 1})
                assert refund.structured_content["state"] == {"intent": intent}
            for wrong in ({}, {"handoff_id": "guessed"}, {"handoff_id": 5}, {"handoff_id": None}):
                answer = await one.client.call_tool("finance.pay.refund", {"amount": 1, **wrong})
                assert code_of(answer) == "NO_HANDOFF"
            await one.back()
            assert (await other.call("finance.pay.refund", {"amount": 1})).structured_content["amount"] == 1
            await other.back()
        assert gateway.session_count == 0


async def test_a_handoff_outlives_its_tokens() -> None:
    """For more than three lifetimes, with a call every now and then, each of which has a token of its own."""
    lifetime, calls, pause = 1, 8, 0.5

    async def converse(gate: str, era: str, domain: str, front: Front) -> None:
        async with talk(gate, era) as client:
            await client.route(domain, "x")
            tids, tokens = set(), []
            for number in range(calls):
                await anyio.sleep(pause)
                began = int(time.time())
                result = await client.call(f"{domain}.pay.refund", {"amount": number})
                assert not result.is_error, result
                tids.add(result.structured_content["tid"])
                tokens.append(token_of(front, number, result.structured_content["tid"]))
                assert claims_of(tokens[-1])["iat"] >= began
            assert len(tids) == 1
            assert len(set(tokens)) == calls
            assert claims_of(tokens[-1])["iat"] - claims_of(tokens[0])["exp"] >= 2 * lifetime
            await client.back()

    async with (
        fronted(specialist("finance")) as (finance, one),
        fronted(specialist("support"), handshake=True) as (support, other),
        gateway_to({"finance": finance, "support": support}, token_ttl_seconds=lifetime) as (gate, gateway),
        anyio.create_task_group() as group,
    ):
        for era in ERAS:
            group.start_soon(converse, gate, era, "finance", one)
            group.start_soon(converse, gate, era, "support", other)
    assert gateway.session_count == 0


def token_of(front: Front, amount: int, tid: str) -> str:
    """Return the token that came with one call of `pay.refund`."""
    (found,) = (
        token
        for method, headers, body in front.requests
        if method == "tools/call" and body["params"]["arguments"] == {"amount": amount}
        for token in (headers["x-mcpfusion-delegation"],)
        if claims_of(token)["tid"] == tid
    )
    return found


def claims_of(token: str) -> dict[str, Any]:
    payload = token.partition(".")[0]
    return json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))


@pytest.mark.parametrize("era", ERAS)
async def test_a_token_of_a_handoff_expires_although_the_handoff_does_not(
    era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both clocks are moved on by far more than a lifetime and what verifiers forgive, between two calls."""
    import mcpfusion.swarm.connections as gateway_module
    import mcpfusion.swarm.tokens as tokens

    now = [1_800_000_000.0]
    mint, verify = tokens.mint_delegation_token, tokens.verify_delegation_token

    async def minted(*args: Any, **options: Any) -> str:
        return await mint(*args, **{**options, "now": lambda: now[0]})

    async def verified(*args: Any, **options: Any) -> Any:
        return await verify(*args, **{**options, "now": lambda: now[0]})

    monkeypatch.setattr(gateway_module, "mint_delegation_token", minted)
    monkeypatch.setattr("mcpfusion.swarm.clearance.verify_delegation_token", verified)
    async with (
        served(specialist()) as (finance,),
        gateway_to({"finance": finance}) as (url, _),
        talk(url, era) as client,
    ):
        await client.route("finance", "x")
        for _ in range(4):
            now[0] += 3600
            assert not (await client.call("finance.pay.refund", {"amount": 1})).is_error


@pytest.mark.parametrize("era", ERAS)
async def test_a_megabyte_of_state_is_there_for_every_call_and_gone_with_the_handoff(
    finance: str, store: Path, era: str
) -> None:
    async with gateway_to({"finance": finance}, store=f"sqlite:///{store}") as (url, _), talk(url, era) as client:
        for size in (2048 - len('{"intent":"","blob":""}') + extra for extra in (-1, 0, 1)):
            await client.route("finance", size=size)
            assert kept(store) == (size > 2048 - len('{"intent":"","blob":""}'))
            for _ in range(20):
                assert (await client.call("finance.pay.size")).structured_content == {"result": size}
            await client.back()
            assert kept(store) == 0
        result = await client.route("finance", size=1024 * 1024)
        assert not result.is_error, result
        for _ in range(20):
            assert (await client.call("finance.pay.size")).structured_content == {"result": 1024 * 1024}
        assert kept(store) == 1
        await client.back()
        assert kept(store) == 0


def kept(store: Path) -> int:
    if not store.exists():
        return 0
    with sqlite3.connect(store) as connection:
        (made,) = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'handoff_state'").fetchone()
        return connection.execute("SELECT count(*) FROM handoff_state").fetchone()[0] if made else 0


@pytest.mark.parametrize("era", ERAS)
async def test_large_state_in_memory_for_another_process_is_refused_at_once_with_the_remedy(
    finance: str, era: str
) -> None:
    memory = InMemoryHandoffStateStore()
    async with gateway_to({"finance": finance}, store=memory) as (url, gateway), talk(url, era) as client:
        result = await client.route("finance", size=4000)
        assert code_of(result) == "STATE_NOT_SHARED"
        assert "sqlite:///" in text_of(result)
        assert (gateway.session_count, gateway.connecting_count) == (0, 0)
        assert not memory._kept
        assert not (await client.route("finance", size=1000)).is_error


@pytest.mark.parametrize("era", ERAS)
async def test_clients_that_never_refresh_can_go_through_the_dispatcher(finance: str, era: str) -> None:
    async with gateway_to({"finance": finance}, dispatcher=True) as (url, _), talk(url, era) as client:
        assert "triage.call_specialist" in await client.names()
        tool = "triage.call_specialist"
        call = {"tool": "finance.pay.refund", "arguments": {"amount": 7}}
        assert code_of(await client.call(tool, call)) == "NO_HANDOFF"
        await client.route("finance", "x")
        assert "triage.call_specialist" in await client.names()
        assert (await client.call(tool, call)).structured_content["amount"] == 7
        assert code_of(await client.call(tool, {"tool": 5})) == "INVALID_ARGUMENTS"
        assert (
            code_of(await client.call(tool, {"tool": "finance.pay.refund", "arguments": []})) == "INVALID_ARGUMENTS"
        )
        assert code_of(await client.call(tool, {"tool": "support.x"})) == "NOT_IN_NAMESPACE"
        back = await client.call(tool, {"tool": "triage.return_to_triage", "arguments": {"summary": "s"}})
        assert back.structured_content["nowWith"] == "triage"


async def test_a_specialist_is_a_command_or_a_server_in_this_process_too() -> None:
    command = ["env", f"PYTHONPATH={ROOT}", sys.executable, str(PARTS), "stdio", "finance"]
    store = InMemoryHandoffStateStore()
    inside = specialist("inside", store=store)  # type: ignore[arg-type]
    registry = {"finance": {"command": command}, "inside": inside}
    async with gateway_to(registry, store=store) as (url, gateway):
        for era in ERAS:
            async with talk(url, era) as client:
                for domain in registry:
                    result = await client.route(domain, "x")
                    assert not result.is_error, (domain, result)
                    answer = await client.call(f"{domain}.pay.refund", {"amount": 3})
                    assert answer.structured_content["state"] == {"intent": "x"}
                    assert answer.structured_content["scope"] == domain
                    await client.back()
                # In the same process large state needs no other store.
                assert not (await client.route("inside", size=5000)).is_error
                assert (await client.call("inside.pay.size")).structured_content == {"result": 5000}
        with anyio.fail_after(PATIENCE):
            await until(lambda: gateway.session_count <= 1)  # that of the client without a session idles


@pytest.mark.parametrize("era", ERAS)
async def test_portable_names_lead_there_and_back(era: str) -> None:
    async with (
        served(specialist("fin.eu")) as (finance,),
        gateway_to({"fin.eu": finance}, separator="__", name="tri.age", dispatcher=True) as (url, _),
        talk(url, era, gateway="tri.age") as client,
    ):
        result = await client.route("fin.eu")
        assert not result.is_error, result
        for name in await client.names():
            assert name.startswith("tri.age.") or all(char.isalnum() or char in "_-" for char in name), name
        assert (await client.call("fin_eu__pay_refund", {"amount": 2})).structured_content["amount"] == 2
        assert not (await client.call("tri_age__return_to_tri_age", {"summary": ""})).is_error
