"""Which server has what: the one of the URL, the master that Sentinels know, the nodes of a Cluster by slot."""

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

import anyio
from redis.exceptions import RedisError

from .protocol import StoreError
from .redis_errors import failure
from .redis_link import Command, Link
from .redis_url import Address, RedisUrl

_SENTINEL_LIMIT = 1.0
"""Seconds that a Sentinel has to answer; those that do not count as not there."""


_UNSETTLED = frozenset({b"o_down", b"failover_in_progress"})
"""What a Sentinel says of a master that is about to be replaced."""


class Nodes(Protocol):
    """What is known of the servers."""

    def known(self, slot: int) -> Address | None:
        """Return who has a slot, None when that has to be found out first."""
        ...

    async def find(self, deadline: float) -> None:
        """Find out. Raises StoreError when nobody can say."""
        ...

    def lost(self) -> None:
        """Take note that a server does not answer, or is no longer who it was."""
        ...


class OneNode:
    """The server of the URL."""

    def __init__(self, url: RedisUrl) -> None:
        self._address = url.hosts[0]

    def known(self, slot: int) -> Address | None:
        """See `Nodes.known`."""
        return self._address

    async def find(self, deadline: float) -> None:
        """See `Nodes.find`."""

    def lost(self) -> None:
        """See `Nodes.lost`."""


class WatchedNode:
    """The master that Sentinels watch: the one that more than half of those in the URL name, and none denies.

    While a failover begins, and while it spreads among the Sentinels, some still name the master that was. It may be
    running again, take itself for the master, and have a replica that has not heard either: what these two would
    acknowledge is lost soon after. So nobody is the master until they all say so.
    """

    def __init__(self, url: RedisUrl) -> None:
        self._url = url
        self._master: Address | None = None

    def known(self, slot: int) -> Address | None:
        """See `Nodes.known`."""
        return self._master

    async def find(self, deadline: float) -> None:
        """See `Nodes.find`."""
        told: list[dict[bytes, bytes]] = []
        limit = min(deadline, anyio.current_time() + _SENTINEL_LIMIT)

        async def ask(sentinel: Address) -> None:
            answer = await _ask(self._url, sentinel, ("SENTINEL", "MASTER", self._url.service), limit)
            if answer is not None:
                told.append(dict(zip(answer[::2], answer[1::2], strict=True)))

        async with anyio.create_task_group() as tasks:
            for sentinel in self._url.hosts:
                tasks.start_soon(ask, sentinel)
        if 2 * len(told) <= len(self._url.hosts):
            remedy = "see whether they run, and the service's name in the URL"
            raise failure("too few Sentinels know the master", remedy)
        named = {(str(each[b"ip"], "utf-8"), int(each[b"port"])) for each in told}
        if len(named) > 1 or any(_UNSETTLED & set(each[b"flags"].split(b",")) for each in told):
            raise failure("the Sentinels do not agree on the master", "wait for the failover to end")
        self._master = named.pop()

    def lost(self) -> None:
        """See `Nodes.lost`."""
        self._master = None


class ClusterNodes:
    """The masters of a Cluster."""

    def __init__(self, url: RedisUrl) -> None:
        self._url = url
        self._stale = True
        self._starts: list[int] = []
        self._ranges: list[tuple[int, Address]] = []

    def known(self, slot: int) -> Address | None:
        """See `Nodes.known`."""
        at = bisect_right(self._starts, slot) - 1
        if self._stale or at < 0 or self._ranges[at][0] < slot:
            return None
        return self._ranges[at][1]

    async def find(self, deadline: float) -> None:
        """See `Nodes.find`."""
        masters = [address for _, address in self._ranges]
        for address in dict.fromkeys([*masters, *self._url.hosts]):
            answer = await _ask(self._url, address, ("CLUSTER", "SLOTS"), deadline)
            if answer:
                self._take(answer, address[0])
                return
        raise failure("no node of the Cluster answers", "start them, or correct the URL")

    def lost(self) -> None:
        """See `Nodes.lost`."""
        self._stale = True

    def _take(self, answer: Sequence[Any], asked: str) -> None:
        rows = sorted((int(row[0]), int(row[1]), row[2]) for row in answer if len(row) > 2)
        # A node that does not know its own name leaves it out.
        self._ranges = [(end, (str(node[0] or b"", "utf-8") or asked, int(node[1]))) for _, end, node in rows]
        self._starts = [start for start, _, _ in rows]
        self._stale = False


def nodes_of(url: RedisUrl) -> Nodes:
    """Return what knows the servers of a URL."""
    return {"single": OneNode, "sentinel": WatchedNode, "cluster": ClusterNodes}[url.kind](url)


async def _ask(url: RedisUrl, address: Address, question: Command, deadline: float) -> Any:
    """Return a server's answer on a connection for this alone, None when there is none."""
    link = Link.to_informant(url, address)
    try:
        with suppress(RedisError, OSError, StoreError):
            (answer,) = await link.exchange([question], deadline, shield=False)
            return None if isinstance(answer, RedisError) else answer
        return None
    finally:
        await link.close()
