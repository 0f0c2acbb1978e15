"""What is wrong between a machine and the tools bound to it: events nobody sends, tools nobody sees."""

from collections.abc import Iterator

from mcpfusion.gate.binding import Bindings, BoundTool
from mcpfusion.machine import Machine
from mcpfusion.machine.check import Finding, analyse
from mcpfusion.machine.descriptors import matches
from mcpfusion.machine.nodes import Node
from mcpfusion.machine.reach import reachable


def check(bindings: Bindings) -> list[Finding]:
    """Return what is wrong with the machine and its bindings; nothing for an engine that is no `Machine`."""
    machine = bindings.machine
    if not isinstance(machine, Machine):
        return []
    findings = analyse(machine)
    if bindings.tools:
        findings += _never_visible(machine, bindings)
        findings += _never_sent(machine, bindings)
    return findings


def _never_visible(machine: Machine, bindings: Bindings) -> Iterator[Finding]:
    reached = {node.path for node in reachable(machine.tree)}
    for tool in bindings.tools.values():
        if tool.bindings and not any(binding.paths & reached for binding in tool.bindings):
            message = f"it is bound to {tool.where}, where no workflow ever gets"
            yield Finding(
                "error", "never-visible", f"tool {tool.name}", message, "bind it to a state that is reached"
            )


def _never_sent(machine: Machine, bindings: Bindings) -> Iterator[Finding]:
    """Find transitions that no binding triggers. A tool whose event its result decides may send any of them."""
    open_tools = [
        tool for tool in bindings.tools.values() if any(callable(each.transition) for each in tool.bindings)
    ]
    sent = {binding.event for tool in bindings.tools.values() for binding in tool.bindings if binding.event}
    told: set[str] = set()
    for node in machine.tree.nodes:
        for descriptor, candidates in node.transitions.items():
            if descriptor.startswith("xstate.") or all(each.forbidden for each in candidates):
                continue
            where = f"{node.definition.where}.on.{descriptor}".lstrip(".")
            if not any(matches(event, descriptor) for event in sent):
                if descriptor not in told and not open_tools:
                    told.add(descriptor)
                    message = f"no tool sends the event {descriptor!r}"
                    fix = "bind a tool to it, or remove it"
                    yield Finding("warning", "event-never-sent", where, message, fix)
            elif not open_tools and not _triggered(node, descriptor, bindings):
                message = f"no tool that sends {descriptor!r} is bound to a state from which this transition is taken"
                yield Finding(
                    "warning", "never-triggered", where, message, "bind a tool to this state with the event"
                )


def _triggered(node: Node, descriptor: str, bindings: Bindings) -> bool:
    return any(_triggers(tool, node, descriptor) for tool in bindings.tools.values())


def _triggers(tool: BoundTool, node: Node, descriptor: str) -> bool:
    related = {node.path, *(each.path for each in node.ancestors)}
    in_parallel = any(each.kind == "parallel" for each in node.ancestors)
    for binding in tool.bindings:
        if binding.event is None or not matches(binding.event, descriptor):
            continue
        below = any(path == node.path or path.startswith(f"{node.path}.") or not node.path for path in binding.paths)
        # In parallel regions a tool of one region may well send an event that another takes.
        if in_parallel or below or not related.isdisjoint(binding.paths):
            return True
    return False
