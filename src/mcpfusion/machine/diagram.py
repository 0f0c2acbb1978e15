"""Drawing a machine: as a Mermaid state diagram, or in Graphviz's language."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from .machine import Machine
from .nodes import Node, Transition

Labels = Mapping[str, Sequence[str]]
"""For the dotted path of a state the names of the tools that stand on it."""


def to_mermaid(machine: Machine, labels: Labels | None = None) -> str:
    """Return the machine as a Mermaid `stateDiagram-v2`, tools below the names of their states."""
    root = machine.tree.root
    lines = ["stateDiagram-v2"]
    if root.kind == "parallel":
        lines += _mermaid_state(root, labels or {}, "    ")
    else:
        lines += _mermaid_inside(root, labels or {}, "    ")
    if root.kind != "parallel" and any(each.targets for each in _transitions(root)):
        # The machine itself has no box: what leads on from anywhere begins at a point of its own.
        lines.append(f'    state "(any state)" as {_name(root)}')
    for node in machine.tree.nodes:
        for transition in _transitions(node):
            if node is root and root.kind != "parallel" and not transition.targets:
                continue
            for target in _targets(transition):
                lines.append(f"    {_name(node)} --> {_name(target)} : {_mermaid_text(_label(transition))}")
    return "\n".join(lines) + "\n"


def _mermaid_inside(node: Node, labels: Labels, indent: str) -> Iterator[str]:
    for position, child in enumerate(node.states.values()):
        if node.kind == "parallel" and position and child.kind != "history":
            yield f"{indent}--"
        yield from _mermaid_state(child, labels, indent)
    if node.initial is not None and node.kind == "compound":
        yield f"{indent}[*] --> {_name(node.initial)}"
    for child in node.children:
        if child.kind == "final":
            yield f"{indent}{_name(child)} --> [*]"


def _mermaid_state(node: Node, labels: Labels, indent: str) -> Iterator[str]:
    text = "<br/>".join(_mermaid_text(line) for line in _lines(node, labels))
    yield f'{indent}state "{text}" as {_name(node)}'
    if node.children:
        yield f"{indent}state {_name(node)} {{"
        yield from _mermaid_inside(node, labels, indent + "    ")
        yield f"{indent}}}"


def _mermaid_text(text: str) -> str:
    return re.sub(r"[^\w .,/()*@+\-]", lambda match: f"#{ord(match[0])};", text)


def to_dot(machine: Machine, labels: Labels | None = None) -> str:
    """Return the machine in Graphviz's language, nested states as clusters, tools below the names."""
    tree = machine.tree
    lines = [
        f"digraph {_quoted(machine.id)} {{",
        "    compound=true newrank=true",
        '    node [shape=box style=rounded fontname="sans-serif"]',
        '    edge [fontname="sans-serif" fontsize=10]',
        *_dot_inside(tree.root, labels or {}, "    "),
    ]
    if any(_transitions(tree.root)):
        lines.append(f'    {_name(tree.root)} [label="(any state)" shape=plaintext]')
    for node in tree.nodes:
        for transition in _transitions(node):
            for target in _targets(transition):
                lines.append(f"    {_dot_edge(node, target, _label(transition))}")
    return "\n".join([*lines, "}"]) + "\n"


def _dot_inside(node: Node, labels: Labels, indent: str) -> Iterator[str]:
    for child in node.states.values():
        label = _quoted("\n".join(_lines(child, labels)))
        if not child.children:
            shape = {"final": " peripheries=2", "history": " shape=circle"}.get(child.kind, "")
            yield f"{indent}{_name(child)} [label={label}{shape}]"
            continue
        yield f"{indent}subgraph cluster_{_name(child)} {{"
        style = "dashed" if node.kind == "parallel" else "rounded"
        yield f"{indent}    label={label} style={style}"
        yield from _dot_inside(child, labels, indent + "    ")
        yield f"{indent}}}"
    if node.initial is not None and node.kind == "compound":
        start = f"start_{_name(node)}"
        yield f'{indent}{start} [shape=point label=""]'
        yield f"{indent}{start} -> {_anchor(node.initial)}{_edge_attributes(None, node.initial, '')}"


def _dot_edge(source: Node, target: Node, label: str) -> str:
    return f"{_anchor(source)} -> {_anchor(target)}{_edge_attributes(source, target, label)}"


def _edge_attributes(source: Node | None, target: Node, label: str) -> str:
    found = [f"label={_quoted(label)}"] if label else []
    apart = source is None or not (source is target or source.within(target) or target.within(source))
    if apart and source is not None and source.children:
        found.append(f"ltail=cluster_{_name(source)}")
    if apart and target.children:
        found.append(f"lhead=cluster_{_name(target)}")
    return f" [{' '.join(found)}]" if found else ""


def _anchor(node: Node) -> str:
    """Return a leaf that an edge can hold on to: Graphviz draws none from cluster to cluster."""
    while node.parent is not None and node.children:
        node = node.initial or node.children[0]
    return _name(node)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _name(node: Node) -> str:
    return f"s{node.index}"


def _lines(node: Node, labels: Labels) -> list[str]:
    if node.kind == "history":
        return ["H*" if node.deep else "H"]
    name = node.key or '""' if node.parent is not None else node.id
    return [name, *(f"- {tool}" for tool in labels.get(node.path, ()))]


def _transitions(node: Node) -> Iterator[Transition]:
    for listed in (*node.transitions.values(), node.always):
        yield from (each for each in listed if not each.forbidden)


def _targets(transition: Transition) -> Iterator[Node]:
    """Yield what an arrow points at: the source itself when there is no target, and no machine but its start."""
    for target in transition.targets or (transition.source,):
        start = target.initial if target.parent is None and transition.targets else None
        yield target if start is None else start


def _label(transition: Transition) -> str:
    if transition.delay is not None:
        unit = "" if isinstance(transition.delay, str) else " ms"
        event = f"after {transition.delay}{unit}"
    elif transition.descriptor == f"xstate.done.state.{transition.source.id}":
        event = "done"
    else:
        event = transition.descriptor or "always"
    actions = ", ".join(action.type for action in transition.definition.actions)
    guard = transition.definition.guard
    return event + (f" [{_guard(guard)}]" if guard is not None else "") + (f" / {actions}" if actions else "")


def _guard(spec: object) -> str:
    if isinstance(spec, str):
        return spec
    text = json.dumps(spec, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
