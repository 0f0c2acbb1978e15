"""Actions: from a name, or one of XState's own in JSON, to one function over the step that is being taken.

The JSON forms:
- `{"type": "xstate.raise", "event": NAME | EVENT, "delay": MILLISECONDS | NAME, "id": ID}`
- `{"type": "xstate.cancel", "id": ID}`
- `{"type": "xstate.assign", "assignment": {KEY: JSON, ...}}`
- `{"type": "xstate.emit", "event": NAME | EVENT}` and `{"type": "xstate.log", "value": JSON, "label": TEXT}`
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias, cast

from .descriptors import is_wildcard
from .errors import MachineError, at, fault, near_miss
from .guards import check_callable
from .jsondata import items_of, json_of, type_name
from .parse import ActionDef, action_of, delay_of
from .snapshot import Effect, Event, Timer

Action: TypeAlias = "Callable[[Step], None]"
"""What an action becomes: it changes the step that is being taken, and nothing else."""

Delay: TypeAlias = "Callable[[Step], float]"
"""What a delay becomes: milliseconds, from the step that schedules."""

_BUILT_IN: dict[str, tuple[str, ...]] = {
    "xstate.raise": ("event", "delay", "id"),
    "xstate.cancel": ("id",),
    "xstate.assign": ("assignment",),
    "xstate.emit": ("event",),
    "xstate.log": ("value", "label"),
}


class Step:
    """A transition under way: what its actions read and change until it becomes a snapshot.

    Attributes:
        changed: True once an action has assigned, because eventless transitions are then looked for again.
    """

    __slots__ = ("changed", "context", "effects", "event", "now", "queue", "timers")

    def __init__(self, context: Mapping[str, Any], timers: tuple[Timer, ...], event: Event, now: float) -> None:
        self.context = context
        self.timers = timers
        self.event = event
        self.now = now
        self.queue: deque[Event] = deque()
        self.effects: list[Effect] = []
        self.changed = False

    def assign(self, changes: Mapping[str, Any]) -> None:
        """Change keys of the context."""
        self.context = {**self.context, **changes}
        self.changed = True

    def schedule(self, timer_id: str | None, event: Event, milliseconds: float) -> None:
        """Add a timer. One with the same id is replaced; without an id it gets one of its own."""
        if timer_id is None:
            taken = {timer.id for timer in self.timers}
            timer_id = next(name for n in range(len(taken) + 1) if (name := f"xstate.raise.{n}") not in taken)
        # Microseconds: sums of decimal fractions would otherwise miss the moment by the last bit of a float.
        due = round(self.now + milliseconds / 1000, 6)
        self.cancel(timer_id)
        self.timers = (*self.timers, Timer(timer_id, event, due))

    def cancel(self, timer_id: str) -> None:
        """Take a timer away, if there is one of that id."""
        self.timers = tuple(timer for timer in self.timers if timer.id != timer_id)


class ActionCompiler:
    """Compiles actions against the implementations given: a callable, or actions in their JSON form."""

    def __init__(self, implementations: Mapping[str, Any], delays: Mapping[str, Any]) -> None:
        self._implementations = implementations
        self._delays = delays

    def compile(self, definitions: Sequence[ActionDef], within: Sequence[str] = ()) -> tuple[Action, ...]:
        """Return the functions for a list of actions. `within` names the actions whose definitions led here."""
        found: list[Action] = []
        for definition in definitions:
            if definition.type in self._implementations:
                found.extend(self._named(definition, within))
            elif definition.type in _BUILT_IN:
                found.append(self._built_in(definition))
            else:
                raise self._unknown(definition)
        return tuple(found)

    def delay(self, delay: float | str, where: str) -> Delay:
        """Return the function for a delay: a number of milliseconds, or the name of one."""
        if isinstance(delay, int | float):
            return lambda step: delay
        implementation = self._delays.get(delay)
        if implementation is None:
            hint = near_miss(delay, self._delays)
            raise fault(where, f"no implementation of the delay {delay!r} is given{hint}")
        if isinstance(implementation, int | float):
            return self.delay(cast("float", delay_of(implementation, at("delays", delay))), where)
        return _called_delay(delay, check_callable(implementation, at("delays", delay)))

    def _named(self, definition: ActionDef, within: Sequence[str]) -> tuple[Action, ...]:
        name, where = definition.type, definition.where
        for key in definition.fields:
            if key not in ("type", "params"):
                raise fault(where, f"unknown key {key!r}{near_miss(key, ('type', 'params'))}")
        if name in within:
            raise fault(where, f"the action {name!r} is defined by itself")
        implementation = self._implementations[name]
        here = at("actions", name)
        if isinstance(implementation, str | Mapping | list | tuple):
            inner = [action_of(each, here) for each in items_of(cast("Any", implementation))]
            return self.compile(inner, (*within, name))
        params = json_of(definition.fields.get("params"), at(where, "params"))
        return (_called(name, check_callable(implementation, here), params),)

    def _built_in(self, definition: ActionDef) -> Action:
        kind, fields, where = definition.type, definition.fields, definition.where
        for key in fields:
            if key != "type" and key not in _BUILT_IN[kind]:
                raise fault(where, f"unknown key {key!r}{near_miss(key, _BUILT_IN[kind])}")
        if kind == "xstate.assign":
            return _assign(fields.get("assignment"), at(where, "assignment"))
        if kind == "xstate.log":
            entry = {key: json_of(fields[key], at(where, key)) for key in ("label", "value") if key in fields}
            return lambda step: step.effects.append(Effect(kind, entry, step.event))
        if kind == "xstate.cancel":
            return cancel_timer(_id(fields, where, required=True))
        event = _event(fields.get("event"), at(where, "event"))
        if kind == "xstate.emit":
            return lambda step: step.effects.append(Effect(kind, {"event": event}, step.event))
        if fields.get("delay") is None:
            return lambda step: step.queue.append(event)
        delay = self.delay(delay_of(fields["delay"], at(where, "delay")), at(where, "delay"))
        return start_timer(_id(fields, where, required=False), event, delay)

    def _unknown(self, definition: ActionDef) -> MachineError:
        name = definition.type
        if name.startswith("xstate."):
            known = ", ".join(_BUILT_IN)
            return fault(definition.where, f"the action {name!r} is not supported (of XState's own: {known})")
        hint = near_miss(name, self._implementations)
        return fault(definition.where, f"no implementation of the action {name!r} is given{hint}")


def start_timer(timer_id: str | None, event: Event, delay: Delay) -> Action:
    """Return the action that schedules `event`."""
    return lambda step: step.schedule(timer_id, event, delay(step))


def cancel_timer(timer_id: str | None) -> Action:
    """Return the action that cancels the timer of that id."""
    return lambda step: step.cancel(timer_id or "")


def _called(name: str, function: Callable[..., Any], params: Any) -> Action:
    def action(step: Step) -> None:
        try:
            changes = function(MappingProxyType(step.context), step.event, params)
            if changes is None:
                step.effects.append(Effect(name, params, step.event))
                return
            if not isinstance(changes, Mapping):
                raise TypeError(f"it must return a dict of changed keys or None, not {type_name(changes)}")
            step.assign(json_of(changes, "context", MachineError))
        except Exception as error:
            raise MachineError(f"the action {name!r} failed: {error}") from error

    return action


def _called_delay(name: str, function: Callable[..., Any]) -> Delay:
    def delay(step: Step) -> float:
        try:
            milliseconds = function(MappingProxyType(step.context), step.event, None)
            if isinstance(milliseconds, str):
                raise TypeError("it must return a number of milliseconds")
            return float(delay_of(milliseconds, at("delays", name)))
        except Exception as error:
            raise MachineError(f"the delay {name!r} failed: {error}") from error

    return delay


def _assign(assignment: Any, where: str) -> Action:
    if not isinstance(assignment, Mapping):
        raise fault(where, "must be an object of context keys and their new values")
    changes = json_of(assignment, where)
    return lambda step: step.assign(changes)


def _event(value: Any, where: str) -> Event:
    event = {"type": value} if isinstance(value, str) else value
    if not isinstance(event, Mapping) or not isinstance(cast("Event", event).get("type"), str):
        raise fault(where, "must be the name of an event, or an object with its name under 'type'")
    if is_wildcard(cast("Event", event)["type"]):
        raise fault(where, "an event cannot have the name of a wildcard")
    return json_of(event, where)


def _id(fields: Mapping[str, Any], where: str, *, required: bool) -> str | None:
    value = fields.get("id")
    if value is None and not required:
        return None
    if not isinstance(value, str) or not value:
        raise fault(at(where, "id"), "must be the id of a delayed event")
    return value
