"""The fast path of a flat machine: a transition is two dict look-ups between snapshots made beforehand."""

import copy
from typing import Any, cast

from .configurations import Configurations
from .descriptors import candidates, check_event, is_wildcard
from .nodes import Node, Tree, has_actions, has_output
from .snapshot import Snapshot


def is_flat(tree: Tree) -> bool:
    """True when a state and an event alone decide what comes next."""
    if tree.root.kind != "compound" or any(node.parent is not tree.root for node in tree.nodes[1:]):
        return False
    return not any(node.kind == "history" or has_actions(node) or _guarded(node) for node in tree.nodes)


def _guarded(node: Node) -> bool:
    listed = (each for found in node.transitions.values() for each in found)
    return bool(node.always) or any(each.guard is not None for each in listed)


class FlatTable:
    """The table of a flat machine: state value -> event -> snapshot.

    Attributes:
        initial: Where a new workflow stands.
        snapshots: One snapshot for each state, shared by all the workflows that stand there.
    """

    def __init__(self, tree: Tree, configurations: Configurations) -> None:
        root = tree.root
        output = root.output if has_output(root) else None
        self._root = root
        self.snapshots: dict[str, Snapshot] = {}
        for node in root.children:
            configuration = configurations.read(node.key)
            self.snapshots[node.key] = Snapshot(configuration, output=output if configuration.final else None)
        self.initial = self.snapshots[root.initial.key if root.initial else ""]
        events = {key for node in tree.nodes for key in node.transitions if not is_wildcard(key)}
        self._rows: dict[object, dict[str, Snapshot]] = {
            node.key: {event: to for event in events if (to := self._lookup(node, event)) is not None}
            for node in root.children
        }
        wild = [node for node in tree.nodes if any(is_wildcard(key) for key in node.transitions)]
        self._wild = frozenset(node.key for node in root.children if node in wild or root in wild)

    def restore(self, data: Any) -> Snapshot | None:
        """Return the shared snapshot for data that holds nothing but a state of this very machine."""
        if type(data) is not dict or len(cast("dict[str, Any]", data)) != 3:
            return None
        value = cast("dict[str, Any]", data).get("value")
        found = self.snapshots.get(value) if type(value) is str else None
        return found if found is not None and data == found.to_json() else None

    def share(self, snapshot: Snapshot) -> Snapshot:
        """Return the shared snapshot of the same state, unless this one holds more than its state."""
        return snapshot if snapshot.context or snapshot.timers else self.snapshots[snapshot.state]

    def step(self, snapshot: Snapshot, event: str) -> Snapshot:
        """Return the snapshot that follows; the same one when nothing accepts the event."""
        state = snapshot.configuration.state
        found = self._rows[state].get(event)
        if found is None:
            check_event(event)
            if state not in self._wild:
                return snapshot
            found = self._lookup(self._root.states[state], event)
            if found is None:
                return snapshot
        # Identity means "unchanged", so a state that leads to itself needs a second object.
        return found if found is not snapshot else copy.copy(found)

    def _lookup(self, node: Node, event: str) -> Snapshot | None:
        if node.kind == "final":
            return None
        chosen = candidates(node.transitions, event) or candidates(self._root.transitions, event)
        targets = chosen[0].targets if chosen else None
        if not targets:
            return None
        target = targets[0] if targets[0].parent is not None else targets[0].initial
        return self.snapshots[target.key] if target is not None else None
