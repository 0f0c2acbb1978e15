"""Workflows in Redis or Valkey: one server, one that Sentinels watch, or a Cluster.

A workflow, its history and the indexes over it are changed by one script, so they must lie in one slot of a Cluster,
and a tag of its own for each workflow would leave its indexes behind. Workflows are therefore spread by their names
over buckets, one on a single server and 32 in a Cluster (whoever comes first writes down how many): every write
stays atomic and one round trip, one scope or "everybody" still spreads over all nodes, and what asks about many
workflows asks a fixed number of buckets, in one round trip to each node.
"""

from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import merge

from .codec import check_key, check_write, decode_step, decode_workflow, encode_step, encode_workflow
from .protocol import Step, StoreError, Workflow
from .redis_bus import RedisBus
from .redis_keys import Bucket, bucket_of, buckets, name_of, texts_of
from .redis_scripts import EXPIRED, HISTORY, LIST, NAMED, READ, REMOVE, SOONEST, STATES, WRITE
from .redis_server import Call, RedisServer
from .redis_text import keep, pack, unpack

HISTORY_LIMIT = 10_000
"""Steps that are kept of one workflow; the oldest go first."""

_CLUSTER_BUCKETS = 32
_LAYOUT = b"layout"
_AT_ONCE = 100
_FIND_LIMIT = 100


@dataclass(slots=True)
class _Cursor:
    """How far a listing has come in one bucket."""

    bucket: Bucket
    low: bytes
    over: bool = False
    found: deque[tuple[bytes, bytes]] = field(default_factory=deque[tuple[bytes, bytes]])


class RedisStore:
    """A `VersionedFsmStateStore` in Redis 6.2 or newer, or Valkey, that is also a `Bus` and an `EngineClock`.

    Any number of processes may use one database. A write that returned True is as durable as the server is set up to
    make it. Opened by the first use.

    Args:
        url: See `mcpfusion.stores.redis_url.RedisUrl`, which says what it raises.
    """

    def __init__(self, url: str) -> None:
        self._server = RedisServer(url)
        self._bus = RedisBus(self._server)
        self._known_buckets: Sequence[Bucket] = ()

    async def read(self, scope: str, handle: str) -> Workflow | None:
        """See `VersionedFsmStateStore.read`."""
        check_key(scope, handle)
        name = name_of(scope, handle)
        key = bucket_of(name, await self._buckets()).workflow(name)
        (head,) = await self._server.run(Call([key], (), READ), repeatable=True)
        return None if head is None else _workflow(scope, handle, head)

    async def write(self, workflow: Workflow, *, expected_version: int, step: Step | None = None) -> bool:
        """See `VersionedFsmStateStore.write`. Raises ValueError for a write that contradicts itself.

        A write whose caller is cancelled happens whole or not at all.
        """
        check_write(workflow, expected_version, step)
        name = name_of(workflow.scope, workflow.handle)
        head = _head(workflow)
        line = b"" if step is None else pack(encode_step(step))
        bucket = bucket_of(name, await self._buckets())
        keys = [bucket.workflow(name), bucket.states(workflow.scope), *bucket.indexes]
        times = (_score(workflow.due), _score(workflow.expires_at))
        args = (expected_version, head, line, name, _other_name(workflow.scope, workflow.handle), *times)
        (done,) = await self._server.run(Call(keys, (*args, HISTORY_LIMIT), WRITE), durable=True)
        return done

    async def states_in_use(self, scope: str) -> Sequence[str]:
        """See `VersionedFsmStateStore.states_in_use`."""
        check_key(scope, "")
        answers = await self._ask_all(lambda bucket: Call([bucket.states(scope)], (), STATES))
        return sorted({str(state, "utf-8") for (states,) in answers for state in states})

    async def next_due(self, *, limit: int = 100) -> Sequence[tuple[float, str, str]]:
        """See `VersionedFsmStateStore.next_due`."""
        if limit <= 0:
            return []
        answers = await self._ask_all(lambda bucket: Call([bucket.index("due")], (limit - 1,), SOONEST))
        return [(at, *texts_of(name)) for at, name in _soonest(answers, limit)]

    async def list_workflows(
        self,
        *,
        scope: str | None = None,
        state: str | None = None,
        in_doubt_at: float | None = None,
        after: tuple[str, str] | None = None,
        limit: int = 100,
    ) -> Sequence[Workflow]:
        """See `VersionedFsmStateStore.list_workflows`."""
        low, high = _span(scope, after)
        filters = (int(state is not None), state or "", _score(in_doubt_at))
        index = "names" if in_doubt_at is None else "claimed"
        cursors = [_Cursor(bucket, low) for bucket in await self._buckets()]
        share = limit if len(cursors) == 1 else limit * 2 // len(cursors) + 8
        found: list[Workflow] = []
        while len(found) < limit:
            dry = [cursor for cursor in cursors if not cursor.found and not cursor.over]
            if dry:
                await self._fill(dry, index, high, min(share, limit - len(found)), filters)
                continue
            first = min((cursor for cursor in cursors if cursor.found), key=_next_name, default=None)
            if first is None:
                break
            name, head = first.found.popleft()
            found.append(_workflow(*texts_of(name), head))
        return found

    async def find(self, handle: str) -> Sequence[Workflow]:
        """See `VersionedFsmStateStore.find`."""
        check_key("", handle)
        start = name_of(handle, "")
        args = (b"[" + start, b"(" + start + b"\xff", _FIND_LIMIT)
        answers = await self._ask_all(lambda bucket: Call([bucket.index("found_by")], args, NAMED))
        scopes = sorted(texts_of(other)[1] for (others,) in answers for other in others)
        # What belongs to everybody is not in this index: it is looked for under its name.
        names = [name_of(scope, handle) for scope in ("", *scopes[:_FIND_LIMIT])]
        places = await self._buckets()
        calls = [Call([bucket_of(name, places).workflow(name)], (), READ) for name in names]
        heads = await self._server.run_all(calls, repeatable=True)
        found = [(name, head) for name, (head,) in zip(names, heads, strict=True) if head is not None]
        return [_workflow(*texts_of(name), head) for name, head in found[:_FIND_LIMIT]]

    async def history(self, scope: str, handle: str, *, limit: int = 1000) -> Sequence[Step]:
        """See `VersionedFsmStateStore.history`. The newest `HISTORY_LIMIT` steps are kept."""
        check_key(scope, handle)
        if limit <= 0:
            return []
        name = name_of(scope, handle)
        key = bucket_of(name, await self._buckets()).workflow(name)
        (lines,) = await self._server.run(Call([key], (limit,), HISTORY), repeatable=True)
        return [decode_step(unpack(line), scope, handle) for line in reversed(lines)]

    async def prune(self, *, before: float, limit: int = 1000) -> int:
        """See `VersionedFsmStateStore.prune`. Removes a hundred at a time, so that others have their turn."""
        if limit <= 0:
            return 0
        args = (_score(before), limit)
        answers = await self._ask_all(lambda bucket: Call([bucket.index("expires")], args, EXPIRED))
        expired: dict[Bucket, list[bytes]] = {}
        for _, name in _soonest(answers, limit):
            expired.setdefault(bucket_of(name, await self._buckets()), []).append(name)
        gone = 0
        for bucket, names in expired.items():
            for at in range(0, len(names), _AT_ONCE):
                (removed,) = await self._server.run(_removal(bucket, names[at : at + _AT_ONCE], before))
                gone += removed
        return gone

    def now(self) -> float:
        """See `EngineClock.now`. The nodes of a Cluster have clocks of their own; the one that is behind counts."""
        return self._server.now()

    async def publish(self, messages: Sequence[str]) -> None:
        """See `Bus.publish`."""
        await self._bus.publish(messages)

    def listen(self) -> AsyncGenerator[str | None]:
        """See `Bus.listen`."""
        return self._bus.listen()

    async def initialise(self) -> Sequence[str]:
        """See `Maintained.initialise`. All there is to do is to write down how the keys are laid out."""
        return await self.describe()

    async def describe(self) -> Sequence[str]:
        """See `Maintained.describe`. The layout is written down by the first use, whatever that is."""
        kinds = {"single": "one server", "sentinel": "a server watched by Sentinels", "cluster": "a Cluster"}
        url = self._server.url
        lines = [f"Redis store: {kinds[url.kind]}, workflows in {len(await self._buckets())} bucket(s)"]
        if url.wait:
            lines.append(f"a write counts when {url.wait} replica(s) have it")
        return lines

    async def aclose(self) -> None:
        """Close the connections. Calling it again does nothing; anything else raises StoreError from then on."""
        await self._server.aclose()

    async def _buckets(self) -> Sequence[Bucket]:
        if not self._known_buckets:
            number = _CLUSTER_BUCKETS if self._server.url.kind == "cluster" else 1
            version, _, kept = (await self._server.layout(_LAYOUT, b"1:%d" % number)).partition(b":")
            if version != b"1" or not kept.isdigit():
                raise StoreError("Redis store: its keys are laid out by a newer mcpfusion; upgrade")
            self._known_buckets = buckets(self._server.prefix, int(kept))
        return self._known_buckets

    async def _ask_all(self, call: Callable[[Bucket], Call]) -> list[list[list[bytes]]]:
        return await self._server.run_all([call(bucket) for bucket in await self._buckets()], repeatable=True)

    async def _fill(
        self, cursors: Sequence[_Cursor], index: str, high: bytes, wanted: int, filters: tuple[int, str, str]
    ) -> None:
        calls: list[Call] = []
        for cursor in cursors:
            args = (cursor.bucket.workflow(b""), cursor.low, high, wanted, *filters)
            calls.append(Call([cursor.bucket.index(index)], args, LIST))
        answers = await self._server.run_all(calls, repeatable=True)
        for cursor, (low, over, *found) in zip(cursors, answers, strict=True):
            cursor.low, cursor.over = low, bool(over)
            cursor.found.extend(zip(found[::2], found[1::2], strict=True))


def _head(workflow: Workflow) -> bytes:
    """Return the record as it is kept, with what the scripts need to know of it in front."""
    text = encode_workflow(workflow)
    claim = workflow.claim
    # What holds a claim is soon written over, and not worth the time that packing takes.
    packed = pack(text) if claim is None else keep(text)
    marks = ("u" if workflow.steps else "") + ("t" if workflow.due is not None else "")
    if claim is not None:
        marks += "cd" if claim.in_doubt else "c"
    elif workflow.expires_at is not None:
        marks += "e"
    state = workflow.state.encode()
    front = f"{workflow.version}:{marks}:{_score(claim.lease_until if claim else None)}:{len(state)}:"
    return front.encode() + state + packed


def _workflow(scope: str, handle: str, head: bytes) -> Workflow:
    version, _, _, length, rest = head.split(b":", 4)
    return decode_workflow(unpack(rest[int(length) :]), scope, handle, int(version))


def _other_name(scope: str, handle: str) -> bytes:
    """Return the workflow's name in the index by handle; what belongs to everybody has none there."""
    return name_of(handle, scope) if scope else b""


def _score(at: float | None) -> str:
    return "" if at is None else repr(float(at))


def _span(scope: str | None, after: tuple[str, str] | None) -> tuple[bytes, bytes]:
    """Return where in the index of names a listing begins and ends."""
    low, high = b"-", b"+"
    if scope is not None:
        start = name_of(scope, "")
        low, high = b"[" + start, b"(" + start + b"\xff"
    if after is not None and (scope is None or name_of(*after) >= name_of(scope, "")):
        low = b"(" + name_of(*after)
    return low, high


def _soonest(answers: Iterable[list[list[bytes]]], limit: int) -> list[tuple[float, bytes]]:
    """Return the first of all pairs of name and score, by score and name."""
    pairs = [[(float(at), name) for name, at in zip(flat[::2], flat[1::2], strict=True)] for (flat,) in answers]
    return list(merge(*pairs))[:limit]


def _removal(bucket: Bucket, names: Sequence[bytes], before: float) -> Call:
    keys = [bucket.index(each) for each in ("names", "found_by", "due", "expires")]
    args: list[str | bytes] = [_score(before)]
    for name in names:
        scope, handle = texts_of(name)
        keys += [bucket.workflow(name), bucket.states(scope)]
        args += [name, _other_name(scope, handle)]
    return Call(keys, args, REMOVE)


def _next_name(cursor: _Cursor) -> bytes:
    return cursor.found[0][0]
