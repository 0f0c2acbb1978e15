"""A call that asks to pass, and how its handler ended."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mcpfusion.actions.results import ToolResult
from mcpfusion.gate.binding import BoundTool
from mcpfusion.gate.observing import Observed


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a handler ended.

    Attributes:
        result: What the client gets.
        success: The step may be committed.
        value: What the handler returned, for a transition that is decided by it.
        in_doubt: The handler failed, but its effect may have happened.
    """

    result: ToolResult
    success: bool
    value: Any = None
    in_doubt: bool = False


@dataclass(frozen=True, slots=True)
class Ticket:
    """A call that asks to pass."""

    tool: BoundTool
    scope: str
    handle: str
    principal: str | None
    arguments: Mapping[str, Any]
    opens: bool = False
    digest: str = field(init=False)
    seen: Observed = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", digest_of(self.tool.name, self.arguments))
        object.__setattr__(self, "seen", Observed(self.tool.name))


def digest_of(tool: str, arguments: Mapping[str, Any]) -> str:
    """Return a digest of a call; equal for calls that are the same JSON whatever the order of their keys."""
    text = json.dumps([tool, arguments], sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()
