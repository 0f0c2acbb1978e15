"""What is on the disk: files that are not ours, places that cannot be used, disks that are full."""

import json
import os
import sqlite3
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import anyio
import pytest

from mcpfusion.stores import SqliteStore, StoreError, sqlite_file
from mcpfusion.stores.codec import encode_step, encode_workflow
from mcpfusion.stores.sqlite_file import SCHEMA_VERSION

from .processes import check_whole, run_script
from .records import step, workflow

pytestmark = pytest.mark.anyio


async def _refused(store: SqliteStore) -> str:
    """What the store says to a read and to a write, which is the same."""
    with pytest.raises(StoreError) as reading:
        await store.read("ann", "INV-1")
    with pytest.raises(StoreError) as writing:
        await store.write(workflow(), expected_version=0)
    assert str(reading.value) == str(writing.value)
    assert "\n" not in str(reading.value)
    assert repr(str(store._file.path)) in str(reading.value)
    assert store._file.connections == set()
    return str(reading.value)


async def test_a_file_that_is_no_database(tmp_path: Path):
    path = tmp_path / "w.db"
    for content in (b"hello, " * 1000, b"short", b"SQLite format 3\0" + b"\xff" * 4080):
        path.write_bytes(content)
        message = await _refused(SqliteStore(path))
        assert "name another file" in message or "restore it from a backup" in message
        assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["w.db"]


async def test_an_empty_file_is_a_new_one(tmp_path: Path):
    (tmp_path / "w.db").touch()
    store = SqliteStore(tmp_path / "w.db")
    assert await store.write(workflow(), expected_version=0)
    await store.aclose()


@pytest.mark.parametrize(
    "schema",
    [
        "CREATE TABLE invoice (id)",
        "PRAGMA user_version = 1",
        "PRAGMA application_id = 42",
        f"CREATE TABLE workflow (id); PRAGMA user_version = {SCHEMA_VERSION}",
    ],
)
async def test_the_database_of_another_application_is_left_alone(tmp_path: Path, schema: str):
    path = tmp_path / "shop.db"
    other = sqlite3.connect(path)
    other.executescript(schema)
    other.close()
    before = path.read_bytes()
    assert "is the database of another application; name a file of its own" in await _refused(SqliteStore(path))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["shop.db"]


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, 0])
async def test_another_schema_version_is_refused(tmp_path: Path, version: int):
    path = tmp_path / "w.db"
    store = SqliteStore(path)
    assert await store.write(workflow(), expected_version=0)
    await store.aclose()
    other = sqlite3.connect(path)
    other.execute(f"PRAGMA user_version = {version}")
    other.close()
    message = await _refused(SqliteStore(path))
    assert f"has schema version {version}, this mcpfusion reads version {SCHEMA_VERSION}; upgrade" in message


_VERSION_1 = """
CREATE TABLE workflow (
    scope TEXT NOT NULL, handle TEXT NOT NULL, version INTEGER NOT NULL, state TEXT NOT NULL,
    steps INTEGER NOT NULL, doubtful_from REAL, due REAL, record TEXT NOT NULL, PRIMARY KEY (scope, handle)
);
CREATE INDEX workflow_state ON workflow (scope, state, handle);
CREATE INDEX workflow_in_use ON workflow (scope, state, steps) WHERE steps > 0;
CREATE INDEX workflow_handle ON workflow (handle, scope);
CREATE INDEX workflow_due ON workflow (due, scope, handle) WHERE due IS NOT NULL;
CREATE INDEX workflow_doubt ON workflow (scope, handle) WHERE doubtful_from IS NOT NULL;
CREATE TABLE step (number INTEGER PRIMARY KEY, scope TEXT NOT NULL, handle TEXT NOT NULL, record TEXT NOT NULL);
CREATE INDEX step_workflow ON step (scope, handle);
PRAGMA application_id = 1835233382;
PRAGMA user_version = 1;
"""


async def test_a_file_of_the_first_schema_is_brought_up_to_date(tmp_path: Path):
    record = json.loads(encode_workflow(workflow()))
    del record["expires_at"]
    old = sqlite3.connect(tmp_path / "old.db")
    old.executescript(_VERSION_1)
    row = ("ann", "INV-1", 1, "draft", 1, None, None, json.dumps(record))
    old.execute("INSERT INTO workflow VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    old.execute("INSERT INTO step VALUES (1, 'ann', 'INV-1', ?)", (encode_step(step()),))
    old.commit()
    old.close()
    async with anyio.create_task_group() as tasks:  # several processes' first look at once
        for _ in range(4):
            tasks.start_soon(_finds_the_old_workflow, SqliteStore(tmp_path / "old.db"))
    store, new = SqliteStore(tmp_path / "old.db"), SqliteStore(tmp_path / "new.db")
    assert await store.write(workflow(2, expires_at=5.0), expected_version=1)
    assert await new.write(workflow(), expected_version=0)
    await new.aclose()
    assert _schema(tmp_path / "old.db") == _schema(tmp_path / "new.db")
    assert await store.prune(before=6.0) == 1
    assert await store.history("ann", "INV-1") == []
    await store.aclose()


async def _finds_the_old_workflow(store: SqliteStore) -> None:
    assert await store.read("ann", "INV-1") == workflow()
    assert len(await store.history("ann", "INV-1")) == 1
    await store.aclose()


def _schema(path: Path) -> tuple[list[str], list[str], int]:
    connection = sqlite3.connect(path)
    made = "SELECT sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL ORDER BY name"
    indexes = [" ".join(sql.split()) for (sql,) in connection.execute(made)]
    columns = sorted(row[1] for row in connection.execute("PRAGMA table_info(workflow)"))
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    connection.close()
    return indexes, columns, version


async def test_places_that_cannot_be(tmp_path: Path):
    missing = await _refused(SqliteStore(tmp_path / "no" / "folder" / "w.db"))
    assert f"its folder does not exist; create {str(tmp_path / 'no' / 'folder')!r} first" in missing
    assert not (tmp_path / "no").exists()
    assert "is a folder; name a file in it" in await _refused(SqliteStore(tmp_path))
    (tmp_path / "file").touch()
    assert "its folder does not exist" in await _refused(SqliteStore(tmp_path / "file" / "w.db"))
    assert "NUL" in await _refused(SqliteStore(str(tmp_path / "a\0b.db")))
    assert "name" in await _refused(SqliteStore(tmp_path / ("x" * 300)))


async def test_a_place_that_became_usable_is_used(tmp_path: Path):
    store = SqliteStore(tmp_path / "later" / "w.db")
    await _refused(store)
    (tmp_path / "later").mkdir()
    assert await store.write(workflow(), expected_version=0)
    await store.aclose()


async def test_a_file_that_was_taken_away_is_no_longer_written(tmp_path: Path):
    path = tmp_path / "w.db"
    store = SqliteStore(path)
    assert await store.write(workflow(), expected_version=0)
    path.rename(tmp_path / "moved.db")
    for attempt in range(2):
        with pytest.raises(StoreError, match=r"is gone .*; put it back and restart"):
            await store.write(workflow(2), expected_version=1)
        with pytest.raises(StoreError, match="is gone"):
            await store.read("ann", "INV-1")
        assert not path.exists(), attempt
    newcomer = SqliteStore(path)
    assert await newcomer.write(workflow(), expected_version=0)
    with pytest.raises(StoreError, match="was replaced by another file while in use; restart this process"):
        await store.write(workflow(2), expected_version=1)
    assert await newcomer.read("ann", "INV-1") == workflow()
    await store.aclose()
    await newcomer.aclose()


async def test_a_new_file_that_another_process_is_just_making(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "w.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    assert "database is locked; another process" in await _refused(SqliteStore(path, busy_timeout=0))
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        other.execute("ROLLBACK")

    monkeypatch.setattr(sqlite_file, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    store = SqliteStore(path)
    assert await store.write(workflow(), expected_version=0)
    assert len(waits) == 1
    await store.aclose()
    other.close()


async def test_a_damaged_file_is_an_error(tmp_path: Path):
    path = tmp_path / "w.db"
    store = SqliteStore(path)
    for number in range(60):
        assert await store.write(workflow(handle=f"{number}"), expected_version=0)
    await store.aclose()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\x5a" * (path.stat().st_size - 4096))
    damaged = SqliteStore(path)
    with pytest.raises(StoreError, match="malformed; the file is damaged; restore it from a backup"):
        await damaged.list_workflows()
    with pytest.raises(StoreError, match="malformed"):
        await damaged.write(workflow(handle="new"), expected_version=0)
    await damaged.aclose()


async def test_a_full_database_keeps_what_it_had(tmp_path: Path):
    store = SqliteStore(tmp_path / "w.db")
    assert await store.write(workflow(), expected_version=0, step=step())
    assert store._writer is not None
    store._writer.execute("PRAGMA max_page_count = 1")
    big = workflow(2, snapshot={"value": "x" * 1_000_000})
    with pytest.raises(StoreError, match="database or disk is full; free some space on its disk"):
        await store.write(big, expected_version=1, step=step())
    assert await store.read("ann", "INV-1") == workflow()
    assert len(await store.history("ann", "INV-1")) == 1
    assert await store.write(big, expected_version=1, step=step())
    assert await store.read("ann", "INV-1") == big
    await store.aclose()


FULL_DISK = """
import resource, sys, anyio
from mcpfusion.stores import SqliteStore, StoreError
from stores.records import workflow, step

async def main(path):
    store = SqliteStore(path)
    assert await store.write(workflow(), expected_version=0, step=step())
    # From here on the kernel takes no byte past this size in any file of this process.
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
    version = 1
    try:
        while version < 100:
            big = workflow(version + 1, snapshot={"value": "x" * 50_000})
            assert await store.write(big, expected_version=version, step=step())
            version += 1
    except StoreError as error:
        print(error)
    found = await store.read("ann", "INV-1")
    assert found.version == version, (found.version, version)
    assert len(await store.history("ann", "INV-1")) == version
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert await store.write(workflow(version + 1), expected_version=version, step=step())
    await store.aclose()

anyio.run(main, sys.argv[1])
"""

READ_ONLY = """
import os, sys, anyio
from mcpfusion.stores import SqliteStore, StoreError
from stores.records import workflow, step

async def main(path):
    if os.getuid() == 0:
        os.setuid(65534)
    store = SqliteStore(path)
    try:
        await store.write(workflow(2), expected_version=1, step=step())
    except StoreError as error:
        print(error)
    await store.aclose()

anyio.run(main, sys.argv[1])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs setrlimit")
def test_a_disk_that_takes_no_more(tmp_path: Path):
    said = run_script(FULL_DISK, str(tmp_path / "w.db"))
    assert "w.db': " in said
    assert "disk" in said
    check_whole(tmp_path / "w.db")


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX permissions")
@pytest.mark.parametrize("kept", ["file", "folder"])
def test_a_file_that_may_not_be_written(tmp_path: Path, kept: str):
    # Not tmp_path: pytest makes that for its own user alone, and a test run by root becomes somebody else.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "w.db")
        store = SqliteStore(path)

        async def fill() -> None:
            assert await store.write(workflow(), expected_version=0, step=step())
            await store.aclose()

        anyio.run(fill)
        os.chmod(path, 0o444)
        os.chmod(folder, 0o555 if kept == "folder" else 0o777)
        said = run_script(READ_ONLY, str(path))
        os.chmod(folder, 0o700)
        assert "writable for this process" in said
        check_whole(path)
        connection = sqlite3.connect(path)
        assert connection.execute("SELECT version FROM workflow").fetchall() == [(1,)]
        connection.close()
