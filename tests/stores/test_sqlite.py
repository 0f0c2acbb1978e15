"""The SQLite store as a store: the conformance suite, durability, concurrency, cancellation, query plans."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcpfusion.stores import SqliteStore, StoreError
from mcpfusion.stores import sqlite as engine
from mcpfusion.telemetry import workflow_name
from mcpfusion.testing import store_contract

from .records import claim, step, workflow

NAME = workflow_name("ann", "INV-1")

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "workflows.db")
    yield store
    await store.aclose()


class TestSqliteStore(store_contract()):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[SqliteStore]:
        store = SqliteStore(tmp_path / "workflows.db")
        yield store
        await store.aclose()


async def _many(store: SqliteStore, handles: range, states: list[str]) -> None:
    async def one(number: int) -> None:
        state = states[number % len(states)]
        assert await store.write(workflow(handle=f"{number:06}", state=state), expected_version=0)

    async with anyio.create_task_group() as tasks:
        for number in handles:
            tasks.start_soon(one, number)


async def test_a_second_store_reads_what_the_first_wrote(tmp_path: Path):
    first, second = SqliteStore(tmp_path / "w.db"), SqliteStore(str(tmp_path / "w.db"))
    assert await first.write(workflow(), expected_version=0, step=step())
    assert await second.read("ann", "INV-1") == workflow()
    assert await second.write(workflow(2), expected_version=1, step=step())
    assert not await first.write(workflow(2), expected_version=1, step=step())
    assert len(await first.history("ann", "INV-1")) == 2
    await first.aclose()
    await second.aclose()
    third = SqliteStore(tmp_path / "w.db")
    assert await third.read("ann", "INV-1") == workflow(2)
    await third.aclose()


async def test_every_connection_syncs_each_commit(store: SqliteStore):
    await store.write(workflow(), expected_version=0)
    await store.read("ann", "INV-1")
    assert len(store._file.connections) == 2
    for connection in store._file.connections:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert connection.execute("PRAGMA fullfsync").fetchone() == (1,)


async def test_writes_that_wait_together_share_a_commit(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    await store.write(workflow(), expected_version=0)
    assert store._writer is not None
    statements: list[str] = []
    other = sqlite3.connect(tmp_path / "workflows.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    store._writer.set_trace_callback(statements.append)
    outcomes: list[bool] = []
    hops: list[None] = []
    write_pending = store._write_pending
    monkeypatch.setattr(store, "_write_pending", lambda: hops.append(None) or write_pending())

    async def one(number: int) -> None:
        written = workflow(handle=f"w{number % 30}", id=str(number))
        outcomes.append(await store.write(written, expected_version=0, step=step(handle=written.handle)))

    async with anyio.create_task_group() as tasks:
        for number in range(60):
            tasks.start_soon(one, number)
        await anyio.wait_all_tasks_blocked()
        other.execute("ROLLBACK")
    other.close()
    assert sorted(outcomes) == [False] * 30 + [True] * 30
    # One for the write that met the lock, one for all that queued up behind it.
    assert statements.count("COMMIT") <= 2
    assert len(hops) <= 2
    for number in range(30):
        assert len(await store.history("ann", f"w{number}")) == 1


async def test_a_lost_write_leaves_no_transaction_open(store: SqliteStore):
    await store.write(workflow(), expected_version=0)
    assert not await store.write(workflow(), expected_version=0)
    assert store._writer is not None
    assert not store._writer.in_transaction


def test_one_store_serves_several_event_loops(tmp_path: Path):
    store = SqliteStore(tmp_path / "w.db")

    async def advance(version: int) -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(store.read, "ann", str(number))
        assert await store.write(workflow(version + 1), expected_version=version)

    for version in range(4):
        (anyio.run if version % 2 else lambda f, v: asyncio.run(f(v)))(advance, version)
    anyio.run(store.aclose)
    anyio.run(store.aclose)


def test_many_tasks_open_a_new_file_at_once(tmp_path: Path):
    async def use(store: SqliteStore, number: int) -> None:
        await store.read("ann", str(number))
        assert await store.write(workflow(handle=str(number)), expected_version=0)

    async def all_at_once(number: int) -> None:
        stores = [SqliteStore(tmp_path / f"{number}.db") for _ in range(3)]
        async with anyio.create_task_group() as tasks:
            for index in range(12):
                tasks.start_soon(use, stores[index % 3], index)
        assert len(await stores[0].list_workflows()) == 12
        for store in stores:
            await store.aclose()

    for number in range(10):
        anyio.run(all_at_once, number)


def test_a_loop_that_ended_in_the_middle_does_not_hold_up_the_next(tmp_path: Path):
    store = SqliteStore(tmp_path / "w.db")
    other = sqlite3.connect(tmp_path / "w.db", isolation_level=None, check_same_thread=False)

    async def abandoned() -> None:
        assert await store.write(workflow(), expected_version=0)
        other.execute("BEGIN IMMEDIATE")
        writes = [asyncio.ensure_future(store.write(workflow(2, id=str(n)), expected_version=1)) for n in range(5)]
        await anyio.wait_all_tasks_blocked()
        # A bare asyncio cancellation, which no anyio shield holds back; asyncio.run() sends it too.
        for write in writes:
            write.cancel()
        await asyncio.gather(*writes, return_exceptions=True)
        other.execute("ROLLBACK")

    async def after() -> None:
        found = await store.read("ann", "INV-1")
        assert found is not None
        if not await store.write(workflow(found.version + 1), expected_version=found.version):
            # Then the one write that was in the thread already has happened since; the others never do.
            found = await store.read("ann", "INV-1")
            assert found is not None
            assert found.version == 2
            assert await store.write(workflow(3), expected_version=2)
        await store.aclose()

    asyncio.run(abandoned())
    other.close()
    anyio.run(after)


async def test_the_followers_of_a_cancelled_leader_get_their_answer(store: SqliteStore, tmp_path: Path):
    await store.write(workflow(), expected_version=0)
    other = sqlite3.connect(tmp_path / "workflows.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    leader = asyncio.ensure_future(store.write(workflow(2, id="leader"), expected_version=1))
    await anyio.wait_all_tasks_blocked()
    followers = [asyncio.ensure_future(store.write(workflow(handle=f"f{n}"), expected_version=0)) for n in range(5)]
    await anyio.wait_all_tasks_blocked()
    leader.cancel()
    followers[2].cancel()
    await anyio.wait_all_tasks_blocked()
    other.execute("ROLLBACK")
    other.close()
    results = await asyncio.gather(leader, *followers, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert isinstance(results[3], asyncio.CancelledError)
    assert [results[1], results[2], results[4], results[5]] == [True] * 4
    assert await store.read("ann", "f2") is None
    found = await store.read("ann", "INV-1")
    assert found is not None
    assert await store.write(workflow(found.version + 1), expected_version=found.version)


async def test_cancelled_readers_give_their_connection_back(store: SqliteStore):
    await store.write(workflow(), expected_version=0)
    for number in range(50):
        tasks = [asyncio.ensure_future(store.read("ann", "INV-1")) for _ in range(6)]
        for _ in range(number % 5):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert await store.read("ann", "INV-1") == workflow()
    # Threads of bare cancellations may still be giving theirs back, so this is a bound and not a count.
    assert len(store._file.connections) <= 60


async def test_a_busy_file_is_an_error_in_the_end(tmp_path: Path):
    store = SqliteStore(tmp_path / "w.db", busy_timeout=0.05)
    await store.write(workflow(), expected_version=0)
    other = sqlite3.connect(tmp_path / "w.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match=r"w\.db': database is locked; another process"):
        await store.write(workflow(2), expected_version=1, step=step())
    assert await store.read("ann", "INV-1") == workflow()
    other.execute("ROLLBACK")
    other.close()
    assert await store.write(workflow(2), expected_version=1, step=step())
    await store.aclose()


async def test_a_closed_store_is_refused(store: SqliteStore):
    await store.write(workflow(), expected_version=0)
    await store.aclose()
    assert store._file.connections == set()
    with pytest.raises(StoreError, match="was closed"):
        await store.read("ann", "INV-1")
    with pytest.raises(StoreError, match="was closed"):
        await store.write(workflow(2), expected_version=1)


async def test_closing_in_a_cancelled_scope_still_closes(store: SqliteStore):
    await store.write(workflow(), expected_version=0)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await store.aclose()
    assert store._file.connections == set()


async def test_closing_while_others_read_and_write(store: SqliteStore):
    refusals: list[str] = []

    async def use(number: int) -> None:
        try:
            await store.read("ann", "INV-1")
            await store.write(workflow(handle=str(number)), expected_version=0)
        except StoreError as error:
            refusals.append(str(error))

    async with anyio.create_task_group() as tasks:
        for number in range(30):
            tasks.start_soon(use, number)
        await anyio.lowlevel.checkpoint()
        tasks.start_soon(store.aclose)
    assert all("was closed" in each for each in refusals)
    assert store._file.connections == set()


async def test_a_reader_that_outlasts_the_closing_closes_itself(store: SqliteStore, monkeypatch: pytest.MonkeyPatch):
    await store.write(workflow(), expected_version=0)
    opened, closed = threading.Event(), threading.Event()
    connect = store._file.connect

    def slow() -> sqlite3.Connection:
        connection = connect()
        opened.set()
        closed.wait()
        return connection

    monkeypatch.setattr(store._file, "connect", slow)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.read, "ann", "INV-1")
        await anyio.to_thread.run_sync(opened.wait)
        await store.aclose()
        closed.set()
    assert store._file.connections == set()


# What a query costs: its plan, and the number of steps of SQLite's virtual machine. Never a clock.


def _steps(path: Path, query: str, values: tuple[Any, ...]) -> int:
    count = 0

    def tick() -> int:
        nonlocal count
        count += 1
        return 0

    connection = sqlite3.connect(path)
    connection.set_progress_handler(tick, 1)
    connection.execute(query, values).fetchall()
    connection.close()
    return count


def _plan(path: Path, query: str, values: tuple[Any, ...]) -> str:
    connection = sqlite3.connect(path)
    rows = connection.execute(f"EXPLAIN QUERY PLAN {query}", values).fetchall()
    connection.close()
    return "\n".join(row[3] for row in rows)


async def test_states_in_use_cost_per_state_and_not_per_workflow(store: SqliteStore, tmp_path: Path):
    path = tmp_path / "workflows.db"
    await _many(store, range(40), ["draft", "review", "approved", "paid"])
    few = _steps(path, engine._STATES_IN_USE, ("ann",))
    await _many(store, range(40, 4040), ["draft", "review", "approved", "paid"])
    many = _steps(path, engine._STATES_IN_USE, ("ann",))
    assert list(await store.states_in_use("ann")) == ["approved", "draft", "paid", "review"]
    assert many == few
    assert many < _steps(path, "SELECT DISTINCT state FROM workflow WHERE scope = ?", ("ann",)) / 10
    await _many(store, range(4040, 4044), ["a", "b", "c", "d"])
    assert few < _steps(path, engine._STATES_IN_USE, ("ann",)) < few * 3


async def test_states_in_use_search_an_index(store: SqliteStore, tmp_path: Path):
    await _many(store, range(10), ["draft"])
    plan = _plan(tmp_path / "workflows.db", engine._STATES_IN_USE, ("ann",))
    assert "COVERING INDEX workflow_in_use (scope=?)" in plan
    assert "COVERING INDEX workflow_in_use (scope=? AND state>?)" in plan
    assert "SCAN workflow" not in plan
    assert "TEMP B-TREE" not in plan


@pytest.mark.parametrize(
    ("filters", "index"),
    [
        ({}, "SCAN workflow USING INDEX sqlite_autoindex_workflow_1"),
        ({"after": ("ann", "1")}, "SEARCH workflow USING INDEX sqlite_autoindex_workflow_1"),
        ({"scope": "ann"}, "SEARCH workflow USING INDEX sqlite_autoindex_workflow_1 (scope=?)"),
        (
            {"scope": "ann", "state": "draft"},
            "SEARCH workflow USING INDEX workflow_state (scope=? AND state=?)",
        ),
        ({"in_doubt_at": 5.0}, "SCAN workflow USING INDEX workflow_doubt"),
        ({"in_doubt_at": 5.0, "scope": "ann"}, "SEARCH workflow USING INDEX workflow_doubt (scope=?)"),
    ],
)
async def test_lists_come_out_of_an_index(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filters: dict[str, Any], index: str
):
    await _many(store, range(50), ["draft", "review"])
    await store.write(workflow(handle="claimed", claim=claim()), expected_version=0)
    asked: list[tuple[str, tuple[Any, ...]]] = []
    fetch = store._fetch
    monkeypatch.setattr(store, "_fetch", lambda query, values: asked.append((query, values)) or fetch(query, values))
    await store.list_workflows(**filters)
    plan = _plan(tmp_path / "workflows.db", *asked[0])
    assert index in plan
    assert "TEMP B-TREE" not in plan


async def test_the_next_timers_cost_per_timer_asked_for(store: SqliteStore, tmp_path: Path):
    path = tmp_path / "workflows.db"
    await _many(store, range(1), ["draft"])
    assert "USING COVERING INDEX workflow_due" in (plan := _plan(path, engine._NEXT_DUE, (5,)))
    assert "TEMP B-TREE" not in plan
    for number in range(10):
        await store.write(workflow(handle=f"t{number}", due=float(number)), expected_version=0)
    few = _steps(path, engine._NEXT_DUE, (5,))
    await _many(store, range(1, 1000), ["draft"])
    for number in range(10, 60):
        await store.write(workflow(handle=f"t{number}", due=float(number)), expected_version=0)
    assert _steps(path, engine._NEXT_DUE, (5,)) == few


async def test_finding_and_history_search_an_index(store: SqliteStore, tmp_path: Path):
    await _many(store, range(10), ["draft"])
    path = tmp_path / "workflows.db"
    assert "INDEX workflow_handle (handle=?)" in (found := _plan(path, engine._FIND, ("1",)))
    assert "INDEX step_workflow (scope=? AND handle=?)" in (kept := _plan(path, engine._HISTORY, ("a", "1", 9)))
    assert "TEMP B-TREE" not in found + kept


# Rows that somebody else changed.


async def _spoil(path: Path, sql: str, *values: Any) -> None:
    connection = sqlite3.connect(path)
    connection.execute(sql, values)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("record", "named"),
    [
        ("", "the record is no JSON"),
        ('{"scope":"ann","handle":"IN', "the record is no JSON"),
        ("[]", "the record is no JSON object"),
        ("null", "the record is no JSON object"),
        ("{}", "field scope is missing"),
        (b"\xff\xfe", "the record is no JSON"),
        (7, "the record is no JSON"),
        ("[" * 100_000, "the record is no JSON"),
    ],
)
async def test_a_spoiled_record_is_refused(store: SqliteStore, tmp_path: Path, record: Any, named: str):
    await store.write(workflow(), expected_version=0, step=step())
    await _spoil(tmp_path / "workflows.db", "UPDATE workflow SET record = ?", record)
    for ask in (store.read("ann", "INV-1"), store.find("INV-1"), store.list_workflows()):
        with pytest.raises(StoreError, match=f"^workflow {NAME}: {named}"):
            await ask


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("json_set(record, '$.version', 9)", "version"),
        ("json_set(record, '$.handle', 'INV-2')", "handle"),
        ("json_set(record, '$.scope', 'bob')", "scope"),
        ("json_set(record, '$.steps', 'many')", "steps"),
        ("json_set(record, '$.claim', json('{}'))", "claim.call_id"),
        ("json_remove(record, '$.snapshot')", "snapshot"),
        ("json_set(record, '$.colour', 'red')", "colour"),
    ],
)
async def test_a_changed_record_is_refused(store: SqliteStore, tmp_path: Path, change: str, named: str):
    await store.write(workflow(), expected_version=0)
    await _spoil(tmp_path / "workflows.db", f"UPDATE workflow SET record = {change}")
    with pytest.raises(StoreError, match=rf"^workflow {NAME}: (unknown )?field {named}"):
        await store.read("ann", "INV-1")


async def test_a_row_of_another_version_is_refused(store: SqliteStore, tmp_path: Path):
    await store.write(workflow(), expected_version=0)
    await _spoil(tmp_path / "workflows.db", "UPDATE workflow SET version = 5")
    with pytest.raises(StoreError, match="field version is not that of the place"):
        await store.read("ann", "INV-1")


async def test_a_spoiled_step_is_refused(store: SqliteStore, tmp_path: Path):
    await store.write(workflow(), expected_version=0, step=step())
    await _spoil(tmp_path / "workflows.db", "UPDATE step SET record = json_remove(record, '$.outcome')")
    with pytest.raises(StoreError, match=f"^history of {NAME}: field outcome is missing"):
        await store.history("ann", "INV-1")


async def test_looking_for_what_expired_costs_what_it_finds(store: SqliteStore, tmp_path: Path):
    path = tmp_path / "workflows.db"
    await store.write(workflow(expires_at=10.0), expected_version=0)
    await store.write(workflow(handle="later", expires_at=30.0), expected_version=0)
    few = _steps(path, engine._EXPIRED, (20.0, 100))
    for number in range(300):
        await store.write(workflow(handle=f"later {number}", expires_at=30.0), expected_version=0)
        held = claim(call_id=f"c{number}")
        await store.write(workflow(handle=f"held {number}", expires_at=10.0, claim=held), expected_version=0)
    assert _steps(path, engine._EXPIRED, (20.0, 100)) == few
