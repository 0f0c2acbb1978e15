"""Middleware: async callables around a call."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from .context import Context
from .errors import ResultError
from .results import ToolResult

if TYPE_CHECKING:
    from .action import Action


@dataclass(frozen=True, slots=True)
class Call:
    """One call on its way to the handler. Immutable: `dataclasses.replace` makes a changed one to pass on.

    Attributes:
        tool: The tool's name on the wire.
        arguments: The arguments as they came.
        context: What the handler is given.
        action: The action, or None for a tool that the server had already.
    """

    tool: str
    arguments: Mapping[str, Any]
    context: Context
    action: "Action | None" = None


CallNext = Callable[[Call], Awaitable[ToolResult]]
Middleware = Callable[[Call, CallNext], Awaitable[ToolResult]]


def compose(middleware: Sequence[Middleware], inner: CallNext) -> CallNext:
    """Return a callable that runs `inner` inside all of `middleware`, the first one outermost."""
    for layer in reversed(middleware):
        inner = _around(layer, inner)
    return inner


def _around(layer: Middleware, call_next: CallNext) -> CallNext:
    async def run(call: Call) -> ToolResult:
        result: Any = layer(call, call_next)
        if isawaitable(result):
            result = await result
        if not isinstance(result, ToolResult):
            name = getattr(layer, "__qualname__", type(layer).__qualname__)
            raise ResultError(
                f"middleware {name} returned {type(result).__name__}, not a ToolResult"
                " as `await call_next(call)` does"
            )
        return result

    return run
