"""A plain load/save store behind the gate's store protocol.

Claims, versions and the step just committed live in this process. Passages are thereby serialised within the
process, and that is all: two processes on one plain store can both run a step.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from urllib.parse import quote

import anyio

from mcpfusion.engines.engine import Engine
from mcpfusion.stores.protocol import FsmSnapshot, FsmStateStore, Step, StoreError, Workflow

_REMEMBERED = 10_000


class NotListable(StoreError):
    """The store can only load and save; what it holds cannot be asked for."""


def plain_key(scope: str, handle: str) -> str:
    """Return the one string that names (scope, handle): the handle itself where the scope is everybody's.

    No two pairs share a key: a scope is never empty in front of the first slash, and a bare handle with a slash
    is written behind an empty scope.
    """
    if scope:
        return f"{quote(scope, safe='')}/{handle}"
    return f"/{handle}" if "/" in handle else handle


class PlainStore:
    """Adapts `FsmStateStore` to what the passage needs, within one process."""

    def __init__(self, store: FsmStateStore, machine: Engine) -> None:
        if not machine.bare:
            raise ValueError(
                f"machine {machine.id!r} has context, timers, history or actions, of which a load/save store keeps "
                "nothing: use a store by URL, or implement VersionedFsmStateStore"
            )
        self._store = store
        self._machine = machine
        self._known: OrderedDict[str, Workflow] = OrderedDict()
        self._lock = anyio.Lock()

    async def read(self, scope: str, handle: str) -> Workflow | None:
        """Load the snapshot; what only this process knows (claim, version) is laid over it.

        Raises:
            UnknownStateError: The stored state does not fit the machine.
        """
        key = plain_key(scope, handle)
        while True:
            known = self._known.get(key)
            stored = await self._store.load(key)
            if self._known.get(key) is known:
                break  # else a write came in between, and what was loaded may be of before it
        if stored is None:
            return known
        if known is not None and known.state == stored.state:
            return known
        snapshot = self._machine.restore_state(stored.state)
        if known is not None:
            # Moved by another process, or by a save that raised: at least one step that was not counted here.
            version, identity, steps = known.version, known.id, known.steps + 1
        else:
            version, identity, steps = _version(stored), json.dumps([key, stored.updated_at]), 0
        return Workflow(
            scope, handle, identity, version, steps, snapshot.state, snapshot.to_json(), _seconds(stored.updated_at)
        )

    async def write(self, workflow: Workflow, *, expected_version: int, step: Step | None = None) -> bool:
        """Save the state when a step moved it; everything else stays in this process."""
        key = plain_key(workflow.scope, workflow.handle)
        async with self._lock:
            current = await self.read(workflow.scope, workflow.handle)
            if (current.version if current else 0) != expected_version:
                return False
            if step is not None or current is None or current.state != workflow.state:
                at = datetime.fromtimestamp(workflow.updated_at, UTC).isoformat()
                await self._store.save(key, FsmSnapshot(workflow.state, at))
            self._known[key] = replace(workflow)
            self._known.move_to_end(key)
            self._forget()
            return True

    def _forget(self) -> None:
        for key in list(self._known):
            if len(self._known) <= _REMEMBERED:
                return
            if self._known[key].claim is None:
                del self._known[key]

    async def states_in_use(self, scope: str) -> Sequence[str]:
        """Raises NotListable: a plain store cannot say what it holds."""
        raise NotListable("a load/save store cannot list its workflows")

    async def next_due(self, *, limit: int = 100) -> Sequence[tuple[float, str, str]]:
        """Return nothing: a plain store keeps no timers, and a machine that has some is refused on it."""
        return []

    async def list_workflows(
        self,
        *,
        scope: str | None = None,
        state: str | None = None,
        in_doubt_at: float | None = None,
        after: tuple[str, str] | None = None,
        limit: int = 100,
    ) -> Sequence[Workflow]:
        """Raises NotListable, see `states_in_use`."""
        raise NotListable("a load/save store cannot list its workflows")

    async def find(self, handle: str) -> Sequence[Workflow]:
        """Raises NotListable, see `states_in_use`."""
        raise NotListable("a load/save store cannot list its workflows")

    async def history(self, scope: str, handle: str, *, limit: int = 1000) -> Sequence[Step]:
        """Return nothing: a plain store keeps no history."""
        return []

    async def prune(self, *, before: float, limit: int = 1000) -> int:
        """Remove nothing: a load/save store can delete nothing, and keeps no time from which to."""
        return 0

    async def aclose(self) -> None:
        """Nothing to let go of: the store is its owner's."""


def _version(stored: FsmSnapshot) -> int:
    """Return the version of a snapshot of which this process knows nothing else.

    It differs from that of every other snapshot, and from the low numbers of a workflow that begins here: what is
    found while another call writes it for the first time must not pass for what that call has written.
    """
    digest = hashlib.sha256(json.dumps([stored.state, stored.updated_at]).encode()).digest()
    return 1 << 48 | int.from_bytes(digest[:6])


def _seconds(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError):
        return 0.0
