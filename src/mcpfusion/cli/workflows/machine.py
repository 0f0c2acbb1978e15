"""The machine that an operator names: a config file, or Python code that makes a gate."""

from pathlib import Path
from typing import Any

from mcpfusion.cli import load
from mcpfusion.machine import Machine, MachineConfigError, read_config

_CONFIGS = (".json", ".yaml", ".yml")


def load_machine(target: str) -> Machine:
    """Return the machine that `target` names.

    Raises:
        click.ClickException: There is none, or its config is refused.
    """
    name, wanted = load.split(target)
    if wanted is None and name.lower().endswith(_CONFIGS):
        path = load.source(name)
        try:
            return Machine(read_config(path or Path(name)))
        except (MachineConfigError, OSError) as error:
            raise load.LoadError(f"{name}: {error}") from error
    return load.find(load.load(name), wanted, _machine_of, what="machine", usual=("gate", "machine", "server"))


def _machine_of(value: Any) -> Machine | None:
    machine = value if isinstance(value, Machine) else getattr(value, "machine", None)
    return machine if isinstance(machine, Machine) else None
