"""Several processes on one Redis, and a process that dies in the middle of it."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from mcpfusion.stores import RedisStore

from ..support.redis_servers import Server, server
from .processes import run_script, start_script

# Takes every version it can get of one workflow, until there are 150, and prints those it got.
HAMMER = """
import sys, anyio
from mcpfusion.stores import RedisStore
from stores.records import step, workflow

async def work(store, name, won):
    while True:
        found = await store.read("ann", "INV-1")
        version = found.version if found else 0
        if version >= 150:
            return
        ours = workflow(version + 1, id=f"{name}:{version + 1}")
        if await store.write(ours, expected_version=version, step=step(call_id=ours.id)):
            won.append(version + 1)

async def main(url, name):
    store = RedisStore(url)
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

# Moves workflows on, all at once, and says so as each step has been written.
WRITER = """
import sys, anyio
from mcpfusion.stores import RedisStore
from stores.records import step, workflow

async def work(store, handle):
    for version in range(100_000):
        before, after = f"s{version}", f"s{version + 1}"
        ours = workflow(version + 1, handle, state=after, steps=version + 1)
        moved = step(handle=handle, from_state=before, to_state=after)
        assert await store.write(ours, expected_version=version, step=moved)
        print(handle, version + 1, flush=True)

async def main(url):
    store = RedisStore(url)
    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(work, store, f"INV-{number}")

anyio.run(main, sys.argv[1])
"""


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[Server]:
    with server(tmp_path / "redis") as one:
        yield one


def test_of_four_processes_one_wins_each_version(redis_server: Server):
    processes = [start_script(HAMMER, redis_server.url(), str(number)) for number in range(4)]
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
        assert (process.returncode, err) == (0, "")
        wins[str(number)] = [int(version) for version in out.split()]
    # Each version was won once, and by the process that the history names.
    assert sorted(version for won in wins.values() for version in won) == list(range(1, 151))

    async def look() -> None:
        store = RedisStore(redis_server.url())
        history = await store.history("ann", "INV-1")
        assert [int(each.call_id.split(":")[1]) for each in history] == list(range(1, 151))
        for name, won in wins.items():
            ours = [each.call_id for each in history if each.call_id.startswith(f"{name}:")]
            assert ours == [f"{name}:{version}" for version in sorted(won)]
        await store.aclose()

    anyio.run(look)


def test_a_killed_writer_leaves_whole_workflows(redis_server: Server):
    with start_script(WRITER, redis_server.url()) as process:
        assert process.stdout is not None
        out = process.stdout.readline()
        time.sleep(0.3)
        process.send_signal(signal.SIGKILL)
        out += process.stdout.read()
    said: dict[str, int] = {}
    for line in out.splitlines(keepends=True):
        # The kill may have cut off the last one.
        if line.endswith("\n"):
            handle, version = line.split()
            said[handle] = int(version)

    async def look() -> None:
        store = RedisStore(redis_server.url())
        for found in await store.list_workflows():
            assert said.get(found.handle, 0) <= found.version <= said.get(found.handle, 0) + 1
            history = await store.history("ann", found.handle, limit=100_000)
            chain = [f"s{version}" for version in range(found.version + 1)]
            assert [each.from_state for each in history] == chain[:-1]
            assert found.state == chain[-1]
        states = {each.state for each in await store.list_workflows()}
        assert await store.states_in_use("ann") == sorted(states)
        await store.aclose()

    anyio.run(look)
    assert said


def test_a_store_is_used_after_a_fork(redis_server: Server):
    script = """
import os, sys, warnings, anyio
from mcpfusion.stores import RedisStore
from stores.records import workflow

warnings.simplefilter("ignore", DeprecationWarning)
store = RedisStore(sys.argv[1])

async def use(version):
    assert await store.write(workflow(version + 1), expected_version=version)

anyio.run(use, 0)
child = os.fork()
if child == 0:
    anyio.run(use, 1)
    anyio.run(store.aclose)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
anyio.run(use, 2)
anyio.run(store.aclose)
"""
    assert run_script(script, redis_server.url()) == ""
