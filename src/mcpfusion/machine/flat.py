"""The fast path of a flat machine: a transition is two dict look-ups between snapshots made beforehand."""

import copy

from .descriptors import candidates, is_wildcard
from .nodes import Node, Tree
from .snapshot import Snapshot


def is_flat(tree: Tree) -> bool:
    """True when a state and an event alone decide what comes next."""
    root = tree.root
    if root.kind != "compound" or root.definition.initial_actions:
        return False
    if root.always or root.definition.after or any(node.parent is not root for node in tree.nodes[1:]):
        return False
    for node in tree.nodes:
        definition = node.definition
        if node.kind == "history" or node.always or definition.after or definition.entry or definition.exit:
            return False
        for found in node.transitions.values():
            if any(each.definition.guard is not None or each.definition.actions for each in found):
                return False
    return True


class FlatTable:
    """The table of a flat machine: state value -> event -> snapshot."""

    def __init__(self, tree: Tree, snapshots: dict[str, Snapshot]) -> None:
        self._root = tree.root
        self._snapshots = snapshots
        events = {key for node in tree.nodes for key in node.transitions if not is_wildcard(key)}
        self._rows: dict[str, dict[str, Snapshot]] = {}
        self._open: set[str] = set()
        for node in tree.root.children:
            self._rows[node.key] = {event: to for event in events if (to := self._lookup(node, event))}
            if any(is_wildcard(key) for each in (node, tree.root) for key in each.transitions):
                self._open.add(node.key)

    def step(self, snapshot: Snapshot, event: str) -> Snapshot:
        """Return the snapshot that follows; the same one when nothing accepts the event."""
        found = self._rows[snapshot.value].get(event)  # pyright: ignore[reportArgumentType] - flat: a str
        if found is None:
            if not self._open or snapshot.value not in self._open:
                return snapshot
            found = self._lookup(self._root.states[str(snapshot.value)], event)
            if found is None:
                return snapshot
        # Identity means "unchanged", so that a state which leads to itself needs a second object.
        return found if found is not snapshot else copy.copy(found)

    def _lookup(self, node: Node, event: str) -> Snapshot | None:
        if node.kind == "final":
            return None
        chosen = candidates(node.transitions, event) or candidates(self._root.transitions, event)
        targets = chosen[0].targets if chosen else None
        if not targets:
            return None
        target = targets[0] if targets[0].parent is not None else targets[0].initial
        return self._snapshots[target.key] if target is not None else None
