"""From what a user gives to the engine that it means."""

from collections.abc import Mapping
from os import PathLike
from typing import Any

from mcpfusion.engines.engine import Engine
from mcpfusion.machine import Machine, MachineConfigError, read_config

Definition = Mapping[str, Any] | str | PathLike[str] | Engine | type[Any]
"""An XState v5 config (a mapping, JSON text, or a path), a `Machine`, an `Engine`, or a python-statemachine class."""

_ENGINE = ("initial", "transition", "can", "restore", "restore_state", "expand", "accepting", "due", "elapse")


def engine_of(
    definition: Definition,
    *,
    guards: Mapping[str, Any] | None = None,
    actions: Mapping[str, Any] | None = None,
    delays: Mapping[str, Any] | None = None,
) -> Engine:
    """Return the engine of a definition.

    Raises:
        MachineConfigError: It is refused; the message gives the path of the fault. Or a statechart class that cannot
            be restored from a snapshot, or for which python-statemachine is not installed.
    """
    if isinstance(definition, str | PathLike | Mapping):
        return Machine(read_config(definition), guards=guards, actions=actions, delays=delays)
    if guards or actions or delays:
        raise MachineConfigError("guards, actions and delays belong to a config; an engine has its own")
    if isinstance(definition, type):
        from mcpfusion.engines.statechart_class import StatechartClass, is_statechart_class

        if not is_statechart_class(definition):
            raise MachineConfigError(f"class {definition.__name__!r} is no StateChart of python-statemachine")
        return StatechartClass(definition)
    missing = [name for name in _ENGINE if not callable(getattr(definition, name, None))]
    if missing:
        raise MachineConfigError(f"{type(definition).__name__!r} is no engine: it has no {', '.join(missing)}")
    return definition
