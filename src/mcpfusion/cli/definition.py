"""FILE[:OBJECT] as a machine and the tools bound to it, for the commands that look at them."""

from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from mcpfusion.cli import load

_CONFIGS = (".json", ".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Definition:
    """What a file defines.

    Attributes:
        bindings: The machine and its tools, or None when it is refused.
        refused: Why, one line.
    """

    name: str
    bindings: Any = None
    refused: str | None = None
    tools: dict[str, list[str]] = field(default_factory=dict[str, list[str]])


def definition(target: str) -> Definition:
    """Return what FILE[:OBJECT] defines: a config file's machine, or the gate of a Python file.

    Raises:
        click.ClickException: There is no such file, or no gate in it.
    """
    from mcpfusion.gate.binding import BindingError, Bindings
    from mcpfusion.machine import Machine, MachineConfigError, read_config

    name, wanted = load.split(target)
    if Path(name).suffix in _CONFIGS:
        load.source(name)
        try:
            return Definition(name, Bindings(Machine(read_config(Path(name)), **_any_names(read_config(Path(name))))))
        except MachineConfigError as error:
            return Definition(name, refused=str(error))
    try:
        module = load.load(name)
    except load.LoadError as error:
        if isinstance(_cause(error), MachineConfigError | BindingError):
            return Definition(name, refused=str(_cause(error)))
        raise
    try:
        return Definition(name, _bindings(module, wanted))
    except (BindingError, MachineConfigError) as error:
        return Definition(name, refused=str(error))


def _cause(error: BaseException) -> BaseException | None:
    return error.__cause__


def _bindings(module: ModuleType, wanted: str | None) -> Any:
    """Return the compiled gate of a module: of its server, or of its only gate together with its only Fusion."""
    from mcpfusion.fusion import Fusion
    from mcpfusion.gate.actions import bound_tools
    from mcpfusion.gate.gate import StateMachineGate

    def picked(value: Any) -> Any:
        if isinstance(value, StateMachineGate):
            return value.compile()
        return _served(value)

    values = {key: value for key, value in vars(module).items() if not key.startswith("_")}
    served = {id(found): found for value in values.values() if (found := _served(value)) is not None}
    if wanted is None and len(served) == 1:
        return next(iter(served.values()))
    fusions = [value for value in values.values() if isinstance(value, Fusion)]
    gates = [value for value in values.values() if isinstance(value, StateMachineGate)]
    if wanted is None and not served and len(fusions) == len(gates) == 1:
        return gates[0].compile(bound_tools(gates[0].machine, fusions[0].registry()))
    return load.find(module, wanted, picked, what="gate", usual=("server", "gate", "fsm"))


def _served(value: Any) -> Any:
    """Return the compiled gate of a server, or of what attaching gave."""
    bindings = getattr(getattr(value, "attachment", value), "bindings", None)
    return bindings if hasattr(bindings, "machine") else None


def _any_names(config: dict[str, Any]) -> dict[str, Any]:
    """Return implementations for whatever a config names, since a file alone has none; nothing of them is run."""
    names: set[str] = set()

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():  # pyright: ignore[reportUnknownVariableType]
                if key in ("guard", "type", "actions", "entry", "exit", "guards") or key == "not":
                    names.update(_texts(inner))
                if key == "after" and isinstance(inner, dict):
                    names.update(str(name) for name in inner)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
                if key == "delay":
                    names.update(_texts(inner))
                walk(inner)
        elif isinstance(value, list):
            for inner in value:  # pyright: ignore[reportUnknownVariableType]
                walk(inner)

    walk(config)
    guards = dict.fromkeys(names, _never)
    return {"guards": guards, "actions": dict.fromkeys(names, _nothing), "delays": dict.fromkeys(names, 0)}


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [text for inner in value for text in _texts(inner)]  # pyright: ignore[reportUnknownVariableType]
    return []


def _never(context: Any, event: Any, params: Any) -> bool:
    return False


def _nothing(context: Any, event: Any, params: Any) -> None:
    return None


def labels(bindings: Any) -> dict[str, list[str]]:
    """Return the tools of each state by its dotted path, for a picture."""
    found: dict[str, list[str]] = {}
    for tool in bindings.tools.values():
        for binding in tool.bindings:
            event = binding.event or ("…" if binding.transition else None)
            for path in binding.paths:
                found.setdefault(path, []).append(f"{tool.name} ({event})" if event else tool.name)
    return found


def machine_of(found: Definition) -> Any:
    """Return the machine of a definition.

    Raises:
        click.ClickException: It was refused, or is an engine without a config.
    """
    from mcpfusion.machine import Machine

    if found.refused is not None:
        raise click.ClickException(f"{found.name}: {found.refused}")
    if not isinstance(found.bindings.machine, Machine):
        raise click.ClickException(f"{found.name}: {found.bindings.machine!r} has no config to look at")
    return found.bindings.machine
