"""The SCXML fixtures of SCION that need no data model, converted to our configuration language."""

import json
from pathlib import Path

import pytest

from mcpfusion.machine import Machine, Snapshot

from . import scxml

DATA = Path(__file__).parent.parent / "data" / "scion"
FILES = sorted(DATA.glob("*/*.scxml"))

# SCXML tries the transitions of a state in document order; XState, and ours with it, tries an exact name before
# a wildcard. Here the wildcard is written first.
DIFFERENT = {"scxml-prefix-event-name-matching/star0"}


def test_the_fixtures_are_here() -> None:
    assert len(FILES) == 121


@pytest.mark.parametrize("path", [pytest.param(path, id=f"{path.parent.name}/{path.stem}") for path in FILES])
def test_fixture(path: Path) -> None:
    ends = _replay(path)
    if f"{path.parent.name}/{path.stem}" in DIFFERENT:
        assert ends != [set(step["nextConfiguration"]) for step in _script(path)["events"]]
    else:
        assert ends == [set(step["nextConfiguration"]) for step in _script(path)["events"]]


def _replay(path: Path) -> list[set[str]]:
    """Return the atomic states after each event; the start is asserted here."""
    config = scxml.convert(path)
    machine = Machine(config, guards=scxml.GUARDS)
    ids = dict(_atomic(config, ""))
    snapshot = machine.initial(now=0.0)
    assert _active(snapshot, ids) == set(_script(path)["initialConfiguration"])
    now = 0.0
    found: list[set[str]] = []
    for step in _script(path)["events"]:
        now = round(now + step.get("after", 0) / 1000, 6)
        snapshot = machine.transition(_settle(machine, snapshot, now), step["event"]["name"], now=now)
        # What was sent without a delay comes before the next event from outside.
        snapshot = _settle(machine, snapshot, now)
        found.append(_active(snapshot, ids))
    return found


def _settle(machine: Machine, snapshot: Snapshot, now: float) -> Snapshot:
    while (after := machine.elapse(snapshot, now)) is not snapshot:
        snapshot = machine.restore(json.loads(json.dumps(after.to_json())))
    return snapshot


def _script(path: Path) -> dict[str, list[dict[str, list[str]]]]:
    return json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))


def _atomic(config: dict[str, dict[str, dict[str, str]]], path: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for key, state in config.get("states", {}).items():
        escaped = key.replace(".", "\\.")
        below = f"{path}.{escaped}" if path else escaped
        found += _atomic(state, below) if "states" in state else [(below, str(state.get("id", key)))]
    return found


def _active(snapshot: Snapshot, ids: dict[str, str]) -> set[str]:
    return {ids[path] for path in snapshot.paths if path in ids}
