"""Resolving what a transition, a history state or a `stateIn` guard names: keys, `.child`, `#id`, dotted paths.

Source: XState 5, `resolveTarget` and `getStateNodeByPath`. A backslash makes the next character part of a
key.
"""

from collections.abc import Sequence

from .errors import fault, near_miss
from .nodes import Node, Tree, common_ancestor


def split_path(text: str) -> list[str]:
    """Return the keys of a dotted path in which a backslash escapes the character after it."""
    keys: list[str] = []
    key = ""
    characters = iter(text)
    for character in characters:
        if character == "\\":
            key += next(characters, "")
        elif character == ".":
            keys.append(key)
            key = ""
        else:
            key += character
    return [*keys, key]


def resolve_targets(tree: Tree, source: Node, targets: Sequence[str] | None, where: str) -> tuple[Node, ...] | None:
    """Return the nodes that a transition of `source` leads to; None when it has no target.

    Raises MachineConfigError when one does not exist or when several cannot be active together.
    """
    if targets is None or (targets == ("",) and "" not in _siblings(source)):
        return None
    nodes = tuple(dict.fromkeys(_target(tree, source, target, where) for target in targets))
    for index, node in enumerate(nodes):
        for other in nodes[:index]:
            _together(node, other, where)
    return nodes


def resolve_default(tree: Tree, node: Node, where: str) -> tuple[Node, ...] | None:
    """Return the nodes that a history state enters when it remembers nothing; None when it names none."""
    parent, targets = node.parent, node.definition.default
    if parent is None or targets is None:
        return None
    found: list[Node] = []
    for target in targets:
        chosen = _by_id(tree, target) if target.startswith("#") else None
        chosen = chosen or _below(parent, split_path(target)) or parent.states.get(target)
        if chosen is None:
            raise fault(where, f"no state {target!r}{near_miss(target, parent.states)}")
        if not chosen.within(parent):
            raise fault(where, f"{target!r} lies outside of the state that the history state belongs to")
        for other in found:
            _together(chosen, other, where)
        found.append(chosen)
    return tuple(found)


def resolve_reference(tree: Tree, reference: str, where: str) -> Node:
    """Return the node that `#id` or a dotted path from the root names."""
    node = _by_id(tree, reference) if reference.startswith("#") else _below(tree.root, split_path(reference))
    if node is None:
        known = [f"#{name}" for name in tree.by_id] if reference.startswith("#") else list(tree.by_path)
        raise fault(where, f"no state {reference!r}{near_miss(reference, known)}")
    return node


def _siblings(source: Node) -> dict[str, Node]:
    return source.states if source.parent is None else source.parent.states


def _target(tree: Tree, source: Node, target: str, where: str) -> Node:
    if source.parent is None:
        found = _from_root(tree, source, target)
    else:
        # A key that is no valid path (`v1.0`, `#x`) still names a sibling when nothing else has that name.
        found = _resolve(tree, source, target) or source.parent.states.get(target)
    if found is None:
        raise fault(where, f"no state {target!r}{_hint(tree, source, target)}")
    return found


def _resolve(tree: Tree, source: Node, target: str) -> Node | None:
    if target.startswith("#"):
        return _by_id(tree, target)
    if target.startswith("."):
        return _below(source, split_path(target[1:]))
    return _below(source.parent or source, split_path(target))


def _from_root(tree: Tree, root: Node, target: str) -> Node | None:
    if target.startswith("#"):
        return _by_id(tree, target)
    if target.startswith("."):
        return _below(root, split_path(target[1:]))
    return None


def _by_id(tree: Tree, reference: str) -> Node | None:
    head, *rest = split_path(reference)
    node = tree.by_id.get(head[1:])
    found = _below(node, rest) if node is not None else None
    return found or tree.by_id.get(reference[1:])


def _below(node: Node, keys: Sequence[str]) -> Node | None:
    for key in keys:
        inner = node.states.get(key)
        if inner is None:
            return None
        node = inner
    return node


def _hint(tree: Tree, source: Node, target: str) -> str:
    if target.startswith("#"):
        return near_miss(target, [f"#{name}" for name in tree.by_id])
    if source.parent is None:
        if _below(source, split_path(target)) is not None:
            return f": at the root it is written {'.' + target!r}"
        return near_miss(target, [f".{key}" for key in source.states])
    if target.startswith("."):
        return near_miss(target, [f".{key}" for key in source.states])
    elsewhere = [node for node in tree.nodes if node.key == target and node is not tree.root]
    if elsewhere and not near_miss(target, _siblings(source)):
        return f": a plain name is a sibling; write '#{elsewhere[0].id}' for {elsewhere[0].path!r}"
    return near_miss(target, _siblings(source))


def _together(node: Node, other: Node, where: str) -> None:
    ancestor = None if node.within(other) or other.within(node) else common_ancestor((node, other))
    direct = ancestor is not None and any(
        each.kind == "history" and each.parent is ancestor for each in (node, other)
    )
    if ancestor is None or ancestor.kind != "parallel" or direct:
        names = f"{other.path or other.key!r} and {node.path or node.key!r}"
        raise fault(where, f"the targets {names} cannot be active together")
