"""The Redis store in a Cluster of three masters, each with a replica."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from functools import partial

import anyio
import pytest

from mcpfusion.stores import RedisStore, StoreError
from mcpfusion.testing import store_contract

from ..support.redis_servers import Server, cluster, cluster_url, eventually
from .records import claim, step, workflow


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[Server]]:
    with cluster(tmp_path_factory.mktemp("cluster"), replicas=1) as nodes:
        yield nodes


class TestRedisStoreInACluster(store_contract()):
    @pytest.fixture
    async def store(self, nodes: Sequence[Server]) -> AsyncGenerator[RedisStore]:
        for node in nodes[:3]:
            node.client().flushall()
        store = RedisStore(cluster_url(nodes))
        yield store
        await store.aclose()


@pytest.fixture
async def store(nodes: Sequence[Server]) -> AsyncGenerator[RedisStore]:
    for node in nodes[:3]:
        node.client().flushall()
    store = RedisStore(cluster_url(nodes))
    yield store
    await store.aclose()


@pytest.mark.anyio
async def test_one_scope_spreads_over_all_nodes(store: RedisStore, nodes: Sequence[Server]):
    handles = [f"{number:03}" for number in range(150)]
    async with anyio.create_task_group() as tasks:
        for handle in handles:
            tasks.start_soon(partial(store.write, workflow(handle=handle, scope=""), expected_version=0))
    assert [each.handle for each in await store.list_workflows(limit=1000)] == handles
    for node in nodes[:3]:
        keys = list(node.client().scan_iter("mcpfusion:{*}w*"))
        assert len(keys) > 20
        # A workflow's keys are in the slot of its tag, and nothing is outside of the tags but the layout.
        others = [key for key in node.client().scan_iter("*") if b"{" not in key]
        assert set(others) <= {b"mcpfusion:layout"}


@pytest.mark.anyio
async def test_slots_move_while_they_are_used(store: RedisStore, nodes: Sequence[Server]):
    """A bucket moves to another node; its workflows are found there, and nowhere is one written twice."""
    assert await store.write(workflow(), expected_version=0)
    (owner,) = [node for node in nodes[:3] if list(node.client().scan_iter("mcpfusion:{*}wann*"))]
    other = next(node for node in nodes[:3] if node is not owner)
    (key,) = owner.client().scan_iter("mcpfusion:{*}wann*")
    slot = owner.client().execute_command("CLUSTER KEYSLOT", key)
    names = {node: node.client().execute_command("CLUSTER MYID").decode() for node in (owner, other)}
    other.client().execute_command("CLUSTER SETSLOT", slot, "IMPORTING", names[owner])
    owner.client().execute_command("CLUSTER SETSLOT", slot, "MIGRATING", names[other])
    keys = owner.client().execute_command("CLUSTER GETKEYSINSLOT", slot, 1000)
    owner.client().execute_command("MIGRATE", "127.0.0.1", other.port, "", 0, 5000, "KEYS", *keys)
    # Asked of the old owner, answered by the new one.
    assert await store.read("ann", "INV-1") == workflow()
    for node in (other, owner):
        node.client().execute_command("CLUSTER SETSLOT", slot, "NODE", names[other])
    assert await store.write(workflow(2), expected_version=1, step=step())
    assert not await store.write(workflow(2), expected_version=1)
    assert await store.read("ann", "INV-1") == workflow(2)
    assert [each.handle for each in await store.list_workflows()] == ["INV-1"]


@pytest.mark.anyio
async def test_claims_outlive_a_master(store: RedisStore, nodes: Sequence[Server]):
    acknowledged: list[str] = []
    refused: list[str] = []

    async def work(worker: int) -> None:
        for number in range(100_000):
            handle = f"{worker}-{number}"
            held = workflow(handle=handle, claim=claim(call_id=handle))
            try:
                assert await store.write(held, expected_version=0, step=step(handle=handle))
            except StoreError:
                refused.append(handle)
                await anyio.sleep(0.05)
            else:
                acknowledged.append(handle)
            if over.is_set():
                return

    over = anyio.Event()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for worker in range(6):
                tasks.start_soon(work, worker)
            await anyio.sleep(0.4)
            await anyio.to_thread.run_sync(nodes[0].kill)
            replica = nodes[3].client()
            await anyio.to_thread.run_sync(eventually, lambda: replica.role()[0] == b"master")
            await anyio.to_thread.run_sync(nodes[0].start)
            await anyio.to_thread.run_sync(
                eventually, lambda: nodes[0].client().role()[0:4:3] == [b"slave", b"connected"]
            )
            # Everything works again: so many in a row, over all nodes.
            while refused:
                refused.clear()
                await anyio.sleep(0.5)
            over.set()
    assert len(acknowledged) > 50
    for handle in acknowledged:
        found = await store.read("ann", handle)
        assert found is not None, handle
        assert found.claim == claim(call_id=handle)
    held = {each.handle for each in await store.list_workflows(in_doubt_at=1e12, limit=100_000)}
    assert held >= set(acknowledged)
