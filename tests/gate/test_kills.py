"""`kill -9` at every point of a passage, and what a second process on the same file then says and does."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from mcpfusion.gate import operator
from mcpfusion.stores.sqlite import SqliteStore
from tests.gate.payments import Settings, make_server
from tests.gate.processes import call, start
from tests.support.serving import ERAS, stdio_server

pytestmark = pytest.mark.anyio

CAPTURE = ("payment.capture", {"id": "p1", "note": "n"})
AN_HOUR_AGO = -3600.0
IN_DOUBT = ["after_claim", "handler_before_effect", "handler_after_effect", "before_commit"]


def killed(folder: Path, kill_at: str, *, mode: str = ERAS[1], **capture: Any) -> Settings:
    """Let a process make the call and kill itself at the point, an hour ago by the gate's clock.

    Returns the settings of a server that comes after it.
    """
    before = Settings(str(folder), kill_at=kill_at, clock_offset=AN_HOUR_AGO, capture=capture)
    process = start(call, before, mode, *CAPTURE)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    return Settings(str(folder), capture=capture)


async def again(settings: Settings, tool: str = CAPTURE[0], **arguments: Any) -> Any:
    """Make the call in this process, on a server of its own; returns the structured content."""
    async with Client(make_server(settings).lowlevel, mode=ERAS[1]) as client:
        return (await client.call_tool(tool, {**CAPTURE[1], **arguments})).structured_content


async def with_store(settings: Settings, work: Any) -> Any:
    store = SqliteStore(Path(settings.folder, "payments.db"))
    try:
        return await work(store)
    finally:
        await store.aclose()


async def standing(settings: Settings) -> tuple[str, int]:
    """Return the state and how many steps the history has."""

    async def work(store: SqliteStore) -> tuple[str, int]:
        record = await store.read("", "p1")
        return record.state if record else "due", len(await store.history("", "p1"))

    return await with_store(settings, work)


@pytest.mark.parametrize("on_doubt", ["hold", "retry"])
async def test_before_the_claim_nothing_is_in_doubt(tmp_path: Path, on_doubt: str) -> None:
    settings = killed(tmp_path, "before_claim", on_doubt=on_doubt)
    assert settings.traces() == []
    assert (await again(settings))["note"] == "n"
    assert await standing(settings) == ("paid", 1)
    assert len(settings.traces("started")) == 1


@pytest.mark.parametrize("kill_at", IN_DOUBT)
async def test_with_hold_nothing_runs_until_somebody_resolves_it(tmp_path: Path, kill_at: str) -> None:
    settings = killed(tmp_path, kill_at, on_doubt="hold")
    runs = len(settings.traces("started"))

    for tool in ("payment.capture", "payment.capture_in_thread", "payment.void", "payment.refund"):
        answer = await again(settings, tool)
        assert (answer["code"], answer["inDoubt"], answer["allowedActions"]) == ("IN_DOUBT", "payment.capture", [])
    assert len(settings.traces("started")) == runs
    assert await standing(settings) == ("due", 0)


@pytest.mark.parametrize("kill_at", IN_DOUBT)
async def test_resolved_as_done_it_is_not_run_again(tmp_path: Path, kill_at: str) -> None:
    settings = killed(tmp_path, kill_at, on_doubt="hold")
    runs = len(settings.traces("started"))

    async def resolve(store: SqliteStore) -> None:
        record = await store.read("", "p1")
        await operator.resolve_done(store, record, snapshot=None, operator="ann", now=time.time())

    await with_store(settings, resolve)
    assert (await again(settings))["code"] == "ALREADY_DONE"
    assert (await again(settings, note="other"))["code"] == "FORBIDDEN"
    assert await standing(settings) == ("paid", 1)
    assert len(settings.traces("started")) == runs


@pytest.mark.parametrize("kill_at", IN_DOUBT)
async def test_resolved_as_not_done_it_runs_again_with_the_same_key(tmp_path: Path, kill_at: str) -> None:
    settings = killed(tmp_path, kill_at, on_doubt="hold")

    async def resolve(store: SqliteStore) -> str:
        record = await store.read("", "p1")
        await operator.resolve_not_done(store, record, operator="ann", now=time.time())
        return record.claim.idempotency_key

    key = await with_store(settings, resolve)
    assert (await again(settings))["key"] == key
    assert {trace["key"] for trace in settings.traces()} == {key}
    assert await standing(settings) == ("paid", 2)  # what the operator did, and the step


@pytest.mark.parametrize("kill_at", IN_DOUBT)
async def test_with_retry_it_runs_again_with_the_same_key(tmp_path: Path, kill_at: str) -> None:
    settings = killed(tmp_path, kill_at, on_doubt="retry")

    async def key_of(store: SqliteStore) -> str:
        return (await store.read("", "p1")).claim.idempotency_key

    key = await with_store(settings, key_of)
    assert (await again(settings))["key"] == key
    assert {trace["key"] for trace in settings.traces()} == {key}
    assert await standing(settings) == ("paid", 1)


@pytest.mark.parametrize("on_doubt", ["hold", "retry"])
@pytest.mark.parametrize("mode", ERAS)
async def test_after_the_commit_the_step_counts_although_nobody_was_told(
    tmp_path: Path, mode: str, on_doubt: str
) -> None:
    settings = killed(tmp_path, "after_commit", mode=mode, on_doubt=on_doubt, keep_result=7200)
    assert await standing(settings) == ("paid", 1)
    kept = await again(settings)
    assert kept == {"note": "n", "key": settings.traces("done")[0]["key"]}
    assert (await again(settings, note="other"))["code"] == "FORBIDDEN"
    assert len(settings.traces("started")) == 1


async def test_while_the_lease_lasts_the_step_of_a_dead_process_counts_as_in_progress(tmp_path: Path) -> None:
    before = Settings(str(tmp_path), kill_at="handler_after_effect", capture={"on_doubt": "retry"})
    process = start(call, before, ERAS[0], *CAPTURE)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    options = {"conflict_wait": 0.05}

    answer = await again(Settings(str(tmp_path), capture={"on_doubt": "retry"}, options=options))
    assert (answer["code"], answer["inProgress"]) == ("CONFLICT", "payment.capture")
    # The lease is the time limit and the margin: 65 seconds unless something else is said.
    early = Settings(str(tmp_path), capture={"on_doubt": "retry"}, options=options, clock_offset=50)
    assert (await again(early))["code"] == "CONFLICT"
    late = Settings(str(tmp_path), capture={"on_doubt": "retry"}, options=options, clock_offset=70)
    assert (await again(late))["note"] == "n"
    assert len({trace["key"] for trace in before.traces()}) == 1


@pytest.mark.parametrize("mode", ERAS)
async def test_the_client_of_a_killed_server_and_an_operator_at_the_command_line(tmp_path: Path, mode: str) -> None:
    settings = Settings(str(tmp_path), kill_at="handler_after_effect", clock_offset=AN_HOUR_AGO)
    server = stdio_server(Path(__file__).parent / "payments.py", env=settings.env)
    async with Client(server, mode=mode, read_timeout_seconds=60) as client:
        with pytest.raises(MCPError, match="Connection closed"):
            await client.call_tool(*CAPTURE)
    after = Settings(str(tmp_path))
    assert (await again(after))["code"] == "IN_DOUBT"

    answer = resolve_by_command("--done" if mode == ERAS[0] else "--not-done", after)

    assert "due" in answer if mode == ERAS[1] else "paid" in answer
    code = (await again(after)).get("code")
    assert code == ("ALREADY_DONE" if mode == ERAS[0] else None)
    assert len(after.traces("done")) == (1 if mode == ERAS[0] else 2)
    assert len({trace["key"] for trace in after.traces()}) == 1


def resolve_by_command(how: str, settings: Settings) -> str:
    command = [sys.executable, "-m", "mcpfusion.cli.main", "workflows", "resolve", "p1", how]
    result = subprocess.run(
        [*command, "--store", settings.store_url], capture_output=True, text=True, env=dict(os.environ), timeout=60
    )
    assert result.returncode == 0, result.stderr
    return result.stdout
