"""An action: what the model may call, as it was declared."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal

from typing_extensions import ParamSpec, TypeVar

from .signature import Signature

if TYPE_CHECKING:
    from .middleware import Middleware

P = ParamSpec("P", default=...)
R = TypeVar("R", default=Any, covariant=True)

Kind = Literal["action", "query", "mutation"]
OnDoubt = Literal["hold", "retry"]
OnCancel = Literal["finish", "release"]
Transition = str | Callable[[dict[str, Any], Any], str | None]


@dataclass(frozen=True, slots=True)
class BindingSpec:
    """The states in which an action is on the menu, and the event that a successful call sends.

    Attributes:
        states: State names, globs over dotted paths, or `tag:NAME`.
        transition: The event, or what picks one from (arguments, result), or None when nothing moves.
    """

    states: tuple[str, ...]
    transition: Transition | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Action(Generic[P, R]):
    """A declared action. Calling it calls the handler, for the author's own code and tests.

    Attributes:
        name: `namespace.name`.
        kind: How it was declared; decides the annotations that were not given.
        fn: The handler.
        description: What the model reads.
        annotations: Hints in wire spelling (`readOnlyHint`, ...); one that is absent was not decided.
        bindings: Where it is on the menu; empty when it always is.
        mints_handle: Whether a successful call opens a new workflow and returns its handle.
        time_limit: Seconds after which a step is in doubt, or None.
        on_doubt: What happens to a step whose outcome is unknown.
        on_cancel: Whether a claimed step whose caller has gone runs to its end.
        keep_result: Seconds for which the result is kept for a repeat of the call, or None.
        middleware: Around this action only, outermost first.
        signature: The handler's signature.
    """

    name: str
    kind: Kind
    fn: Callable[P, R] = field(repr=False)
    description: str = field(repr=False)
    signature: Signature = field(repr=False)
    on_doubt: OnDoubt
    compact_description: str | None = field(default=None, repr=False)
    title: str | None = None
    icons: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    meta: Mapping[str, Any] | None = field(default=None, repr=False)
    tags: tuple[str, ...] = ()
    annotations: Mapping[str, bool] = field(default_factory=dict[str, bool])
    bindings: tuple[BindingSpec, ...] = ()
    mints_handle: bool = False
    time_limit: float | None = None
    on_cancel: OnCancel = "finish"
    keep_result: float | None = None
    middleware: tuple["Middleware", ...] = field(default=(), repr=False)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.fn(*args, **kwargs)
