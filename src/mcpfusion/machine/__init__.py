"""A pure interpreter of XState v5's configuration language: no clock, no I/O, no MCP."""

from .config import read_config
from .errors import MachineConfigError, MachineError, UnknownStateError
from .machine import Machine
from .snapshot import Effect, Event, Snapshot, StateValue, Timer

__all__ = [
    "Effect",
    "Event",
    "Machine",
    "MachineConfigError",
    "MachineError",
    "Snapshot",
    "StateValue",
    "Timer",
    "UnknownStateError",
    "read_config",
]
