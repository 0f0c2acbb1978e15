"""`/healthz`, `/readyz`, and what a server does while its store is away."""

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from mcpfusion import FsmSnapshot, Fusion, gate_server, health_routes
from mcpfusion.stores.memory import MemoryStore
from mcpfusion.wire import health
from tests.gate_identity.users import AUTH, Verifier
from tests.support.hearing import hearing_client
from tests.support.serving import ERAS, http_app, sdk_client
from tests.wire.ways import BASES, INVOICE

pytestmark = pytest.mark.anyio

SERVERS = (None, "lowlevel", "mcpserver", "fastmcp")


class MovableStore(MemoryStore):
    """A store that can be taken away; `hangs` says how."""

    away = False
    hangs = False
    asked = 0

    async def _reach(self) -> None:
        self.asked += 1
        if self.away and self.hangs:
            await anyio.sleep_forever()
        if self.away:
            raise ConnectionError("db-7.internal refused s3cret")

    async def read(self, scope: str, handle: str) -> Any:
        await self._reach()
        return await super().read(scope, handle)

    async def write(self, workflow: Any, *, expected_version: int, step: Any = None) -> bool:
        await self._reach()
        return await super().write(workflow, expected_version=expected_version, step=step)

    async def states_in_use(self, scope: str) -> Any:
        await self._reach()
        return await super().states_in_use(scope)


def invoices(base: str | None = None, **options: Any) -> Any:
    f = Fusion("invoices")
    f.action("invoice.submit").describe("Submit.").bind_state("draft", "SUBMIT").handle(lambda: "in review")
    f.action("invoice.approve").describe("Approve.").bind_state("review", "APPROVE").handle(lambda: "approved")
    f.action("shop.hours").describe("When we are open.").handle(lambda: "always")
    base_server = BASES[base](None) if base else None
    return f.server(fsm=f.fsm(INVOICE), base=base_server, **{"single_tenant": True, **options})


@asynccontextmanager
async def probed(app: Any) -> AsyncIterator[httpx2.AsyncClient]:
    async with http_app(app) as origin, httpx2.AsyncClient(base_url=origin) as http:
        yield http


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "ANSWER_GOOD_FOR", 0.2)


# --- the two routes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", SERVERS)
async def test_ready_with_the_store_and_not_without(base: str | None) -> None:
    store = MovableStore()
    async with probed(invoices(base, store=store).asgi(host="127.0.0.1")) as http:
        alive = await http.get("/healthz")
        assert (alive.status_code, alive.json()) == (200, {"status": "ok"})
        ready = await http.get("/readyz")
        assert (ready.status_code, ready.json()) == (200, {"status": "ok", "checks": {"store": "ok"}})
        store.away = True
        await anyio.sleep(0.3)
        ready = await http.get("/readyz")
        assert ready.status_code == 503
        assert ready.json() == {"status": "unavailable", "checks": {"store": "unavailable"}}
        assert ready.headers["cache-control"] == "no-store"
        assert (await http.get("/healthz")).status_code == 200
        store.away = False
        await anyio.sleep(0.3)
        assert (await http.get("/readyz")).status_code == 200
        assert (await http.head("/readyz")).status_code == 200


async def test_a_store_that_hangs_makes_no_probe_wait_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcpfusion.wire.attachment.ANSWER_WITHIN", 0.3)
    store = MovableStore()
    store.away = store.hangs = True
    async with probed(invoices(store=store).asgi(host="127.0.0.1")) as http:
        with anyio.fail_after(10):
            assert (await http.get("/readyz")).status_code == 503


async def test_probes_do_not_load_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "ANSWER_GOOD_FOR", 30.0)
    store = MovableStore()
    async with probed(invoices(store=store).asgi(host="127.0.0.1")) as http, anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(http.get, "/readyz")
    assert store.asked == 1


async def test_a_store_of_load_and_save_is_asked_too() -> None:
    class Plain:
        async def load(self, handle: str) -> FsmSnapshot | None:
            raise ConnectionError

        async def save(self, handle: str, snapshot: FsmSnapshot) -> None: ...

    async with probed(invoices(store=Plain()).asgi(host="127.0.0.1")) as http:
        assert (await http.get("/readyz")).status_code == 503


async def test_a_server_without_a_gate_is_ready_when_it_serves() -> None:
    async with probed(Fusion("plain").server().asgi(host="127.0.0.1")) as http:
        assert (await http.get("/readyz")).json() == {"status": "ok", "checks": {}}


async def test_probes_need_no_token() -> None:
    async with probed(invoices(auth=AUTH, token_verifier=Verifier()).asgi(host="127.0.0.1")) as http:
        assert (await http.get("/readyz")).status_code == 200
        assert (await http.get("/healthz", headers={"authorization": "Bearer nobody"})).status_code == 200
        assert (await http.post("/mcp", json={})).status_code == 401


@pytest.mark.parametrize("base", ["mcpserver", "fastmcp"])
async def test_a_route_of_the_servers_own_comes_first(base: str) -> None:
    server = invoices(base)

    @server.base.custom_route("/healthz", methods=["GET"])
    async def own(request: Request) -> PlainTextResponse:
        return PlainTextResponse("mine")

    async with probed(server.asgi(host="127.0.0.1")) as http:
        assert (await http.get("/healthz")).text == "mine"
        assert (await http.get("/readyz")).status_code == 200


async def test_they_can_be_left_out_and_put_elsewhere() -> None:
    server = invoices()
    app = server.asgi(host="127.0.0.1", health=False)
    async with probed(app) as http:
        assert (await http.get("/healthz")).status_code == 404
    async with probed(Starlette(routes=health_routes(server))) as http:
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/readyz")).status_code == 503  # nobody serves it any more


# --- while the store is away ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ERAS)
async def test_bound_tools_are_hidden_others_work_and_clients_are_told_when_it_is_back(
    mode: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mcpfusion.wire.outage.LOOK_AGAIN_AFTER", 0.1)
    store = MovableStore()
    async with (
        http_app(invoices(store=store).asgi(host="127.0.0.1")) as origin,
        hearing_client(f"{origin}/mcp", mode) as (client, heard),
    ):
        assert {tool.name for tool in (await client.list_tools()).tools} == {"invoice.submit", "shop.hours"}
        store.away = True
        with caplog.at_level(logging.CRITICAL, "mcpfusion"):
            assert {tool.name for tool in (await client.list_tools()).tools} == {"shop.hours"}
            refused = await client.call_tool("invoice.submit")
            assert not (await client.call_tool("shop.hours")).is_error
        assert refused.is_error
        assert refused.structured_content["code"] == "STORE_UNAVAILABLE"
        assert refused.structured_content["retryAfter"] == 2
        assert "Retry after 2 s" in refused.content[0].text
        assert "s3cret" not in json.dumps(refused.structured_content)
        assert heard.count() == 0
        store.away = False
        await heard.wait(1)
        assert {tool.name for tool in (await client.list_tools()).tools} == {"invoice.submit", "shop.hours"}
        assert not (await client.call_tool("invoice.submit")).is_error


async def test_the_tools_of_a_server_that_was_there_are_still_listed() -> None:
    store = MovableStore()
    server = BASES["mcpserver"](None)
    attachment = gate_server(server, Fusion("x").fsm(INVOICE), store=store, single_tenant=True)
    store.away = True
    app = server.streamable_http_app(host="127.0.0.1")
    app.router.routes.extend(health_routes(attachment))
    async with http_app(app) as origin, sdk_client(f"{origin}/mcp", "auto") as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["own.echo"]
        async with httpx2.AsyncClient() as http:
            assert (await http.get(f"{origin}/readyz")).status_code == 503
