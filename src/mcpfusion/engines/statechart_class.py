"""A `python-statemachine` class as an engine: a team's own `StateChart` gates as it is.

Each step runs in an instance of its own, put where the snapshot says, so that two workflows never share one. What an
instance keeps besides its states (attributes, a model of its own) does not last from one step to the next.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

from mcpfusion.machine import MachineConfigError, Snapshot, UnknownStateError
from mcpfusion.machine.patterns import expand
from mcpfusion.machine.snapshot import Configuration, state_text

try:
    from statemachine import StateChart
    from statemachine.orderedset import OrderedSet
    from statemachine.state import HistoryState, State
except ImportError as error:
    raise MachineConfigError(
        'a statechart class needs python-statemachine: pip install "mcpfusion[statemachine]"'
    ) from error


class _Model:
    """What an instance keeps its states in."""

    state: Any = None


def is_statechart_class(value: object) -> bool:
    """Return whether `value` is a class of python-statemachine."""
    return isinstance(value, type) and issubclass(value, StateChart)


class StatechartClass:
    """The engine of one class.

    Raises:
        MachineConfigError: The class is abstract, or has what cannot be restored from a snapshot: delayed events,
            invoked work, async callbacks, or a constructor that needs arguments. The message says which.
    """

    bare = True
    flat = False

    def __init__(self, chart: type[Any]) -> None:
        self._chart = chart
        self.id: str = chart.__name__
        self._states: dict[str, State] = {_path(state): state for state in _all(chart.states)}
        self.states: tuple[str, ...] = tuple(self._states)
        self._refuse_unrestorable()
        self.events: frozenset[str] = frozenset(str(event.id) for event in chart.events)
        self.fingerprint: str = self._fingerprint()
        self._values = {state.value: path for path, state in self._states.items()}
        self._initial = self._snapshot(self._instance(None))

    def __repr__(self) -> str:
        return f"<StatechartClass {self.id!r} {self.fingerprint}: {len(self.states)} states>"

    def initial(self, *, now: float = 0.0) -> Snapshot:
        """See `Engine.initial`."""
        return self._initial

    def transition(self, snapshot: Snapshot, event: str | Mapping[str, Any], *, now: float = 0.0) -> Snapshot:
        """See `Engine.transition`."""
        name, data = _event(event)
        if snapshot.final:
            return snapshot
        instance = self._instance(snapshot)
        if not self._enabled(instance, name, data):
            return snapshot
        instance.send(name, **data)
        return self._snapshot(instance)

    def can(self, snapshot: Snapshot, event: str | Mapping[str, Any]) -> bool:
        """See `Engine.can`."""
        name, data = _event(event)
        return not snapshot.final and self._enabled(self._instance(snapshot), name, data)

    def restore(self, data: Mapping[str, Any]) -> Snapshot:
        """See `Engine.restore`."""
        return self._standing(data.get("value"))

    def restore_state(self, value: str) -> Snapshot:
        """See `Engine.restore_state`."""
        if value.startswith("{"):
            try:
                return self._standing(json.loads(value))
            except ValueError:
                pass
        return self._standing(value)

    def expand(self, pattern: str) -> frozenset[str]:
        """See `Engine.expand`."""
        return expand(pattern, dict.fromkeys(self.states, ()), self.id)

    def accepting(self, event: str) -> frozenset[str]:
        """See `Engine.accepting`."""
        return frozenset(
            path for path, state in self._states.items() if any(each.match(event) for each in state.transitions)
        )

    def due(self, snapshot: Snapshot) -> float | None:
        """See `Engine.due`; there are no timers."""
        return None

    def elapse(self, snapshot: Snapshot, now: float) -> Snapshot:
        """See `Engine.elapse`; there are no timers."""
        return snapshot

    def _refuse_unrestorable(self) -> None:
        def refuse(what: str) -> MachineConfigError:
            return MachineConfigError(f"statechart class {self.id!r}: {what}, which a snapshot cannot bring back")

        if not self._states:
            raise MachineConfigError(f"statechart class {self.id!r} has no states")
        if any(getattr(event, "delay", 0) for event in self._chart.events):
            raise refuse("it has delayed events")
        if any(isinstance(state, HistoryState) or state.history for state in self._states.values()):
            raise refuse("it has history states")
        try:
            probe = self._chart(_Model())
        except TypeError as error:
            raise MachineConfigError(
                f"statechart class {self.id!r}: cannot be made without arguments: {error}"
            ) from error
        if probe._callbacks.has_async_callbacks:
            raise refuse("it has async callbacks")
        if any(state.invoke.key in probe._callbacks for state in self._states.values()):
            raise refuse("it invokes work of its own")

    def _fingerprint(self) -> str:
        transitions = [
            [path, str(each.event), [_path(target) for target in each.targets]]
            for path, state in self._states.items()
            for each in state.transitions
        ]
        kinds = [
            [path, bool(state.final), bool(state.initial), bool(state.parallel)]
            for path, state in self._states.items()
        ]
        text = json.dumps([self.id, kinds, transitions], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _instance(self, snapshot: Snapshot | None) -> Any:
        model = _Model()
        if snapshot is not None:
            # The order in which the chart knows them: outer states before inner ones.
            active = [state.value for path, state in self._states.items() if path in snapshot.paths]
            model.state = active[0] if len(active) == 1 else OrderedSet(active)
        return self._chart(model)

    def _enabled(self, instance: Any, name: str, data: Mapping[str, Any]) -> bool:
        return any(str(event.id) == name for event in instance.enabled_events(**data))

    def _snapshot(self, instance: Any) -> Snapshot:
        paths = frozenset(self._values[value] for value in instance.configuration_values)
        return self._of(paths)

    def _of(self, paths: frozenset[str]) -> Snapshot:
        value = self._value(cast(Iterable[State], self._chart.states), paths)
        final = any("." not in path and self._states[path].final for path in paths)
        return Snapshot(Configuration(self.fingerprint, 0, value, state_text(value), paths, (), final))

    def _value(self, states: Iterable[State], paths: frozenset[str]) -> Any:
        """Return the state value as XState writes it, for what is active among `states`."""
        active = [state for state in states if _path(state) in paths]
        if len(active) == 1 and not active[0].states:
            return active[0].id
        below: dict[str, Any] = {}
        for state in active:
            below[state.id] = self._value(state.states, paths) if state.states else {}
        return below

    def _standing(self, value: Any) -> Snapshot:
        paths = frozenset(self._paths_of(value, ""))
        snapshot = self._of(paths)
        if not paths or snapshot.value != value or not self._whole(paths):
            raise UnknownStateError(f"statechart class {self.id!r}: {state_text(value)[:200]!r} does not fit it")
        return snapshot

    def _paths_of(self, value: Any, prefix: str) -> Iterable[str]:
        inner = cast(dict[str, Any], value) if isinstance(value, dict) else {value: None}
        for name, below in inner.items():
            path = f"{prefix}{name}"
            if path not in self._states:
                raise UnknownStateError(f"statechart class {self.id!r} has no state {path[:200]!r}")
            yield path
            if below:
                yield from self._paths_of(below, f"{path}.")

    def _whole(self, paths: frozenset[str]) -> bool:
        """Return whether every compound state has one active child, and every parallel one all of its regions."""
        for path in paths:
            state = self._states[path]
            active = [child for child in state.states if _path(child) in paths]
            if state.states and len(active) != (len(state.states) if state.parallel else 1):
                return False
        outermost = [path for path in paths if "." not in path]
        return len(outermost) == 1


def _all(states: Iterable[State]) -> Iterable[State]:
    for state in states:
        yield state
        yield from _all(state.states)


def _path(state: State) -> str:
    parent = state.parent
    return state.id if parent is None else f"{_path(parent)}.{state.id}"


def _event(event: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    if isinstance(event, str):
        return event, {}
    data = dict(event)
    return str(data.pop("type")), data
