"""One run of the fleet, from the start of its processes to all that is known of it."""

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from mcpfusion.stores import open_store
from mcpfusion.stores.protocol import Step, VersionedFsmStateStore, Workflow
from tests.fleet.driver import Driver
from tests.fleet.facts import Run, Standing
from tests.fleet.ledger import Ledgers
from tests.fleet.model import check
from tests.fleet.orders import LEASE
from tests.fleet.processes import Fleet, running
from tests.fleet.replica import Settings
from tests.fleet.staff import Operator

Disturb = Callable[[], Awaitable[None]]
"""Does to the engine what befalls engines, once."""


AFTERMATH = 3.0
"""Seconds for which clients call at least once the engine is back."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to happen.

    Attributes:
        seconds: For how long the clients call.
        kill_every: Seconds between two kills of a replica; 0: none.
        disturb: What befalls the engine; None: nothing.
        disturb_every: Seconds between two of that.
    """

    seconds: float
    kill_every: float = 0.0
    disturb: Disturb | None = None
    disturb_every: float = 10.0
    orders: int = 1000
    seed: int = 1
    sabotage: str = ""


@dataclass(slots=True)
class Outcome:
    """What came of it.

    Attributes:
        disturbances: When the engine was back, on the clock of the ledger.
    """

    run: Run
    violations: list[str]
    codes: Counter[str]
    steps: Counter[str]
    kills: int
    seconds: float
    disturbances: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        steps, codes = dict(self.steps), dict(self.codes.most_common())
        doubts = sum(standing.doubt is not None for standing in self.run.workflows.values())
        return (
            f"{self.seconds:.0f} s, {sum(codes.values())} calls {codes}, steps {steps}, {self.kills} kills, "
            f"{len(self.disturbances)} disturbances, {doubts} left in doubt, {len(self.violations)} violations"
        )


async def play(url: str, folder: Path, plan: Plan) -> Outcome:
    """Let a fleet on the store at `url` go through the plan."""
    ledgers = Ledgers(folder)
    with running(Settings(url, folder, plan.sabotage)) as fleet:
        store = open_store(url)
        try:
            return await _play(store, fleet, ledgers, plan)
        finally:
            await store.aclose()


async def _play(store: VersionedFsmStateStore, fleet: Fleet, ledgers: Ledgers, plan: Plan) -> Outcome:
    operator, driver = Operator(store, ledgers), Driver(fleet.ports, plan.orders, plan.seed)
    disturbances: list[float] = []
    await fleet.ready()
    begun = time.monotonic()
    async with anyio.create_task_group() as group:
        group.start_soon(operator.work)
        if plan.kill_every:
            group.start_soon(fleet.kill_one_after_another, plan.kill_every)
        if plan.disturb is not None:
            group.start_soon(_disturb, plan, begun + plan.seconds, driver, disturbances)
        await driver.run(plan.seconds)
        group.cancel_scope.cancel()
    seconds = time.monotonic() - begun
    await fleet.ready()
    assert fleet.fallen() == []
    left, reported = await _leases_over(store, operator)
    await operator.resolve_all()
    codes = Counter(answer.code for answer in driver.answers)
    await driver.look_around(min(200, plan.orders))
    workflows = await _standings(store, left, reported)
    run = Run(ledgers.fresh(), driver.answers, workflows, frozenset(fleet.killed), plan.disturb is not None)
    steps = Counter(step.outcome for standing in workflows.values() for step in standing.history)
    return Outcome(run, check(run), codes, steps, len(fleet.killed), seconds, disturbances)


async def _disturb(plan: Plan, until: float, driver: Driver, disturbances: list[float]) -> None:
    assert plan.disturb is not None
    while True:
        await anyio.sleep(plan.disturb_every)
        if time.monotonic() > until:
            return
        with anyio.CancelScope(shield=True):
            await plan.disturb()
        disturbances.append(time.monotonic())
        driver.go_on(AFTERMATH)


async def _leases_over(store: VersionedFsmStateStore, operator: Operator) -> tuple[dict[str, Workflow], set[str]]:
    """Wait until each claim or its lease has ended; return what is left claimed, and what is reported in doubt."""
    deadline = time.monotonic() + 2 * LEASE
    while True:
        claimed = {each.handle: each for each in await _all(store) if each.claim is not None}
        reported = {each.handle for each in await operator.doubtful(operator.now())}
        if claimed.keys() <= reported or time.monotonic() > deadline:
            return claimed, reported
        await anyio.sleep(0.1)


async def _all(store: VersionedFsmStateStore) -> list[Workflow]:
    found: list[Workflow] = []
    while page := await store.list_workflows(after=(found[-1].scope, found[-1].handle) if found else None, limit=500):
        found += page
    return found


async def _standings(
    store: VersionedFsmStateStore, left: dict[str, Workflow], reported: set[str]
) -> dict[str, Standing]:
    found: dict[str, Standing] = {}
    for record in await _all(store):
        history: Sequence[Step] = await store.history(record.scope, record.handle)
        was = left.get(record.handle)
        found[record.handle] = Standing(
            record.state,
            record.steps,
            history,
            doubt=was.claim if was else None,
            reported=record.handle in reported,
            claimed=record.claim is not None,
        )
    return found
