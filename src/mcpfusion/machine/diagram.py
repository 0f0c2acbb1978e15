"""Pictures of a machine as text: Mermaid and Graphviz's DOT, with what is bound to a state written on it."""

import re
from collections.abc import Iterator, Mapping, Sequence

from .machine import Machine
from .nodes import Node, Transition

Labels = Mapping[str, Sequence[str]]
"""What to write on a state, by its dotted path: the tools that are visible there."""


def to_mermaid(machine: Machine, labels: Labels | None = None) -> str:
    """Return the machine as a Mermaid state diagram (https://mermaid.js.org/syntax/stateDiagram.html)."""
    lines = ["stateDiagram-v2"]
    root = machine.tree.root
    if root.kind == "parallel":
        lines.append(f"    %% {_line(machine.id)}: parallel regions")
    lines += _mermaid_inside(root, labels or {}, "    ")
    lines += [f"    {line}" for line in _mermaid_arrows(machine)]
    return "\n".join(lines) + "\n"


def _mermaid_inside(parent: Node, labels: Labels, indent: str) -> Iterator[str]:
    if parent.initial is not None:
        yield f"{indent}[*] --> {_name(parent.initial)}"
    for number, node in enumerate(parent.states.values()):
        if parent.kind == "parallel" and number:
            yield f"{indent}--"
        text = _line(node.key or "(empty)")
        yield f'{indent}state "{text}" as {_name(node)}'
        for label in labels.get(node.path, ()):
            yield f"{indent}{_name(node)} : {_line(label)}"
        if node.states:
            yield f"{indent}state {_name(node)} {{"
            yield from _mermaid_inside(node, labels, indent + "    ")
            yield f"{indent}}}"
        if node.kind == "final":
            yield f"{indent}{_name(node)} --> [*]"


def _mermaid_arrows(machine: Machine) -> Iterator[str]:
    for source, target, text in _arrows(machine):
        yield f"{_name(source)} --> {_name(target)} : {_line(text)}"


def to_dot(machine: Machine, labels: Labels | None = None) -> str:
    """Return the machine as a directed graph in the DOT language (https://graphviz.org/doc/info/lang.html)."""
    lines = [
        f"digraph {_quoted(machine.id)} {{",
        "  compound=true; rankdir=TB; fontname=Helvetica;",
        '  node [shape=box, style="rounded,filled", fillcolor=white, fontname=Helvetica, fontsize=11];',
        "  edge [fontname=Helvetica, fontsize=10];",
    ]
    lines += _dot_inside(machine.tree.root, labels or {}, "  ")
    for source, target, text in _arrows(machine):
        ends = [f"label={_quoted(text)}"]
        ends += [f"ltail=cluster_{_name(source)}"] if source.children and source.parent else []
        ends += [f"lhead=cluster_{_name(target)}"] if target.children else []
        lines.append(f"  {_name(_leaf(source))} -> {_name(_leaf(target))} [{', '.join(ends)}];")
    return "\n".join([*lines, "}"]) + "\n"


def _dot_inside(parent: Node, labels: Labels, indent: str) -> Iterator[str]:
    if parent.initial is not None:
        start = f"start_{_name(parent)}"
        yield f'{indent}{start} [shape=point, width=0.12, label=""];'
        yield f"{indent}{start} -> {_name(_leaf(parent.initial))};"
    for node in parent.states.values():
        text = "\n".join([node.key or "(empty)", *labels.get(node.path, ())])
        if node.children:
            style = "dashed" if node.kind == "parallel" else "rounded"
            yield f"{indent}subgraph cluster_{_name(node)} {{"
            yield f"{indent}  label={_quoted(text)}; style={style};"
            yield from _dot_inside(node, labels, indent + "  ")
            yield f"{indent}}}"
        else:
            shape = ", peripheries=2" if node.kind == "final" else ", shape=circle" if node.kind == "history" else ""
            yield f"{indent}{_name(node)} [label={_quoted(text)}{shape}];"


def _arrows(machine: Machine) -> Iterator[tuple[Node, Node, str]]:
    for node in machine.tree.nodes:
        for event, candidates in node.transitions.items():
            for each in candidates:
                yield from ((node, target, _text(event, each)) for target in each.targets or ())
        for each in node.always:
            yield from ((node, target, _text("always", each)) for target in each.targets or ())


def _text(event: str, transition: Transition) -> str:
    delayed = re.match(r"xstate\.after\.(.+?)\.", event)
    name = f"after {delayed[1]}" if delayed else "done" if event.startswith("xstate.done") else event
    guard = transition.definition.guard
    return name if guard is None else f"{name} [{_guard(guard)}]"


def _guard(guard: object) -> str:
    return str(guard.get("type", "guard")) if isinstance(guard, dict) else str(guard)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


def _leaf(node: Node) -> Node:
    """Return a state without states of its own to which an arrow can be drawn."""
    while node.children:
        node = node.initial or node.children[0]
    return node


def _name(node: Node) -> str:
    return f"s{node.index}"


def _line(text: str) -> str:
    """Return text for one line of Mermaid, in which quotes, colons and semicolons mean something."""
    return re.sub(r'["\n\r:;#{}<>]', lambda found: f"#{ord(found[0])};", text) or " "


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\r", " ").replace("\n", "\\n")
    return f'"{escaped}"'
