"""Declaring an action: a chain of methods, or the same names as keywords of one call."""

import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, cast

from typing_extensions import ParamSpec, Self, TypeVar

from .action import Action, BindingSpec, Kind, OnCancel, OnDoubt, Transition
from .errors import RegistrationError, did_you_mean
from .signature import Signature

if TYPE_CHECKING:
    from .middleware import Middleware

P = ParamSpec("P")
R = TypeVar("R")

_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+")
_LONGEST_NAME = 128

_PRESETS: dict[str, dict[str, bool]] = {
    "action": {},
    "query": {"readOnlyHint": True},
    "mutation": {"readOnlyHint": False, "destructiveHint": True},
}


class ActionKeywords(TypedDict, total=False):
    """The methods of `ActionBuilder` as keywords of one call, each with the arguments of the method of its name."""

    describe: str
    title: str
    compact_description: str
    icons: Sequence[Mapping[str, Any]]
    meta: Mapping[str, Any]
    tags: str | Sequence[str]
    annotations: Mapping[str, bool]
    bind_state: str | list[str] | tuple[str | Sequence[str], Transition | None] | list[tuple[Any, ...]]
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
        self._kind = kind
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
        """Set what the model reads; without it, it is the handler's docstring."""
        return self._with(describe=self._text("describe", text))

    def title(self, text: str) -> Self:
        """Set the name that people read."""
        return self._with(title=self._text("title", text))

    def compact_description(self, text: str) -> Self:
        """Set the short description for a workflow that still stands in its initial state."""
        return self._with(compact_description=self._text("compact_description", text))

    def icons(self, icons: Sequence[Mapping[str, Any]]) -> Self:
        """Set the icons, as the MCP specification writes them: `{"src": ..., "mimeType": ..., "sizes": [...]}`."""
        if not _is_list(icons) or not all(isinstance(i, Mapping) and isinstance(i.get("src"), str) for i in icons):
            raise self._refusal("icons", "a list of dicts with a 'src'", icons)
        return self._with(icons=tuple(dict(icon) for icon in icons))

    def meta(self, meta: Mapping[str, Any]) -> Self:
        """Set the tool's `_meta`."""
        if not isinstance(cast(object, meta), Mapping):
            raise self._refusal("meta", "a dict", meta)
        return self._with(meta=dict(meta))

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
        """Set hints about what the action does; each overrides what its kind says, None leaves it."""
        given = {
            "readOnlyHint": read_only,
            "destructiveHint": destructive,
            "idempotentHint": idempotent,
            "openWorldHint": open_world,
        }
        for hint, value in given.items():
            if not isinstance(value, bool | None):
                raise self._refusal(f"annotations: {hint}", "true or false", value)
        return self._with_slot("_hints", {**self._hints, **{k: v for k, v in given.items() if v is not None}})

    def bind_state(self, states: str | Sequence[str], transition: Transition | None = None) -> Self:
        """Put the action on the menu in `states` only; a call that succeeds sends the event `transition`.

        May be said several times. `states` are names, globs over dotted paths, or `tag:NAME`; `transition` may be a
        callable that picks the event, or None, from (arguments, result).
        """
        names = (states,) if isinstance(states, str) else tuple(states) if _is_list(states) else ()
        if not names or not all(isinstance(cast(object, name), str) and name for name in names):
            raise self._refusal("bind_state", "a state or several", states)
        if not (transition is None or callable(transition) or (isinstance(transition, str) and transition)):
            raise self._refusal("bind_state", "an event, a callable or None as transition", transition)
        return self._with_slot("_bindings", (*self._bindings, BindingSpec(names, transition)))

    def mints_handle(self, mints: bool = True) -> Self:
        """Let a successful call open a new workflow and return its handle."""
        if not isinstance(cast(object, mints), bool):
            raise self._refusal("mints_handle", "true or false", mints)
        return self._with(mints_handle=mints)

    def time_limit(self, seconds: float) -> Self:
        """Set after how many seconds a step that has not ended is in doubt."""
        return self._with(time_limit=self._seconds("time_limit", seconds))

    def on_doubt(self, policy: OnDoubt) -> Self:
        """Say what happens to a step whose outcome is unknown: `hold` until somebody resolves it, or `retry`.

        Without it: `retry` for what is read-only or declared not destructive, `hold` for the rest.
        """
        return self._with(on_doubt=self._choice("on_doubt", policy, ("hold", "retry")))

    def on_cancel(self, policy: OnCancel) -> Self:
        """Say what happens to a claimed step whose caller has gone: `finish` (default), or `release` it."""
        return self._with(on_cancel=self._choice("on_cancel", policy, ("finish", "release")))

    def keep_result(self, seconds: float) -> Self:
        """Keep the result for a repeat of the same call by the same principal, for this many seconds."""
        return self._with(keep_result=self._seconds("keep_result", seconds))

    def use(self, *middleware: "Middleware") -> Self:
        """Put middleware around this action, the first one outermost."""
        for layer in middleware:
            if not callable(layer):
                raise self._refusal("use", "async callables (call, call_next)", layer)
        return self._with_slot("_middleware", (*self._middleware, *middleware))

    def keywords(self, **keywords: Any) -> Self:
        """Apply methods by name: `describe="..."` is `.describe("...")`.

        A tuple is the method's arguments, `bind_state=("draft", "SUBMIT")`; a list of tuples calls it for each.
        """
        builder = self
        for keyword, value in keywords.items():
            if keyword not in ActionKeywords.__annotations__:
                known = ActionKeywords.__annotations__
                raise RegistrationError(f"action {self._name!r}: no keyword {keyword!r}{did_you_mean(keyword, known)}")
            builder = builder._apply(keyword, value)
        return builder

    def handle(self, fn: Callable[P, R]) -> Action[P, R]:
        """Complete the action with its handler; the last link of a chain, or a decorator."""
        signature = Signature.of(fn, name=self._name)
        hints = self._effective_hints()
        values = dict(self._values)
        described = values.pop("describe", None)
        harmless = hints.get("readOnlyHint") is True or hints.get("destructiveHint") is False
        action = Action(
            name=self._name,
            kind=self._kind,
            fn=fn,
            description=described if described is not None else _documentation(fn) or _words(self._name),
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
                    f"action {self._name!r}: annotations: read-only and destructive contradict each other"
                )
            del hints["destructiveHint"]
        return hints

    def _apply(self, keyword: str, value: Any) -> Self:
        method = getattr(self, keyword)
        match keyword, value:
            case "annotations", Mapping():
                try:
                    return method(**value)
                except TypeError:
                    known = ("read_only", "destructive", "idempotent", "open_world")
                    wrong = next(str(key) for key in cast(Mapping[Any, Any], value) if key not in known)
                    raise RegistrationError(
                        f"action {self._name!r}: annotations: no hint {wrong!r}{did_you_mean(wrong, known)}"
                    ) from None
            case ("tags", list() | tuple()) | ("use", list() | tuple()):
                return method(*value)
            case "bind_state", tuple() if 0 < len(cast(tuple[Any, ...], value)) < 3:
                return method(*value)
            case "bind_state", list() if value and all(isinstance(v, tuple) for v in cast(list[Any], value)):
                return functools.reduce(lambda b, one: b._apply(keyword, one), cast(list[Any], value), self)
            case _:
                return method(value)

    def _copy(self) -> Self:
        copy = object.__new__(type(self))
        for slot in ActionBuilder.__slots__:
            setattr(copy, slot, getattr(self, slot))
        return copy

    def _with(self, **values: Any) -> Self:
        return self._with_slot("_values", {**self._values, **values})

    def _with_slot(self, slot: str, value: Any) -> Self:
        copy = self._copy()
        setattr(copy, slot, value)
        return copy

    def _refusal(self, argument: str, expected: str, given: object) -> RegistrationError:
        return RegistrationError(f"action {self._name!r}: {argument} must be {expected}, not {given!r}")

    def _text(self, argument: str, value: object) -> str:
        if not isinstance(value, str) or not value.strip():
            raise self._refusal(argument, "text", value)
        return value

    def _choice(self, argument: str, value: object, choices: tuple[str, ...]) -> str:
        if value not in choices:
            raise self._refusal(argument, " or ".join(map(repr, choices)), value)
        return cast(str, value)

    def _seconds(self, argument: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self._refusal(argument, "a positive number of seconds", value)
        return float(value)


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RegistrationError(
            f"action {name!r}: a name is namespace.name: two or more parts of A-Z a-z 0-9 _ - joined by dots"
        )
    if len(name) > _LONGEST_NAME:
        raise RegistrationError(f"action {name[:40]!r}...: a name has at most {_LONGEST_NAME} characters")
    return name


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _documentation(fn: Callable[..., Any]) -> str:
    target: Any = fn
    while isinstance(target, functools.partial):
        target = cast(functools.partial[Any], target).func
    if not inspect.isroutine(target):
        target = type(target).__call__ if type(target).__call__.__doc__ else type(target)
    return inspect.cleandoc(target.__doc__ or "")


def _words(name: str) -> str:
    return re.sub(r"[._-]+", " ", name).strip()
