"""Where carried state and marks of used tokens are kept, when they must outlast one call or one process."""

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class HandoffStateStore(Protocol):
    """Keeps carried state by reference. What is kept is opaque JSON; it may hold what users said, so keep it safe.

    Attributes:
        shared: Whether other processes see what this one keeps.
    """

    shared: bool

    async def set(self, key: str, state: Mapping[str, Any], ttl_seconds: float) -> None:
        """Keep `state` under `key` for that long, replacing what was there."""
        ...

    async def get(self, key: str) -> Mapping[str, Any] | None:
        """Return what is kept under `key`, or None when there is nothing (any more). Reading does not remove it."""
        ...

    async def delete(self, key: str) -> None:
        """Forget what is kept under `key`; nothing there is no error."""
        ...


@runtime_checkable
class ReplayStore(Protocol):
    """Remembers the tokens that were used."""

    async def add(self, jti: str, expires_at: float) -> bool:
        """Mark a token as used until it expires (seconds since the epoch). False when it was used before."""
        ...


class InMemoryHandoffStateStore:
    """Carried state in this process: for development, and for specialists in the same process.

    Args:
        limit: States kept at once; the oldest go first.
        clock: Gives seconds since the epoch.
    """

    shared = False

    def __init__(self, *, limit: int = 10_000, clock: Callable[[], float] = time.time) -> None:
        self._limit = limit
        self._clock = clock
        self._kept: OrderedDict[str, tuple[float, str]] = OrderedDict()

    async def set(self, key: str, state: Mapping[str, Any], ttl_seconds: float) -> None:
        """Keep `state`; a copy, so that nobody holds a piece of it."""
        self._kept[key] = (self._clock() + ttl_seconds, json.dumps(state))
        self._kept.move_to_end(key)
        while len(self._kept) > self._limit:
            self._kept.popitem(last=False)

    async def get(self, key: str) -> Mapping[str, Any] | None:
        """Return what is kept under `key`, or None."""
        expires, text = self._kept.get(key, (0.0, ""))
        if expires <= self._clock():
            self._kept.pop(key, None)
            return None
        return json.loads(text)

    async def delete(self, key: str) -> None:
        """Forget what is kept under `key`."""
        self._kept.pop(key, None)


class InMemoryReplayStore:
    """Marks of used tokens in this process. When it is full of marks that still count, new tokens are refused.

    Args:
        limit: Marks kept at once.
        clock: Gives seconds since the epoch.
    """

    def __init__(self, *, limit: int = 100_000, clock: Callable[[], float] = time.time) -> None:
        self._limit = limit
        self._clock = clock
        self._marks: dict[str, float] = {}
        self._sweep_at = 0.0

    async def add(self, jti: str, expires_at: float) -> bool:
        """Mark a token as used. False when it was used before, or when no mark can be kept."""
        now = self._clock()
        if len(self._marks) >= self._limit or now >= self._sweep_at:
            self._marks = {key: expires for key, expires in self._marks.items() if expires > now}
            self._sweep_at = now + 60
        if jti in self._marks or len(self._marks) >= self._limit:
            return False
        self._marks[jti] = expires_at
        return True
