"""Odd handles: each names a workflow of its own, or is refused with words that say why."""

import logging
from typing import Any

import pytest

from tests.gate_identity.users import APPROVAL, anonymous, approvals, block, code
from tests.support.serving import ERAS, http_client, sdk_client

pytestmark = pytest.mark.anyio

ACCEPTED: dict[str, tuple[Any, str]] = {
    "longest": ("x" * 1024, "x" * 1024),
    "unicode": ("facture-é-请-🧾", "facture-é-请-🧾"),
    "slashes": ("2026/07/../28//inv", "2026/07/../28//inv"),
    "quotes": ("'; DROP TABLE workflow; --", "'; DROP TABLE workflow; --"),
    "newline": ("a\nb\tc", "a\nb\tc"),
    "nul": ("a\x00b", "a\x00b"),
    "space": (" ", " "),
    "percent": ("%2Fa%00", "%2Fa%00"),
    "dunder": ("__class__", "__class__"),
    "at sign": ("@alice", "@alice"),
    "integer": (7, "7"),
    "negative": (-12, "-12"),
    "large integer": (2**64, str(2**64)),
}

REFUSED: dict[str, tuple[Any, str]] = {
    "10 kB": ("x" * 10_000, "at most 1024 bytes, got 10000"),
    "10 kB of unicode": ("é" * 5_000, "at most 1024 bytes, got 10000"),
    "empty": ("", "empty"),
    "list": (["A-1"], "got list"),
    "object": ({"id": "A-1"}, "got dict"),
    "true": (True, "got bool"),
    "float": (1.5, "got float"),
    "session": ("@session:0123", "reserved"),
    "principal": ("@principal", "reserved"),
    "process": ("@process", "reserved"),
}

HOSTILE_IN_PROCESS: dict[str, tuple[Any, str]] = {
    "unpaired surrogate": ("a\ud800", "unpaired surrogate"),
    "5,000 digits": (10**5000, "at most 1024 bytes"),
}


@pytest.mark.parametrize("mode", ERAS)
async def test_odd_handles_over_http_name_workflows_of_their_own(mode: str) -> None:
    async with anonymous(approvals(), state_handle_key="id") as url, http_client(url, mode) as client:
        for name, (given, handle) in ACCEPTED.items():
            result = await client.call_tool("approval.submit", {"id": given})
            assert code(result) is None, name
            assert block(result)["handle"] == handle, name
            assert block(result)["state"] == "review", name
        for name, (given, handle) in ACCEPTED.items():
            result = await client.call_tool("approval.approve", {"id": given})
            assert (code(result), block(result)["handle"]) == (None, handle), name


@pytest.mark.parametrize("mode", ERAS)
async def test_handles_that_name_nothing_are_refused_over_http_and_nothing_runs(mode: str) -> None:
    ran: list[str] = []
    async with anonymous(approvals(ran), state_handle_key="id") as url, http_client(url, mode) as client:
        for name, (given, why) in REFUSED.items():
            result = await client.call_tool("approval.submit", {"id": given})
            assert code(result) == "INVALID_HANDLE", name
            text = result.content[0].text
            assert text.startswith("INVALID_HANDLE: id: "), name
            assert why in text, name
            assert len(text) < 300, name
        assert ran == []
        assert not (await client.call_tool("approval.submit", {"id": "A-1"})).is_error


@pytest.mark.parametrize("mode", ERAS)
async def test_handles_that_no_message_can_carry_are_refused_in_process(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    f = approvals()
    server = f.server(fsm=f.fsm(APPROVAL), state_handle_key="id")
    async with sdk_client(server.lowlevel, mode) as client:
        for name, (given, why) in HOSTILE_IN_PROCESS.items():
            result = await client.call_tool("approval.submit", {"id": given})
            assert code(result) == "INVALID_HANDLE", name
            assert why in result.content[0].text, name
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_the_longest_reserved_name_is_not_repeated_in_the_refusal() -> None:
    f = approvals()
    server = f.server(fsm=f.fsm(APPROVAL), state_handle_key="id")
    async with sdk_client(server.lowlevel, "2026-07-28") as client:
        result = await client.call_tool("approval.submit", {"id": "@principal" + "x" * 900})
        assert code(result) == "INVALID_HANDLE"
        assert len(result.content[0].text) < 200


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_odd_handles_survive_the_store(store: str, tmp_path: Any) -> None:
    url = "memory://" if store == "memory" else f"sqlite:///{tmp_path}/flow.db"
    f = approvals()
    server = f.server(fsm=f.fsm(APPROVAL), state_handle_key="id", store=url)
    async with sdk_client(server.lowlevel, "2026-07-28") as client:
        for given, _ in ACCEPTED.values():
            await client.call_tool("approval.submit", {"id": given})
        assert server.store is not None
        kept = await server.store.list_workflows()
        assert sorted(workflow.handle for workflow in kept) == sorted(handle for _, handle in ACCEPTED.values())
        assert {workflow.state for workflow in kept} == {"review"}


async def test_handles_that_differ_only_in_form_are_not_mixed_up() -> None:
    f = approvals()
    server = f.server(fsm=f.fsm(APPROVAL), state_handle_key="id")
    async with sdk_client(server.lowlevel, "2026-07-28") as client:
        await client.call_tool("approval.submit", {"id": "\u00e9"})
        for other in ("e\u0301", "\u00c9", "\u00e9 ", " \u00e9"):
            assert block(await client.call_tool("approval.approve", {"id": other}))["state"] == "draft"


async def test_a_tool_that_takes_the_key_itself_gets_it_and_others_do_not() -> None:
    f = approvals()
    got: list[Any] = []

    @f.mutation("approval.note").bind_state("*").handle
    async def note(id: int, text: str) -> str:
        got.append((id, text))
        return "noted"

    server = f.server(fsm=f.fsm(APPROVAL), state_handle_key="id")
    async with sdk_client(server.lowlevel, "2026-07-28") as client:
        tools = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}
        assert tools["approval.note"]["properties"]["id"]["type"] == "integer"
        assert tools["approval.submit"]["properties"]["id"]["type"] == "string"
        assert tools["approval.submit"]["required"] == ["id"]
        assert "id" not in tools["approval.help"]["properties"]
        result = await client.call_tool("approval.note", {"id": 7, "text": "hi"})
        assert block(result)["handle"] == "7"
        assert got == [(7, "hi")]
        refused = await client.call_tool("approval.note", {"id": "seven", "text": "hi"})
        assert code(refused) == "INVALID_ARGUMENTS"
