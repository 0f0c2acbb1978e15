"""The Redis store with Sentinels that watch its server."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import anyio
import pytest

from mcpfusion.stores import RedisStore, StoreError

from ..support.redis_servers import Server, sentinel_url, watched
from .records import claim, step, workflow

pytestmark = pytest.mark.anyio


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[Sequence[Server], Sequence[Server]]]:
    with watched(tmp_path) as service:
        yield service


async def test_claims_outlive_the_master(service: tuple[Sequence[Server], Sequence[Server]]):
    servers, sentinels = service
    store = RedisStore(sentinel_url(sentinels))
    assert await store.write(workflow(handle="first"), expected_version=0)
    acknowledged = await claim_until_it_fails(store, servers[0])
    with anyio.fail_after(30):
        while True:
            try:
                assert await store.write(workflow(handle="after"), expected_version=0)
                break
            except StoreError:
                await anyio.sleep(0.1)
                if await written(store, "after"):
                    break
    for handle in acknowledged:
        found = await store.read("ann", handle)
        assert found is not None and found.claim == claim(call_id=handle)
        assert await store.history("ann", handle) == [step(handle=handle)]
    # The master that was comes back as a replica: nobody writes to it, nobody reads from it.
    servers[0].start()
    assert await store.read("ann", "after") == workflow(handle="after")
    await store.aclose()


async def written(store: RedisStore, handle: str) -> bool:
    try:
        return await store.read("ann", handle) is not None
    except StoreError:
        return False


async def claim_until_it_fails(store: RedisStore, master: Server) -> list[str]:
    """Claim one workflow after another while the master is killed; return those that were acknowledged."""
    acknowledged: list[str] = []

    async def work(worker: int) -> None:
        for number in range(10_000):
            handle = f"{worker}-{number}"
            held = workflow(handle=handle, claim=claim(call_id=handle))
            try:
                assert await store.write(held, expected_version=0, step=step(handle=handle))
            except StoreError:
                return
            acknowledged.append(handle)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for worker in range(6):
                tasks.start_soon(work, worker)
            await anyio.sleep(0.3)
            await anyio.to_thread.run_sync(master.kill)
    assert len(acknowledged) > 10
    return acknowledged


async def test_no_sentinel_answers(service: tuple[Sequence[Server], Sequence[Server]]):
    _, sentinels = service
    store = RedisStore(sentinel_url(sentinels))
    sentinels[0].kill()
    assert await store.write(workflow(), expected_version=0)
    for sentinel in sentinels:
        sentinel.kill()
    # The master it knows is enough for as long as it answers.
    assert await store.read("ann", "INV-1") == workflow()
    with pytest.raises(StoreError, match="too few Sentinels know the master"):
        await RedisStore(sentinel_url(sentinels)).read("ann", "INV-1")
    with pytest.raises(StoreError, match="this is a Sentinel"):
        await RedisStore(f"redis://127.0.0.1:{sentinels[0].start().port}").read("ann", "INV-1")
    other = RedisStore(sentinel_url(sentinels).replace("service", "another"))
    with pytest.raises(StoreError, match="too few Sentinels know the master"):
        await other.read("ann", "INV-1")
    await store.aclose()


async def test_a_master_that_hangs_is_replaced(service: tuple[Sequence[Server], Sequence[Server]]):
    servers, sentinels = service
    store = RedisStore(sentinel_url(sentinels))
    assert await store.write(workflow(), expected_version=0)
    with servers[0].hanging():
        with anyio.fail_after(40):
            while True:
                try:
                    assert await store.read("ann", "INV-1") is not None
                    break
                except StoreError:
                    await anyio.sleep(0.1)
        write = partial(store.write, workflow(2), expected_version=1)
        assert await write()
    # Back, and still thinking that it is the master: its claim on our writes is refused by the new one.
    assert await store.read("ann", "INV-1") == workflow(2)
    await store.aclose()
