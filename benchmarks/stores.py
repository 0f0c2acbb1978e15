"""The stores beside their own engines: a step of a workflow beside a bare compare-and-set loop, in turns, in one run.

A step is two writes, the claim and the commit with its line of history; what it is put beside is two bare writes of a
record of the same size. As many workers as connections, each with a workflow of its own. PostgreSQL is set up as it
comes and SQLite as the store does it, each write on the disk when it returns; Redis appends to its file, which it
syncs every second.

    python -m benchmarks.stores [--workers 10] [--rounds 7] [--seconds 1] [--engines sqlite,redis,postgres]
    python -m benchmarks.stores --no-disk    # Redis and PostgreSQL without their disks: the client's part shows most
    python -m benchmarks.stores --memory     # what an idle workflow takes of Redis's memory
    python -m benchmarks.stores --million    # 1,000,000 workflows, stored and listed page by page
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import engines
from benchmarks.compare import print_machine
from mcpfusion.stores import VersionedFsmStateStore, open_store
from mcpfusion.stores.codec import encode_workflow
from mcpfusion.testing.records import claim, last, step, workflow

ENGINES = ("memory", "sqlite", "redis", "postgres")
IDLE = workflow(last=last(result=None, keep_until=0.0), snapshot={"value": "draft"}, scope="")
"""A workflow as the gate leaves it after a step."""

Step = Callable[[int], Awaitable[None]]
out = sys.stdout.write


@dataclass(frozen=True)
class Place:
    """Where an engine is: the URL for the store, and what the bare loop takes."""

    url: str
    bare: str


def start(engine: str, stack: ExitStack, disk: bool = True) -> Place:
    """Start an engine that ends with `stack`."""
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    if engine == "redis":
        from tests.support import redis_servers

        options = ("--appendonly", "yes", "--appendfsync", "everysec") if disk else ()
        url = stack.enter_context(redis_servers.server(Path(folder), *options)).url()
        return Place(url, url)
    if engine == "postgres":
        from tests.support import postgres_servers

        as_it_comes = {"fsync": "on", "autovacuum": "on", "shared_buffers": "128MB"}
        server = stack.enter_context(postgres_servers.running(**(as_it_comes if disk else {})))
        return Place(server.schema_url(), server.url())
    return Place("memory://" if engine == "memory" else f"sqlite:///{folder}/store.db", folder)


def steps_of(store: VersionedFsmStateStore, workers: int) -> Step:
    """Return what claims and commits a step of a worker's workflow."""
    records = [replace(IDLE, handle=f"worker-{worker}", version=0) for worker in range(workers)]
    taken, moved = claim(), [step(handle=record.handle, scope="") for record in records]

    async def carry_out(worker: int) -> None:
        before, version = records[worker], records[worker].version
        claimed = replace(before, version=version + 1, claim=taken)
        assert await store.write(claimed, expected_version=version)
        after = replace(before, version=version + 2, steps=before.steps + 1)
        assert await store.write(after, expected_version=version + 1, step=moved[worker])
        records[worker] = after

    return carry_out


def pairs_of(compare_and_set: engines.Set, workers: int) -> Step:
    """Return what sets a worker's record twice."""
    versions = [0] * workers
    record = encode_workflow(replace(IDLE, claim=claim()))

    async def carry_out(worker: int) -> None:
        for _ in range(2):
            assert await compare_and_set(worker, versions[worker], record)
            versions[worker] += 1

    return carry_out


@dataclass(frozen=True)
class Round:
    """Steps per second, CPU seconds of this process for each, and the seconds that each took."""

    rate: float
    cpu: float
    taken: list[float]


async def run_for(seconds: float, workers: int, carry_out: Step) -> Round:
    """Have all workers carry out steps for so long."""
    taken: list[float] = []
    cpu, start = time.process_time(), time.perf_counter()

    async def work(worker: int) -> None:
        now = time.perf_counter()
        while now - start < seconds:
            await carry_out(worker)
            now, before = time.perf_counter(), now
            taken.append(now - before)

    await asyncio.gather(*(work(worker) for worker in range(workers)))
    return Round(len(taken) / (time.perf_counter() - start), (time.process_time() - cpu) / len(taken), taken)


@asynccontextmanager
async def bare(engine: str, place: str, workers: int, connections: int) -> AsyncIterator[Step]:
    """Give the loop over the bare engine."""
    async with getattr(engines, f"bare_{engine}")(place, workers, connections) as compare_and_set:
        yield pairs_of(compare_and_set, workers)


async def steps(how: argparse.Namespace, places: Mapping[str, Place]) -> None:
    """Compare each store with its engine."""
    out(f"\nsteps (claim and commit), {how.workers} at once\n")
    out(f"{'':12}{'steps/s':>10}{'p50':>10}{'p95':>10}{'p99':>10}{'bare':>12}{'ratio':>20}{'by CPU':>20}\n")
    for engine, place in places.items():
        async with AsyncExitStack() as stack:
            store = open_store(_with_connections(place.url, how.connections))
            stack.push_async_callback(store.aclose)
            ours = steps_of(store, how.workers)
            theirs = (
                None
                if engine == "memory"
                else await stack.enter_async_context(
                    bare(engine, place.bare, how.workers, how.connections or how.workers)
                )
            )
            mine: list[Round] = []
            loops: list[Round] = []
            for subject in filter(None, (ours, theirs)):
                await run_for(0.3 * how.seconds, how.workers, subject)
            for _ in range(how.rounds):
                mine.append(await run_for(how.seconds, how.workers, ours))
                if theirs is not None:
                    loops.append(await run_for(how.seconds, how.workers, theirs))
        _print_steps(engine, mine, loops)


def _with_connections(url: str, connections: int | None) -> str:
    name = {"redis": "max_connections", "postgresql": "mcpfusion_pool_size"}.get(url.partition("://")[0])
    if name is None or connections is None:
        return url
    return f"{url}{'&' if '?' in url else '?'}{name}={connections}"


def _print_steps(engine: str, mine: list[Round], bare: list[Round]) -> None:
    taken = [seconds for each in mine for seconds in each.taken]
    marks = statistics.quantiles(taken, n=100) if len(taken) > 1 else taken * 99
    out(f"{engine:12}{statistics.median(each.rate for each in mine):>10.0f}")
    out("".join(f"{marks[at - 1] * 1e3:>7.2f} ms" for at in (50, 95, 99)))
    if bare:
        pairs = list(zip(mine, bare, strict=True))
        out(f"{statistics.median(each.rate for each in bare):>10.0f}/s")
        by_wall = sorted(ours.rate / theirs.rate for ours, theirs in pairs)
        by_cpu = sorted(theirs.cpu / ours.cpu for ours, theirs in pairs)
        for ratios in (by_wall, by_cpu):
            out(f"{statistics.median(ratios):>8.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})")
    out("\n")
    sys.stdout.flush()


async def fill(store: VersionedFsmStateStore, count: int, *, history: bool = False) -> float:
    """Store so many idle workflows and return the seconds it took."""
    numbers, start = iter(range(count)), time.perf_counter()

    async def work() -> None:
        for number in numbers:
            record = replace(IDLE, handle=_handle(number), id=f"{number:032x}")
            moved = step(handle=record.handle, scope="") if history else None
            assert await store.write(record, expected_version=0, step=moved)

    await asyncio.gather(*(work() for _ in range(64)))
    return time.perf_counter() - start


def _handle(number: int) -> str:
    return f"INV-{number:08}"


async def memory(count: int, places: Mapping[bool, Place]) -> None:
    """Measure what an idle workflow takes of Redis's memory."""
    from redis.asyncio import Redis

    out(f"\nRedis's memory for each of {count:,} idle workflows, beyond the handle\n")
    for history, place in places.items():
        store = open_store(place.url)
        async with Redis.from_url(place.url) as client:
            await store.read("", "none")
            before = (await client.info("memory"))["used_memory"]
            await fill(store, count, history=history)
            each = ((await client.info("memory"))["used_memory"] - before) / count - len(_handle(0))
        await store.aclose()
        out(f"{'with a step of history' if history else 'without history':28}{each:>8.0f} bytes\n")
    out(f"{'the record itself':28}{len(encode_workflow(replace(IDLE, id='0' * 32, handle=_handle(0)))):>8} bytes\n")


async def pages(count: int, places: Mapping[str, Place]) -> None:
    """Store very many workflows and list them page by page, 100 a page."""
    out(f"\n{count:,} workflows\n{'':12}{'stored/s':>10}{'first page':>14}{'middle':>14}{'last':>14}\n")
    for engine, place in places.items():
        store = open_store(place.url)
        rate = count / await fill(store, count)
        out(f"{engine:12}{rate:>10.0f}")
        for after in (None, ("", _handle(count // 2)), ("", _handle(max(count - 101, 0)))):
            times: list[float] = []
            for _ in range(15):
                start = time.perf_counter()
                assert len(await store.list_workflows(after=after)) == min(100, count)
                times.append(time.perf_counter() - start)
            out(f"{statistics.median(times) * 1e3:>11.2f} ms")
        out("\n")
        sys.stdout.flush()
        await store.aclose()


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description="Stores beside their own engines.")
    parser.add_argument("--workers", type=int, default=10, help="steps at once (default: 10)")
    parser.add_argument(
        "--connections",
        type=int,
        help="connections of the store and of the bare loop (default: the store's own, and one for each worker)",
    )
    parser.add_argument("--rounds", type=int, default=7, help="rounds for each (default: 7)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a round (default: 1 s)")
    parser.add_argument("--engines", default="memory,sqlite,redis,postgres", help="which, with commas between")
    parser.add_argument("--no-disk", action="store_true", help="Redis without its file, PostgreSQL without fsync")
    parser.add_argument("--memory", action="store_true", help="measure the memory that Redis takes instead")
    parser.add_argument("--million", action="store_true", help="store and list 1,000,000 workflows instead")
    parser.add_argument("--count", type=int, help="so many workflows instead of 100,000 or 1,000,000")
    how = parser.parse_args()
    how.engines = how.engines.split(",")
    if unknown := set(how.engines) - set(ENGINES):
        parser.error(f"no engine {', '.join(unknown)}; there are {', '.join(ENGINES)}")
    print_machine()
    with ExitStack() as stack:
        if how.memory:
            asyncio.run(memory(how.count or 100_000, {history: start("redis", stack) for history in (False, True)}))
            return
        places = {engine: start(engine, stack, not how.no_disk) for engine in how.engines}
        if how.million:
            asyncio.run(pages(how.count or 1_000_000, places))
        else:
            asyncio.run(steps(how, places))


if __name__ == "__main__":
    main()
