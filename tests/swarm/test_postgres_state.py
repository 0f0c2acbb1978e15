"""What gateways share in PostgreSQL: the contract, on a real server; sweeping, sizes, several processes."""

from collections.abc import AsyncIterator

import pytest

from mcpfusion.swarm.open import SwarmStores, open_swarm_stores
from mcpfusion.testing import swarm_store_contract

from ..support.postgres_servers import postgres_url as postgres_url

pytestmark = pytest.mark.anyio


class TestPostgresSwarmStore(swarm_store_contract()):
    @pytest.fixture
    async def stores(self, postgres_url: str) -> AsyncIterator[SwarmStores]:
        stores = open_swarm_stores(postgres_url)
        yield stores
        await stores.aclose()
