"""What is wrong with a machine although it can be built: dead states, candidates that never win, endless loops."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from .machine import Machine
from .nodes import Node, Transition

Level = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that an author should look at.

    Attributes:
        code: A short name, for programs.
        path: Where, as a path into the config, or a tool's name.
        message: What is wrong.
        fix: What would mend it.
    """

    level: Level
    code: str
    path: str
    message: str
    fix: str


def analyse(machine: Machine) -> list[Finding]:
    """Return what is wrong with the machine itself, in document order; guards are taken for able to go either way."""
    nodes = machine.tree.nodes
    reachable = _reachable(machine)
    findings: list[Finding] = []
    for node in nodes[1:]:
        if node.kind != "history" and node not in reachable:
            findings.append(_unreachable(node))
        elif node.kind == "atomic" and node.parent is not None and not _has_way_out(node):
            findings.append(_dead_end(node))
    for node in nodes:
        for where, candidates in _candidates(node):
            findings += _shadowed(where, candidates)
    return [*findings, *_loops(nodes)]


def reachable_paths(machine: Machine) -> frozenset[str]:
    """Return the dotted paths of the states that some sequence of events can lead to, whatever guards say."""
    return frozenset(node.path for node in _reachable(machine))


def _reachable(machine: Machine) -> set[Node]:
    found: set[Node] = set()
    waiting: list[Node] = [machine.tree.root]
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        waiting += node.ancestors
        waiting += _entered_with(node)
        waiting += [target for each in _transitions(node) for target in each.targets or ()]
    return found


def _entered_with(node: Node) -> Iterable[Node]:
    if node.kind == "history":
        # What it remembers was active before, so that it is found without it.
        return node.default or (node.parent.children[:1] if node.parent else ())
    if node.kind == "parallel":
        return node.children
    return () if node.initial is None else (node.initial,)


def _transitions(node: Node) -> Iterator[Transition]:
    for candidates in node.transitions.values():
        yield from candidates
    yield from node.always


def _has_way_out(node: Node) -> bool:
    return any(
        target is not node
        for source in (node, *node.ancestors)
        for each in _transitions(source)
        for target in each.targets or ()
    )


def _candidates(node: Node) -> Iterator[tuple[str, Sequence[Transition]]]:
    place = _place(node)
    for event, candidates in node.transitions.items():
        yield f"{place}on.{event}", candidates
    yield f"{place}always", node.always


def _place(node: Node) -> str:
    return f"{node.definition.where}." if node.definition.where else ""


def _shadowed(where: str, candidates: Sequence[Transition]) -> Iterator[Finding]:
    for number, each in enumerate(candidates[:-1]):
        if each.guard is None:
            message = (
                f"candidate {number} has no guard, so that the {len(candidates) - number - 1} after it never win"
            )
            fix = "give it a guard, or put it last"
            yield Finding("error", "shadowed-candidate", where, message, fix)
            return


def _loops(nodes: Iterable[Node]) -> Iterator[Finding]:
    """Find circles of `always` transitions that no guard can stop."""
    leads = {node: _always_target(node) for node in nodes}
    told: set[Node] = set()
    for start in leads:
        seen: list[Node] = []
        node: Node | None = start
        while node is not None and node not in seen:
            seen.append(node)
            node = leads.get(node)
        if node is None or node in told:
            continue
        circle = seen[seen.index(node) :]
        told.update(circle)
        names = " -> ".join(each.path or "(root)" for each in [*circle, node])
        message = f"these always transitions follow each other without end: {names}"
        yield Finding("error", "endless-always", f"{_place(node)}always", message, "give one of them a guard")


def _always_target(node: Node) -> Node | None:
    """Return the innermost state that the first unguarded `always` transition leads to."""
    for each in node.always:
        if each.guard is None:
            target = each.targets[0] if each.targets else None
            while target is not None and target.initial is not None and not target.always:
                target = target.initial
            return target
    return None


def _unreachable(node: Node) -> Finding:
    message = "no transition leads here"
    return Finding(
        "error", "unreachable-state", node.definition.where, message, "add a transition to it, or remove it"
    )


def _dead_end(node: Node) -> Finding:
    message = "a workflow that gets here never leaves again, and is never done"
    return Finding(
        "error", "no-way-out", node.definition.where, message, 'add a transition, or make it "type": "final"'
    )
