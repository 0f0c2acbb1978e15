"""Which states a set of transitions leaves and enters: pure functions over nodes, history and bit masks.

Source: XState 5 (`computeExitSet`, `computeEntrySet`, `removeConflictingTransitions`), which follows the
algorithm of https://www.w3.org/TR/scxml/#AlgorithmforSCXMLInterpretation.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from .nodes import Node, Transition, Tree, common_ancestor

Remembered: TypeAlias = Mapping[str, tuple[Node, ...]]
"""For the path of each history state the states that it remembers."""


def without_conflicts(transitions: Sequence[Transition], mask: int, history: Remembered) -> list[Transition]:
    """Drop each transition that would leave a state which an earlier or an inner one leaves."""
    kept: list[Transition] = []
    for transition in transitions:
        leaves = exit_mask(transition, mask, history)
        beaten: list[Transition] = []
        for other in kept:
            if leaves & exit_mask(other, mask, history):
                if not transition.source.within(other.source):
                    break
                beaten.append(other)
        else:
            kept = [*(each for each in kept if each not in beaten), transition]
    return kept


def exit_mask(transition: Transition, mask: int, history: Remembered) -> int:
    """Return the active states that a transition leaves."""
    if not transition.targets:
        return 0
    domain = domain_of(transition, history)
    if domain is None:
        return mask
    inside = domain.inside
    if transition.reenter and transition.source is domain:
        inside |= domain.bit
    return mask & inside


def remember(exited: Iterable[Node], mask: int, tree: Tree) -> dict[str, tuple[Node, ...]]:
    """Return what the history states of the states that are left remember."""
    found: dict[str, tuple[Node, ...]] = {}
    for node in exited:
        for history in node.histories:
            if history.deep:
                inside = (each for each in tree.nodes if each.atomic and each.within(node))
            else:
                inside = iter(node.children)
            found[history.path] = tuple(each for each in inside if mask & each.bit)
    return found


def domain_of(transition: Transition, history: Remembered) -> Node | None:
    """Return the state within which the transition happens; None is the machine from outside."""
    targets = _effective_targets(transition.targets or (), history)
    source = transition.source
    if not transition.reenter and all(each is source or each.within(source) for each in targets):
        return source
    ancestor = common_ancestor((*targets, source))
    if ancestor is not None:
        return ancestor
    root = source.ancestors[-1] if source.ancestors else source
    return None if transition.reenter else root


def _effective_targets(targets: Iterable[Node], history: Remembered) -> tuple[Node, ...]:
    found: dict[Node, None] = {}
    for target in targets:
        if target.kind != "history":
            found[target] = None
        elif target.path in history:
            found.update(dict.fromkeys(history[target.path]))
        else:
            found.update(dict.fromkeys(_effective_targets(_history_default(target), history)))
    return tuple(found)


def _history_default(node: Node) -> tuple[Node, ...]:
    parent = node.parent
    assert parent is not None, "a history state has a parent"
    if node.default is not None:
        return node.default
    if parent.kind == "parallel" or parent.initial is None:
        return (parent,)
    return (parent.initial,)


class EntrySet:
    """The states that a set of transitions enters, and those whose initial actions run.

    Attributes:
        mask: The states to enter.
        by_default: Those among them that are entered without a target inside being named.
    """

    def __init__(self, history: Remembered) -> None:
        self.mask = 0
        self.by_default = 0
        self._history = history

    def add_machine(self, root: Node) -> None:
        """Enter the machine itself, as a new workflow does."""
        self._enter(root)
        self._add_descendants(root)

    def add(self, transition: Transition, domain: Node | None) -> None:
        """Enter what a transition leads to within its domain.

        The domain is that of the moment before anything was left: XState looks for it again with what the states
        remembered meanwhile, and may then leave a state that it does not enter again.
        """
        source = transition.source
        for target in transition.targets or ():
            apart = source is not target or source is not domain or transition.reenter
            if target.kind != "history" and apart:
                self._enter(target)
            self._add_descendants(target)
        bound = None if source.parent is None and transition.reenter else domain
        for target in _effective_targets(transition.targets or (), self._history):
            ancestors = _ancestors_below(target, domain)
            if domain is not None and domain.kind == "parallel":
                ancestors.append(domain)
            self._add_ancestors(ancestors, bound)

    def _enter(self, node: Node) -> None:
        self.mask |= node.bit
        self.by_default |= node.bit

    def _add_descendants(self, node: Node) -> None:
        if node.kind == "history":
            self._add_history(node)
        elif node.kind == "compound" and node.initial is not None:
            if node.initial.kind != "history":
                self._enter(node.initial)
            self._add_descendants(node.initial)
            self._add_ancestors(_ancestors_below(node.initial, node), None)
        elif node.kind == "parallel":
            for child in node.children:
                if not self.mask & child.inside:
                    self._enter(child)
                    self._add_descendants(child)

    def _add_history(self, node: Node) -> None:
        remembered = self._history.get(node.path)
        targets = _history_default(node) if remembered is None else remembered
        if remembered is None and node.default is None and node.parent and node.parent.kind == "compound":
            self.by_default |= node.parent.bit
        for target in targets:
            if target.kind != "history":
                self.mask |= target.bit
            self._add_descendants(target)
        for target in targets:
            self._add_ancestors(_ancestors_below(target, node.parent), None)

    def _add_ancestors(self, ancestors: Iterable[Node], bound: Node | None) -> None:
        for ancestor in ancestors:
            if bound is None or ancestor.within(bound):
                self.mask |= ancestor.bit
            if ancestor.kind == "parallel":
                for child in ancestor.children:
                    if not self.mask & child.inside:
                        self.mask |= child.bit
                        self._add_descendants(child)


def _ancestors_below(node: Node, end: Node | None) -> list[Node]:
    found: list[Node] = []
    for ancestor in node.ancestors if node is not end else ():
        if ancestor is end:
            break
        found.append(ancestor)
    return found
