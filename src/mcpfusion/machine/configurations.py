"""Sets of active states: from a bit mask or a state value to the one record that all snapshots share."""

from collections.abc import Mapping
from typing import Any, cast

from .errors import UnknownStateError, near_miss
from .events import next_events
from .nodes import Node, Tree
from .snapshot import Configuration, StateValue, state_text

_KEPT = 4096


class Configurations:
    """The configurations of one machine, each made once. What is kept is bounded: there may be many."""

    def __init__(self, tree: Tree, fingerprint: str) -> None:
        self._tree = tree
        self._fingerprint = fingerprint
        self._made: dict[int, Configuration] = {}
        self._outermost: dict[str, Configuration] = {}

    def of(self, mask: int) -> Configuration:
        """Return the configuration of a legal set of active states."""
        found = self._made.get(mask)
        if found is None:
            if len(self._made) >= _KEPT:
                self._made.clear()
            found = self._made[mask] = self._make(mask)
        return found

    def read(self, value: Any) -> Configuration:
        """Return the configuration of a state value. Raises UnknownStateError when it does not fit."""
        found = self._outermost.get(value) if type(value) is str else None
        if found is None:
            found = self.of(self._mask(self._tree.root, value))
            if type(value) is str:
                self._outermost[value] = found
        return found

    def _make(self, mask: int) -> Configuration:
        active = [node for node in self._tree.nodes if mask & node.bit]
        value = _value(self._tree.root, mask)
        final = is_final(self._tree.root, mask)
        return Configuration(
            machine=self._fingerprint,
            mask=mask,
            value=value,
            state=state_text(value),
            paths=frozenset(node.path for node in active if node.parent is not None),
            tags=tuple(sorted({tag for node in active for tag in node.definition.tags})),
            events=() if final else next_events(self._tree, mask),
            final=final,
        )

    def _mask(self, node: Node, value: Any) -> int:
        if isinstance(value, str):
            child = self._child(node, value)
            if node.kind != "compound" or not child.atomic:
                raise self._misfit(f"{_name(node)} is {_kind(node)}: {value!r} does not say enough")
            return node.bit | child.bit
        if type(value) is not dict and not isinstance(value, Mapping):
            raise self._misfit(f"a state value is a string or an object, not {value!r}")
        mapping = cast("Mapping[Any, Any]", value)
        expected = 1 if node.kind == "compound" else len(node.children)
        if len(mapping) != expected:
            raise self._misfit(f"{_name(node)} is {_kind(node)}: {state_text(dict(mapping))} does not fit it")
        mask = node.bit
        for key, inner in mapping.items():
            child = self._child(node, key)
            if expected == 1 and child.atomic and node.kind == "compound":
                raise self._misfit(f"{_name(child)} has no states of its own")
            mask |= self._mask(child, inner)
        return mask

    def _child(self, node: Node, key: Any) -> Node:
        child = node.states.get(key)
        if child is None or child.kind == "history":
            known = [each.key for each in node.children]
            place = "" if node.parent is None else f" in {node.path!r}"
            raise self._misfit(f"no state {key!r}{place}{near_miss(str(key), known)}")
        return child

    def _misfit(self, problem: str) -> UnknownStateError:
        return UnknownStateError(f"machine {self._tree.root.id!r}: {problem}")


def is_final(node: Node, mask: int) -> bool:
    """True when an active state has reached its end. Source: SCXML, `isInFinalState`."""
    if node.kind == "compound":
        return any(child.kind == "final" and mask & child.bit for child in node.children)
    if node.kind == "parallel":
        return all(is_final(child, mask) for child in node.children)
    return node.kind == "final"


def is_legal(node: Node, mask: int) -> bool:
    """True when an active state has one active child, or all of them if it is parallel, at every depth."""
    active = [child for child in node.children if mask & child.bit]
    expected = {"compound": 1, "parallel": len(node.children)}.get(node.kind, 0)
    below = mask & node.inside & ~sum(child.bit | child.inside for child in active)
    return not below and len(active) == expected and all(is_legal(child, mask) for child in active)


def _value(node: Node, mask: int) -> StateValue:
    active = [child for child in node.children if mask & child.bit]
    if node.kind == "compound" and active[0].atomic:
        return active[0].key
    return {child.key: _value(child, mask) for child in active}


def _name(node: Node) -> str:
    return f"{node.path!r}" if node.parent is not None else "the machine"


def _kind(node: Node) -> str:
    names = {"compound": "a compound state", "parallel": "a parallel state"}
    return names.get(node.kind, "a state without states")
