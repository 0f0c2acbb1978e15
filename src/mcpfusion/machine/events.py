"""Which events a machine's states speak of."""

from .descriptors import candidates, is_wildcard
from .nodes import Node, Tree


def own_events(node: Node) -> tuple[str, ...]:
    """Return the descriptors that a state names under `on`, except for those of the machine itself."""
    return tuple(event for event in node.definition.on if not event.startswith("xstate."))


def next_events(tree: Tree, mask: int) -> tuple[str, ...]:
    """Return what the active states name under `on`: inner states first, regions in document order."""
    found: dict[str, None] = {}
    for node in tree.nodes:
        if node.atomic and mask & node.bit:
            for each in (node, *node.ancestors):
                found.update(dict.fromkeys(own_events(each)))
    return tuple(found)


def accepting(tree: Tree, event: str) -> frozenset[str]:
    """Return the paths of the states that have a transition for the event; "" is the root.

    Where a state's own path is "", the root's transitions are told as those of all the outermost states.
    """
    if is_wildcard(event):
        return frozenset()
    found = {node.path for node in tree.nodes[1:] if _accepts(node, event)}
    if _accepts(tree.root, event):
        found.update((node.path for node in tree.root.children) if "" in tree.by_path else ("",))
    return frozenset(found)


def _accepts(node: Node, event: str) -> bool:
    for each in candidates(node.transitions, event):
        if not each.forbidden:
            return True
        if each.guard is None:
            return False
    return False
