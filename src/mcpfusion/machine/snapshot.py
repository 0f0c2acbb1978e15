"""Where one workflow stands, as an immutable value."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

StateValue: TypeAlias = "str | dict[str, Any]"
"""XState's state value: a state's key, or a mapping from keys to the value within."""

Event: TypeAlias = Mapping[str, Any]
"""An event as an object: its name under `type`, and whatever else it carries."""

Status: TypeAlias = Literal["active", "done"]


@dataclass(frozen=True, slots=True)
class Timer:
    """An event that the machine will send itself.

    Attributes:
        id: Its name, by which `cancel` finds it.
        event: What will be sent.
        due: When, in seconds since the epoch.
    """

    id: str
    event: Event
    due: float

    def to_json(self) -> dict[str, Any]:
        """Return the timer as JSON data."""
        return {"id": self.id, "event": dict(self.event), "due": self.due}


@dataclass(frozen=True, slots=True)
class Effect:
    """An action that a step asks of the outside. The machine itself does nothing but name it.

    Attributes:
        type: The action's name.
        params: Its parameters as the configuration gives them, or None.
        event: The event of the step in which it ran.
    """

    type: str
    params: Any = None
    event: Event = field(default_factory=dict[str, Any])


def state_text(value: StateValue) -> str:
    """Return the canonical text of a state value: the key itself, or compact JSON with sorted keys."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


@dataclass(frozen=True, slots=True)
class Configuration:
    """A set of active states of one machine, shared by all the snapshots that stand there.

    Attributes:
        machine: The fingerprint of the machine.
        mask: One bit for each active state, by its index in document order.
        value: The state value. Shared: not to be changed.
        state: The value's canonical text.
        paths: The dotted path of every active state, ancestors included.
        tags: The tags of the active states, sorted.
        final: True when the machine is done there.
        events: The descriptors that the active states name; none once the machine is done.
    """

    machine: str
    mask: int
    value: StateValue
    state: str
    paths: frozenset[str]
    tags: tuple[str, ...]
    final: bool
    events: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Snapshot:
    """Where one workflow stands. Made by a machine only; JSON both ways (`to_json`, `Machine.restore`).

    Attributes:
        configuration: The active states, and what follows from them alone.
        context: The extended state. Not to be changed.
        output: What the machine gave when it was done, else None.
        history: For the path of each history state what it remembers: dotted paths.
        timers: What the machine will send itself, in the order in which it was scheduled.
        effects: What the step that led here asks of the outside. Neither compared nor kept.
    """

    configuration: Configuration
    context: Mapping[str, Any] = field(default_factory=dict[str, Any])
    output: Any = None
    history: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    timers: tuple[Timer, ...] = ()
    effects: tuple[Effect, ...] = field(default=(), compare=False)

    def __hash__(self) -> int:
        return hash((self.machine, self.state))

    def __repr__(self) -> str:
        return f"<Snapshot {self.status} in {self.state!r} of {self.machine}>"

    @property
    def machine(self) -> str:
        """The fingerprint of the machine that it belongs to."""
        return self.configuration.machine

    @property
    def value(self) -> StateValue:
        """The state value, as XState writes it. Shared: not to be changed."""
        return self.configuration.value

    @property
    def status(self) -> Status:
        """`done` once the machine has reached its end."""
        return "done" if self.configuration.final else "active"

    @property
    def final(self) -> bool:
        """True when the machine is done."""
        return self.configuration.final

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of the active states, sorted."""
        return self.configuration.tags

    @property
    def paths(self) -> frozenset[str]:
        """Every active dotted path, ancestors included: `{"review", "review.legal"}`."""
        return self.configuration.paths

    @property
    def state(self) -> str:
        """The canonical text of `value`: the key itself, or compact JSON with sorted keys."""
        return self.configuration.state

    def to_json(self) -> dict[str, Any]:
        """Return the snapshot as JSON data. What is empty is left out; effects are not part of it."""
        data: dict[str, Any] = {"machine": self.machine, "value": self.value, "status": self.status}
        if self.context:
            data["context"] = dict(self.context)
        if self.output is not None:
            data["output"] = self.output
        if self.history:
            data["history"] = {path: list(states) for path, states in self.history.items()}
        if self.timers:
            data["timers"] = [timer.to_json() for timer in self.timers]
        return data
