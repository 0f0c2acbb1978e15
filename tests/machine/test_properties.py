"""Properties of random statecharts: nested, parallel, with history, guards, delays and raised events."""

import json
import logging
import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcpfusion.machine import Machine, MachineError, Snapshot

EVENTS = ["A", "B", "C", "e.x", "e.y", "R"]

GUARDS: Any = {
    "odd": lambda context, event, params: context["n"] % 2 == 1,
    "small": lambda context, event, params: context["n"] < params["than"],
    "never": lambda context, event, params: context["no such key"],
}
ACTIONS: Any = {
    "add": lambda context, event, params: {"n": (context["n"] + 1) % 7},
    "tell": lambda context, event, params: None,
    "raise": {"type": "xstate.raise", "event": "R"},
    "later": {"type": "xstate.raise", "event": "A", "delay": 30},
    "stop": {"type": "xstate.cancel", "id": "xstate.raise.0"},
}
DELAYS: Any = {"slow": 50, "counted": lambda context, event, params: context["n"] * 10}


class Chart:
    """Writes one random configuration."""

    def __init__(self, source: random.Random) -> None:
        self.random = source
        self.ids: list[str] = []
        self.regions: list[list[str]] = []
        self.config: dict[str, Any] = {"id": "m", "context": {"n": 0}, "options": {"maxIterations": 60}}
        self.config |= self.tree(0, "")
        for node in self.nodes(self.config):
            self.behaviour(node)

    def nodes(self, node: Mapping[str, Any]) -> Iterator[Any]:
        if node.get("type") != "history":
            yield node
        for child in node.get("states", {}).values():
            yield from self.nodes(child)

    def tree(self, depth: int, name: str) -> dict[str, Any]:
        states: dict[str, Any] = {}
        for key in "abc"[: self.random.randint(2, 3)]:
            inner = name + key
            nested = depth < 2 and self.random.random() < 0.45
            states[key] = {"id": inner, **(self.tree(depth + 1, inner) if nested else {})}
            if not nested and key != "a" and self.random.random() < 0.25:
                states[key] = {"id": inner, "type": "final"}
            self.ids.append(inner)
        found: dict[str, Any] = {"states": states}
        if self.random.random() < 0.35:
            found["type"] = "parallel"
            self.regions.append([name + key for key in states])
        else:
            found["initial"] = self.random.choice(list(states))
        if self.random.random() < 0.4:
            states["h"] = {"id": name + "h", "type": "history", "history": self.random.choice(["deep", "shallow"])}
            if self.random.random() < 0.5:
                states["h"]["target"] = self.random.choice([key for key in states if key != "h"])
            self.ids.append(name + "h")
        return found

    def behaviour(self, node: dict[str, Any]) -> None:
        roll = self.random.random
        node["on"] = {event: self.candidates() for event in EVENTS if roll() < 0.3}
        for wildcard in ("*", "e.*"):
            if roll() < 0.08:
                node["on"][wildcard] = self.candidates()
        if roll() < 0.1:
            node["on"][self.random.choice(EVENTS)] = {}
        if roll() < 0.15:
            node["always"] = {**self.transition(), "guard": self.guard()}
        if roll() < 0.3:
            node["onDone"] = self.candidates()
        if roll() < 0.2:
            node["after"] = {self.random.choice(["10", "20", "slow", "counted"]): self.candidates()}
        for key in ("entry", "exit"):
            if roll() < 0.3:
                node[key] = self.actions()

    def candidates(self) -> Any:
        found = [self.transition() for _ in range(self.random.randint(1, 3))]
        return found if len(found) > 1 else found[0]

    def transition(self) -> dict[str, Any]:
        roll = self.random.random
        found: dict[str, Any] = {}
        if roll() < 0.85:
            found["target"] = f"#{self.random.choice(self.ids)}"
        if self.regions and roll() < 0.15:
            regions = self.random.choice(self.regions)
            found["target"] = [
                f"#{region}" for region in self.random.sample(regions, self.random.randint(1, len(regions)))
            ]
        if roll() < 0.5:
            found["guard"] = self.guard()
        if roll() < 0.4:
            found["actions"] = self.actions()
        if roll() < 0.2:
            found["reenter"] = True
        return found

    def guard(self) -> Any:
        state = self.random.choice([each for each in self.ids if not each.endswith("h")])
        small = {"type": "small", "params": {"than": self.random.randint(1, 5)}}
        both = {"and": ["odd", {"not": "never"}]}
        forms = ["odd", small, "never", {"not": "odd"}, both, {"or": ["odd", small]}, {"stateIn": f"#{state}"}]
        return self.random.choice(forms)

    def actions(self) -> list[str]:
        return self.random.choices(
            ["add", "tell", "raise", "later", "stop"], [6, 4, 1, 1, 1], k=self.random.randint(1, 2)
        )


charts = st.integers(0, 2**32).map(lambda seed: Chart(random.Random(seed)).config)
steps = st.lists(st.one_of(st.sampled_from([*EVENTS, "unknown"]), st.sampled_from([5, 10, 40, 200])), max_size=12)


def build(config: Mapping[str, Any]) -> Machine:
    return Machine(config, guards=GUARDS, actions=ACTIONS, delays=DELAYS)


def assert_legal(config: Mapping[str, Any], value: Any) -> list[str]:
    """Assert one active child per compound state and all regions of a parallel one; return the paths."""
    inner = {key: state for key, state in config["states"].items() if state.get("type") != "history"}
    if config.get("type") != "parallel" and isinstance(value, str):
        assert "states" not in inner[value]
        return [value]
    if config.get("type") == "parallel":
        assert value.keys() == inner.keys()
    else:
        assert len(value) == 1
        assert "states" in inner[next(iter(value))]
    paths: list[str] = []
    for key, below in value.items():
        paths.append(key)
        if "states" in inner[key]:
            paths += [f"{key}.{path}" for path in assert_legal(inner[key], below)]
        else:
            assert below == {}
    return paths


def run(machine: Machine, sent: list[Any]) -> Iterator[Snapshot]:
    """Yield every snapshot on the way. Ends where the machine comes to no rest: that is an error, not a hang."""
    now = 0.0
    try:
        snapshot = machine.initial(now=now)
        yield snapshot
        for step in sent:
            if isinstance(step, str):
                snapshot = machine.transition(snapshot, step, now=now)
                yield snapshot
                continue
            now += step / 1000
            for _ in range(50):
                after = machine.elapse(snapshot, now)
                if after is snapshot:
                    assert machine.due(snapshot) is None or (machine.due(snapshot) or 0) > now
                    break
                snapshot = after
                yield snapshot
    except MachineError as error:
        if "no rest after 60 microsteps" not in str(error):
            raise


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    """One of the guards always raises: its tracebacks would take longer than the machines."""
    logger = logging.getLogger("mcpfusion.machine")
    logger.disabled = True
    yield
    logger.disabled = False


slow = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@slow
@given(charts, steps)
def test_the_configuration_is_legal_after_every_step(config: Mapping[str, Any], sent: list[Any]) -> None:
    machine = build(config)
    for snapshot in run(machine, sent):
        assert snapshot.paths == set(assert_legal(config, snapshot.value))
        assert snapshot.paths <= set(machine.states)


@slow
@given(charts, steps)
def test_a_run_is_deterministic_and_survives_json(config: Mapping[str, Any], sent: list[Any]) -> None:
    machine, twin = build(config), build(json.loads(json.dumps(config)))
    assert machine.fingerprint == twin.fingerprint
    for one, other in zip(run(machine, sent), run(twin, sent), strict=True):
        assert one == other
        assert one.effects == other.effects
        restored = twin.restore(json.loads(json.dumps(one.to_json())))
        assert restored == one
        assert (restored.value, restored.status, restored.tags) == (one.value, one.status, one.tags)


@slow
@given(charts, steps)
def test_can_agrees_with_transition(config: Mapping[str, Any], sent: list[Any]) -> None:
    machine = build(config)
    for snapshot in run(machine, sent):
        for event in [*EVENTS, "unknown"]:
            try:
                after = machine.transition(snapshot, event)
            except MachineError:
                continue
            if machine.can(snapshot, event):
                assert after is not snapshot
                assert not snapshot.final
            else:
                # An eventless transition that changes nothing is still there after every event.
                assert after is snapshot or (after.value, after.context) == (snapshot.value, snapshot.context)
            if machine.can(snapshot, event):
                places = machine.accepting(event)
                assert "" in places or places & snapshot.paths


@slow
@given(charts, steps)
def test_a_step_depends_on_nothing_but_the_snapshot(config: Mapping[str, Any], sent: list[Any]) -> None:
    # What is worked out once and kept must not change what a fresh machine answers.
    machine = build(config)
    fresh = build(config)
    for snapshot in run(machine, sent):
        for event in EVENTS[:3]:
            try:
                kept = machine.transition(snapshot, event, now=3.0)
            except MachineError:
                continue
            again = fresh.transition(fresh.restore(json.loads(json.dumps(snapshot.to_json()))), event, now=3.0)
            assert again == kept
            if machine.can(snapshot, event):
                assert again.effects == kept.effects
