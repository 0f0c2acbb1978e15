"""What a clearance is given by URL is closed when its server ends, and opened again when it starts again."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from mcpfusion.swarm import require_gateway_clearance
from mcpfusion.swarm.clearance import ClearanceStores
from mcpfusion.swarm.open import open_swarm_stores
from tests.support import redis_servers
from tests.support.serving import ERAS
from tests.swarm.parts import SECRET, served, specialist, talk, triage

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("era", ERAS)
async def test_no_connection_is_left_when_the_server_has_ended(era: str, tmp_path: Path) -> None:
    with redis_servers.server(tmp_path) as redis, redis.client() as look:
        url = redis.url()

        def connections() -> int:
            return len(look.client_list())

        before = connections()
        server = specialist(store=url, replays=url)
        for _ in range(2):
            async with (
                served(server) as (upstream,),
                served(triage({"finance": upstream}, store=url)) as (gateway,),
                talk(gateway, era) as client,
            ):
                assert not (await client.route("finance", size=100_000)).is_error
                assert (await client.call("finance.pay.size")).structured_content == {"result": 100_000}
                assert connections() > before
            with anyio.fail_after(10):
                while connections() > before:  # noqa: ASYNC110 - Redis says when it has noticed
                    await anyio.sleep(0.02)


async def test_one_url_is_opened_once_and_closed_with_the_last_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []

    def opens(url: str) -> Any:
        opened.append(open_swarm_stores(url))
        return opened[-1]

    monkeypatch.setattr("mcpfusion.swarm.clearance.open_swarm_stores", opens)
    url = f"sqlite:///{tmp_path}/swarm.db"
    stores = ClearanceStores(url, url)
    first = stores.replays
    assert stores.states is first
    async with stores.used():
        async with stores.used():
            pass
        assert stores.replays is first
    assert len(opened) == 1
    async with stores.used():
        assert stores.replays is stores.states is not first
    assert len(opened) == 2


async def test_marks_in_memory_outlive_the_server() -> None:
    stores = ClearanceStores(None, "memory://")
    marks = stores.replays
    async with stores.used():
        pass
    assert stores.replays is marks


def test_a_url_that_names_no_store_is_refused_when_it_is_given() -> None:
    for wrong in ({"store": "mysql://h/db"}, {"replays": "mysql://h/db"}):
        with pytest.raises(ValueError, match="no store for mysql"):
            require_gateway_clearance(SECRET, **wrong)
