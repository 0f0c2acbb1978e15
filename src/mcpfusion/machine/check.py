"""What is wrong with a machine although it can be built: found before an agent meets it."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from .descriptors import candidates, is_wildcard
from .errors import at
from .machine import Machine
from .nodes import Node, Transition, Tree
from .reach import entered_by, reachable

Level: TypeAlias = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        level: `error` for what can never work, `warning` for what may be meant.
        code: `unreachable-state`, `no-way-out`, `shadowed-candidate` or `always-loop`.
        where: The path of the fault within the configuration.
        message: What is wrong.
        fix: What to do about it.
    """

    level: Level
    code: str
    where: str
    message: str
    fix: str


def analyse(machine: Machine) -> list[Finding]:
    """Return what is wrong with a machine, in document order of the states.

    Guards are taken to say now this, now that: a state counts as reachable when some answers lead there.
    """
    tree = machine.tree
    reached = reachable(tree)
    findings: list[Finding] = []
    for node in tree.nodes:
        if node.kind == "history":
            continue
        if node not in reached:
            if node.parent in reached:
                findings.append(_unreachable(node))
            continue
        if _is_stuck(tree, node):
            findings.append(_no_way_out(node))
        findings += _shadowed(node)
    return [*findings, *_always_loops(tree, reached)]


def _unreachable(node: Node) -> Finding:
    return Finding(
        "error",
        "unreachable-state",
        node.definition.where,
        f"the state {node.path!r} cannot be reached",
        f"give a reachable state a transition with the target '#{node.id}', or remove the state",
    )


def _no_way_out(node: Node) -> Finding:
    if node.kind == "final":
        parent = node.parent.path if node.parent else ""
        return Finding(
            "error",
            "no-way-out",
            node.definition.where,
            f"{parent!r} is done in {node.path!r}, and nothing follows",
            f"give {parent!r} an 'onDone', or a transition",
        )
    return Finding(
        "error",
        "no-way-out",
        node.definition.where,
        f"the state {node.path!r} is not final, and no transition leads out of it",
        "give it a transition, or 'type': 'final' if the workflow ends there",
    )


def _is_stuck(tree: Tree, node: Node) -> bool:
    if not node.atomic or node.parent is None:
        return False
    if node.kind == "final" and _completes(node, tree.root):
        return False
    lower: list[Node] = []
    for holder in (node, *node.ancestors):
        for transition in _live(holder):
            if _leads_out(transition, node, lower):
                return False
        lower.append(holder)
        if holder.kind == "parallel" and any(
            not each.forbidden and any(not target.within(holder) for target in each.targets or ())
            for other in tree.nodes
            if other.within(holder) and not node.within(other) and other is not node
            for each in _live(other)
        ):
            return False
    return True


def _completes(node: Node, root: Node) -> bool:
    """True when being in a final state may complete the machine."""
    parent = node.parent
    return parent is root or (parent is not None and parent.parent is root and root.kind == "parallel")


def _leads_out(transition: Transition, node: Node, lower: Iterable[Node]) -> bool:
    if transition.forbidden or transition.targets in (None, (node,)):
        return False
    event = transition.descriptor
    if event == f"xstate.done.state.{transition.source.id}":
        direct = transition.source is node.parent or transition.source.kind == "parallel"
        return node.kind == "final" and direct
    if not event or is_wildcard(event):
        return True
    return not any(_forbids(each, event) for each in lower)


def _forbids(node: Node, event: str) -> bool:
    found = candidates(node.transitions, event)
    return bool(found) and found[0].guard is None and found[0].forbidden


def _live(node: Node) -> Iterator[Transition]:
    """Yield the transitions of a state that can be chosen at all."""
    for listed in (*node.transitions.values(), node.always):
        for transition in listed:
            yield transition
            if transition.guard is None:
                break


def _shadowed(node: Node) -> Iterator[Finding]:
    for listed in (*node.transitions.values(), node.always):
        seen: dict[str, int] = {}
        for number, transition in enumerate(listed):
            guard = json.dumps(transition.definition.guard, sort_keys=True)
            earlier = seen.get("null", seen.get(guard))
            if earlier is not None:
                why = "has no guard" if "null" in seen else "has the same guard"
                yield Finding(
                    "error",
                    "shadowed-candidate",
                    transition.definition.where.removesuffix(f"[{number}]"),
                    f"candidate {number} is never chosen, because candidate {earlier} {why}",
                    "put it before that candidate, or remove it",
                )
            seen.setdefault(guard, number)


def _always_loops(tree: Tree, reached: set[Node]) -> Iterator[Finding]:
    """Yield the loops of eventless transitions, each once, at its first transition."""
    listed = [each for node in tree.nodes if node in reached for each in _eventless(node)]
    follows = {each: [next_ for next_ in listed if _follows(each, next_)] for each in listed}
    told: set[Transition] = set()
    for start in listed:
        loop = _loop_through(start, follows)
        if not loop or told.intersection(loop):
            continue
        told.update(loop)
        certain = all(each.guard is None for each in loop)
        if not certain and any(_acts(each) for each in loop):
            continue
        names = " -> ".join(repr(each.source.path or each.source.id) for each in (*loop, loop[0]))
        yield Finding(
            "error" if certain else "warning",
            "always-loop",
            start.definition.where or at("", "always"),
            f"eventless transitions form a loop: {names}",
            "guard one of them with something that ends it"
            if certain
            else "see to it that the guards are never all true: nothing in the loop changes what they see",
        )


def _eventless(node: Node) -> Iterator[Transition]:
    for transition in node.always:
        yield transition
        if transition.guard is None:
            return


def _follows(first: Transition, second: Transition) -> bool:
    if first is second:
        return bool(first.actions) and (first.targets is None or first.source in entered_by(first))
    if first.targets is None:
        return False
    return second.source in entered_by(first)


def _acts(transition: Transition) -> bool:
    return bool(transition.actions) or any(node.entry or node.exit for node in entered_by(transition))


def _loop_through(start: Transition, follows: dict[Transition, list[Transition]]) -> list[Transition]:
    """Return the shortest loop that begins with `start`, or nothing."""
    paths = [[start]]
    seen: set[Transition] = set()
    while paths:
        path = paths.pop(0)
        for each in follows[path[-1]]:
            if each is start:
                return path
            if each not in seen:
                seen.add(each)
                paths.append([*path, each])
    return []
