"""Replays vectors: what XState did with a machine, and whether ours does the same.

    python -m tests.machine.replay FILE...

A file holds one machine (`config`, `implementations`, `initial`, `steps`) or several under `machines`. Before
every step the snapshot goes through JSON. The last line is `N passed, N failed`, and the exit code is 1 when one
failed. `implementations` is a small declarative language; it is made into Python callables here.
"""

import json
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mcpfusion.machine import Machine, MachineConfigError, Snapshot

Data = Mapping[str, Any]

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Mismatch(Exception):
    """Ours differs from what the vector says."""


def vectors_in(path: Path) -> Iterator[Data]:
    """Yield the vectors of one file."""
    data = json.loads(path.read_text(encoding="utf-8"))
    yield from data.get("machines", [data])


def replay(vector: Data) -> int:
    """Replay one vector and return how many steps it had. Raises Mismatch at the first difference."""
    steps = [{"expected": vector["initial"]}, *vector["steps"]]
    if any(step["expected"]["status"] == "error" for step in steps):
        return _refused(vector, len(steps))
    run = _Run(vector)
    for number, step in enumerate(steps):
        try:
            run.take(step)
        except Mismatch as mismatch:
            raise Mismatch(f"step {number} ({_said(step)}): {mismatch}") from None
    return len(steps)


def _refused(vector: Data, steps: int) -> int:
    """Where XState stops at run time because an implementation is missing, ours is refused when it is built."""
    try:
        build(vector)
    except MachineConfigError as error:
        if "no implementation" in str(error):
            return steps
        raise Mismatch(f"refused for another reason: {error}") from None
    raise Mismatch("XState ends in an error, ours was built")


def build(vector: Data) -> Machine:
    """Return the machine of a vector, with its implementations as Python callables."""
    given = vector.get("implementations", {})
    return Machine(
        vector["config"],
        guards={name: _guard(spec) for name, spec in given.get("guards", {}).items()},
        actions={name: _action(spec) for name, spec in given.get("actions", {}).items()},
        delays={name: _delay(spec) for name, spec in given.get("delays", {}).items()},
    )


class _Run:
    """A machine under replay, with a clock in whole milliseconds."""

    def __init__(self, vector: Data) -> None:
        self.machine = build(vector)
        self.events = sorted({step["event"]["type"] for step in vector["steps"] if "event" in step})
        self.ids = dict(_ids(vector["config"]))
        self.clock = 0
        self.delays: dict[str, int] = {}
        self.snapshot: Snapshot | None = None

    def take(self, step: Data) -> None:
        if self.snapshot is None:
            self.snapshot = self.machine.initial(now=0.0)
            actions = self._settle(None, self.snapshot, 0)
        else:
            self.snapshot = self._through_json(self.snapshot)
            actions = self._advance(step["advance"]) if "advance" in step else self._send(step["event"])
        self._compare(self.snapshot, actions, step["expected"])

    def _through_json(self, snapshot: Snapshot) -> Snapshot:
        restored = self.machine.restore(json.loads(json.dumps(snapshot.to_json())))
        _same("the JSON round trip", restored, snapshot)
        return restored

    def _send(self, event: Data) -> list[str]:
        before = self.snapshot
        assert before is not None
        could = self.machine.can(before, event)
        self.snapshot = self.machine.transition(before, event, now=self.clock / 1000)
        if could and self.snapshot is before:
            raise Mismatch("can() says yes, and nothing was accepted")
        return [] if self.snapshot is before else self._settle(before, self.snapshot, self.clock)

    def _advance(self, milliseconds: int) -> list[str]:
        self.clock += milliseconds
        actions: list[str] = []
        while True:
            before = self.snapshot
            assert before is not None
            due = self.machine.due(before)
            self.snapshot = self.machine.elapse(before, self.clock / 1000)
            if self.snapshot is before:
                return actions
            assert due is not None
            actions += self._settle(before, self.snapshot, round(due * 1000))

    def _settle(self, before: Snapshot | None, snapshot: Snapshot, clock: int) -> list[str]:
        """Note with which delay each new timer was scheduled, and return the names of the actions run."""
        kept = () if before is None else before.timers
        self.delays = {
            timer.id: self.delays[timer.id]
            if any(timer is each for each in kept)
            else round(timer.due * 1000) - clock
            for timer in snapshot.timers
        }
        return [effect.type for effect in snapshot.effects]

    def _compare(self, snapshot: Snapshot, actions: list[str], expected: Data) -> None:
        _same("value", snapshot.value, expected["value"])
        _same("status", snapshot.status, expected["status"])
        _same("context", dict(snapshot.context), expected["context"])
        _same("tags", list(snapshot.tags), expected.get("tags", []))
        _same("actions", actions, expected["actions"])
        _same("output", snapshot.output, expected.get("output"))
        if "can" in expected:
            asked = sorted({*expected["can"], *self.events})
            can = [event for event in asked if self.machine.can(snapshot, event)]
            _same("can", can, sorted(expected["can"]))
        if "nextEvents" in expected:
            _same("nextEvents", sorted(self.machine.next_events(snapshot)), sorted(expected["nextEvents"]))
        if "meta" in expected:
            _same("meta", self.machine.meta(snapshot), expected["meta"])
        if "historyValue" in expected:
            remembered = {
                self.ids[path]: sorted(self.ids[each] for each in states) for path, states in snapshot.history.items()
            }
            _same("historyValue", remembered, {key: sorted(ids) for key, ids in expected["historyValue"].items()})
        if "scheduled" in expected:
            scheduled = [
                {"event": timer.event["type"], "delay": self.delays[timer.id], "id": timer.id}
                for timer in snapshot.timers
            ]
            _same("scheduled", scheduled, expected["scheduled"])


def _ids(config: Data) -> Iterator[tuple[str, str]]:
    machine_id = config.get("id", "(machine)")

    def walk(states: Data, prefix: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        for key, state in states.items():
            keys = (*prefix, key)
            yield ".".join(keys), state.get("id", ".".join((machine_id, *keys)))
            yield from walk(state.get("states", {}), keys)

    return walk(config.get("states", {}), ())


def _guard(spec: Any) -> Any:
    if isinstance(spec, str):
        return spec
    if "const" in spec:
        return lambda context, event, params: spec["const"]
    if "left" not in spec:
        return spec
    compare = _COMPARE[spec["op"]]
    ordering = spec["op"] not in ("==", "!=")

    def guard(context: Data, event: Data, params: Any) -> bool:
        left = _operand(spec["left"], context, event, params)
        right = _operand(spec["right"], context, event, params)
        return not (ordering and (left is None or right is None)) and compare(left, right)

    return guard


def _action(spec: Data) -> Any:
    if "assign" in spec:
        changes: Data = spec["assign"]
        return lambda context, event, params: {
            key: _operand(operand, context, event, params) for key, operand in changes.items()
        }
    if "raise" in spec:
        extra = {key: spec[key] for key in ("delay", "id") if key in spec}
        return {"type": "xstate.raise", "event": spec["raise"], **extra}
    if "cancel" in spec:
        return {"type": "xstate.cancel", "id": spec["cancel"]}
    return lambda context, event, params: None


def _delay(spec: Any) -> Any:
    if isinstance(spec, int | float):
        return spec
    return lambda context, event, params: _operand(spec, context, event, params)


def _operand(operand: Data, context: Data, event: Data, params: Any) -> Any:
    ((kind, value),) = operand.items()
    if kind == "value":
        return value
    if kind == "add":
        return sum(_operand(each, context, event, params) for each in value)
    source = {"context": context, "event": event, "param": params or {}}[kind]
    return source.get(value)


def _same(what: str, ours: Any, expected: Any) -> None:
    if ours != expected:
        raise Mismatch(f"{what}: ours {ours!r}, expected {expected!r}")


def _said(step: Data) -> str:
    if "event" in step:
        return json.dumps(step["event"])
    return f"advance {step['advance']}" if "advance" in step else "initial"


def main(arguments: Sequence[str]) -> int:
    """Replay the files named; return the exit code."""
    passed = failed = 0
    for name in arguments:
        for vector in vectors_in(Path(name)):
            try:
                replay(vector)
                passed += 1
            except Exception as error:
                failed += 1
                print(f"{name}: {vector.get('name', '?')}: {type(error).__name__}: {error}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
