"""A master of Redis dies under the fleet and a replica takes its place: what was acknowledged is kept or in doubt.

The ledger's checker decides, as for every other run: no step ran twice, none that a client was told of is lost.
"""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from tests.fleet.engines import Engine
from tests.fleet.scenario import Plan, play
from tests.support.redis_servers import Server, cluster, cluster_url, eventually, sentinel_url, watched

pytestmark = pytest.mark.anyio

LONG = float(os.environ.get("MCPFUSION_FLEET_SECONDS", "0"))
SECONDS = LONG or 5.0
EVERY = 9.0 if LONG else 2.0

KEPT = ("--appendonly", "yes", "--appendfsync", "always")


@asynccontextmanager
async def sentinel(folder: Path) -> AsyncIterator[Engine]:
    with watched(folder / "redis", *KEPT) as (servers, sentinels):

        async def disturb() -> None:
            await anyio.to_thread.run_sync(_fail_over, servers)

        yield Engine(sentinel_url(sentinels), disturb)


@asynccontextmanager
async def nodes(folder: Path) -> AsyncIterator[Engine]:
    with cluster(folder / "redis", replicas=1) as servers:

        async def disturb() -> None:
            await anyio.to_thread.run_sync(_fail_over, servers)

        yield Engine(cluster_url(servers), disturb)


def _fail_over(servers: Sequence[Server]) -> None:
    """Kill a master, wait until another has taken its place, and let it come back as that one's replica."""
    masters = [server for server in servers if _is(server, "master")]
    masters[0].kill()
    eventually(lambda: sum(_is(server, "master") for server in servers) == len(masters), 30)
    masters[0].start()
    eventually(lambda: _follows(masters[0]), 30)


def _is(server: Server, role: str) -> bool:
    return server.process is not None and server.client().info("replication")["role"] == role


def _follows(server: Server) -> bool:
    return server.client().info("replication").get("master_link_status") == "up"


@pytest.mark.parametrize("engine", [sentinel, nodes], ids=["sentinel", "cluster"])
@pytest.mark.timeout(150 + 4 * SECONDS)
async def test_a_master_is_lost_under_the_fleet(engine: object, tmp_path: Path) -> None:
    async with engine(tmp_path) as running:  # type: ignore[operator]
        outcome = await play(running.url, tmp_path, Plan(SECONDS, disturb=running.disturb, disturb_every=EVERY))
    print(outcome)
    assert not outcome.violations, "\n".join(outcome.violations[:30])
    assert outcome.disturbances
    assert outcome.steps["committed"] >= 10
