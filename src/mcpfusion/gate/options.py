"""The gate's settings."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mcpfusion.actions.results import ToolResult


@dataclass(frozen=True, slots=True)
class Options:
    """The gate's settings, in seconds.

    `clock` gives seconds since the epoch; unless it is given, an engine with a clock of its own is asked instead.
    `expires_after` is the time from a workflow's last write, or from its next timer, to its end; None: it has none.
    `redact` is asked for what the history may keep of a call: (tool, arguments, result) -> (arguments, result).
    """

    time_limit: float = 60.0
    lease_margin: float = 5.0
    conflict_wait: float = 5.0
    expires_after: float | None = None
    clock: Callable[[], float] = time.time
    redact: Callable[[str, Mapping[str, Any], ToolResult], tuple[Any, Any]] | None = None

    def __post_init__(self) -> None:
        if self.expires_after is not None and not 0 < self.expires_after < math.inf:
            raise ValueError(f"expires_after: expected a number of seconds above 0, got {self.expires_after!r}")
