"""Declaring an action: a chain of methods, or the same names as keywords of one call."""

import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypedDict, TypeVar, cast

from .action import Action, BindingSpec, Kind, OnCancel, OnDoubt, Transition
from .errors import RegistrationError, did_you_mean
from .signature import Signature

if TYPE_CHECKING:
    from .middleware import Middleware

P = ParamSpec("P")
R = TypeVar("R")

_NAME = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)+")
_LONGEST_NAME = 128

_PRESETS: dict[Kind, dict[str, bool]] = {
    "action": {},
    "query": {"readOnlyHint": True},
    "mutation": {"readOnlyHint": False, "destructiveHint": True},
}
_HINTS = {
    "read_only": "readOnlyHint",
    "destructive": "destructiveHint",
    "idempotent": "idempotentHint",
    "open_world": "openWorldHint",
}


class ActionKeywords(TypedDict, total=False):
    """The methods of `ActionBuilder` as keywords of one call: `describe="..."` is `.describe("...")`.

    Where a method takes more than one argument, a tuple holds them: `bind_state=("draft", "SUBMIT")`, or a list of
    such tuples for several bindings.
    """

    describe: str
    title: str
    compact_description: str
    icons: Sequence[Mapping[str, Any]]
    meta: Mapping[str, Any]
    tags: str | Sequence[str]
    annotations: Mapping[str, bool]
    bind_state: (
        str
        | list[str]
        | tuple[str | Sequence[str]]
        | tuple[str | Sequence[str], Transition | None]
        | list[tuple[str | Sequence[str], Transition | None]]
    )
    mints_handle: bool
    time_limit: float
    on_doubt: OnDoubt
    on_cancel: OnCancel
    keep_result: float
    use: "Middleware | Sequence[Middleware]"


class ActionBuilder:
    """An action that is being declared. Immutable: each method returns a new builder.

    Every method raises RegistrationError for a value that cannot be right, naming the action and the argument.
    """

    __slots__ = ("_bindings", "_hints", "_kind", "_middleware", "_name", "_register", "_tags", "_values")

    def __init__(self, kind: Kind, name: str, *, register: Callable[[Action], None] | None = None) -> None:
        """Begin the action `name`; `register` is handed the action when it is complete."""
        self._kind: Kind = kind
        self._name = _checked_name(name)
        self._register = register
        self._values: dict[str, Any] = {}
        self._hints: dict[str, bool] = {}
        self._bindings: tuple[BindingSpec, ...] = ()
        self._tags: tuple[str, ...] = ()
        self._middleware: tuple[Middleware, ...] = ()

    def __repr__(self) -> str:
        return f"ActionBuilder({self._kind!r}, {self._name!r})"

    def describe(self, text: str) -> Self:
        """Set what the model reads. Without it, that is the handler's docstring."""
        return self._with_value("describe", self._text("describe", text))

    def title(self, text: str) -> Self:
        """Set the name that people read."""
        return self._with_value("title", self._text("title", text))

    def compact_description(self, text: str) -> Self:
        """Set the short description, for as long as the workflow stands in its initial state."""
        return self._with_value("compact_description", self._text("compact_description", text))

    def icons(self, icons: Sequence[Mapping[str, Any]]) -> Self:
        """Set the icons, as MCP writes them: `[{"src": ..., "mimeType": ..., "sizes": [...]}]`."""
        if not _is_list(icons) or not all(map(_is_icon, icons)):
            raise self._refusal("icons", "a list of dicts with a 'src'", icons)
        return self._with_value("icons", tuple(dict(icon) for icon in icons))

    def meta(self, meta: Mapping[str, Any]) -> Self:
        """Set the tool's `_meta`."""
        if not isinstance(cast(object, meta), Mapping):
            raise self._refusal("meta", "a dict", meta)
        return self._with_value("meta", dict(meta))

    def tags(self, *names: str) -> Self:
        """Add tags."""
        for name in names:
            self._text("tags", name)
        return self._with_slot("_tags", tuple(dict.fromkeys((*self._tags, *names))))

    def annotations(
        self,
        *,
        read_only: bool | None = None,
        destructive: bool | None = None,
        idempotent: bool | None = None,
        open_world: bool | None = None,
    ) -> Self:
        """Set hints about what the action does (MCP: `ToolAnnotations`).

        Each overrides what the kind of action says; None leaves it.
        """
        given = dict(zip(_HINTS, (read_only, destructive, idempotent, open_world), strict=True))
        for hint, value in given.items():
            if value is not None and not isinstance(cast(object, value), bool):
                raise self._refusal(f"annotations: {hint}", "true or false", value)
        hints = {_HINTS[hint]: value for hint, value in given.items() if value is not None}
        return self._with_slot("_hints", {**self._hints, **hints})

    def bind_state(self, states: str | Sequence[str], transition: Transition | None = None) -> Self:
        """Put the action on the menu in `states` only; a call that succeeds sends the event `transition`.

        May be said several times.

        Args:
            states: Names, globs over dotted paths, or `tag:NAME`; one or several.
            transition: The event, or a callable that picks it, or None, from (arguments, result).
        """
        names: tuple[Any, ...] = (states,) if isinstance(states, str) else tuple(states) if _is_list(states) else ()
        if not names or not all(isinstance(name, str) and name for name in names):
            raise self._refusal("bind_state", "a state or several", states)
        if transition is not None and not callable(transition) and not _is_text(transition):
            raise self._refusal("bind_state: transition", "an event, a callable or None", transition)
        return self._with_slot("_bindings", (*self._bindings, BindingSpec(names, transition)))

    def mints_handle(self, mints: bool = True) -> Self:
        """Let a successful call open a new workflow and return its handle."""
        if not isinstance(cast(object, mints), bool):
            raise self._refusal("mints_handle", "true or false", mints)
        return self._with_value("mints_handle", mints)

    def time_limit(self, seconds: float) -> Self:
        """Set after how many seconds a step that has not ended is in doubt."""
        return self._with_value("time_limit", self._seconds("time_limit", seconds))

    def on_doubt(self, policy: OnDoubt) -> Self:
        """Say what happens to a step whose outcome is unknown: `hold` until somebody resolves it, or `retry`.

        Without it: `retry` for what is read-only or declared not destructive, `hold` for the rest.
        """
        return self._with_value("on_doubt", self._choice("on_doubt", policy, ("hold", "retry")))

    def on_cancel(self, policy: OnCancel) -> Self:
        """Say what happens to a claimed step whose caller has gone: `finish` it (the default) or `release` it.

        To release it its handler is cancelled. A plain function in its thread cannot be, and always finishes.
        """
        return self._with_value("on_cancel", self._choice("on_cancel", policy, ("finish", "release")))

    def keep_result(self, seconds: float) -> Self:
        """Keep the result for this many seconds, for a repeat of the same call by the same principal."""
        return self._with_value("keep_result", self._seconds("keep_result", seconds))

    def use(self, *middleware: "Middleware") -> Self:
        """Put middleware around this action, the first one outermost."""
        for layer in middleware:
            if not callable(layer):
                raise self._refusal("use", "async callables (call, call_next)", layer)
        return self._with_slot("_middleware", (*self._middleware, *middleware))

    def keywords(self, **keywords: Any) -> Self:
        """Apply methods by their names; the values are those of `ActionKeywords`."""
        builder = self
        for keyword, value in keywords.items():
            if keyword not in ActionKeywords.__annotations__:
                near = did_you_mean(keyword, ActionKeywords.__annotations__)
                raise RegistrationError(f"action {self._name!r}: there is no keyword {keyword!r}{near}")
            builder = builder._apply(keyword, value)
        return builder

    def handle(self, fn: Callable[P, R]) -> Action[P, R]:
        """Complete the action with its handler: the last link of a chain, or a decorator."""
        if isinstance(fn, Action):
            fn = cast("Action[P, R]", fn).fn
        signature = Signature.of(fn, name=self._name)
        hints = self._effective_hints()
        harmless = hints.get("readOnlyHint") is True or hints.get("destructiveHint") is False
        values = dict(self._values)
        action = Action(
            name=self._name,
            kind=self._kind,
            fn=fn,
            description=values.pop("describe", None) or _documentation(fn) or _words(self._name),
            signature=signature,
            on_doubt=values.pop("on_doubt", "retry" if harmless else "hold"),
            tags=self._tags,
            annotations=hints,
            bindings=self._bindings,
            middleware=self._middleware,
            **values,
        )
        if self._register is not None:
            self._register(action)
        return action

    def _effective_hints(self) -> dict[str, bool]:
        hints = {**_PRESETS[self._kind], **self._hints}
        if hints.get("readOnlyHint") is True and hints.get("destructiveHint") is True:
            if "destructiveHint" in self._hints:
                raise RegistrationError(
                    f"action {self._name!r}: annotations: read-only and destructive contradict each other;"
                    " say read_only=False for what changes something"
                )
            del hints["destructiveHint"]
        return hints

    def _apply(self, keyword: str, value: Any) -> Self:
        method: Callable[..., Self] = getattr(self, keyword)
        match keyword, value:
            case "annotations", _:
                return method(**self._checked_hints(value))
            case (("tags" | "use"), list() | tuple()):
                return method(*cast(Sequence[Any], value))
            case "bind_state", (_,) | (_, _) if isinstance(value, tuple):
                return method(*value)
            case "bind_state", tuple():
                raise self._refusal("bind_state", "(states, transition), or a list of states", cast(Any, value))
            case "bind_state", [tuple(), *_] if all(isinstance(one, tuple) for one in value):
                return functools.reduce(lambda builder, one: builder._apply(keyword, one), value, self)
            case _:
                return method(value)

    def _checked_hints(self, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise self._refusal("annotations", "a dict", value)
        hints = cast(Mapping[Any, Any], value)
        if (wrong := next((str(key) for key in hints if key not in _HINTS), None)) is not None:
            near = did_you_mean(wrong, _HINTS)
            raise RegistrationError(f"action {self._name!r}: annotations: there is no hint {wrong!r}{near}")
        return hints

    def _with_value(self, keyword: str, value: Any) -> Self:
        return self._with_slot("_values", {**self._values, keyword: value})

    def _with_slot(self, slot: str, value: Any) -> Self:
        copy = object.__new__(type(self))
        for name in ActionBuilder.__slots__:
            setattr(copy, name, getattr(self, name))
        setattr(copy, slot, value)
        return copy

    def _refusal(self, argument: str, expected: str, given: object) -> RegistrationError:
        return RegistrationError(f"action {self._name!r}: {argument} must be {expected}, not {given!r}")

    def _text(self, argument: str, value: object) -> object:
        if not _is_text(value):
            raise self._refusal(argument, "text", value)
        return value

    def _choice(self, argument: str, value: object, choices: tuple[str, ...]) -> object:
        if value not in choices:
            raise self._refusal(argument, " or ".join(map(repr, choices)), value)
        return value

    def _seconds(self, argument: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self._refusal(argument, "a positive number of seconds", value)
        return float(value)


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RegistrationError(
            f"action {name!r}: a name is namespace.name: two parts or more of A-Z a-z 0-9 _ - joined by dots"
        )
    if len(name) > _LONGEST_NAME:
        raise RegistrationError(f"action {name[:40]!r}...: a name has at most {_LONGEST_NAME} characters")
    return name


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_icon(value: object) -> bool:
    return isinstance(value, Mapping) and _is_text(cast(Mapping[str, Any], value).get("src"))


def _documentation(fn: Callable[..., Any]) -> str:
    target: Any = fn
    while isinstance(target, functools.partial):
        target = cast("functools.partial[Any]", target).func
    documented: list[Any] = [target] if inspect.isroutine(target) else [type(target).__call__, type(target)]
    return inspect.cleandoc(next((one.__doc__ for one in documented if one.__doc__), ""))


def _words(name: str) -> str:
    return re.sub(r"[._-]+", " ", name).strip()
