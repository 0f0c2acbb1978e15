"""Matching events against what a state says under `on`: exact names, `a.*` and `*`.

Source: XState 5, `matchesEventDescriptor` and `getCandidates`.
"""

from collections.abc import Mapping
from typing import TypeVar

from .errors import MachineError

_T = TypeVar("_T")


def matches(event: str, descriptor: str) -> bool:
    """True when `descriptor` stands for the event: `*` for all, `a.*` for `a`, `a.b`, `a.b.c`."""
    if descriptor in (event, "*"):
        return True
    return descriptor.endswith(".*") and (event == descriptor[:-2] or event.startswith(descriptor[:-1]))


def is_wildcard(descriptor: str) -> bool:
    """True for a descriptor that stands for more than one event."""
    return descriptor == "*" or descriptor.endswith(".*")


def check_event(event: str) -> None:
    """Refuse an event that has the name of a wildcard. Raises MachineError."""
    if is_wildcard(event):
        raise MachineError(f"an event cannot have the name of a wildcard: {event!r}")


def candidates(transitions: Mapping[str, tuple[_T, ...]], event: str) -> tuple[_T, ...]:
    """Return what a state has for an event in the order of choice: the exact name, then longer wildcards."""
    found = transitions.get(event, ())
    wild = [key for key in transitions if key != event and is_wildcard(key) and matches(event, key)]
    for key in sorted(wild, key=len, reverse=True):
        found += transitions[key]
    return found
