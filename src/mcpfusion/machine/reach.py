"""Which states can be reached at all, whatever the guards say."""

from collections.abc import Iterable, Iterator

from .nodes import Node, Transition, Tree


def reachable(tree: Tree) -> set[Node]:
    """Return the states that some sequence of events, with some answers of the guards, leads to."""
    reached = set(_entered(tree.root))
    while True:
        found = {
            entered
            for node in reached
            for transition in _takeable(node, reached)
            for entered in entered_by(transition)
        }
        if found <= reached:
            return reached
        reached |= found


def entered_by(transition: Transition) -> set[Node]:
    """Return the states that are active for certain once a transition is taken: targets, and what comes with them.

    What a history state remembers is not known: it counts as its default.
    """
    found: set[Node] = set()
    for target in transition.targets or ():
        for node in _resolve(target):
            found.update(_entered(node))
            for ancestor in node.ancestors:
                found.add(ancestor)
                if ancestor.kind == "parallel":
                    for region in ancestor.children:
                        if region is not node and not node.within(region):
                            found.update(_entered(region))
    return found


def _takeable(node: Node, reached: set[Node]) -> Iterator[Transition]:
    done = f"xstate.done.state.{node.id}"
    for event, listed in (*node.transitions.items(), ("", node.always)):
        if event == done and not _can_be_done(node, reached):
            continue
        # A candidate that is never chosen is a fault of its own: what it leads to is not told as another one.
        yield from listed


def _can_be_done(node: Node, reached: set[Node]) -> bool:
    if node.kind == "compound":
        return any(child.kind == "final" and child in reached for child in node.children)
    if node.kind == "parallel":
        return all(_can_be_done(child, reached) for child in node.children)
    return node.kind == "final"


def _entered(node: Node) -> Iterator[Node]:
    """Yield a state and what is entered with it by default."""
    yield node
    if node.kind == "parallel":
        for child in node.children:
            yield from _entered(child)
    elif node.initial is not None:
        for target in _resolve(node.initial):
            yield from _entered(target)
            yield from (each for each in target.ancestors if each.within(node))


def _resolve(node: Node) -> Iterable[Node]:
    """Return a state, or what a history state enters when it remembers nothing."""
    if node.kind != "history" or node.parent is None:
        return (node,)
    if node.default is not None:
        return [each for target in node.default for each in _resolve(target)]
    if node.parent.kind == "parallel" or node.parent.initial is None:
        return (node.parent,)
    return _resolve(node.parent.initial)
