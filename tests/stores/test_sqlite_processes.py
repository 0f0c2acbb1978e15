"""Several processes on one file, and processes that die in the middle of it."""

import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import anyio
import pytest

from mcpfusion.stores import SqliteStore

from .processes import check_whole, run_script, start_script

# Takes every version it can get of one workflow, until there are 300, and prints those it got.
HAMMER = """
import sys, anyio
from mcpfusion.stores import SqliteStore
from stores.records import step, workflow

async def work(store, name, won):
    while True:
        found = await store.read("ann", "INV-1")
        version = found.version if found else 0
        if version >= 300:
            return
        ours = workflow(version + 1, id=f"{name}:{version + 1}")
        if await store.write(ours, expected_version=version, step=step(call_id=ours.id)):
            won.append(version + 1)

async def main(path, name):
    store = SqliteStore(path, busy_timeout=60)
    won = []
    print("ready", flush=True)
    sys.stdin.readline()
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(work, store, name, won)
    await store.aclose()
    print(*won)

anyio.run(main, *sys.argv[1:])
"""

# Moves eight workflows on, all at once, and says so as each step has been written.
WRITER = """
import sys, anyio
from mcpfusion.stores import SqliteStore
from stores.records import claim, step, workflow

async def work(store, handle):
    found = await store.read("ann", handle)
    version = found.version if found else 0
    while True:
        before, after = f"s{version}", f"s{version + 1}"
        ours = workflow(version + 1, handle, state=after, steps=version + 1,
                        claim=claim() if version % 2 else None, snapshot={"value": after, "pad": "x" * 500})
        moved = step(handle=handle, from_state=before, to_state=after)
        assert await store.write(ours, expected_version=version, step=moved)
        version += 1
        print(handle, version, flush=True)

async def main(path):
    store = SqliteStore(path)
    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(work, store, f"INV-{number}")

anyio.run(main, sys.argv[1])
"""


def test_of_four_processes_one_wins_each_version(tmp_path: Path):
    path = tmp_path / "w.db"
    processes = [start_script(HAMMER, str(path), str(number)) for number in range(4)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    wins: dict[str, list[int]] = {}
    for number, process in enumerate(processes):
        out, err = process.communicate()
        assert process.returncode == 0, err
        assert err == ""
        wins[str(number)] = [int(version) for version in out.split()]
    # Each version was won once, and by the process that the history names.
    assert sorted(version for won in wins.values() for version in won) == list(range(1, 301))

    async def look() -> None:
        store = SqliteStore(path)
        history = await store.history("ann", "INV-1")
        assert [int(each.call_id.split(":")[1]) for each in history] == list(range(1, 301))
        for name, won in wins.items():
            assert [each.call_id for each in history if each.call_id.startswith(f"{name}:")] == [
                f"{name}:{version}" for version in sorted(won)
            ]
        found = await store.read("ann", "INV-1")
        assert found is not None
        assert (found.version, found.id) == (300, history[-1].call_id)
        await store.aclose()

    anyio.run(look)
    check_whole(path)


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
@pytest.mark.timeout(300)
def test_a_killed_writer_loses_no_step(tmp_path: Path):
    path = tmp_path / "w.db"
    said: Counter[str] = Counter()
    chance = random.Random(20260728)
    for number in range(20):
        with start_script(WRITER, str(path)) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            out = ""
            if number % 4:
                # Most are killed while they write; the others at any moment, opening the file included.
                out = process.stdout.readline()
                time.sleep(chance.uniform(0, 0.15))
            else:
                time.sleep(chance.uniform(0.1, 0.6))
            process.send_signal(signal.SIGKILL)
            out += process.stdout.read()
            assert process.stderr.read() == ""
        assert process.returncode == -signal.SIGKILL
        for line in out.splitlines(keepends=True):
            # The kill may have cut off the last one.
            if line.endswith("\n"):
                handle, version = line.split()
                said[handle] = int(version)
        anyio.run(_agrees, path, said)
        check_whole(path)
    assert len(said) == 8


async def _agrees(path: Path, said: Counter[str]) -> None:
    store = SqliteStore(path)
    for number in range(8):
        handle = f"INV-{number}"
        found = await store.read("ann", handle)
        history = await store.history("ann", handle, limit=1_000_000)
        if found is None:
            assert history == []
            assert said[handle] == 0
            continue
        # What was said to be written is there, and at most the one write after it.
        assert said[handle] <= found.version <= said[handle] + 1
        assert len(history) == found.steps == found.version
        chain = [f"s{version}" for version in range(found.version + 1)]
        assert [each.from_state for each in history] == chain[:-1]
        assert [each.to_state for each in history] == chain[1:]
        assert found.state == found.snapshot["value"] == chain[-1]
        said[handle] = found.version
    listed = await store.list_workflows(in_doubt_at=1e12)
    assert [each.handle for each in listed] == [each.handle for each in listed if each.claim]
    await store.aclose()


def test_many_processes_open_a_new_file_at_once(tmp_path: Path):
    script = """
import sys, anyio
from mcpfusion.stores import SqliteStore
from stores.records import workflow

async def main(path, name):
    store = SqliteStore(path)
    sys.stdin.readline()
    assert await store.write(workflow(handle=name), expected_version=0)
    await store.aclose()

anyio.run(main, *sys.argv[1:])
"""
    path = tmp_path / "w.db"
    processes = [start_script(script, str(path), str(number)) for number in range(8)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        _, err = process.communicate()
        assert (process.returncode, err) == (0, "")
    check_whole(path)


def test_a_store_that_nobody_closed_is_closed_at_exit(tmp_path: Path):
    script = """
import ctypes, sys, anyio
from mcpfusion.stores import SqliteStore
from stores.records import workflow

store = SqliteStore(sys.argv[1])
# As good as a reference in a place that the interpreter never clears.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(store))
anyio.run(lambda: store.write(workflow(), expected_version=0))
anyio.run(lambda: store.read("ann", "INV-1"))
"""
    assert run_script(script, str(tmp_path / "w.db"), flags=("-X", "dev", "-W", "error")) == ""
    # The last connection to close takes the log into the database and removes it.
    assert [each.name for each in tmp_path.iterdir()] == ["w.db"]
    check_whole(tmp_path / "w.db")


def test_a_store_that_nobody_holds_is_closed(tmp_path: Path):
    script = """
import gc, os, sys, threading, time, anyio
from mcpfusion.stores import SqliteStore
from stores.records import workflow

async def main(path):
    store = SqliteStore(path)
    await store.write(workflow(), expected_version=0)
    assert os.path.exists(path + "-wal")

anyio.run(main, sys.argv[1])
# The loop's worker threads remember the last thing they ran until they are gone.
while threading.active_count() > 1:
    time.sleep(0.01)
gc.collect()
assert not os.path.exists(sys.argv[1] + "-wal")
"""
    run_script(script, str(tmp_path / "w.db"), flags=("-X", "dev", "-W", "error"))


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="needs fork")
def test_a_fork_makes_its_own_store(tmp_path: Path):
    script = """
import os, sys, warnings, anyio
from mcpfusion.stores import SqliteStore, StoreError
from stores.records import workflow

warnings.simplefilter("ignore", DeprecationWarning)
path = sys.argv[1]
early = SqliteStore(path)
used = SqliteStore(path)
anyio.run(lambda: used.write(workflow(1), expected_version=0))
child = os.fork()
if child == 0:
    try:
        anyio.run(lambda: used.read("ann", "INV-1"))
    except StoreError as error:
        assert "was opened before this process was forked; make the store after the fork" in str(error)
    else:
        raise AssertionError
    # One that was made before and first used after is as good as one made after.
    assert anyio.run(lambda: early.write(workflow(2), expected_version=1))
    anyio.run(early.aclose)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert not anyio.run(lambda: used.write(workflow(2), expected_version=1))
assert anyio.run(lambda: used.write(workflow(3), expected_version=2))
anyio.run(used.aclose)
"""
    assert run_script(script, str(tmp_path / "w.db")) == ""
    check_whole(tmp_path / "w.db")
