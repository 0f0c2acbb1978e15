"""The contracts as classes of tests, for pytest to run."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from mcpfusion.stores import VersionedFsmStateStore
from mcpfusion.swarm.open import SwarmStores
from mcpfusion.testing.engines import EnginesContract
from mcpfusion.testing.places import PlacesContract
from mcpfusion.testing.queries import QueriesContract
from mcpfusion.testing.swarm_stores import SwarmStoresContract
from mcpfusion.testing.workflows import RecordsContract


class _OnAsyncio:
    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"


class _StoreContract(RecordsContract, QueriesContract, EnginesContract, _OnAsyncio):
    pass


class _SwarmStoreContract(SwarmStoresContract, PlacesContract, _OnAsyncio):
    pass


def store_contract(
    open_store: "Callable[[], AbstractAsyncContextManager[VersionedFsmStateStore]] | None" = None,
) -> type[Any]:
    """Return a class of tests that hold a `VersionedFsmStateStore` to everything that its protocol says.

    Subclass it in a test module: `class TestMyStore(store_contract(open_my_store)): ...`. Where the store is a `Bus`
    or has an `EngineClock` besides, those are tested too. The tests run on asyncio through anyio's pytest plugin; a
    fixture `anyio_backend` in the subclass changes that.

    Args:
        open_store: Gives each test an open store that holds nothing, and takes it back. None when the subclass has
            a fixture `store` of its own, which may use other fixtures.
    """
    if open_store is None:
        return _StoreContract

    class Contract(_StoreContract):
        @pytest.fixture
        async def store(self) -> AsyncGenerator[VersionedFsmStateStore]:
            async with open_store() as store:
                yield store

    return Contract


def swarm_store_contract(
    open_stores: "Callable[[], AbstractAsyncContextManager[SwarmStores]] | None" = None,
) -> type[Any]:
    """Return a class of tests that hold the stores of a gateway to everything that their protocols say.

    As `store_contract`, for `HandoffStateStore`, `ReplayStore`, `PinStore`, `RouteStore` and, where there is one,
    the `Bus`.

    Args:
        open_stores: Gives each test stores that hold nothing, and takes them back. None when the subclass has a
            fixture `stores` of its own.
    """
    if open_stores is None:
        return _SwarmStoreContract

    class Contract(_SwarmStoreContract):
        @pytest.fixture
        async def stores(self) -> AsyncGenerator[SwarmStores]:
            async with open_stores() as stores:
                yield stores

    return Contract
