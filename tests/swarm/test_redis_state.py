"""What gateways and specialists keep in Redis: on a single server, and in a Cluster."""

import time
from collections.abc import AsyncGenerator, Iterator, Sequence

import pytest

from mcpfusion.stores import StoreError
from mcpfusion.swarm.open import SwarmStores, open_swarm_stores
from mcpfusion.testing import swarm_store_contract

from ..support.redis_servers import Server, cluster, cluster_url, server


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("redis")) as one:
        yield one


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[Server]]:
    with cluster(tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes


class TestRedisSwarmStore(swarm_store_contract()):
    @pytest.fixture
    async def stores(self, redis_server: Server) -> AsyncGenerator[SwarmStores]:
        redis_server.client().flushall()
        stores = open_swarm_stores(redis_server.url())
        yield stores
        await stores.aclose()


class TestRedisSwarmStoreInACluster(swarm_store_contract()):
    @pytest.fixture
    async def stores(self, nodes: Sequence[Server]) -> AsyncGenerator[SwarmStores]:
        for node in nodes:
            node.client().flushall()
        stores = open_swarm_stores(cluster_url(nodes) + "?wait=0")
        yield stores
        await stores.aclose()


@pytest.mark.anyio
async def test_what_is_over_is_removed_by_the_server(redis_server: Server):
    admin = redis_server.client()
    admin.flushall()
    stores = open_swarm_stores(redis_server.url())
    await stores.states.set("key", {"big": "x" * 1024 * 1024}, 60)
    assert await stores.states.get("key") == {"big": "x" * 1024 * 1024}
    assert await stores.replays.add("jti", time.time() - 5)
    assert await stores.routes.write_routes("g", "c", "[]", expected_version=0, ttl_seconds=60)
    assert await stores.routes.take_place("g", "d", "h", limit=1, domain_limit=1, ttl_seconds=60)
    keys = list(admin.scan_iter("*"))
    assert len(keys) == 5
    for key in keys:
        assert 0 < admin.ttl(key) <= 121, key
    await stores.aclose()


@pytest.mark.anyio
async def test_a_server_that_is_away(redis_server: Server):
    stores = open_swarm_stores("redis://127.0.0.1:9")
    for refused in (
        stores.states.get("key"),
        stores.replays.add("jti", 1.0),
        stores.pins.pins(),
        stores.routes.places_taken("g"),
    ):
        with pytest.raises(StoreError, match="cannot be reached"):
            await refused
    await stores.aclose()
