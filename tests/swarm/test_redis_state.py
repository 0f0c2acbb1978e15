"""What gateways and specialists keep in Redis: on a single server, and in a Cluster."""

from collections.abc import AsyncGenerator, Iterator, Sequence

import pytest

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
