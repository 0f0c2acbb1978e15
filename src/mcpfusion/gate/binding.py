"""Which tool is bound to which states, compiled against the machine once."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mcpfusion.engines.engine import Engine
from mcpfusion.machine import MachineConfigError, Snapshot
from mcpfusion.stores.protocol import DoubtPolicy

CancelPolicy = Literal["finish", "release"]
Transition = str | Callable[[dict[str, Any], Any], str | None]
"""The event a successful call sends: its name, or a callable of (arguments, result) that returns it or None."""


Migrate = Mapping[str, Any] | Callable[[Mapping[str, Any]], Any]
"""Where workflows of an older machine stand now: a map from old states to new, or a callable that is given the old
snapshot as JSON data and returns a state value or a snapshot. What it does not know stays refused."""


class BindingError(ValueError):
    """A binding that cannot be honoured, refused at start-up. Names the tool, the value and the remedy."""


@dataclass(frozen=True, slots=True)
class Binding:
    """One bind: the patterns as written, the dotted paths they stand for, and the event."""

    states: tuple[str, ...]
    paths: frozenset[str]
    transition: Transition | None = None

    @property
    def event(self) -> str | None:
        """The event's name where it is known before the call."""
        return self.transition if isinstance(self.transition, str) else None


@dataclass(frozen=True, slots=True)
class Policies:
    """What applies to a tool's passage.

    Attributes:
        time_limit: Seconds a handler may take before the step is in doubt; None is the gate's default.
        on_doubt: `hold` or `retry`, see `Claim`.
        on_cancel: `finish` runs a claimed step to its end when the caller has gone; `release` cancels it, which
            is for async functions only: a function that runs in a thread has its effect all the same.
        keep_result: Seconds for which a repeat gets the first result itself; 0 keeps none.
        mints_handle: A successful call opens a new workflow and returns its handle.
        compact: The tool has a short description for the initial state.
    """

    time_limit: float | None = None
    on_doubt: DoubtPolicy = "hold"
    on_cancel: CancelPolicy = "finish"
    keep_result: float = 0.0
    mints_handle: bool = False
    compact: bool = False


@dataclass(frozen=True, slots=True)
class BoundTool:
    """A tool with its bindings; a minting tool may have none."""

    name: str
    bindings: tuple[Binding, ...]
    policies: Policies = Policies()

    def binding_in(self, snapshot: Snapshot) -> Binding | None:
        """Return the first binding that holds in the snapshot, or None when the tool is not admitted."""
        for binding in self.bindings:
            if not binding.paths.isdisjoint(snapshot.paths):
                return binding
        return None

    @property
    def where(self) -> str:
        """The states the tool works in, as written, for descriptions."""
        return ", ".join(dict.fromkeys(state for binding in self.bindings for state in binding.states))


def bind(machine: Engine, tool: str, states: str | Iterable[str], transition: Transition | None) -> Binding:
    """Compile one binding.

    Raises:
        BindingError: The machine has no such state or event, or the event leads nowhere from a named state.
    """
    patterns = (states,) if isinstance(states, str) else tuple(states)
    if not patterns:
        raise BindingError(f"tool {tool!r}: no state is named (give at least one, or '*' for every state)")
    paths: set[str] = set()
    for pattern in patterns:
        try:
            found = machine.expand(pattern)
        except MachineConfigError as error:
            raise BindingError(f"tool {tool!r}: {error}") from None
        if isinstance(transition, str):
            _check_event(machine, tool, pattern, found, transition)
        paths |= found
    return Binding(patterns, frozenset(paths), transition)


def _check_event(machine: Engine, tool: str, pattern: str, found: frozenset[str], event: str) -> None:
    accepting = machine.accepting(event)
    if not accepting:
        known = ", ".join(sorted(machine.events)) or "none"
        raise BindingError(f"tool {tool!r}: machine {machine.id!r} has no event {event!r} (it has: {known})")
    if not machine.flat:
        return  # whether the event is taken depends on the whole configuration; the call path asks the machine
    lost = [path for path in sorted(found) if path not in accepting and "" not in accepting]
    if lost and (pattern in found or len(lost) == len(found)):
        raise BindingError(
            f"tool {tool!r}: state {lost[0]!r} does not take the event {event!r} "
            f"(states that do: {', '.join(sorted(accepting))})"
        )


class Bindings:
    """All bound tools of one machine, and which of them a set of active paths shows."""

    def __init__(self, machine: Engine, tools: Iterable[BoundTool] = (), migrate: Migrate | None = None) -> None:
        self.machine = machine
        self.migrate = migrate
        self.tools: Mapping[str, BoundTool] = {tool.name: tool for tool in tools}
        self.initial = machine.initial()
        self.minting = frozenset(name for name, tool in self.tools.items() if tool.policies.mints_handle)
        self.compact = frozenset(name for name, tool in self.tools.items() if tool.policies.compact)
        self._visible: dict[frozenset[str], frozenset[str]] = {}

    def visible(self, snapshot: Snapshot) -> frozenset[str]:
        """Return the bound tools that the snapshot admits, minting tools without a binding included."""
        names = self._visible.get(snapshot.paths)
        if names is None:
            names = frozenset(
                name for name, tool in self.tools.items() if not tool.bindings or tool.binding_in(snapshot)
            )
            if len(self._visible) < 4096:  # a statechart has few configurations; an absurd one must not fill memory
                self._visible[snapshot.paths] = names
        return names

    @property
    def opening(self) -> frozenset[str]:
        """The tools that open a workflow: those that mint a handle, else those of the initial state."""
        return self.minting or self.visible(self.initial)

    def allowed(self, snapshot: Snapshot) -> list[str]:
        """Return the tools that may be called next on this workflow, in the order they were bound."""
        names = self.visible(snapshot)
        return [name for name in self.tools if name in names and name not in self.minting]
