"""The Redis store in a Cluster of three masters."""

from collections.abc import AsyncGenerator, Iterator, Sequence

import pytest

from mcpfusion.stores.redis import RedisStore
from mcpfusion.testing import store_contract

from ..support.redis_servers import Server, cluster, cluster_url


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
