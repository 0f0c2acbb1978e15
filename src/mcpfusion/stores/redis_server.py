"""The connections of one process to Redis: bounded pools, time limits, the way to the right node, the server's clock.

redis-py makes the connections and speaks the protocol. Pools, retries and the way through a Cluster are ours, for
what a gate needs of them: a server that is away is an error at once, a write is never sent twice, a claim and the
wait for its replicas are one round trip, and each event loop of the process has connections of its own.
"""

import os
import time
from asyncio import AbstractEventLoop, get_running_loop
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.lowlevel import RunVar
from redis.crc import key_slot
from redis.exceptions import ConnectionError, RedisError

from .protocol import StoreError
from .redis_errors import code_of, explain, failure, is_replaced
from .redis_link import Command, Link
from .redis_nodes import nodes_of
from .redis_scripts import LAYOUT, Script
from .redis_url import Address, RedisUrl

LIMIT = 5.0
"""Seconds that an operation may take, waiting for a connection included."""

WAIT_LIMIT_MS = 2000
"""How long a write waits for its replicas."""

_TOGETHER = 100
_HOPS = 8
_PAUSE = 0.05
# Answers that say: not here, or not now, and nothing was done.
_ELSEWHERE = frozenset({"MOVED", "ASK", "TRYAGAIN", "NOSCRIPT"})


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
class _Turn:
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
    """Turns of one caller that are sent to one server together, perhaps with those of others."""

    turns: Sequence[_Turn]
    woken: anyio.Event = field(default_factory=anyio.Event)
    leads: bool = False
    taken: bool = False


class _Pool:
    """The connections of one event loop to one server, and what waits to be sent.

    Whoever finds a connection free sends all that waits. Others wait until they were taken along, or until it is
    their turn to lead.
    """

    def __init__(self, size: int) -> None:
        self.idle: list[Link] = []
        self._free = size
        self._waiting: deque[_Ride] = deque()

    async def ride(self, ride: _Ride, send: Callable[[Sequence[_Turn]], Awaitable[None]], deadline: float) -> None:
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

    async def _wait(self, ride: _Ride, deadline: float) -> None:
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

    def _take(self, leader: _Ride) -> list[_Ride]:
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


class _Lane:
    """What one event loop has."""

    def __init__(self) -> None:
        self.loop: AbstractEventLoop = get_running_loop()
        self.process = os.getpid()
        self.finding = anyio.Lock()
        self.pools: dict[Address, _Pool] = {}


_untold = failure("the connection was closed")


class RedisServer:
    """Runs scripts and commands. Nothing is opened before it is first used; every failure is a StoreError.

    Args:
        url: See `RedisUrl`, which says what it raises.

    Attributes:
        url: What the URL says.
    """

    def __init__(self, url: str) -> None:
        self.url = RedisUrl(url)
        self.prefix = self.url.prefix.encode()
        self._nodes = nodes_of(self.url)
        self._clocks: dict[Address, float] = {}
        self._sent: set[tuple[Address, Script]] = set()
        self._closed = False
        self._lanes: list[_Lane] = []
        self._lane_here: RunVar[_Lane] = RunVar("mcpfusion.stores.redis")

    def now(self) -> float:
        """Return the server's time; see `EngineClock.now`. Of several servers, the one that is behind counts."""
        if not self._clocks:
            return time.time()
        return time.monotonic() + min(self._clocks.values())

    async def run(self, call: Call, *, durable: bool = False, repeatable: bool = False) -> Any:
        """Return the answer of one call: of a script what it returns after the time. One round trip.

        Args:
            durable: It counts only when as many replicas as the URL says have it.
            repeatable: It changes nothing, so that it may be sent again when the connection breaks.

        Raises:
            StoreError: It failed. Unless it is repeatable it may have been carried out all the same.
        """
        return (await self.run_all([call], durable=durable, repeatable=repeatable))[0]

    async def run_all(self, calls: Sequence[Call], *, durable: bool = False, repeatable: bool = False) -> list[Any]:
        """Return the answers of several calls, one round trip to each of the servers concerned. See `run`."""
        deadline = anyio.current_time() + LIMIT
        turns = [_Turn(call, key_slot(call.keys[0]), durable, repeatable) for call in calls]
        try:
            lane = self._lane()
            waiting = turns
            for _ in range(_HOPS):
                await self._send(lane, waiting, deadline)
                for turn in waiting:
                    if turn.error is not None:
                        raise turn.error
                waiting = [turn for turn in waiting if turn.again]
                if not waiting:
                    return [turn.answer for turn in turns]
            raise failure("the Cluster is moving this slot", "try again when that is done")
        except TimeoutError:
            raise failure("no connection in time", "see whether it answers, or raise max_connections") from None
        except Exception as error:
            # Without the cause: redis-py's words may quote a host, a user or a key. One of its own for each caller:
            # the error may be that of all who were sent together.
            raise StoreError(str(explain(error))) from None

    async def connect(self, key: bytes) -> Link:
        """Return a connection to the server that has a key. It is nobody's but the caller's.

        Raises:
            StoreError: It cannot be made within `LIMIT` seconds.
        """
        deadline = anyio.current_time() + LIMIT
        try:
            with anyio.fail_after(LIMIT):
                address = await self._address(self._lane(), key_slot(key), deadline)
                return await Link.connect(self.url, address, deadline)
        except TimeoutError:
            self._nodes.lost()
            raise failure("cannot be reached in time", "see whether it answers") from None
        except Exception as error:
            self._nodes.lost()
            raise explain(error) from None

    async def layout(self, name: bytes, value: bytes) -> bytes:
        """Return what is kept for good under a name; where nothing is yet, `value` is from now on."""
        key = self.prefix + name
        answer = await self.run(Call([key], [value], LAYOUT))
        return answer[0]

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    async def aclose(self) -> None:
        """Close the connections. Calling it again does nothing; anything else raises StoreError from then on."""
        self._closed = True
        lanes, self._lanes = self._lanes, []
        for lane in lanes:
            # Those of another loop end with it, and those from before a fork are the parent's.
            if lane.loop is get_running_loop() and lane.process == os.getpid():
                for pool in lane.pools.values():
                    await pool.close_idle()

    async def _send(self, lane: _Lane, turns: Sequence[_Turn], deadline: float) -> None:
        groups: dict[Address, list[_Turn]] = {}
        if any(turn.again and turn.asking is None and not turn.whole for turn in turns):
            await anyio.sleep(_PAUSE)
        for turn in turns:
            address = turn.asking or await self._address(lane, turn.slot, deadline)
            groups.setdefault(address, []).append(turn)
        if len(groups) == 1:
            await self._send_to(lane, *groups.popitem(), deadline)
            return
        async with anyio.create_task_group() as tasks:
            for address, group in groups.items():
                tasks.start_soon(self._send_to, lane, address, group, deadline)

    async def _send_to(self, lane: _Lane, address: Address, turns: Sequence[_Turn], deadline: float) -> None:
        pool = lane.pools.get(address)
        if pool is None:
            pool = lane.pools[address] = _Pool(self.url.pool_size)

        async def send(together: Sequence[_Turn]) -> None:
            await self._exchange(pool, address, together, deadline)

        for turn in turns:
            # Whoever takes them along says so; if he cannot, this is what is true of them.
            turn.error = _untold
        try:
            await pool.ride(_Ride(turns), send, deadline)
        except TimeoutError as error:
            for turn in turns:
                turn.error = error

    async def _exchange(self, pool: _Pool, address: Address, turns: Sequence[_Turn], deadline: float) -> None:
        sent = False
        try:
            async with self._link(pool, address, deadline) as link:
                commands = self._commands(address, turns, deadline)
                sent = True
                shield = any(turn.call.script is not None for turn in turns)
                answers = await link.exchange(commands, deadline, shield=shield)
        except Exception as error:
            self._nodes.lost()
            if len(self._clocks) > 1:
                self._clocks.pop(address, None)
            lost = isinstance(error, ConnectionError | OSError) and not isinstance(error, TimeoutError)
            for turn in turns:
                # What was not sent may go another way, where there is one.
                turn.again = lost and not turn.failed and (turn.repeatable if sent else self.url.kind != "single")
                turn.failed = True
                turn.asking = None
                turn.error = None if turn.again else error
            return
        self._conclude(address, turns, answers)
        if any(is_replaced(turn.error) for turn in turns):
            await pool.close_idle()

    def _commands(self, address: Address, turns: Sequence[_Turn], deadline: float) -> list[Command]:
        remaining = deadline - anyio.current_time()
        clock = self._clocks.get(address)
        in_time = "" if clock is None else f"{time.monotonic() + clock + remaining:.3f}"
        commands: list[Command] = []
        for turn in turns:
            if turn.asking:
                commands.append(("ASKING",))
            sent = (address, turn.call.script) in self._sent
            commands.append(turn.call.command(in_time, turn.whole or not sent))
        if self.url.wait and any(turn.durable for turn in turns):
            commands.append(("WAIT", self.url.wait, WAIT_LIMIT_MS))
        return commands

    def _conclude(self, address: Address, turns: Sequence[_Turn], answers: list[Any]) -> None:
        arrived = time.monotonic()
        waited = answers.pop() if self.url.wait and any(turn.durable for turn in turns) else self.url.wait
        each = iter(answers)
        for turn in turns:
            if turn.asking:
                next(each)
            turn.again, turn.asking, turn.answer, turn.error = False, None, next(each), None
            if isinstance(turn.answer, RedisError):
                self._redirect(turn, turn.answer)
            elif turn.call.script is not None:
                told = turn.answer
                self._sent.add((address, turn.call.script))
                self._tell_time(address, float(told[0]) + float(told[1]) / 1e6 - arrived)
                turn.answer = told[2:]
        if isinstance(waited, RedisError) or waited < self.url.wait:
            self._nodes.lost()
            few = failure(
                "too few replicas have what was written", "start them, or lower wait in the URL for what that costs"
            )
            for turn in turns:
                if turn.durable and not turn.again:
                    turn.error = turn.error or few

    def _redirect(self, turn: _Turn, answer: RedisError) -> None:
        code = code_of(answer)
        if code == "MOVED" or is_replaced(answer):
            self._nodes.lost()
        if code not in _ELSEWHERE:
            turn.error = answer
            return
        turn.again = True
        turn.whole = turn.whole or code == "NOSCRIPT"
        if code == "ASK":
            host, _, port = str(answer).rpartition(" ")[2].rpartition(":")
            turn.asking = (host, int(port))

    def _tell_time(self, address: Address, clock: float) -> None:
        if self.url.kind == "cluster":
            self._clocks[address] = clock
        else:
            self._clocks = {address: clock}

    async def _address(self, lane: _Lane, slot: int, deadline: float) -> Address:
        found = self._nodes.known(slot)
        if found is None:
            with anyio.fail_after(max(deadline - anyio.current_time(), 0)):
                async with lane.finding:
                    if self._nodes.known(slot) is None:
                        await self._nodes.find(deadline)
            found = self._nodes.known(slot)
        if found is None:
            raise failure("no node of the Cluster has this slot", "see its CLUSTER SLOTS")
        return found

    @asynccontextmanager
    async def _link(self, pool: _Pool, address: Address, deadline: float) -> AsyncGenerator[Link]:
        link: Link | None = None
        try:
            link = await self._take(pool, address, deadline)
            yield link
        except BaseException:
            if link is not None:
                await link.close()
            # What befell one connection has likely befallen those that wait as well.
            await pool.close_idle()
            raise
        pool.idle.append(link)
        if self._closed:
            await pool.close_idle()

    async def _take(self, pool: _Pool, address: Address, deadline: float) -> Link:
        while pool.idle:
            link = pool.idle.pop()
            if await link.is_quiet():
                return link
            await link.close()
        with anyio.fail_after(max(deadline - anyio.current_time(), 0)):
            link = await Link.connect(self.url, address, deadline)
        if link.clock is not None:
            self._tell_time(address, link.clock)
        return link

    def _lane(self) -> _Lane:
        if self._closed:
            raise failure("was closed", "make a new store")
        try:
            lane = self._lane_here.get()
            if lane.process == os.getpid():
                return lane
        except LookupError:
            pass
        self._lanes = [other for other in self._lanes if not other.loop.is_closed()]
        lane = _Lane()
        self._lanes.append(lane)
        self._lane_here.set(lane)
        return lane


__all__ = ["Call", "RedisServer", "StoreError"]
