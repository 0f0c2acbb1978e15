"""The replicas as processes: started, killed, started again."""

import multiprocessing
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess

import anyio

from tests.fleet.replica import Settings, serve
from tests.support.serving import free_port

# Processes that start fast: forked from a process that has imported everything already.
_forking = multiprocessing.get_context("forkserver")
_forking.set_forkserver_preload(
    [
        "tests.fleet.replica",
        "mcpfusion.wire.server",
        "uvicorn",
        *(f"mcpfusion.stores.{engine}" for engine in ("sqlite", "redis", "postgres")),
    ]
)

START_TIME = 30.0


class Fleet:
    """Replicas that share a store.

    Attributes:
        ports: Where they listen.
        killed: The process ids of those that were killed.
    """

    def __init__(self, settings: Settings, size: int) -> None:
        self.ports = [free_port() for _ in range(size)]
        self.killed: set[int] = set()
        self._settings = settings
        self._processes = [self._start(port) for port in self.ports]

    async def ready(self) -> None:
        """Wait until all of them answer."""
        for port, process in zip(self.ports, self._processes, strict=True):
            await _answering(port, process)

    async def kill_one_after_another(self, every: float) -> None:
        """Kill one of them as often as that, and start it again at once. Runs until it is cancelled."""
        while True:
            await anyio.sleep(every)
            number = random.randrange(len(self.ports))
            victim = self._processes[number]
            assert victim.pid is not None and victim.is_alive()
            self.killed.add(victim.pid)
            victim.kill()
            with anyio.CancelScope(shield=True):  # or it would be missing in the end
                await anyio.to_thread.run_sync(victim.join)
            self._processes[number] = self._start(self.ports[number])
            await _answering(self.ports[number], self._processes[number])

    def end(self) -> None:
        """End them all."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()

    def fallen(self) -> list[int | None]:
        """Return how those ended that nobody has killed."""
        return [process.exitcode for process in self._processes if not process.is_alive()]

    def _start(self, port: int) -> BaseProcess:
        process = _forking.Process(target=serve, args=(self._settings, port), daemon=True)
        process.start()
        return process


async def _answering(port: int, process: BaseProcess) -> None:
    deadline = time.monotonic() + START_TIME
    while True:
        assert process.is_alive(), f"a replica ended with {process.exitcode} before it answered"
        try:
            stream = await anyio.connect_tcp("127.0.0.1", port)
        except OSError:
            assert time.monotonic() < deadline, "a replica did not answer"
            await anyio.sleep(0.02)
        else:
            await stream.aclose()
            return


@contextmanager
def running(settings: Settings, size: int = 4) -> Iterator[Fleet]:
    """Run a fleet."""
    fleet = Fleet(settings, size)
    try:
        yield fleet
    finally:
        fleet.end()
