"""What every `RouteStore` must do, sentence by sentence of the protocol."""

import anyio
import pytest

from mcpfusion.swarm.open import SwarmStores
from mcpfusion.swarm.route_store import KeptRoutes, RouteStore
from mcpfusion.testing.swarm_stores import eventually

# Names that would meet if they were only put one after the other.
ODD_NAMES = [("a", "b:c"), ("a:b", "c"), ("a", "b"), ("ab", ""), ("", "ab"), ("{a}", "*"), ("брама 🧾", "x" * 1024)]


async def write(routes: RouteStore, record: str | None, expected: int, gateway: str = "g", ttl: float = 60) -> bool:
    """Write the routes of conversation `c`."""
    return await routes.write_routes(gateway, "c", record, expected_version=expected, ttl_seconds=ttl)


async def take(
    routes: RouteStore,
    handoff_id: str,
    domain: str = "d",
    gateway: str = "g",
    limit: int = 9,
    domain_limit: int | None = None,
    ttl: float = 60,
) -> bool:
    """Take a place."""
    return await routes.take_place(
        gateway, domain, handoff_id, limit=limit, domain_limit=domain_limit, ttl_seconds=ttl
    )


class PlacesContract:
    """Routes, and the places of handoffs."""

    pytestmark = pytest.mark.anyio

    # routes

    async def test_routes_are_read_as_they_were_written(self, stores: SwarmStores):
        routes = stores.routes
        assert await routes.read_routes("g", "c") is None
        record = '["é \\u0000 🧾", "' + "x" * 100_000 + '"]'
        assert await write(routes, record, 0)
        assert await routes.read_routes("g", "c") == KeptRoutes(1, record)
        assert await write(routes, "[]", 1)
        assert await routes.read_routes("g", "c") == KeptRoutes(2, "[]")

    async def test_a_write_needs_the_version_that_is_kept(self, stores: SwarmStores):
        routes = stores.routes
        assert not await write(routes, "[1]", 1)
        assert await routes.read_routes("g", "c") is None
        assert await write(routes, "[1]", 0)
        for stale in (0, 2, 17):
            assert not await write(routes, "[2]", stale)
            assert not await write(routes, None, stale)
        assert await routes.read_routes("g", "c") == KeptRoutes(1, "[1]")

    async def test_routes_are_removed(self, stores: SwarmStores):
        routes = stores.routes
        assert await write(routes, None, 0)
        assert await write(routes, "[1]", 0)
        assert await write(routes, None, 1)
        assert await routes.read_routes("g", "c") is None
        assert not await write(routes, "[2]", 1)
        assert await write(routes, "[3]", 0)
        assert await routes.read_routes("g", "c") == KeptRoutes(1, "[3]")

    async def test_of_many_writers_one_wins(self, stores: SwarmStores):
        routes = stores.routes
        for version in range(3):
            won: list[str] = []

            async def attempt(record: str, version: int = version, won: list[str] = won) -> None:
                if await write(routes, record, version):
                    won.append(record)

            async with anyio.create_task_group() as tasks:
                for number in range(30):
                    tasks.start_soon(attempt, f"[{version}, {number}]")
            (record,) = won
            assert await routes.read_routes("g", "c") == KeptRoutes(version + 1, record)

    async def test_routes_are_gone_when_their_time_is_over(self, stores: SwarmStores):
        routes = stores.routes
        assert await write(routes, "[1]", 0, ttl=0.05)

        async def gone() -> bool:
            return await routes.read_routes("g", "c") is None

        await eventually(gone)
        await routes.keep_routes("g", "c", 60)
        assert await routes.read_routes("g", "c") is None
        assert not await write(routes, "[2]", 1)
        assert await write(routes, "[2]", 0)
        assert await routes.read_routes("g", "c") == KeptRoutes(1, "[2]")
        # From now on it is kept for this long, be that shorter or longer than before.
        await routes.keep_routes("g", "c", 0.05)
        await eventually(gone)

    async def test_what_is_kept_on_stays(self, stores: SwarmStores):
        routes = stores.routes
        assert await write(routes, "[1]", 0, ttl=1.0)
        assert await take(routes, "h", ttl=1.0)
        await routes.keep_routes("g", "c", 60)
        await routes.keep_place("g", "d", "h", 60)
        assert await write(routes, "[2]", 0, gateway="other", ttl=1.0)
        assert await write(routes, "[3]", 1, gateway="other", ttl=60)
        await anyio.sleep(1.1)
        assert await routes.read_routes("g", "c") == KeptRoutes(1, "[1]")
        assert await routes.read_routes("other", "c") == KeptRoutes(2, "[3]")
        assert await routes.places_taken("g") == 1

    async def test_gateways_and_conversations_are_apart(self, stores: SwarmStores):
        routes = stores.routes
        for gateway, name in ODD_NAMES:
            record = f"[{len(gateway)}, {len(name)}]"
            assert await routes.write_routes(gateway, name, record, expected_version=0, ttl_seconds=60)
            assert await take(routes, name, gateway=gateway, domain=name, limit=2, domain_limit=1)
        for gateway, name in ODD_NAMES:
            assert await routes.read_routes(gateway, name) == KeptRoutes(1, f"[{len(gateway)}, {len(name)}]")
            assert await routes.places_taken(gateway, name) == 1
        assert await routes.places_taken("a") == 2
        await routes.free_place("a", "b", "b")
        assert await routes.places_taken("a") == 1
        assert await routes.places_taken("a:b") == 1

    # places

    async def test_places_are_taken_and_freed(self, stores: SwarmStores):
        routes = stores.routes
        assert await routes.places_taken("g") == 0
        await routes.free_place("g", "d", "h1")
        assert await take(routes, "h1", limit=2)
        assert await take(routes, "h2", domain="e", limit=2)
        assert not await take(routes, "h3", limit=2)
        assert await routes.places_taken("g") == 2
        assert await routes.places_taken("g", "d") == 1
        assert await routes.places_taken("g", "nobody") == 0
        await routes.free_place("g", "e", "h1")  # another place, which nobody has
        assert not await take(routes, "h3", limit=2)
        await routes.free_place("g", "d", "h1")
        assert await take(routes, "h3", limit=2)

    async def test_a_specialist_has_a_limit_of_its_own(self, stores: SwarmStores):
        routes = stores.routes
        assert await take(routes, "h1", domain_limit=1)
        assert not await take(routes, "h2", domain_limit=1)
        assert await take(routes, "h2", domain="e", domain_limit=1)
        assert await take(routes, "h3")

    async def test_of_many_only_so_many_get_a_place(self, stores: SwarmStores):
        routes = stores.routes
        taken: list[str] = []

        async def attempt(number: int) -> None:
            domain = "de"[number % 2]
            if await take(routes, f"h{number}", domain=domain, limit=7, domain_limit=5):
                taken.append(domain)

        for _ in range(3):
            async with anyio.create_task_group() as tasks:
                for number in range(40):
                    tasks.start_soon(attempt, number)
            assert len(taken) == 7
            assert max(taken.count("d"), taken.count("e")) <= 5
            assert await routes.places_taken("g") == 7
            for domain in "de":
                assert await routes.places_taken("g", domain) == taken.count(domain)
            for number in range(40):
                await routes.free_place("g", "de"[number % 2], f"h{number}")
            taken.clear()

    async def test_a_place_frees_itself_and_can_be_kept_again(self, stores: SwarmStores):
        routes = stores.routes
        assert await take(routes, "h1", limit=1, ttl=0.05)

        async def next_has_it() -> bool:
            return await take(routes, "h2", limit=1)

        await eventually(next_has_it)
        assert await routes.places_taken("g") == 1
        # The handoff goes on, whatever the limits: it was let in once.
        await routes.keep_place("g", "d", "h1", 60)
        assert await routes.places_taken("g") == 2
        assert not await take(routes, "h3", limit=2)
        await routes.keep_place("g", "d", "h1", 0.05)

        async def one_is_left() -> bool:
            return await routes.places_taken("g") == 1 and await routes.places_taken("g", "d") == 1

        await eventually(one_is_left)
