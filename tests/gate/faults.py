"""A store that fails where it is told to: before or after it did what was asked, by raising or by hanging."""

import math
from collections.abc import Sequence
from typing import Literal

import anyio

from mcpfusion.stores.memory import MemoryStore
from mcpfusion.stores.protocol import Step, Workflow

SECRET = "postgres://gate:hunter2@db.internal refused"
"""What the store says went wrong: for the log, and never for a client."""

Point = Literal["read", "claim", "release", "doubt", "commit", "states_in_use"]
How = Literal["raise before", "raise after", "hang before", "hang after"]
HOWS: tuple[How, ...] = ("raise before", "raise after", "hang before", "hang after")
FOREVER = math.inf


class FaultyStore(MemoryStore):
    """A memory store with faults.

    Attributes:
        asked: What was asked of it so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Point] = []
        self._faults: dict[Point, tuple[How, float]] = {}

    def fail(self, point: Point, how: How, times: float = 1) -> None:
        """Fail so many times at the point."""
        self._faults[point] = (how, times)

    def recover(self) -> None:
        """Fail no more."""
        self._faults.clear()

    async def read(self, scope: str, handle: str) -> Workflow | None:
        async with _Fault(self, "read"):
            return await super().read(scope, handle)

    async def write(self, workflow: Workflow, *, expected_version: int, step: Step | None = None) -> bool:
        claim = workflow.claim
        point: Point = "commit" if step else "release" if claim is None else "doubt" if claim.in_doubt else "claim"
        async with _Fault(self, point):
            return await super().write(workflow, expected_version=expected_version, step=step)

    async def states_in_use(self, scope: str) -> Sequence[str]:
        async with _Fault(self, "states_in_use"):
            return await super().states_in_use(scope)

    def take(self, point: Point, when: str) -> str | None:
        """Return how to fail now, and count it."""
        how, times = self._faults.get(point, ("", 0))
        if times <= 0 or not how.endswith(when):
            return None
        self._faults[point] = (how, times - 1)
        return how


class _Fault:
    def __init__(self, store: FaultyStore, point: Point) -> None:
        self._store = store
        self._point = point

    async def __aenter__(self) -> None:
        self._store.asked.append(self._point)
        await self._maybe("before")

    async def __aexit__(self, *error: object) -> None:
        if error[0] is None:
            await self._maybe("after")

    async def _maybe(self, when: str) -> None:
        how = self._store.take(self._point, when)
        if how is not None and how.startswith("raise"):
            raise RuntimeError(SECRET)
        if how is not None:
            await anyio.sleep_forever()
