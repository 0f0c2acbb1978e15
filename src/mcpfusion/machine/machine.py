"""The machine: the definition of a workflow, compiled once, and pure functions over its snapshots."""

from collections.abc import Mapping
from typing import Any

from .actions import ActionCompiler
from .compile import compile_tree
from .config import freeze
from .configurations import Configurations
from .descriptors import check_event
from .errors import MachineConfigError, MachineError, UnknownStateError
from .events import accepting
from .fingerprint import fingerprint
from .flat import FlatTable, is_flat
from .interpreter import Interpreter
from .jsondata import json_of, object_of
from .nodes import Tree, has_actions
from .parse import parse_machine
from .patterns import expand
from .restore import Restorer
from .snapshot import Event, Snapshot

_MICROSTEPS = 1000
"""How many microsteps one event may cause, unless `options.maxIterations` says otherwise."""


class Machine:
    """A workflow in XState v5's configuration language. Immutable; every method is a pure function.

    Attributes:
        id: The configuration's id, or `(machine)`.
        config: The configuration as given, deeply read-only.
        fingerprint: 16 hexadecimal digits that change when a workflow might go on differently.
        states: The dotted paths of all states in document order, without the root and history states.
        events: Every descriptor that the configuration names under `on`, wildcards as written.
        tags: Every tag.
        flat: True when a state and an event alone decide what comes next.
        tree: The compiled states, for what analyses or draws the machine.

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
        try:
            tree = compile_tree(parse_machine(config), guards or {}, ActionCompiler(actions or {}, delays or {}))
        except RecursionError as error:
            raise MachineConfigError("machine: nested too deeply") from error
        nodes = tree.nodes
        self.tree: Tree = tree
        self._context: dict[str, Any] = json_of(object_of(config.get("context"), "context", "it"), "context")
        self.config: Mapping[str, Any] = freeze(config)
        self.id: str = tree.root.id
        self.fingerprint: str = fingerprint(tree, self._context)
        self.states: tuple[str, ...] = tuple(tree.by_path)
        self.events: frozenset[str] = frozenset(event for node in nodes for event in node.definition.on)
        self.tags: frozenset[str] = frozenset(tag for node in nodes for tag in node.definition.tags)
        self._tags = {path: node.definition.tags for path, node in tree.by_path.items()}
        self._configurations = Configurations(tree, self.fingerprint)
        self._interpreter = Interpreter(tree, self._configurations, _limit(config))
        self._restorer = Restorer(tree, self._configurations, self._context)
        self.flat: bool = is_flat(tree) and not self._context
        self._table = FlatTable(tree, self._configurations) if self.flat else None

    def __repr__(self) -> str:
        return f"<Machine {self.id!r} {self.fingerprint}: {len(self.states)} states>"

    @property
    def bare(self) -> bool:
        """True when a snapshot is its state value alone, so that `restore_state` loses nothing."""
        return not self._context and not any(node.kind == "history" or has_actions(node) for node in self.tree.nodes)

    def initial(self, *, now: float = 0.0) -> Snapshot:
        """Return where a new workflow stands. `now` is in seconds since the epoch; delays count from it.

        Raises:
            MachineError: An action raised, or the machine comes to no rest.
        """
        if self._table is not None:
            return self._table.initial
        return self._interpreter.start(json_of(self._context, "context"), now)

    def transition(self, snapshot: Snapshot, event: str | Event, *, now: float = 0.0) -> Snapshot:
        """Return where the workflow stands after `event`.

        An event that nothing accepts returns the same snapshot object, and only such an event does: identity
        tells "unchanged". A machine that is done takes no event.

        Args:
            event: Its name, or an object with its name under `type`; guards and actions see the object.
            now: Seconds since the epoch; delays count from it.

        Raises:
            UnknownStateError: The snapshot belongs to another machine.
            MachineError: The event is no event, an action raised, or the machine comes to no rest.
        """
        self._check(snapshot)
        if self._table is not None and not snapshot.context and not snapshot.timers:
            return self._table.step(snapshot, event if type(event) is str else _event(event)["type"])
        return self._interpreter.send(snapshot, _event(event), now)

    def can(self, snapshot: Snapshot, event: str | Event) -> bool:
        """True when a transition would accept `event` now, its guards asked.

        Raises:
            UnknownStateError: The snapshot belongs to another machine.
            MachineError: The event is no event.
        """
        self._check(snapshot)
        return self._interpreter.can(snapshot, _event(event))

    def next_events(self, snapshot: Snapshot) -> tuple[str, ...]:
        """Return the descriptors that the active states name under `on`, wildcards as written.

        Guards are not asked. Inner states come first, and the regions of a parallel state in document order.
        A machine that is done names none.
        """
        self._check(snapshot)
        return snapshot.configuration.events

    def meta(self, snapshot: Snapshot) -> dict[str, Any]:
        """Return the meta data of the active states that have some, by their ids."""
        self._check(snapshot)
        mask = snapshot.configuration.mask
        active = (node for node in self.tree.nodes if node.bit & mask)
        return {node.id: node.definition.meta for node in active if node.definition.meta is not None}

    def due(self, snapshot: Snapshot) -> float | None:
        """Return when the next timer is due, in seconds since the epoch, or None."""
        return min((timer.due for timer in snapshot.timers), default=None)

    def elapse(self, snapshot: Snapshot, now: float) -> Snapshot:
        """Let the earliest timer that is due at `now` go off, at the time at which it was due.

        Call it until it returns the same snapshot object: then no timer is due. Of two timers due at the same
        time the one scheduled first goes first.

        Raises:
            UnknownStateError: The snapshot belongs to another machine.
            MachineError: An action raised, or the machine comes to no rest.
        """
        self._check(snapshot)
        timer = min(snapshot.timers, key=lambda each: each.due, default=None)
        if timer is None or timer.due > now:
            return snapshot
        return self._interpreter.fire(snapshot, timer)

    def restore(self, data: Mapping[str, Any]) -> Snapshot:
        """Return the snapshot that `Snapshot.to_json` wrote, perhaps for an older machine, if it fits.

        Raises:
            UnknownStateError: It does not fit; the message names the state, the machine and a near miss.
        """
        if self._table is None:
            return self._restorer.restore(data)
        return self._table.restore(data) or self._table.share(self._restorer.restore(data))

    def restore_state(self, value: str) -> Snapshot:
        """Return the snapshot for a bare state value: a state's name, or the JSON text of a nested value.

        Context is as configured; history and timers are empty.

        Raises:
            UnknownStateError: The machine has no such state.
        """
        snapshot = self._restorer.restore_state(value)
        return snapshot if self._table is None else self._table.share(snapshot)

    def expand(self, pattern: str) -> frozenset[str]:
        """Return the dotted paths that a binding pattern stands for: a path, `*` globs, `tag:NAME`.

        Raises:
            MachineConfigError: It stands for no state; the message names a near miss.
        """
        return expand(pattern, self._tags, self.id)

    def accepting(self, event: str) -> frozenset[str]:
        """Return the dotted paths of the states that have a transition for the event ("" is the root).

        Wildcards count, forbidden events do not. A machine with a state whose own path is "" names all its
        outermost states in place of the root.
        """
        return accepting(self.tree, event)

    def _check(self, snapshot: Snapshot) -> None:
        if snapshot.configuration.machine != self.fingerprint:
            raise UnknownStateError(
                f"machine {self.id!r} ({self.fingerprint}): the snapshot in {snapshot.state!r} belongs to "
                f"the machine {snapshot.machine}; restore it first"
            )


def _event(event: str | Event) -> Event:
    found: Event = {"type": event} if isinstance(event, str) else event
    kind = found.get("type")
    if not isinstance(kind, str):
        raise MachineError("an event is a name, or an object with its name under 'type'")
    check_event(kind)
    return found


def _limit(config: Mapping[str, Any]) -> int:
    limit = object_of(config.get("options"), "options", "it").get("maxIterations", _MICROSTEPS)
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise MachineConfigError("options.maxIterations: must be a positive whole number")
    return limit
