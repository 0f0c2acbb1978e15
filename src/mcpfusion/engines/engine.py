"""The seam: what the gate asks of whatever decides how a workflow moves."""

from collections.abc import Mapping
from typing import Any, Protocol

from mcpfusion.machine import Snapshot


class Engine(Protocol):
    """Decides how workflows move. `mcpfusion.machine.Machine` is the built-in one.

    Every method is a pure function of its arguments: it does not wait, store or send, and gives the same answer
    each time. Snapshots are values; the engine that made one must be able to make an equal one of its JSON data.

    Attributes:
        id: The machine's name, for messages.
        fingerprint: Changes with every change that decides where a snapshot fits.
        flat: Events carry nothing but their name.
        bare: A snapshot is its state value alone, so that a store may keep no more than that.
        states: Dotted paths of all states.
        events: Names of all events.
    """

    @property
    def id(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def flat(self) -> bool: ...
    @property
    def bare(self) -> bool: ...
    @property
    def states(self) -> tuple[str, ...]: ...
    @property
    def events(self) -> frozenset[str]: ...

    def initial(self, *, now: float = 0.0) -> Snapshot:
        """Return where a new workflow stands; `now` is in seconds since the epoch."""
        ...

    def transition(self, snapshot: Snapshot, event: str | Mapping[str, Any], *, now: float = 0.0) -> Snapshot:
        """Return where the workflow stands after the event: the same object when nothing accepts it."""
        ...

    def can(self, snapshot: Snapshot, event: str | Mapping[str, Any]) -> bool:
        """Return whether a transition would accept the event now."""
        ...

    def restore(self, data: Mapping[str, Any]) -> Snapshot:
        """Return the snapshot of this JSON data.

        Raises:
            UnknownStateError: It does not fit.
        """
        ...

    def restore_state(self, value: str) -> Snapshot:
        """Return the snapshot of a bare state value: a state's name, or the JSON text of a nested value.

        Raises:
            UnknownStateError: It does not fit.
        """
        ...

    def expand(self, pattern: str) -> frozenset[str]:
        """Return the dotted paths that a binding pattern stands for: a path, `*` globs, `tag:NAME`.

        Raises:
            MachineConfigError: It stands for no state.
        """
        ...

    def accepting(self, event: str) -> frozenset[str]:
        """Return the dotted paths of the states that have a transition for the event; "" is the root."""
        ...

    def due(self, snapshot: Snapshot) -> float | None:
        """Return when the next timer is due, in seconds since the epoch, or None."""
        ...

    def elapse(self, snapshot: Snapshot, now: float) -> Snapshot:
        """Let the earliest timer that is due at `now` go off; the same object when none is."""
        ...
