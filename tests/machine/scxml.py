"""SCXML without a data model, converted to a configuration for the machine.

What SCXML says and XState says otherwise is written out: transitions are external unless they say `internal`,
`foo` stands for `foo.bar` too, an event sent without a delay waits until the internal ones are done, and
`initial` may name states at any depth.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_IGNORED = {"datamodel", "log"}
_IN = re.compile(r"(!?)In\(\s*['\"](.+?)['\"]\s*\)\Z")
_DELAY = re.compile(r"([0-9]*\.?[0-9]+)\s*(ms|s)\Z")
_UNITS = {"ms": 1, "s": 1000}

GUARDS = {"true": lambda context, event, params: True, "false": lambda context, event, params: False}
"""The implementations that a converted machine needs."""


class NeedsMore(Exception):
    """The document needs a data model, or something outside of the machine."""


def convert(path: Path) -> dict[str, Any]:
    """Return the configuration for one SCXML document. Raises NeedsMore when it needs more than a machine."""
    root = ET.parse(path).getroot()
    return {"id": "scxml", **_state(root)}


def _name(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def _children(element: ET.Element, *names: str) -> Iterator[ET.Element]:
    return (child for child in element if _name(child) in names)


def _state(element: ET.Element) -> dict[str, Any]:
    states = {_id(child): _state(child) for child in _children(element, "state", "parallel", "final", "history")}
    found: dict[str, Any] = {"states": states} if states else {}
    if "id" in element.attrib:
        found["id"] = element.attrib["id"]
    for child in element:
        name = _name(child)
        if name == "transition" and _name(element) != "history":
            _add_transition(found, child, element)
        elif name in ("onentry", "onexit"):
            found.setdefault(name.removeprefix("on"), []).extend(_actions(child))
        elif name not in ("state", "parallel", "final", "history", "initial", "transition", *_IGNORED):
            raise NeedsMore(f"<{name}>")
        if name == "datamodel" and len(child):
            raise NeedsMore("<data>")
    kind = _name(element)
    if kind in ("parallel", "final", "history"):
        found["type"] = kind
    if kind == "history":
        found["history"] = element.attrib.get("type", "shallow")
        found["target"] = [f"#{target}" for target in next(_children(element, "transition")).attrib["target"].split()]
    elif kind != "parallel" and states:
        _set_initial(found, element)
    return found


def _id(element: ET.Element) -> str:
    return element.attrib.get("id") or f"${id(element)}"


def _set_initial(found: dict[str, Any], element: ET.Element) -> None:
    states = found["states"]
    targets = element.attrib.get("initial", "").split()
    actions: list[Any] = []
    for initial in _children(element, "initial"):
        transition = next(_children(initial, "transition"))
        targets, actions = transition.attrib["target"].split(), _actions(transition)
    if not targets:
        targets = [next(iter(states))]
    if len(targets) == 1 and targets[0] in states:
        found["initial"] = {"target": targets[0], "actions": actions}
        return
    # XState's initial state is a child. States further down are reached through one that is left at once.
    states["$initial"] = {"always": {"target": [f"#{target}" for target in targets], "actions": actions}}
    found["initial"] = "$initial"


def _add_transition(found: dict[str, Any], element: ET.Element, source: ET.Element) -> None:
    transition: dict[str, Any] = {"actions": _actions(element)}
    if "target" in element.attrib:
        transition["target"] = [f"#{target}" for target in element.attrib["target"].split()]
        transition["reenter"] = element.attrib.get("type") != "internal"
    if "cond" in element.attrib:
        transition["guard"] = _guard(element.attrib["cond"].strip())
    if "event" not in element.attrib:
        found.setdefault("always", []).append(transition)
        return
    for event in element.attrib["event"].split():
        found.setdefault("on", {}).setdefault(_descriptor(event), []).append(transition)


def _descriptor(event: str) -> str:
    if event == "*":
        return event
    event = event.removesuffix(".*").removesuffix(".")
    return f"xstate.{event}.*" if event.startswith("done.state.") else f"{event}.*"


def _guard(condition: str) -> Any:
    if condition in GUARDS:
        return condition
    if match := _IN.match(condition):
        inside = {"stateIn": f"#{match[2]}"}
        return {"not": inside} if match[1] else inside
    raise NeedsMore(f"cond={condition!r}")


def _actions(element: ET.Element) -> list[Any]:
    found: list[Any] = []
    for child in element:
        name, given = _name(child), dict(child.attrib)
        if name == "raise":
            found.append({"type": "xstate.raise", "event": given["event"]})
        elif name == "cancel" and set(given) == {"sendid"}:
            found.append({"type": "xstate.cancel", "id": given["sendid"]})
        elif name == "send":
            found.append(_send(given, child))
        elif name not in _IGNORED:
            raise NeedsMore(f"<{name}>")
    return found


def _send(given: dict[str, str], element: ET.Element) -> dict[str, Any]:
    if given.get("target") == "#_internal" and set(given) == {"event", "target"}:
        return {"type": "xstate.raise", "event": given["event"]}
    if "delayexpr" in given and (literal := re.fullmatch(r"'(.*)'", given["delayexpr"])):
        given["delay"] = literal[1]
        del given["delayexpr"]
    if not set(given) <= {"event", "delay", "id"} or "event" not in given or len(element):
        raise NeedsMore(f"<send {' '.join(sorted(given))}>")
    delay = _DELAY.match(given.get("delay", "0s"))
    if delay is None:
        raise NeedsMore(f"delay={given['delay']!r}")
    action: dict[str, Any] = {"type": "xstate.raise", "event": given["event"]}
    if "id" in given:
        action["id"] = given["id"]
    return {**action, "delay": float(delay[1]) * _UNITS[delay[2]]}
