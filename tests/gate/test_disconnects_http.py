"""A client that goes away in the middle of a payment over HTTP, and sends the call again: it is paid once."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client

from tests.gate.payments import Settings
from tests.gate.processes import PATIENCE, http_servers, record_of, until
from tests.support.serving import ERAS

pytestmark = pytest.mark.anyio

LEGACY, MODERN = ERAS
# A function in its thread cannot be cancelled, and is not let go of however it is declared.
FINISHING = [
    "payment.capture",
    "payment.capture_in_thread",
    "payment.capture_released_in_thread",
    "payment.capture_kept",
]
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Settings, str]]:
    options = {"conflict_wait": PATIENCE}
    settings = Settings(str(tmp_path_factory.mktemp("http")), wait=True, options=options)
    with http_servers(settings) as [(url, _)]:
        yield settings, url


class Raw:
    """A client that is nothing but HTTP requests."""

    def __init__(self, url: str, http: httpx2.AsyncClient, headers: dict[str, str]) -> None:
        self._url = url
        self._http = http
        self._headers = headers

    @classmethod
    @asynccontextmanager
    async def connected(cls, url: str, mode: str) -> AsyncIterator["Raw"]:
        headers = {"accept": "application/json, text/event-stream"}
        async with httpx2.AsyncClient(timeout=PATIENCE) as http:
            if mode == LEGACY:
                params = {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {},
                    "clientInfo": {"name": "r", "version": "1"},
                }
                body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
                answer = await http.post(url, headers=headers, json=body)
                headers |= {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
                note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
                await http.post(url, headers=headers, json=note)
            else:
                headers |= {"mcp-protocol-version": MODERN}
            yield cls(url, http, headers)

    async def post(self, method: str, params: dict[str, Any]) -> str:
        """Send a request and return whatever came as its answer, once all of it is there."""
        headers = {**self._headers, "mcp-method": method, "mcp-name": params.get("name", "")}
        if self._headers["mcp-protocol-version"] == MODERN:
            params = {**params, "_meta": META}
        body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
        async with self._http.stream("POST", self._url, headers=headers, json=body) as answer:
            return "".join([text async for text in answer.aiter_text()])

    async def call(self, tool: str, handle: str) -> str:
        return await self.post("tools/call", {"name": tool, "arguments": {"id": handle, "note": "n"}})


async def leave_when_started(settings: Settings, handle: str, work: Any, *args: Any) -> None:
    """Begin `work`, and break it off when the handler has started."""
    async with anyio.create_task_group() as group:
        group.start_soon(work, *args)
        await until(lambda: settings.traces("started", handle))
        group.cancel_scope.cancel()


async def check_paid_once(settings: Settings, handle: str) -> None:
    assert len(settings.traces("started", handle)) == 1
    assert len(settings.traces("done", handle)) == 1
    assert settings.traces("cancelled", handle) == []
    record, history = await record_of(settings, handle)
    assert (record.state, record.claim, len(history)) == ("paid", None, 1)


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("tool", FINISHING)
async def test_a_connection_that_breaks_half_way(served: tuple[Settings, str], tool: str, mode: str) -> None:
    settings, url = served
    handle = f"raw-{mode}-{tool}"
    async with Raw.connected(url, mode) as leaving, Raw.connected(url, mode) as returning:
        await leave_when_started(settings, handle, leaving.call, tool, handle)
        await returning.post("tools/list", {})  # the server has heard of the end of the connection by now
        answers: list[str] = []

        async def again() -> None:
            answers.append(await returning.call(tool, handle))

        async with anyio.create_task_group() as group:
            group.start_soon(again)  # while the first is still running
            settings.go(handle)
        answers.append(await returning.call(tool, handle))
    for answer in answers:
        if tool == "payment.capture_kept":
            assert settings.traces("done", handle)[0]["key"] in answer
            assert "isError" not in answer or '"isError":false' in answer
        else:
            assert "ALREADY_DONE" in answer
    await check_paid_once(settings, handle)


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("tool", FINISHING)
async def test_a_client_that_cancels_its_call(served: tuple[Settings, str], tool: str, mode: str) -> None:
    settings, url = served
    handle = f"sdk-{mode}-{tool}"
    arguments = {"id": handle, "note": "n"}
    async with Client(url, mode=mode, read_timeout_seconds=PATIENCE) as client:
        await leave_when_started(settings, handle, client.call_tool, tool, arguments)
        await client.list_tools()
        settings.go(handle)
        answer = (await client.call_tool(tool, arguments)).structured_content
    if tool == "payment.capture_kept":
        assert answer == {"note": "n", "key": settings.traces("done", handle)[0]["key"]}
    else:
        assert answer["code"] == "ALREADY_DONE"
    await check_paid_once(settings, handle)


@pytest.mark.parametrize("mode", ERAS)
async def test_where_it_is_released_the_handler_is_cancelled_and_the_slot_is_free(
    served: tuple[Settings, str], mode: str
) -> None:
    settings, url = served
    handle = f"released-{mode}"
    tool, arguments = "payment.capture_released", {"id": handle, "note": "n"}
    async with Client(url, mode=mode, read_timeout_seconds=PATIENCE) as client:
        await leave_when_started(settings, handle, client.call_tool, tool, arguments)
        await until(lambda: settings.traces("cancelled", handle))
        settings.go(handle)
        answer = (await client.call_tool(tool, arguments)).structured_content
    assert answer["note"] == "n"
    started = settings.traces("started", handle)
    assert len(started) == 2
    assert started[0]["key"] == started[1]["key"] == answer["key"]
    assert len(settings.traces("done", handle)) == 1
    record, history = await record_of(settings, handle)
    assert (record.state, record.claim, len(history)) == ("paid", None, 1)


async def test_a_broken_connection_cancels_what_may_be_released(served: tuple[Settings, str]) -> None:
    """Under 2026-07-28 closing the stream is how a client cancels."""
    settings, url = served
    async with Raw.connected(url, MODERN) as raw:
        await leave_when_started(settings, "raw-released", raw.call, "payment.capture_released", "raw-released")
        await until(lambda: settings.traces("cancelled", "raw-released"))
        settings.go("raw-released")
        assert "isError" not in await raw.call("payment.capture_released", "raw-released")
    assert len(settings.traces("done", "raw-released")) == 1


@pytest.mark.parametrize("mode", ERAS)
async def test_many_leave_at_once_and_all_come_back(served: tuple[Settings, str], mode: str) -> None:
    settings, url = served
    handle = f"many-{mode}"
    async with Client(url, mode=mode, read_timeout_seconds=PATIENCE) as client:
        for _ in range(3):
            async with anyio.create_task_group() as group:
                for _ in range(10):
                    group.start_soon(client.call_tool, "payment.capture", {"id": handle, "note": "n"})
                await until(lambda: settings.traces("started", handle))
                await client.list_tools()
                group.cancel_scope.cancel()
        settings.go(handle)
        answer = (await client.call_tool("payment.capture", {"id": handle, "note": "n"})).structured_content
    assert answer["code"] == "ALREADY_DONE"
    await check_paid_once(settings, handle)
