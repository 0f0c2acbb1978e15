"""Stores that break their promise, so that the tests show that they would notice."""

import time
from dataclasses import replace

from mcpfusion.stores.protocol import Step, Workflow
from mcpfusion.stores.sqlite import SqliteStore


class LastOneWins(SqliteStore):
    """Writes whatever the stored version is."""

    async def write(self, workflow: Workflow, *, expected_version: int, step: Step | None = None) -> bool:
        while True:
            found = await self.read(workflow.scope, workflow.handle)
            version = found.version if found else 0
            if await super().write(replace(workflow, version=version + 1), expected_version=version, step=step):
                return True


class Forgetful(SqliteStore):
    """Says of one commit in five that it was written, and writes the release of its claim instead."""

    _commits = 0

    async def write(self, workflow: Workflow, *, expected_version: int, step: Step | None = None) -> bool:
        self._commits += step is not None
        if step is None or self._commits % 5:
            return await super().write(workflow, expected_version=expected_version, step=step)
        found = await self.read(workflow.scope, workflow.handle)
        assert found is not None
        return await super().write(
            replace(found, version=workflow.version, claim=None), expected_version=expected_version
        )


class Lagging(SqliteStore):
    """Tells of each workflow what it told in the last half second, as the copy of a database may."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._told: dict[str, tuple[float, Workflow | None]] = {}

    async def read(self, scope: str, handle: str) -> Workflow | None:
        told = self._told.get(handle)
        if told is None or time.monotonic() - told[0] > 0.5:
            told = self._told[handle] = time.monotonic(), await super().read(scope, handle)
        return told[1]


SABOTAGES = {"last_one_wins": LastOneWins, "forgetful": Forgetful, "lagging": Lagging}
