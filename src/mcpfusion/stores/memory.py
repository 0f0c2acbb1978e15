"""Stores in this process's memory: for tests, for trying things out, for workflows that may end with it."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from threading import Lock

from .codec import check_key, check_write, decode_step, decode_workflow, encode_step, encode_workflow
from .protocol import FsmSnapshot, Step, Workflow

_Key = tuple[str, str]


class InMemoryFsmStateStore:
    """The small protocol over a dict."""

    def __init__(self) -> None:
        self._snapshots: dict[str, FsmSnapshot] = {}

    async def load(self, handle: str) -> FsmSnapshot | None:
        """Return what was last saved under `handle`, or None."""
        return self._snapshots.get(handle)

    async def save(self, handle: str, snapshot: FsmSnapshot) -> None:
        """Keep `snapshot` under `handle`."""
        self._snapshots[handle] = snapshot


@dataclass(slots=True)
class _Entry:
    version: int
    state: str
    in_use: str | None
    record: str
    steps: list[str] = field(default_factory=list[str])


class MemoryStore:
    """A `VersionedFsmStateStore` that ends with the process.

    Records are kept as the JSON text that the engines on disk keep, so that what works here works there and
    nobody holds a piece of the store's own data. Safe to use from several threads and event loops.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._entries: dict[_Key, _Entry] = {}
        self._states: dict[str, Counter[str]] = {}
        self._due: dict[_Key, float] = {}
        self._expires: dict[_Key, float] = {}
        self._order: list[_Key] | None = None

    async def read(self, scope: str, handle: str) -> Workflow | None:
        """See `VersionedFsmStateStore.read`."""
        check_key(scope, handle)
        with self._lock:
            entry = self._entries.get((scope, handle))
        return None if entry is None else decode_workflow(entry.record, scope, handle, entry.version)

    async def write(self, workflow: Workflow, *, expected_version: int, step: Step | None = None) -> bool:
        """See `VersionedFsmStateStore.write`. Raises ValueError for a write that contradicts itself."""
        check_write(workflow, expected_version, step)
        key = (workflow.scope, workflow.handle)
        in_use = workflow.state if workflow.steps else None
        new = _Entry(workflow.version, workflow.state, in_use, encode_workflow(workflow))
        line = None if step is None else encode_step(step)
        with self._lock:
            old = self._entries.get(key)
            if (0 if old is None else old.version) != expected_version:
                return False
            if old is None:
                self._order = None
            else:
                new.steps = old.steps
            self._entries[key] = new
            self._count(workflow.scope, None if old is None else old.in_use, new.in_use)
            _note(self._due, key, workflow.due)
            _note(self._expires, key, workflow.expires_at if workflow.claim is None else None)
            if line is not None:
                new.steps.append(line)
        return True

    async def states_in_use(self, scope: str) -> Sequence[str]:
        """See `VersionedFsmStateStore.states_in_use`."""
        with self._lock:
            return sorted(self._states.get(scope, ()))

    async def next_due(self, *, limit: int = 100) -> Sequence[tuple[float, str, str]]:
        """See `VersionedFsmStateStore.next_due`. In memory it looks at every workflow with a timer."""
        with self._lock:
            return nsmallest(limit, ((due, *key) for key, due in self._due.items()))

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
        found: list[Workflow] = []
        for key, entry in self._from(after):
            if len(found) >= limit:
                break
            if (scope is not None and key[0] != scope) or (state is not None and entry.state != state):
                continue
            workflow = decode_workflow(entry.record, *key, entry.version)
            if in_doubt_at is None or _in_doubt(workflow, in_doubt_at):
                found.append(workflow)
        return found

    async def find(self, handle: str) -> Sequence[Workflow]:
        """See `VersionedFsmStateStore.find`."""
        named = ((key, entry) for key, entry in self._from(None) if key[1] == handle)
        return [decode_workflow(entry.record, *key, entry.version) for key, entry in islice(named, 100)]

    async def history(self, scope: str, handle: str, *, limit: int = 1000) -> Sequence[Step]:
        """See `VersionedFsmStateStore.history`."""
        check_key(scope, handle)
        with self._lock:
            entry = self._entries.get((scope, handle))
            lines = [] if entry is None or limit <= 0 else entry.steps[-limit:]
        return [decode_step(line, scope, handle) for line in lines]

    async def prune(self, *, before: float, limit: int = 1000) -> int:
        """See `VersionedFsmStateStore.prune`. In memory it looks at every workflow that expires."""
        with self._lock:
            expired = ((at, key) for key, at in self._expires.items() if at < before)
            gone = [key for _, key in nsmallest(max(limit, 0), expired)]
            for key in gone:
                self._count(key[0], self._entries.pop(key).in_use, None)
                self._due.pop(key, None)
                del self._expires[key]
            if gone:
                self._order = None
        return len(gone)

    async def aclose(self) -> None:
        """Do nothing: there is nothing to let go of."""

    def _from(self, after: _Key | None) -> Iterator[tuple[_Key, _Entry]]:
        with self._lock:
            if self._order is None:
                self._order = sorted(self._entries)
            order = self._order
        # The list is replaced when it changes, never altered; what is pruned meanwhile is passed over.
        for at in range(0 if after is None else bisect_right(order, after), len(order)):
            entry = self._entries.get(order[at])
            if entry is not None:
                yield order[at], entry

    def _count(self, scope: str, before: str | None, now: str | None) -> None:
        if before == now:
            return
        states = self._states.setdefault(scope, Counter())
        if now is not None:
            states[now] += 1
        if before is not None:
            states[before] -= 1
            if not states[before]:
                del states[before]
        if not states:
            del self._states[scope]


def _note(times: dict[_Key, float], key: _Key, at: float | None) -> None:
    if at is None:
        times.pop(key, None)
    else:
        times[key] = at


def _in_doubt(workflow: Workflow, at: float) -> bool:
    claim = workflow.claim
    return claim is not None and (claim.in_doubt or claim.lease_until < at)
