"""All replicas are replaced one after the other, behind nginx without stickiness, while clients call."""

import os
import signal
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from tests.fleet.rolling import STEPS, Caller, be_replica, ran
from tests.gate.processes import end, start
from tests.support.engines import shared_engine
from tests.support.nginx import balancer, needs_nginx
from tests.support.serving import ERAS, free_port
from tests.swarm.parts import served, specialist

pytestmark = [pytest.mark.anyio, needs_nginx]

REPLICAS = 3


class Replicas:
    """Three processes that are started, and told to stop, by their ports."""

    def __init__(self, *args: Any) -> None:
        self.ports = [free_port() for _ in range(REPLICAS)]
        self._args = args
        self._running = {port: start(be_replica, port, *args) for port in self.ports}

    async def ready(self, port: int) -> None:
        """Wait until a replica says that it is."""
        async with httpx2.AsyncClient(verify=False) as http:
            with anyio.fail_after(60):
                while True:
                    try:
                        if (await http.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200:
                            return
                    except httpx2.TransportError:
                        assert self._running[port].is_alive()
                    await anyio.sleep(0.02)

    async def replace(self, port: int) -> float:
        """Tell a replica to stop, and start another in its place; returns the seconds that it took to stop."""
        running = self._running[port]
        began = time.monotonic()
        os.kill(running.pid or 0, signal.SIGTERM)
        with anyio.fail_after(30):
            while running.is_alive():  # noqa: ASYNC110 - there is no event
                await anyio.sleep(0.02)
        took = time.monotonic() - began
        # uvicorn raises the signal again for itself once it has ended well; it is not killed by it in the middle.
        assert running.exitcode in (0, -signal.SIGTERM), running.exitcode
        self._running[port] = start(be_replica, port, *self._args)
        await self.ready(port)
        return took

    def end(self) -> None:
        for running in self._running.values():
            end(running)


async def test_nobody_sees_a_rolling_restart(tmp_path: Path) -> None:
    ledger, stop = tmp_path / "ledger", anyio.Event()
    store = shared_engine("redis").new_store()
    async with served(specialist("finance")) as (finance,):
        with ExitStack() as stack:
            replicas = Replicas(store, finance, str(ledger))
            stack.callback(replicas.end)
            for port in replicas.ports:
                await replicas.ready(port)
            url = stack.enter_context(balancer(replicas.ports)) + "/mcp"
            working = [Caller(url, mode, f"worker-{mode}-{n}") for mode in ERAS for n in range(2)]
            talking = [Caller(url, mode, f"talker-{mode}") for mode in ERAS]
            async with anyio.create_task_group() as group:
                for caller in working:
                    group.start_soon(caller.make, caller.orders(stop))
                for caller in talking:
                    group.start_soon(caller.make, caller.conversation(stop))
                await anyio.sleep(0.5)
                took = [await replicas.replace(port) for port in replicas.ports]
                await anyio.sleep(0.3)
                stop.set()
    assert max(took) < 10
    assert all(len(caller.done) >= 2 for caller in working)
    assert all(caller.handed >= REPLICAS for caller in talking)
    expected = Counter(
        (f'["app",null,"{caller.user}"]', handle, f"approval.{tool}")
        for caller in working
        for handle in caller.done
        for tool in STEPS
    )
    expected.update((f'["app",null,"{caller.user}"]', "own", "approval.submit") for caller in talking)
    assert ran(ledger) == expected
