"""The PostgreSQL store as a store: the contract, on a real server."""

from collections.abc import AsyncIterator

import pytest

from mcpfusion.stores import PostgresStore
from mcpfusion.testing import store_contract

from ..support.postgres_servers import postgres_url as postgres_url

pytestmark = pytest.mark.anyio


class TestPostgresStore(store_contract()):
    @pytest.fixture
    async def store(self, postgres_url: str) -> AsyncIterator[PostgresStore]:
        store = PostgresStore(postgres_url)
        yield store
        await store.aclose()
