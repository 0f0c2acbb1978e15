"""Pins: a specialist's tool, once seen, may not change its definition until an operator accepts the change."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Pin:
    """What is remembered of one tool.

    Attributes:
        digest: Of the definition that is accepted.
        refused: Digest of the newer definition that waits to be accepted, or None.
    """

    specialist: str
    tool: str
    digest: str
    refused: str | None = None


@runtime_checkable
class PinStore(Protocol):
    """Remembers the definitions of tools."""

    async def check(self, specialist: str, tool: str, digest: str) -> bool:
        """Return whether the definition is the accepted one. The first one seen is accepted; another is noted."""
        ...

    async def pins(self) -> Sequence[Pin]:
        """Return all pins, ordered by specialist and tool."""
        ...

    async def accept(self, specialist: str, tool: str) -> bool:
        """Accept the definition that was refused last. False when none waits."""
        ...


def definition_digest(tool: Mapping[str, Any]) -> str:
    """Return a digest of what a model goes by: a tool's name, description and input schema."""
    parts = [tool.get("name"), tool.get("description"), tool.get("inputSchema")]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class InMemoryPinStore:
    """Pins that last as long as the process."""

    def __init__(self) -> None:
        self._pins: dict[tuple[str, str], Pin] = {}

    async def check(self, specialist: str, tool: str, digest: str) -> bool:
        """See `PinStore.check`."""
        pin = self._pins.setdefault((specialist, tool), Pin(specialist, tool, digest))
        if pin.digest != digest:
            self._pins[specialist, tool] = Pin(specialist, tool, pin.digest, digest)
        return pin.digest == digest

    async def pins(self) -> Sequence[Pin]:
        """See `PinStore.pins`."""
        return [self._pins[key] for key in sorted(self._pins)]

    async def accept(self, specialist: str, tool: str) -> bool:
        """See `PinStore.accept`."""
        pin = self._pins.get((specialist, tool))
        if pin is None or pin.refused is None:
            return False
        self._pins[specialist, tool] = Pin(specialist, tool, pin.refused)
        return True
