"""Four replicas on one store, called at random: what was done, what was told and what is kept agree, whatever dies.

`make test` runs what shows most in little time. With MCPFUSION_FLEET_SECONDS everything runs, each for so long;
`make test-fleet` says 30.
"""

import math
import os
from pathlib import Path

import pytest

from tests.fleet.engines import ENGINES, Engine
from tests.fleet.orders import LOOK
from tests.fleet.scenario import Outcome, Plan, play

pytestmark = pytest.mark.anyio

LONG = float(os.environ.get("MCPFUSION_FLEET_SECONDS", "0"))
SECONDS = LONG or 4.0
KILL_EVERY = 3.0 if LONG else 1.0
DISTURB_EVERY = 8.0 if LONG else 2.0
RESUMED = 5.0
"""Seconds after its return within which the engine has to be in use again."""

engines = pytest.mark.parametrize("engine", ENGINES)
restarted = [engine for engine in ENGINES if LONG or engine != "sqlite"]


async def run(engine: str, folder: Path, *, killing: bool = False, disturbing: bool = False) -> Outcome:
    """Let a fleet run, and check that all is well."""
    async with ENGINES[engine](folder) as running:
        outcome = await play(running.url, folder, plan(running, killing, disturbing))
    print(outcome)
    assert not outcome.violations, "\n".join(outcome.violations[:30])
    assert outcome.steps["committed"] >= 10
    assert outcome.kills >= killing
    for back in outcome.disturbances:
        assert resumed(outcome, back) < RESUMED
    assert len(outcome.disturbances) >= disturbing
    return outcome


def plan(engine: Engine, killing: bool, disturbing: bool) -> Plan:
    return Plan(
        SECONDS,
        kill_every=KILL_EVERY if killing else 0.0,
        disturb=engine.disturb if disturbing else None,
        disturb_every=DISTURB_EVERY,
    )


def resumed(outcome: Outcome, back: float) -> float:
    """Return how long after it was back the engine took the first step that was called after that."""
    steps = (answer for answer in outcome.run.answers if answer.code == "OK" and answer.tool != LOOK)
    return min((answer.got - back for answer in steps if answer.sent > back), default=math.inf)


@engines
@pytest.mark.timeout(60 + 4 * SECONDS)
async def test_replicas_are_killed(engine: str, tmp_path: Path) -> None:
    await run(engine, tmp_path, killing=True)


@pytest.mark.parametrize("engine", restarted)
@pytest.mark.timeout(60 + 4 * SECONDS)
async def test_the_engine_is_restarted(engine: str, tmp_path: Path) -> None:
    await run(engine, tmp_path, disturbing=True)


if LONG:

    @engines
    @pytest.mark.timeout(60 + 4 * SECONDS)
    async def test_nothing_happens(engine: str, tmp_path: Path) -> None:
        outcome = await run(engine, tmp_path)
        assert "UNSENT" not in outcome.codes

    @engines
    @pytest.mark.timeout(60 + 4 * SECONDS)
    async def test_replicas_are_killed_and_the_engine_is_restarted(engine: str, tmp_path: Path) -> None:
        await run(engine, tmp_path, killing=True, disturbing=True)


@pytest.mark.parametrize("sabotage", ["last_one_wins", "forgetful", "lagging"] if LONG else ["last_one_wins"])
async def test_a_store_that_breaks_its_promise_is_found_out(sabotage: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/orders.db"
    outcome = await play(url, tmp_path, Plan(3.0, orders=8, sabotage=sabotage))
    print(outcome)
    assert outcome.violations
