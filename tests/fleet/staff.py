"""The operator of the fleet: resolves steps in doubt, by what the ledger says of them."""

import time

import anyio

from mcpfusion.gate.operator import OperatorError, resolve_done, resolve_not_done
from mcpfusion.stores.protocol import EngineClock, StoreError, VersionedFsmStateStore, Workflow
from tests.fleet.ledger import Ledgers, effects
from tests.fleet.orders import MACHINE

PATIENCE = 0.5
"""Seconds that a step has been in doubt before somebody looks."""


class Operator:
    """Looks at what is in doubt, and decides truly."""

    def __init__(self, store: VersionedFsmStateStore, ledgers: Ledgers) -> None:
        self._store = store
        self._ledgers = ledgers
        self.resolved = 0

    def now(self) -> float:
        """Return the time by which leases go."""
        return self._store.now() if isinstance(self._store, EngineClock) else time.time()

    async def work(self) -> None:
        """Resolve what is held, some of it, again and again. Runs until it is cancelled."""
        while True:
            await anyio.sleep(PATIENCE)
            try:
                doubtful = await self.doubtful(self.now() - PATIENCE)
            except StoreError:
                continue
            for workflow in doubtful[::2]:
                # What may be taken again is left to whoever takes it.
                if workflow.claim is not None and workflow.claim.on_doubt == "hold":
                    await self._try(workflow)

    async def doubtful(self, now: float) -> list[Workflow]:
        """Return all workflows that the store reports in doubt."""
        found: list[Workflow] = []
        while page := await self._store.list_workflows(
            in_doubt_at=now, after=(found[-1].scope, found[-1].handle) if found else None
        ):
            found += page
        return found

    async def resolve_all(self) -> None:
        """Resolve whatever is in doubt."""
        for workflow in await self.doubtful(self.now()):
            assert await self._try(workflow)

    async def _try(self, workflow: Workflow) -> bool:
        try:
            await self._resolve(workflow)
        except (OperatorError, StoreError):
            return False  # it has changed meanwhile, or the store is away; it is looked at again
        self.resolved += 1
        return True

    async def _resolve(self, workflow: Workflow) -> None:
        assert workflow.claim is not None
        key, now = workflow.claim.idempotency_key, self.now()
        done = effects(self._ledgers.fresh(), key)
        if not done:
            await resolve_not_done(self._store, workflow, operator=key, now=now)
            return
        event = done[-1].event
        after = MACHINE.transition(MACHINE.restore(workflow.snapshot), event)
        await resolve_done(self._store, workflow, snapshot=after.to_json(), operator=key, now=now, event=event)
