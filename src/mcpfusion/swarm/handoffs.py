"""A handoff is an answer: what an action returns when another server should go on with the conversation."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import urlsplit

from mcpfusion.swarm.jsontext import stringify

STATE_LIMIT = 1024 * 1024 + 1024
"""Largest carried state in bytes of JSON."""

_SCHEMES = ("mcp", "mcps", "http", "https")


@dataclass(frozen=True, slots=True)
class Handoff:
    """The marked answer that a server with a gateway turns into a handoff.

    Attributes:
        target: `mcp://finance-agent`, or a name of the registry.
        carry_over_state: What the specialist's handlers find under `ctx.handoff.state`.
        reason: Why, for the log and the client.
        model_hint: What kind of model fits; handed on as it is.
    """

    _MCPFUSION_handoff: ClassVar[bool] = True

    target: str
    carry_over_state: Mapping[str, Any] | None = field(default=None, repr=False)
    reason: str | None = None
    model_hint: str | None = None

    @property
    def candidates(self) -> list[str]:
        """The names to look the target up by, best first: as written, the host's first label, without `-agent`."""
        host = urlsplit(self.target).hostname if "://" in self.target else self.target
        label = (host or "").partition(".")[0]
        return list(dict.fromkeys(name for name in (self.target, host, label, label.removesuffix("-agent")) if name))


def handoff(
    target: str,
    *,
    carry_over_state: Mapping[str, Any] | None = None,
    reason: str | None = None,
    model_hint: str | None = None,
) -> Handoff:
    """Return the answer that hands the conversation over to `target`.

    Raises:
        ValueError: The target is no name and no URL, or the state is no JSON object or larger than 1 MiB.
    """
    if not _is_target(target):
        raise ValueError(f"target: expected a name of the registry or an mcp:// URL, not {str(target)[:128]!r}")
    if carry_over_state is not None:
        if not isinstance(carry_over_state, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError("carry_over_state: expected a JSON object")
        size = len(stringify(carry_over_state).encode("utf-8", "surrogatepass"))
        if size > STATE_LIMIT:
            raise ValueError(f"carry_over_state: {size} bytes of JSON, at most {STATE_LIMIT}")
    return Handoff(target, carry_over_state, reason, model_hint)


def is_handoff(value: object) -> bool:
    """Return whether an action's value asks for a handoff."""
    return isinstance(value, Handoff)


def _is_target(target: object) -> bool:
    if not isinstance(target, str) or not target or len(target) > 2048:
        return False
    if "://" in target:
        try:
            parts = urlsplit(target)
        except ValueError:
            return False
        return parts.scheme in _SCHEMES and bool(parts.hostname)
    return re.fullmatch(r"[A-Za-z0-9_.-]+", target) is not None
