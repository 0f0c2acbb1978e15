"""Guards: from a name, or the JSON form of and / or / not / stateIn, to one function.

The JSON form: `{"and": [GUARD, ...]}`, `{"or": [GUARD, ...]}`, `{"not": GUARD}`, `{"stateIn": "#id"}` (or a
dotted path, or a state value), where a GUARD is one of these, a name, or `{"type": NAME, "params": ...}`.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from .errors import at, fault, near_miss
from .jsondata import items_of, json_of, object_of, type_name
from .nodes import Node, Tree
from .snapshot import Event
from .targets import resolve_reference

Guard: TypeAlias = Callable[[Mapping[str, Any], Event, int], bool]
"""What a guard becomes: a function of the context, the event and the bit mask of the active states."""

_FORMS = ("and", "or", "not", "stateIn")


class GuardCompiler:
    """Compiles guards against the implementations given: a callable, or again a guard in its JSON form."""

    def __init__(self, tree: Tree, implementations: Mapping[str, Any]) -> None:
        self._tree = tree
        self._implementations = implementations

    def compile(self, spec: Any, where: str, within: Sequence[str] = ()) -> Guard:
        """Return the function for `spec`. `within` names the guards whose definitions led here."""
        if isinstance(spec, str):
            return self._named(spec, None, where, within)
        if not isinstance(spec, Mapping):
            raise fault(where, f"a guard is a name or an object, not {type_name(spec)}")
        guard = object_of(cast("Any", spec), where, "a guard")
        form = next((key for key in _FORMS if key in guard), None)
        if form is not None:
            if len(guard) > 1:
                raise fault(where, f"{form!r} stands alone in its object")
            return self._composed(form, guard[form], at(where, form), within)
        name = guard.get("type")
        if not isinstance(name, str):
            forms = ", ".join(repr(each) for each in _FORMS)
            raise fault(where, f"a guard needs its name under 'type', or one of {forms}")
        for key in guard:
            if key not in ("type", "params"):
                raise fault(where, f"unknown key {key!r}{near_miss(key, ('type', 'params'))}")
        return self._named(name, json_of(guard.get("params"), at(where, "params")), where, within)

    def _named(self, name: str, params: Any, where: str, within: Sequence[str]) -> Guard:
        implementation = self._implementations.get(name)
        if implementation is None:
            hint = near_miss(name, self._implementations)
            raise fault(where, f"no implementation of the guard {name!r} is given{hint}")
        if name in within:
            raise fault(where, f"the guard {name!r} is defined by itself")
        if isinstance(implementation, str | Mapping):
            return self.compile(implementation, at("guards", name), (*within, name))
        return _called(check_callable(implementation, at("guards", name)), params)

    def _composed(self, form: str, value: Any, where: str, within: Sequence[str]) -> Guard:
        if form == "stateIn":
            return _active(self.states_in(self._tree.root, value, where))
        if form == "not":
            inner = self.compile(value, where, within)
            return lambda context, event, mask: not inner(context, event, mask)
        if not isinstance(value, list | tuple) or not value:
            raise fault(where, "must be a list of guards")
        members = enumerate(items_of(cast("Any", value)))
        guards = tuple(self.compile(each, f"{where}[{index}]", within) for index, each in members)
        if form == "and":
            return lambda context, event, mask: all(guard(context, event, mask) for guard in guards)
        return lambda context, event, mask: any(guard(context, event, mask) for guard in guards)

    def states_in(self, node: Node, value: Any, where: str) -> int:
        """Return the mask of the states that a `stateIn` value names below `node`; all must be active."""
        if isinstance(value, str):
            if node.parent is None:
                return resolve_reference(self._tree, value, where).bit
            if value not in node.states:
                raise fault(where, f"no state {value!r} in {node.path!r}{near_miss(value, node.states)}")
            return node.states[value].bit
        mask = node.bit
        for key, inner in object_of(value, where, "a state value").items():
            child = node.states.get(key)
            if child is None:
                raise fault(where, f"no state {key!r}{near_miss(key, node.states)}")
            mask |= child.bit | self.states_in(child, inner, at(where, key))
        return mask


def check_callable(implementation: Any, where: str) -> Callable[..., Any]:
    """Return an implementation if it can be called and waits for nothing: the machine is pure."""
    if not callable(implementation):
        raise fault(where, f"must be callable or its JSON form, not {type_name(implementation)}")
    called = getattr(implementation, "__call__", None)  # noqa: B004 - an object may have an async __call__
    if inspect.iscoroutinefunction(implementation) or inspect.iscoroutinefunction(called):
        raise fault(where, "must not be async: a machine waits for nothing")
    return cast("Callable[..., Any]", implementation)


def _called(function: Callable[..., Any], params: Any) -> Guard:
    def guard(context: Mapping[str, Any], event: Event, mask: int) -> bool:
        answer = function(context, event, params)
        if answer is True or answer is False:
            return answer
        if inspect.isawaitable(answer):
            close = getattr(answer, "close", None)
            if close is not None:
                close()
            raise TypeError("a guard must not be async")
        return bool(answer)

    return guard


def _active(wanted: int) -> Guard:
    return lambda context, event, mask: mask & wanted == wanted
