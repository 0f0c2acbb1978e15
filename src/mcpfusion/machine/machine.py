"""The machine: the definition of a workflow, compiled once, and pure functions over its snapshots."""

from collections.abc import Mapping
from typing import Any, cast

from .compile import compile_tree, own_events
from .config import freeze
from .configurations import Configurations
from .descriptors import candidates
from .errors import MachineConfigError, MachineError, UnknownStateError
from .fingerprint import fingerprint
from .flat import FlatTable, is_flat
from .parse import json_of, object_of, parse_machine
from .patterns import expand
from .snapshot import Configuration, Event, Snapshot, StateValue


class Machine:
    """A workflow in XState v5's configuration language. Immutable; every method is a pure function.

    Args:
        config: The configuration: a mapping, as `read_config` returns it.
        guards: The guards that it names: `(context, event, params) -> bool`.
        actions: The actions that it names: `(context, event, params) -> dict of changed keys | None`.
        delays: The delays that it names: milliseconds, or `(context, event, params) -> milliseconds`.

    Raises:
        MachineConfigError: The configuration is wrong; the message starts with the path of the fault.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        guards: Mapping[str, Any] | None = None,
        actions: Mapping[str, Any] | None = None,
        delays: Mapping[str, Any] | None = None,
    ) -> None:
        self._tree = compile_tree(parse_machine(config))
        self._context = _context(config)
        self._configurations = Configurations(self._tree)
        self._tags = {path: node.definition.tags for path, node in self._tree.by_path.items()}
        self.config: Mapping[str, Any] = freeze(config)
        self.id: str = self._tree.root.id
        self.fingerprint: str = fingerprint(self._tree, self._context)
        self.states: tuple[str, ...] = tuple(self._tree.by_path)
        self.events: frozenset[str] = frozenset(own_events(self._tree.nodes))
        self.tags: frozenset[str] = frozenset(tag for node in self._tree.nodes for tag in node.definition.tags)
        self.flat: bool = is_flat(self._tree) and not self._context
        if not self.flat:
            raise MachineConfigError("machine: only flat machines are supported")
        self._snapshots = {node.key: self._at(node.key) for node in self._tree.root.children}
        self._table = FlatTable(self._tree, self._snapshots)

    def __repr__(self) -> str:
        return f"<Machine {self.id!r} {self.fingerprint}: {len(self.states)} states>"

    def initial(self, *, now: float = 0.0) -> Snapshot:
        """Return where a new workflow stands. `now` is in seconds since the epoch."""
        return self._snapshots[cast("str", self._tree.root.definition.initial)]

    def transition(self, snapshot: Snapshot, event: str | Event, *, now: float = 0.0) -> Snapshot:
        """Return where the workflow stands after `event`.

        An event that nothing accepts returns the same snapshot object, and only such an event does: identity
        tells "unchanged". A machine that is done takes no event.

        Args:
            event: Its name, or an object with its name under `type`; guards and actions see the whole object.
            now: Seconds since the epoch, from which delays are counted.

        Raises:
            UnknownStateError: The snapshot belongs to another machine.
            MachineError: The event is no event.
        """
        if snapshot.machine != self.fingerprint:
            raise self._foreign(snapshot)
        return self._table.step(snapshot, event if type(event) is str else _named(event))

    def can(self, snapshot: Snapshot, event: str | Event) -> bool:
        """True when `event` would be accepted now."""
        return self.transition(snapshot, event) is not snapshot

    def next_events(self, snapshot: Snapshot) -> tuple[str, ...]:
        """Return the descriptors of the events that the active states name, wildcards as written.

        Guards are not asked; what is only ever forbidden is left out. Inner states come first.
        """
        if snapshot.machine != self.fingerprint:
            raise self._foreign(snapshot)
        if snapshot.status == "done":
            return ()
        found: dict[str, None] = {}
        for path in (snapshot.state, ""):
            node = self._tree.by_path[path] if path in snapshot.paths else self._tree.root
            for descriptor, listed in node.transitions.items():
                if any(not each.forbidden for each in listed):
                    found[descriptor] = None
        return tuple(found)

    def due(self, snapshot: Snapshot) -> float | None:
        """Return when the next timer is due, in seconds since the epoch, or None."""
        return min((timer.due for timer in snapshot.timers), default=None)

    def elapse(self, snapshot: Snapshot, now: float) -> Snapshot:
        """Apply the earliest timer that is due at `now`, at the time at which it was due.

        Call it until it returns the same snapshot object: then no timer is due.
        """
        return snapshot

    def restore(self, data: Mapping[str, Any]) -> Snapshot:
        """Return the snapshot that `Snapshot.to_json` wrote, perhaps for an older machine, if it fits.

        Raises:
            UnknownStateError: It does not fit; the message names the state, the machine and a near miss.
        """
        return self._snapshots[self._read(data.get("value")).state]

    def restore_state(self, value: str) -> Snapshot:
        """Return the snapshot for a bare state value: a state's name, or the JSON text of a nested value.

        Context is as configured; history and timers are empty.

        Raises:
            UnknownStateError: The machine has no such state.
        """
        return self._snapshots[self._read(value).state]

    def expand(self, pattern: str) -> frozenset[str]:
        """Return the dotted paths that a binding pattern stands for: a path, `*` globs, `tag:NAME`.

        Raises:
            MachineConfigError: It stands for no state.
        """
        return expand(pattern, self._tags, self.id)

    def accepting(self, event: str) -> frozenset[str]:
        """Return the dotted paths of the states that have a transition for the event ("" is the root)."""
        found: set[str] = set()
        for node in self._tree.nodes:
            for each in candidates(node.transitions, event):
                if not each.forbidden:
                    found.add(node.path)
                if each.definition.guard is None:
                    break
        return frozenset(found)

    def _read(self, value: Any) -> Configuration:
        return self._configurations.read(value)

    def _at(self, value: StateValue) -> Snapshot:
        configuration = self._configurations.read(value)
        return Snapshot(
            value=configuration.value,
            status="done" if configuration.final else "active",
            context=self._context,
            tags=configuration.tags,
            output=self._output(configuration),
            history={},
            timers=(),
            machine=self.fingerprint,
            configuration=configuration,
        )

    def _output(self, configuration: Configuration) -> Any:
        from .nodes import has_output

        return self._tree.root.output if configuration.final and has_output(self._tree.root) else None

    def _foreign(self, snapshot: Snapshot) -> UnknownStateError:
        return UnknownStateError(
            f"machine {self.id!r} ({self.fingerprint}): the snapshot {snapshot.state!r} belongs to the machine "
            f"{snapshot.machine}; restore it first"
        )


def _context(config: Mapping[str, Any]) -> dict[str, Any]:
    return json_of(object_of(config.get("context"), "context", "'context'"), "context")


def _named(event: str | Event) -> str:
    kind = event if isinstance(event, str) else event.get("type")
    if not isinstance(kind, str):
        raise MachineError("an event is a name, or an object with its name under 'type'")
    return kind
