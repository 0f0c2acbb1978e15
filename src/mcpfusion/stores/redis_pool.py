"""What waits to be sent to a Redis server, and the connections it is sent on.

Calls that wait at the same moment go in one piece, so that they share what sending and receiving costs.
"""

from asyncio import CancelledError, Future, get_running_loop
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
class _Ride:
    """Turns of one caller that are sent together, perhaps with those of others."""

    turns: Sequence[Turn]
    woken: Future[None]
    leads: bool = False
    taken: bool = False

    def wake(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)


class Pool:
    """The connections of one event loop to one server, and what waits to be sent.

    Who comes first sends at once. While something is under way, whoever comes waits for those who come at the same
    moment, and one of them takes the others along; or, where no connection is free, until there is one.

    Args:
        address: Of the server.
        size: How many connections there are at most.
        send: Sends turns on one of them until a deadline, and notes in each turn what came of it.
    """

    def __init__(
        self, address: Address, size: int, send: Callable[["Pool", Sequence[Turn], float], Awaitable[None]]
    ) -> None:
        self.address = address
        self.idle: list[Link] = []
        self._loop = get_running_loop()
        self._send = send
        self._size = self._free = size
        self._gathering = False
        self._waiting: deque[_Ride] = deque()

    async def send(self, turns: Sequence[Turn], deadline: float) -> None:
        """Have turns sent, by this caller or by another one.

        Raises:
            TimeoutError: The time is over, and it is not known what became of them if they were taken along.
        """
        if self._free == self._size:
            self._free -= 1
            try:
                await self._send(self, turns, deadline)
            finally:
                self._pass_on()
            return
        ride = _Ride(turns, self._loop.create_future())
        self._waiting.append(ride)
        if self._free and not self._gathering:
            self._free -= 1
            self._gathering = True
            self._loop.call_soon(self._gathered)
        await self._wait(ride, deadline)
        if not ride.leads:
            return
        rides = self._take(ride)
        if self._waiting and self._free:
            # Whom there was no room for.
            self._free -= 1
            self._pass_on()
        try:
            await self._send(self, [turn for each in rides for turn in each.turns], deadline)
        finally:
            for each in rides:
                each.wake()
            self._pass_on()

    async def _wait(self, ride: _Ride, deadline: float) -> None:
        # A timer of the loop: a time limit of anyio's costs more than all the rest of the wait.
        timer = self._loop.call_at(deadline, self._give_up, ride)
        try:
            await ride.woken
        except CancelledError:
            if ride.leads:
                self._waiting.remove(ride)
                self._pass_on()
            elif not ride.taken:
                self._waiting.remove(ride)
            elif ride.woken.cancelled():
                # What is on its way is waited for, so that it is known what became of it.
                ride.woken = self._loop.create_future()
                with anyio.CancelScope(shield=True), suppress(TimeoutError):
                    await ride.woken
            raise
        finally:
            timer.cancel()

    def _give_up(self, ride: _Ride) -> None:
        if not ride.woken.done():
            if not ride.taken:
                self._waiting.remove(ride)
            ride.woken.set_exception(TimeoutError())

    def _take(self, leader: _Ride) -> list[_Ride]:
        # Whoever is about to lead himself has a connection, and is not taken along.
        along = [each for each in self._waiting if not each.leads][: _TOGETHER - 1]
        rides = [leader, *along]
        for each in rides:
            each.taken = True
        self._waiting = deque(each for each in self._waiting if not each.taken)
        return rides

    def _gathered(self) -> None:
        self._gathering = False
        self._pass_on()

    def _pass_on(self) -> None:
        following = next((each for each in self._waiting if not each.leads), None)
        if following is None:
            self._free += 1
        else:
            following.leads = True
            following.wake()

    async def close_idle(self) -> None:
        """Close the connections that nobody uses."""
        while self.idle:
            await self.idle.pop().close()
