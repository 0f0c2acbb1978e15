"""The Redis store on a single server."""

from collections.abc import AsyncGenerator, Iterator

import pytest

from mcpfusion.stores.redis import RedisStore
from mcpfusion.testing import store_contract

from ..support.redis_servers import Server, server


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("redis")) as one:
        yield one


class TestRedisStore(store_contract()):
    @pytest.fixture
    async def store(self, redis_server: Server) -> AsyncGenerator[RedisStore]:
        redis_server.client().flushall()
        store = RedisStore(redis_server.url())
        yield store
        await store.aclose()
