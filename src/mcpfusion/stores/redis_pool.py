"""What waits to be sent to a Redis server, and the connections it is sent on.

Calls that wait at the same moment go in one piece, so that they share what sending and receiving costs.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from .redis_link import Command, Link
from .redis_scripts import Script
from .redis_url import Address

_TOGETHER = 100
"""Callers whose calls go in one piece at most."""


@dataclass(frozen=True, slots=True)
class Call:
    """A script with its keys, which are in one slot, or a plain command.

    Attributes:
        keys: Of the script; of a plain command the one that says where it goes.
        args: Of the script; or the whole command.
        script: None for a plain command.
    """

    keys: Sequence[bytes]
    args: Sequence[str | bytes | int]
    script: Script | None = None

    def command(self, in_time: str, whole: bool) -> Command:
        """Return what is sent: the script by its digest or as a whole, to be carried out until `in_time`."""
        if self.script is None:
            return self.args
        name, script = ("EVAL", self.script.text) if whole else ("EVALSHA", self.script.digest)
        return (name, script, len(self.keys), *self.keys, in_time, *self.args)


@dataclass(slots=True)
class Turn:
    """A call on its way. `answer` counts when neither it is to go `again` nor there is an `error`."""

    call: Call
    slot: int
    durable: bool
    repeatable: bool
    answer: Any = None
    error: BaseException | None = None
    again: bool = False
    whole: bool = False
    asking: Address | None = None
    failed: bool = False


@dataclass(slots=True, eq=False)
class Ride:
    """Turns of one caller that are sent to one server together, perhaps with those of others."""

    turns: Sequence[Turn]
    woken: anyio.Event = field(default_factory=anyio.Event)
    leads: bool = False
    taken: bool = False


class Pool:
    """The connections of one event loop to one server, and what waits to be sent.

    Whoever finds a connection free sends all that waits. Others wait until they were taken along, or until it is
    their turn to lead.
    """

    def __init__(self, size: int) -> None:
        self.idle: list[Link] = []
        self._free = size
        self._waiting: deque[Ride] = deque()

    async def ride(self, ride: Ride, send: Callable[[Sequence[Turn]], Awaitable[None]], deadline: float) -> None:
        """Have the turns sent, by this caller or by another one.

        Raises:
            TimeoutError: The time is over, and it is not known what became of them if they were taken along.
        """
        self._waiting.append(ride)
        if self._free:
            self._free -= 1
            ride.leads = True
        else:
            await self._wait(ride, deadline)
        if not ride.leads:
            return
        rides = self._take(ride)
        try:
            await send([turn for each in rides for turn in each.turns])
        finally:
            for each in rides:
                each.woken.set()
            self._pass_on()

    async def _wait(self, ride: Ride, deadline: float) -> None:
        try:
            with anyio.fail_after(max(deadline - anyio.current_time(), 0)):
                await ride.woken.wait()
        except BaseException:
            if ride.leads:
                self._waiting.remove(ride)
                self._pass_on()
            elif ride.taken:
                # What is on its way is waited for, so that it is known what became of it.
                with anyio.CancelScope(shield=True, deadline=deadline):
                    await ride.woken.wait()
            else:
                self._waiting.remove(ride)
            raise

    def _take(self, leader: Ride) -> list[Ride]:
        # Whoever is about to lead himself has a connection, and is not taken along.
        along = [each for each in self._waiting if not each.leads][: _TOGETHER - 1]
        rides = [leader, *along]
        for each in rides:
            each.taken = True
        self._waiting = deque(each for each in self._waiting if not each.taken)
        return rides

    def _pass_on(self) -> None:
        following = next((each for each in self._waiting if not each.leads), None)
        if following is None:
            self._free += 1
        else:
            following.leads = True
            following.woken.set()

    async def close_idle(self) -> None:
        """Close the connections that nobody uses."""
        while self.idle:
            await self.idle.pop().close()
