"""Workflows that began under an older machine: they go on, are migrated, or are refused; never reset."""

from pathlib import Path
from typing import Any

import pytest

from mcpfusion import Fusion
from tests.support.serving import sdk_client

pytestmark = pytest.mark.anyio

OLD = {
    "id": "m",
    "initial": "new",
    "states": {"new": {"on": {"GO": "waiting"}}, "waiting": {"on": {"END": "end"}}, "end": {}},
}
SAME = {**OLD, "states": {**OLD["states"], "extra": {}}}
RENAMED = {
    "id": "m",
    "initial": "new",
    "states": {"new": {"on": {"GO": "pending"}}, "pending": {"on": {"END": "end"}}, "end": {}},
}


def made(config: Any, store: str, state: str, **fsm: Any) -> Any:
    f = Fusion("m")
    f.action("m.go", bind_state=("new", "GO")).handle(lambda: "go")
    f.action("m.end", bind_state=(state, "END")).handle(lambda: "end")
    return f.server(fsm=f.fsm(config, **fsm), store=store, state_handle_key="id")


@pytest.fixture
async def store(tmp_path: Path) -> str:
    """A store with one workflow that waits under the old machine."""
    url = f"sqlite:///{tmp_path}/m.db"
    async with sdk_client(made(OLD, url, "waiting").lowlevel, "2026-07-28") as client:
        assert not (await client.call_tool("m.go", {"id": "w"})).is_error
    return url


async def call(server: Any, tool: str = "m.end") -> Any:
    async with sdk_client(server.lowlevel, "2026-07-28") as client:
        return await client.call_tool(tool, {"id": "w"})


async def test_a_snapshot_that_fits_goes_on(store: str):
    server = made(SAME, store, "waiting")
    answer = await call(server)
    assert answer.meta["io.mcpfusion/workflow"]["state"] == "end"
    record = await server.store.read("", "w")
    assert record.snapshot["machine"] == server.attachment.bindings.machine.fingerprint


async def test_one_that_does_not_fit_is_refused_and_never_reset(store: str, caplog: pytest.LogCaptureFixture):
    server = made(RENAMED, store, "pending")
    for tool in ("m.end", "m.go"):
        answer = await call(server, tool)
        assert answer.is_error
        assert answer.structured_content["code"] == "UNKNOWN_STATE"
    assert (await server.store.read("", "w")).state == "waiting"
    assert "waiting" in caplog.text


@pytest.mark.parametrize(
    "migrate", [{"waiting": "pending"}, lambda snapshot: {"waiting": "pending"}[snapshot["value"]]]
)
async def test_a_migration_is_asked_and_is_a_step_of_the_history(store: str, migrate: Any):
    server = made(RENAMED, store, "pending", migrate=migrate)
    answer = await call(server)
    assert answer.meta["io.mcpfusion/workflow"]["state"] == "end"
    history = await server.store.history("", "w")
    assert [(step.outcome, step.from_state, step.to_state) for step in history] == [
        ("committed", "new", "waiting"),
        ("migrated", "waiting", "pending"),
        ("committed", "pending", "end"),
    ]


def _raises(snapshot: Any) -> str:
    raise RuntimeError("secret detail")


@pytest.mark.parametrize("migrate", [{"other": "pending"}, lambda snapshot: None, {"waiting": "nowhere"}, _raises])
async def test_a_migration_that_does_not_help_leaves_the_workflow_as_it_is(store: str, migrate: Any):
    server = made(RENAMED, store, "pending", migrate=migrate)
    answer = await call(server)
    assert answer.structured_content["code"] == "UNKNOWN_STATE"
    assert "secret detail" not in str(answer)
    assert (await server.store.read("", "w")).state == "waiting"
