"""From a configuration to definitions: each form that XState v5 allows in one form, or a fault with its path.

Source: https://stately.ai/docs/machines and the types of XState 5. Nothing is resolved here: targets, guards
and actions are still names.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from .errors import at, fault, near_miss
from .jsondata import items_of, json_of, object_of, type_name

MISSING: Final = object()

_IGNORED = {"version", "schemas", "types", "tsTypes", "$schema"}
_STATE_KEYS = {
    "id", "type", "initial", "states", "on", "always", "onDone", "after", "entry", "exit", "tags", "meta",
    "description", "output", "history", "target",
}  # fmt: skip
_ROOT_KEYS = _STATE_KEYS | _IGNORED | {"context", "options"}
_TRANSITION_KEYS = {"target", "guard", "actions", "reenter", "description", "meta"}
_KINDS = ("atomic", "compound", "parallel", "history", "final")
_REFUSED = {
    "invoke": "invoked actors are not supported: do the work in a tool and send its outcome as an event",
    "route": "routes are not supported: use a transition at the root",
    "cond": "XState v5 says 'guard'",
    "internal": "XState v5 says 'reenter' (its opposite)",
    "in": "XState v5 says 'guard': {\"stateIn\": ...}",
    "data": "XState v5 says 'output'",
    "onEntry": "XState v5 says 'entry'",
    "onExit": "XState v5 says 'exit'",
    "activities": "XState v5 has no activities",
    "parallel": "XState v5 says 'type': 'parallel'",
}


@dataclass(frozen=True, slots=True)
class ActionDef:
    """An action as it is written: its name or built-in type, and the rest of the object."""

    where: str
    type: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TransitionDef:
    """One candidate. `targets` is None when the machine stays where it is."""

    where: str
    target_where: str
    targets: tuple[str, ...] | None = None
    guard: Any = None
    actions: tuple[ActionDef, ...] = ()
    reenter: bool = False
    description: str | None = None


@dataclass(frozen=True, slots=True)
class DelayDef:
    """The candidates of one `after` key, which is milliseconds or the name of a delay."""

    where: str
    delay: float | str
    candidates: tuple[TransitionDef, ...]


@dataclass(frozen=True, slots=True)
class StateDef:
    """One state as it is written, in the one form."""

    where: str
    key: str
    id: str | None
    kind: str
    initial: str | None
    initial_actions: tuple[ActionDef, ...]
    states: Mapping[str, "StateDef"]
    on: Mapping[str, tuple[TransitionDef, ...]]
    always: tuple[TransitionDef, ...]
    on_done: tuple[TransitionDef, ...]
    after: tuple[DelayDef, ...]
    entry: tuple[ActionDef, ...]
    exit: tuple[ActionDef, ...]
    tags: tuple[str, ...]
    meta: Any
    description: str | None
    output: Any
    history: str | None
    default: tuple[str, ...] | None


def parse_machine(config: Mapping[str, Any]) -> StateDef:
    """Return the definition of the root state. Raises MachineConfigError with the path of the first fault."""
    return _state(config, "", "", root=True)


def _known(config: Mapping[str, Any], keys: set[str], where: str) -> None:
    for key in config:
        if key == "invoke" and not config[key]:
            continue
        if key in _REFUSED:
            raise fault(at(where, key), _REFUSED[key])
        if key not in keys and not key.startswith(("x-", "$")):
            raise fault(where, f"unknown key {key!r}{near_miss(key, keys)}")


def _string(config: Mapping[str, Any], key: str, where: str) -> str | None:
    value = config.get(key)
    if value is not None and not isinstance(value, str):
        raise fault(at(where, key), f"must be a string, not {type_name(value)}")
    return value


def _strings(value: Any, where: str) -> tuple[str, ...]:
    for item in items_of(value):
        if not isinstance(item, str):
            raise fault(where, f"must be a string or a list of strings, not {type_name(item)}")
    return tuple(items_of(value))


def _state(value: Any, key: str, where: str, *, root: bool = False) -> StateDef:
    config = object_of(value, where, "a state")
    _known(config, _ROOT_KEYS if root else _STATE_KEYS, where)
    inner = object_of(config.get("states"), at(where, "states"), "'states'")
    states = {name: _state(state, name, at(at(where, "states"), name)) for name, state in inner.items()}
    kind = _kind(config, states, where, root)
    initial, initial_actions = _initial(config, kind, states, where)
    return StateDef(
        where=where,
        key=key,
        id=_id(config, where),
        kind=kind,
        initial=initial,
        initial_actions=initial_actions,
        states=states,
        on=_on(config, where),
        always=_candidates(config.get("always"), at(where, "always")),
        on_done=_candidates(config.get("onDone"), at(where, "onDone")),
        after=_after(config, where),
        entry=_actions(config.get("entry"), at(where, "entry")),
        exit=_actions(config.get("exit"), at(where, "exit")),
        tags=_strings(config.get("tags"), at(where, "tags")),
        meta=json_of(config.get("meta"), at(where, "meta")),
        description=_string(config, "description", where),
        output=json_of(config["output"], at(where, "output")) if "output" in config else MISSING,
        history=_history(config, kind, where),
        default=_targets(config.get("target"), at(where, "target")) if kind == "history" else None,
    )


def _id(config: Mapping[str, Any], where: str) -> str | None:
    found = _string(config, "id", where)
    if found == "":
        raise fault(at(where, "id"), "must not be empty")
    return found


def _kind(config: Mapping[str, Any], states: Mapping[str, StateDef], where: str, root: bool) -> str:
    kind = config.get("type")
    if kind is None:
        kind = "compound" if states else "history" if config.get("history") else "atomic"
    if not isinstance(kind, str) or kind not in _KINDS:
        problem = f"must be one of {', '.join(_KINDS)}, not {kind!r}"
        raise fault(at(where, "type"), problem + (near_miss(kind, _KINDS) if isinstance(kind, str) else ""))
    if root and kind in ("history", "final"):
        raise fault(at(where, "type"), f"a machine cannot be a {kind} state")
    if states and kind not in ("compound", "parallel"):
        raise fault(where, f"a state of type '{kind}' has no states of its own")
    if not states and kind in ("compound", "parallel"):
        raise fault(where, f"a state of type '{kind}' needs states")
    if kind == "history":
        for key in ("on", "always", "after", "entry", "exit", "onDone", "tags", "output"):
            if config.get(key):
                raise fault(at(where, key), "a history state is never active: it only has a target")
    elif config.get("target") is not None:
        raise fault(at(where, "target"), "only a history state has a target; transitions stand under 'on'")
    return kind


def _initial(
    config: Mapping[str, Any], kind: str, states: Mapping[str, StateDef], where: str
) -> tuple[str | None, tuple[ActionDef, ...]]:
    value, here = config.get("initial"), at(where, "initial")
    if value is None:
        if kind == "compound":
            raise fault(where, f"needs an 'initial' state, for example {next(iter(states))!r}")
        return None, ()
    actions: tuple[ActionDef, ...] = ()
    if isinstance(value, Mapping):
        entry = object_of(cast("Any", value), here, "'initial'")
        _known(entry, {"target", "actions", "description", "meta"}, here)
        actions = _actions(entry.get("actions"), at(here, "actions"))
        value, here = entry.get("target"), at(here, "target")
    if not isinstance(value, str):
        raise fault(here, f"must be the key of a state, not {type_name(value)}")
    if value not in states:
        raise fault(here, f"no state {value!r}{near_miss(value, states)}")
    return value, actions


def _history(config: Mapping[str, Any], kind: str, where: str) -> str | None:
    value = config.get("history")
    if kind != "history":
        if value:
            raise fault(at(where, "history"), "only a state of type 'history' has it")
        return None
    if value not in (None, True, "shallow", "deep"):
        raise fault(at(where, "history"), f"must be 'shallow' or 'deep', not {value!r}")
    return "deep" if value == "deep" else "shallow"


def _on(config: Mapping[str, Any], where: str) -> dict[str, tuple[TransitionDef, ...]]:
    here = at(where, "on")
    found: dict[str, tuple[TransitionDef, ...]] = {}
    for descriptor, value in object_of(config.get("on"), here, "'on'").items():
        if descriptor == "":
            raise fault(here, "an event needs a name: for transitions without an event there is 'always'")
        if "*" in descriptor.split(".")[:-1]:
            raise fault(at(here, descriptor), "a wildcard may only be the last part of an event's name")
        if value is None:
            found[descriptor] = (TransitionDef(at(here, descriptor), at(here, descriptor)),)
        else:
            found[descriptor] = _candidates(value, at(here, descriptor))
    return found


def _after(config: Mapping[str, Any], where: str) -> tuple[DelayDef, ...]:
    here = at(where, "after")
    value = config.get("after")
    if isinstance(value, Mapping):
        keys = cast("Mapping[Any, Any]", value)
        # A YAML or Python mapping may well have numbers for keys here.
        value = {str(key) if isinstance(key, int | float) else key: keys[key] for key in keys}
    found: list[DelayDef] = []
    for key, transitions in object_of(value, here, "'after'").items():
        delay = delay_of(key, at(here, key))
        found.append(DelayDef(at(here, key), delay, _candidates(transitions, at(here, key))))
    # JavaScript lists the integer keys of an object first and in ascending order.
    numbers = sorted((d for d in found if isinstance(d.delay, int)), key=lambda d: cast("int", d.delay))
    return (*numbers, *(d for d in found if not isinstance(d.delay, int)))


def delay_of(value: Any, where: str) -> float | str:
    """Return milliseconds, or the name of a delay. Text that is a number counts as that number."""
    if isinstance(value, str):
        try:
            number = float(value) if value.strip() else math.nan
        except ValueError:
            return value
        value = int(number) if number.is_integer() else number
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise fault(where, "a delay is a number of milliseconds, not negative, or the name of a delay")
    return value


def _candidates(value: Any, where: str) -> tuple[TransitionDef, ...]:
    if not isinstance(value, list | tuple):
        return () if value is None else (_transition(value, where),)
    members = cast("Iterable[Any]", value)
    return tuple(_transition(item, f"{where}[{index}]") for index, item in enumerate(members))


def _transition(value: Any, where: str) -> TransitionDef:
    if value is None:
        return TransitionDef(where, where)
    if isinstance(value, str):
        return TransitionDef(where, where, targets=(value,))
    if not isinstance(value, Mapping):
        raise fault(where, f"a transition is a target, an object or a list of objects, not {type_name(value)}")
    config = object_of(cast("Any", value), where, "a transition")
    _known(config, _TRANSITION_KEYS, where)
    reenter = config.get("reenter")
    if reenter is not None and not isinstance(reenter, bool):
        raise fault(at(where, "reenter"), f"must be true or false, not {type_name(reenter)}")
    return TransitionDef(
        where=where,
        target_where=at(where, "target"),
        targets=_targets(config.get("target"), at(where, "target")),
        guard=config.get("guard"),
        actions=_actions(config.get("actions"), at(where, "actions")),
        reenter=bool(reenter),
        description=_string(config, "description", where),
    )


def _targets(value: Any, where: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    targets = _strings(value, where)
    if not targets:
        raise fault(where, "an empty list of targets: leave 'target' out to stay where the machine is")
    return targets


def _actions(value: Any, where: str) -> tuple[ActionDef, ...]:
    listed = isinstance(value, list | tuple)
    items = enumerate(items_of(value))
    return tuple(action_of(item, f"{where}[{index}]" if listed else where) for index, item in items)


def action_of(value: Any, where: str) -> ActionDef:
    """Return the definition of one action: a name, or an object with its name under `type`."""
    if isinstance(value, str):
        return ActionDef(where, value, {})
    if isinstance(value, Mapping):
        fields = object_of(cast("Any", value), where, "an action")
        kind = fields.get("type")
        if not isinstance(kind, str):
            raise fault(where, "an action needs its name under 'type'")
        return ActionDef(where, kind, fields)
    raise fault(where, f"an action is a name or an object with a 'type', not {type_name(value)}")
