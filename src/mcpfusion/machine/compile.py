"""From definitions to a tree of nodes whose transitions, guards and actions are resolved."""

from collections.abc import Iterable, Mapping

from .errors import at, fault
from .nodes import Node, Transition, Tree, build_tree
from .parse import StateDef, TransitionDef
from .targets import resolve_default, resolve_targets


def compile_tree(definition: StateDef) -> Tree:
    """Return the compiled tree. Raises MachineConfigError with the path of the first fault."""
    tree = build_tree(definition)
    for node in tree.nodes:
        _transitions(tree, node)
        node.default = resolve_default(tree, node, at(node.definition.where, "target"))
    for node in tree.nodes:
        _history_ends(node)
    return tree


def _transitions(tree: Tree, node: Node) -> None:
    definition = node.definition
    for descriptor, candidates in definition.on.items():
        node.transitions[descriptor] = _resolve(tree, node, descriptor, candidates)
    if definition.on_done:
        done = f"xstate.done.state.{node.id}"
        node.transitions[done] = _resolve(tree, node, done, definition.on_done)
    for delay in definition.after:
        event = f"xstate.after.{delay.delay}.{node.id}"
        found = _resolve(tree, node, event, delay.candidates, delay.delay)
        node.transitions[event] = node.transitions.get(event, ()) + found
    node.always = _resolve(tree, node, "", definition.always)


def _resolve(
    tree: Tree,
    node: Node,
    descriptor: str,
    candidates: Iterable[TransitionDef],
    delay: float | str | None = None,
) -> tuple[Transition, ...]:
    return tuple(
        Transition(
            source=node,
            descriptor=descriptor,
            definition=definition,
            targets=resolve_targets(tree, node, definition.targets, definition.target_where),
            delay=delay,
        )
        for definition in candidates
    )


def _history_ends(node: Node) -> None:
    """Refuse history states that would look for their default in themselves for ever."""
    seen: set[Node] = set()
    waiting = [node] if node.kind == "history" else []
    while waiting:
        current = waiting.pop()
        if current in seen:
            raise fault(node.definition.where, "its default leads back to itself: give it a target")
        seen.add(current)
        waiting.extend(_defaults(current))


def _defaults(node: Node) -> Iterable[Node]:
    if node.kind != "history" or node.parent is None:
        return ()
    if node.default is not None:
        return [target for target in node.default if target.kind == "history"]
    initial = node.parent.initial if node.parent.kind == "compound" else None
    return [initial] if initial is not None and initial.kind == "history" else ()


def own_events(nodes: Iterable[Node]) -> Mapping[str, None]:
    """Return every descriptor that the configuration names under `on`, in document order."""
    return dict.fromkeys(descriptor for node in nodes for descriptor in node.definition.on)
