"""The states of a machine as they are compiled: one node each, in document order, with targets resolved."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import fault
from .parse import MISSING, StateDef, TransitionDef


@dataclass(slots=True, eq=False)
class Transition:
    """One candidate with its targets resolved. `targets` is None when the machine stays where it is."""

    source: "Node"
    descriptor: str
    definition: TransitionDef
    targets: "tuple[Node, ...] | None"
    guard: Any = None
    actions: tuple[Any, ...] = ()
    delay: float | str | None = None
    forbidden: bool = field(init=False)
    """True when taking it does nothing at all, which is how a configuration forbids an event."""

    def __post_init__(self) -> None:
        self.forbidden = self.targets is None and not self.definition.actions

    @property
    def reenter(self) -> bool:
        """True when the source is left and entered again even if the target lies within it."""
        return self.definition.reenter


@dataclass(slots=True, eq=False)
class Node:
    """One state. Compared by identity; `index` is its place in document order, and `bit` is `1 << index`."""

    index: int
    key: str
    path: str
    id: str
    kind: str
    parent: "Node | None"
    definition: StateDef
    ancestors: "tuple[Node, ...]" = ()
    states: "dict[str, Node]" = field(default_factory=dict[str, "Node"])
    children: "tuple[Node, ...]" = ()
    initial: "Node | None" = None
    initial_actions: tuple[Any, ...] = ()
    entry: tuple[Any, ...] = ()
    exit: tuple[Any, ...] = ()
    transitions: dict[str, tuple[Transition, ...]] = field(default_factory=dict[str, tuple[Transition, ...]])
    always: tuple[Transition, ...] = ()
    histories: "tuple[Node, ...]" = ()
    default: "tuple[Node, ...] | None" = None
    bit: int = 0
    inside: int = 0

    @property
    def atomic(self) -> bool:
        """True for a state that has no states of its own."""
        return self.kind in ("atomic", "final")

    @property
    def deep(self) -> bool:
        """True for a history state that remembers everything below its parent."""
        return self.definition.history == "deep"

    @property
    def output(self) -> Any:
        """The output as configured, else `MISSING`."""
        return self.definition.output

    def within(self, other: "Node") -> bool:
        """True when this state lies below `other`, at any depth."""
        return bool(other.inside & self.bit)


@dataclass(frozen=True, slots=True)
class Tree:
    """All the nodes of a machine in document order, and the ways to find one."""

    root: Node
    nodes: tuple[Node, ...]
    by_id: Mapping[str, Node]
    by_path: Mapping[str, Node]


def build_tree(definition: StateDef) -> Tree:
    """Return the nodes for a definition: keys, paths, ids and kinds, but no transitions yet.

    The dotted path of a state is its keys joined by dots. In a machine whose states have no states of their
    own it is the key as it stands, dots and all; in any other, a dot or a backslash within a key is written
    with a backslash before it, so that two states never share a path.
    """
    nodes: list[Node] = []
    nested = any(state.states for state in definition.states.values())
    machine_id = definition.id or "(machine)"
    root = _node(definition, None, "", machine_id, nodes)
    _add_states(root, machine_id, nested, nodes)
    by_id: dict[str, Node] = {}
    for node in nodes:
        other = by_id.setdefault(node.id, node)
        if other is not node:
            place = other.definition.where or "the machine"
            raise fault(node.definition.where, f"the id {node.id!r} is that of {place} already")
        node.bit = 1 << node.index
        for ancestor in node.ancestors:
            ancestor.inside |= node.bit
    by_path = {node.path: node for node in nodes if node is not root and node.kind != "history"}
    return Tree(root, tuple(nodes), by_id, by_path)


def _node(definition: StateDef, parent: Node | None, path: str, node_id: str, nodes: list[Node]) -> Node:
    node = Node(
        index=len(nodes),
        key=definition.key,
        path=path,
        id=node_id,
        kind=definition.kind,
        parent=parent,
        definition=definition,
        ancestors=() if parent is None else (parent, *parent.ancestors),
    )
    nodes.append(node)
    return node


def _add_states(parent: Node, implicit: str, nested: bool, nodes: list[Node]) -> None:
    for key, definition in parent.definition.states.items():
        part = escape_key(key) if nested else key
        path = part if parent.parent is None else f"{parent.path}.{part}"
        below = f"{implicit}.{key}"
        node = _node(definition, parent, path, definition.id or below, nodes)
        parent.states[key] = node
        _add_states(node, below, nested, nodes)
    parent.children = tuple(node for node in parent.states.values() if node.kind != "history")
    parent.histories = tuple(node for node in parent.states.values() if node.kind == "history")
    if parent.definition.initial is not None:
        parent.initial = parent.states[parent.definition.initial]


def escape_key(key: str) -> str:
    """Return a key as it is written within a dotted path."""
    return key.replace("\\", "\\\\").replace(".", "\\.")


def common_ancestor(nodes: Iterable[Node]) -> Node | None:
    """Return the nearest state that contains all of `nodes`; none of them counts as its own container."""
    head, *tail = nodes
    for ancestor in head.ancestors:
        if all(node.within(ancestor) for node in tail):
            return ancestor
    return None


def has_actions(node: Node) -> bool:
    """True when being in the state, entering it or leaving it does something."""
    definition = node.definition
    if definition.entry or definition.exit or definition.initial_actions or definition.after:
        return True
    listed = (*definition.on.values(), definition.always, definition.on_done)
    return any(each.actions for candidates in listed for each in candidates)


def has_output(node: Node) -> bool:
    """True when the state declares an output, be it null."""
    return node.output is not MISSING
