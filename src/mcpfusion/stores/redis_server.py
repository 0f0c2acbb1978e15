"""The connections of one process to Redis: bounded pools, time limits, the way to the right node, the server's clock.

redis-py makes the connections and speaks the protocol. Pools, retries and the way through a Cluster are ours, for
what a gate needs of them: a server that is away is an error at once, a write is never sent twice, a claim and the
wait for its replicas are one round trip, and each event loop of the process has connections of its own.
"""

import os
import time
from asyncio import AbstractEventLoop, get_running_loop
from collections.abc import Sequence
from threading import Lock
from typing import Any

import anyio
from redis.crc import key_slot
from redis.exceptions import ConnectionError, RedisError

from .protocol import StoreError
from .redis_errors import NotMasterError, code_of, explain, failure, is_replaced
from .redis_link import Command, Link
from .redis_nodes import nodes_of
from .redis_pool import Call, Pool, Turn
from .redis_scripts import LAYOUT, Script
from .redis_url import Address, RedisUrl

LIMIT = 5.0
"""Seconds that an operation may take, waiting for a connection included."""

WAIT_LIMIT_MS = 2000
"""How long a write waits for its replicas."""

_HOPS = 8
_PAUSE = 0.05
# Answers that say: not here, or not now, and nothing was done.
_ELSEWHERE = frozenset({"MOVED", "ASK", "TRYAGAIN", "NOSCRIPT"})


class _Lane:
    """What one event loop has."""

    def __init__(self) -> None:
        self.loop: AbstractEventLoop = get_running_loop()
        self.process = os.getpid()
        self.finding = anyio.Lock()
        self.pools: dict[Address, Pool] = {}


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
        self._lanes: Sequence[_Lane] = ()
        self._adding = Lock()

    def now(self) -> float:
        """Return the server's time; see `EngineClock.now`. Of several servers, the one that is behind counts."""
        if not self._clocks:
            return time.time()
        return time.monotonic() + min(self._clocks.values())

    async def run(self, call: Call, *, durable: bool = False, repeatable: bool = False) -> Any:
        """Return the answer of one call: of a script what it returns after the time, as a list. One round trip.

        Args:
            durable: It counts only when as many replicas as the URL says have it.
            repeatable: It changes nothing, so that it may be sent again when the connection breaks.

        Raises:
            StoreError: It failed. Unless it is repeatable it may have been carried out all the same.
        """
        return (await self.run_all([call], durable=durable, repeatable=repeatable))[0]

    async def run_all(self, calls: Sequence[Call], *, durable: bool = False, repeatable: bool = False) -> list[Any]:
        """Return the answers of several calls, one round trip to each of the servers concerned. See `run`."""
        turns = [Turn(call, key_slot(call.keys[0]), durable, repeatable) for call in calls]
        try:
            lane = self._lane()
            deadline = lane.loop.time() + LIMIT
            waiting = turns
            for _ in range(_HOPS):
                await self._send(lane, waiting, deadline)
                for turn in waiting:
                    if turn.error is not None:
                        raise turn.error
                waiting = [turn for turn in waiting if turn.again]
                if not waiting:
                    return [turn.answer for turn in turns]
                if any(turn.asking is None and not turn.whole for turn in waiting):
                    await anyio.sleep(_PAUSE)
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
                lane, slot = self._lane(), key_slot(key)
                address = self._nodes.known(slot) or await self._find(lane, slot, deadline)
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
        lanes, self._lanes = self._lanes, ()
        for lane in lanes:
            # Those of another loop end with it, and those from before a fork are the parent's.
            if lane.loop is get_running_loop() and lane.process == os.getpid():
                for pool in lane.pools.values():
                    await pool.close_idle()

    async def _send(self, lane: _Lane, turns: Sequence[Turn], deadline: float) -> None:
        groups: dict[Address, list[Turn]] = {}
        for turn in turns:
            address = turn.asking or self._nodes.known(turn.slot) or await self._find(lane, turn.slot, deadline)
            groups.setdefault(address, []).append(turn)
        if len(groups) == 1:
            await self._send_to(lane, *groups.popitem(), deadline)
            return
        async with anyio.create_task_group() as tasks:
            for address, group in groups.items():
                tasks.start_soon(self._send_to, lane, address, group, deadline)

    async def _send_to(self, lane: _Lane, address: Address, turns: Sequence[Turn], deadline: float) -> None:
        pool = lane.pools.get(address)
        if pool is None:
            pool = lane.pools[address] = Pool(address, self.url.pool_size, self._exchange)
        for turn in turns:
            # Whoever takes them along says so; if he cannot, this is what is true of them.
            turn.error = _untold
        try:
            await pool.send(turns, deadline)
        except TimeoutError as error:
            for turn in turns:
                turn.error = error

    async def _exchange(self, pool: Pool, turns: Sequence[Turn], deadline: float) -> None:
        link: Link | None = None
        sent = False
        try:
            link = await self._take(pool, deadline)
            commands = self._commands(pool.address, turns, deadline)
            sent = True
            shield = any(turn.call.script is not None for turn in turns)
            answers = await link.exchange(commands, deadline, shield=shield)
        except BaseException as error:
            if link is not None:
                await link.close()
            # What befell one connection has likely befallen those that wait as well.
            await pool.close_idle()
            if not isinstance(error, Exception):
                raise
            self._fail(pool.address, turns, error, sent)
            return
        pool.idle.append(link)
        self._conclude(pool.address, turns, answers)
        if self._closed or any(is_replaced(turn.error) for turn in turns):
            await pool.close_idle()

    def _fail(self, address: Address, turns: Sequence[Turn], error: Exception, sent: bool) -> None:
        self._nodes.lost()
        if len(self._clocks) > 1:
            self._clocks.pop(address, None)
        lost = isinstance(error, NotMasterError | ConnectionError | OSError) and not isinstance(error, TimeoutError)
        for turn in turns:
            # What was not sent may go another way, where there is one.
            turn.again = lost and not turn.failed and (turn.repeatable if sent else self.url.kind != "single")
            turn.failed = True
            turn.asking = None
            turn.error = None if turn.again else error

    def _commands(self, address: Address, turns: Sequence[Turn], deadline: float) -> list[Command]:
        remaining = deadline - anyio.current_time()
        clock = self._clocks.get(address)
        in_time = "" if clock is None else str(int((time.monotonic() + clock + remaining) * 1e6))
        commands: list[Command] = []
        for turn in turns:
            if turn.asking:
                commands.append(("ASKING",))
            sent = (address, turn.call.script) in self._sent
            commands.append(turn.call.command(in_time, turn.whole or not sent))
        if self.url.wait and any(turn.durable for turn in turns):
            commands.append(("WAIT", self.url.wait, WAIT_LIMIT_MS))
        return commands

    def _conclude(self, address: Address, turns: Sequence[Turn], answers: list[Any]) -> None:
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
                at, *turn.answer = _told(turn.answer)
                self._sent.add((address, turn.call.script))
                self._tell_time(address, at / 1e6 - arrived)
        if isinstance(waited, RedisError) or waited < self.url.wait:
            self._nodes.lost()
            few = failure(
                "too few replicas have what was written", "start them, or lower wait in the URL for what that costs"
            )
            for turn in turns:
                if turn.durable and not turn.again:
                    turn.error = turn.error or few

    def _redirect(self, turn: Turn, answer: RedisError) -> None:
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

    async def _find(self, lane: _Lane, slot: int, deadline: float) -> Address:
        with anyio.fail_after(max(deadline - anyio.current_time(), 0)):
            async with lane.finding:
                if self._nodes.known(slot) is None:
                    await self._nodes.find(deadline)
        found = self._nodes.known(slot)
        if found is None:
            raise failure("no node of the Cluster has this slot", "see its CLUSTER SLOTS")
        return found

    async def _take(self, pool: Pool, deadline: float) -> Link:
        while pool.idle:
            link = pool.idle.pop()
            if await link.is_quiet():
                return link
            await link.close()
        with anyio.fail_after(max(deadline - anyio.current_time(), 0)):
            link = await Link.connect(self.url, pool.address, deadline)
        if link.clock is not None:
            self._tell_time(pool.address, link.clock)
        return link

    def _lane(self) -> _Lane:
        if self._closed:
            raise failure("was closed", "make a new store")
        loop, process = get_running_loop(), os.getpid()
        for lane in self._lanes:
            if lane.loop is loop and lane.process == process:
                return lane
        lane = _Lane()
        with self._adding:
            self._lanes = [lane, *(other for other in self._lanes if not other.loop.is_closed())]
        return lane


def _told(answer: Any) -> Sequence[Any]:
    """Return what a script answers with, the time and the rest; see `redis_scripts`."""
    return (abs(answer), answer > 0) if isinstance(answer, int) else answer


__all__ = ["Call", "RedisServer", "StoreError"]
