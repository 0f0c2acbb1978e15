"""From definitions to a tree of nodes whose transitions, guards and actions are resolved."""

from collections.abc import Iterable, Mapping
from typing import Any

from .actions import ActionCompiler, cancel_timer, start_timer
from .errors import at, fault
from .guards import GuardCompiler
from .nodes import Node, Transition, Tree, build_tree
from .parse import DelayDef, StateDef, TransitionDef
from .targets import resolve_default, resolve_targets


def compile_tree(definition: StateDef, guards: Mapping[str, Any], actions: ActionCompiler) -> Tree:
    """Return the compiled tree. Raises MachineConfigError with the path of the first fault."""
    tree = build_tree(definition)
    compiler = _Compiler(tree, GuardCompiler(tree, guards), actions)
    for node in tree.nodes:
        compiler.compile(node)
    for node in tree.nodes:
        _history_ends(node)
    return tree


class _Compiler:
    def __init__(self, tree: Tree, guards: GuardCompiler, actions: ActionCompiler) -> None:
        self._tree = tree
        self._guards = guards
        self._actions = actions

    def compile(self, node: Node) -> None:
        definition = node.definition
        node.initial_actions = self._actions.compile(definition.initial_actions)
        node.entry = self._actions.compile(definition.entry)
        node.exit = self._actions.compile(definition.exit)
        node.default = resolve_default(self._tree, node, at(definition.where, "target"))
        for descriptor, listed in definition.on.items():
            node.transitions[descriptor] = self._transitions(node, descriptor, listed)
        if definition.on_done:
            done = f"xstate.done.state.{node.id}"
            node.transitions[done] = self._transitions(node, done, definition.on_done)
        for delay in definition.after:
            self._after(node, delay)
        node.always = self._transitions(node, "", definition.always)

    def _after(self, node: Node, delay: DelayDef) -> None:
        event = f"xstate.after.{delay.delay}.{node.id}"
        found = self._transitions(node, event, delay.candidates, delay.delay)
        node.transitions[event] = node.transitions.get(event, ()) + found
        node.entry += (start_timer(event, {"type": event}, self._actions.delay(delay.delay, delay.where)),)
        node.exit += (cancel_timer(event),)

    def _transitions(
        self,
        node: Node,
        descriptor: str,
        listed: Iterable[TransitionDef],
        delay: float | str | None = None,
    ) -> tuple[Transition, ...]:
        return tuple(
            Transition(
                source=node,
                descriptor=descriptor,
                definition=each,
                targets=resolve_targets(self._tree, node, each.targets, each.target_where),
                guard=None if each.guard is None else self._guards.compile(each.guard, at(each.where, "guard")),
                actions=self._actions.compile(each.actions),
                delay=delay,
            )
            for each in listed
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
