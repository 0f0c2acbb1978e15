"""The workflows of a gate in their store: loaded ready to be judged, written so that it is known what happened.

A workflow is brought up to date by whoever loads it, so that nothing has to be alive for it in between: a record
of an older machine is fitted or migrated, and timers that came due meanwhile go off in order, each at the time it
was due, as committed steps.
"""

import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import anyio

from mcpfusion.gate import records
from mcpfusion.gate.binding import Bindings, Migrate
from mcpfusion.gate.expiry import release_abandoned
from mcpfusion.gate.identity import MINTED_PREFIX, is_own
from mcpfusion.gate.plain import NotListable
from mcpfusion.machine import MachineError, Snapshot, UnknownStateError
from mcpfusion.machine.snapshot import state_text
from mcpfusion.stores.protocol import Outcome, Step, VersionedFsmStateStore, Workflow
from mcpfusion.telemetry import OUTCOME, STATE, STEPS, WORKFLOW, workflow_name

_log = logging.getLogger(__name__)

STORE_TIMEOUT = 15.0
"""Seconds a single operation of the store may take."""

PROBE_HANDLE = "io.mcpfusion/ready"
"""A handle that no workflow has: reading it tells whether the store is there."""

PATIENCE = 5.0
"""Seconds for which it is tried to write the end of a step when the store fails. An engine that is restarted is often
back by then, and a claim that cannot be ended leaves doubt."""

ATTEMPTS = 3
"""How often it is tried at least, however long the store takes to fail."""

_NEWEST = 100
"""Steps in which it is looked for one that was just written."""

MENUS = "menus"
"""The topic on which processes tell each other, by scope and handle, of workflows that moved."""

CATCH_UP_LIMIT = 1000
"""Overdue timers that one load lets go off; the next load goes on from there."""


class StoreUnavailable(Exception):
    """The store failed or took too long; the cause is chained and logged."""

    code = "STORE_UNAVAILABLE"


class GoneError(Exception):
    """There is no workflow of this handle any more, or there never was.

    Attributes:
        expired_at: When it expired; None where that is not known, or nothing is known of the handle.
    """

    def __init__(self, expired_at: float | None) -> None:
        super().__init__()
        self.expired_at = expired_at
        self.code = "UNKNOWN_HANDLE" if expired_at is None else "EXPIRED"


class StuckError(Exception):
    """The workflow cannot be brought up to date: its machine fails on it, or it lies too far behind. Logged."""

    code = "UNKNOWN_STATE"


@dataclass(frozen=True, slots=True)
class Moved:
    """A committed step, for those whose menu it may have changed.

    Attributes:
        opens: The workflow is new: before the step it was on nobody's menu.
    """

    scope: str
    handle: str
    before: Snapshot
    after: Snapshot
    opens: bool = False


class Workflows:
    """Loads and writes workflows.

    Args:
        clock: Gives seconds since the epoch.
        on_moved: Awaited after each step that was committed.
        expires_after: Seconds from its last write on after which a workflow is over; None: never.
    """

    def __init__(
        self,
        bindings: Bindings,
        store: VersionedFsmStateStore,
        clock: Callable[[], float],
        on_moved: Callable[[Moved], Awaitable[None]],
        expires_after: float | None = None,
    ) -> None:
        self._machine = bindings.machine
        self.store = store
        self._clock = clock
        self._on_moved = on_moved
        self._expires_after = expires_after
        self._bindings = bindings

    async def load(self, scope: str, handle: str, *, opens: bool = False) -> tuple[Workflow | None, Snapshot]:
        """Return a workflow's record, None when it was never written, and where it stands now.

        A minted handle names a workflow only when it was written, or when this call opens it (`opens`). A handle
        that the gate gave to a caller who names none stands for another workflow, with other idempotency keys,
        when the one before has expired: the caller has no other.

        Raises:
            GoneError: The workflow has expired, or its handle was never minted.
            StoreUnavailable: The store failed.
            UnknownStateError: What is stored does not fit the machine, and no migration helps.
            StuckError: It cannot be brought up to date.
        """
        record = await self._read(scope, handle)
        for _ in range(CATCH_UP_LIMIT):
            if record is None:
                if self._bindings.minting and not opens and handle.startswith(MINTED_PREFIX):
                    raise GoneError(None)
                return None, self._machine.initial(now=self._clock())
            # A timer that is overdue was due before the end, and may have moved it.
            if records.expired(record, self._clock()) and not records.overdue(record, self._clock()):
                if not is_own(handle):
                    raise GoneError(record.expires_at)
                initial = self._machine.initial(now=self._clock())
                return records.begun_anew(record, initial, self._clock()), initial
            snapshot = self._fitted(record)
            # A claimed step was admitted where the workflow stands: no timer moves it away underneath.
            if record.claim is not None and not records.free_again(record, self._clock()):
                return record, snapshot
            after, step = self._next(record, snapshot)
            if step is None:
                return record, snapshot
            moved = self._dated(records.moved(record, after.to_json(), record.last, step.at), step)
            if await self._write(moved, record.version, step):
                STEPS.add({STATE: record.state, OUTCOME: step.outcome})
                await self.announce(Moved(scope, handle, snapshot, after))
                record = moved
            else:
                record = await self._read(scope, handle)
        _log.error("workflow %s: more than %d timers are overdue", workflow_name(scope, handle), CATCH_UP_LIMIT)
        raise StuckError

    def _fitted(self, record: Workflow) -> Snapshot:
        try:
            return self._machine.restore(record.snapshot)
        except UnknownStateError:
            if self._bindings.migrate is None:
                raise
            return self._migrated(record, self._bindings.migrate)

    def _migrated(self, record: Workflow, migrate: Migrate) -> Snapshot:
        found: Any = None
        try:
            found = migrate(record.snapshot) if callable(migrate) else migrate.get(record.state)
        except Exception as error:
            _log.exception("the migration of workflow %s raised", _name(record))
            raise StuckError from error
        if found is None:
            raise UnknownStateError(f"the migration has no answer for the state {record.state!r}")
        if isinstance(found, dict) and "value" in found:
            return self._machine.restore(cast(dict[str, Any], found))
        return self._machine.restore_state(state_text(cast(Any, found)))

    def _next(self, record: Workflow, snapshot: Snapshot) -> tuple[Snapshot, Step | None]:
        """Return the next step that lies behind: the migration itself, or the timer that was due first."""
        if record.state != snapshot.state:
            return snapshot, self._step(record, snapshot, None, self._clock(), "migrated")
        due = self._machine.due(snapshot)
        if due is None or due > self._clock():
            return snapshot, None
        timer = min(snapshot.timers, key=lambda each: each.due)
        try:
            after = self._machine.elapse(snapshot, self._clock())
        except MachineError as error:
            _log.exception("workflow %s: a timer cannot go off", _name(record))
            raise StuckError from error
        return after, self._step(record, after, str(timer.event.get("type", timer.id)), due, "elapsed")

    @staticmethod
    def _step(record: Workflow, after: Snapshot, event: str | None, at: float, outcome: Outcome) -> Step:
        return Step(record.scope, record.handle, record.state, after.state, event, "", None, "", at, outcome)

    async def in_use(self, scope: str) -> list[Snapshot] | None:
        """Return one snapshot for each state the scope's workflows stand in; None when the store cannot say.

        Raises:
            StoreUnavailable: The store failed.
        """
        try:
            with anyio.fail_after(STORE_TIMEOUT):
                states = await self.store.states_in_use(scope)
        except NotListable:
            return None
        except Exception as error:
            _log.exception("cannot read the states in use in a scope")
            raise StoreUnavailable from error
        found: list[Snapshot] = []
        for state in states:
            # A workflow that fits the machine no more shows nothing; a call on it is told why.
            with contextlib.suppress(UnknownStateError):
                found.append(self._machine.restore_state(state))
        return found

    async def answers(self, within: float) -> bool:
        """Return whether the store answers within so many seconds. Never raises."""
        try:
            with anyio.fail_after(within):
                await self.store.read("", PROBE_HANDLE)
        except Exception:
            _log.debug("the store does not answer", exc_info=True)
            return False
        return True

    async def catch_up(self, now: float, limit: int = 1000) -> float | None:
        """Bring up to date whatever has a timer due at `now`; return when the next one is due, or None.

        Raises:
            StoreUnavailable: The store failed.
        """
        try:
            with anyio.fail_after(STORE_TIMEOUT):
                rows = await self.store.next_due(limit=limit)
        except Exception as error:
            _log.exception("cannot read the timers that are due")
            raise StoreUnavailable from error
        for due, scope, handle in rows:
            if due > now:
                return due
            # Logged where it happened; the others are not held up by one that cannot go on.
            with contextlib.suppress(StoreUnavailable, UnknownStateError, StuckError, GoneError):
                await self.load(scope, handle)
        return None

    async def prune(self, before: float, limit: int = 500) -> int:
        """Remove up to `limit` workflows that expired before `before`; return how many.

        Raises:
            StoreUnavailable: The store failed.
        """
        try:
            with anyio.fail_after(STORE_TIMEOUT):
                removed = await self.store.prune(before=before, limit=limit)
                await release_abandoned(self.store, before=before)  # to be removed the next time
                return removed
        except Exception as error:
            _log.exception("cannot remove the workflows that expired")
            raise StoreUnavailable from error

    async def claim(self, held: Workflow, expected: int, within: float) -> bool:
        """Write a claim; False when the workflow changed meanwhile.

        Args:
            within: How many seconds that may take. The lease counts from before, and has to outlast the handler.

        Raises:
            StoreUnavailable: The store failed, or took longer. The claim is taken back if it is there all the same.
        """
        begun = anyio.current_time()
        try:
            is_held = await self._write(held, expected)
        except StoreUnavailable:
            with contextlib.suppress(StoreUnavailable, UnknownStateError):
                found = await self._read(held.scope, held.handle)
                if found and found.claim and held.claim and found.claim.call_id == held.claim.call_id:
                    await self._write(records.released(found), found.version)
            raise
        took = anyio.current_time() - begun
        if is_held and took > within:
            _log.error("workflow %s: writing its claim took %.1f s; nothing was run", _name(held), took)
            await self.settle(records.released(held), held.version)
            raise StoreUnavailable
        return is_held

    async def settle(self, record: Workflow, expected: int) -> bool:
        """Release or mark. False when that cannot be written: the lease runs out then, and the step is in doubt."""
        pauses, failed = _pauses(), False
        while True:
            with contextlib.suppress(StoreUnavailable):
                if not await self._write(record, expected) and not failed:
                    _log.warning("workflow %s was resolved meanwhile", _name(record))
                return True
            failed = True  # or carried out all the same: then the next attempt comes too late, and all is well
            if (pause := next(pauses, None)) is None:
                _log.warning("workflow %s keeps its claim until the lease ends", _name(record))
                return False
            await anyio.sleep(pause)

    async def commit(self, record: Workflow, expected: int, step: Step) -> bool:
        """Write a step, trying again while it is not there; False when it is not known to be there in the end.

        A write that raised may have been carried out, so that it is looked for after each.
        """
        pauses = _pauses()
        while True:
            with contextlib.suppress(StoreUnavailable):
                if await self._write(record, expected, step):
                    return True
            with contextlib.suppress(StoreUnavailable, UnknownStateError):
                found = await self._read(record.scope, record.handle)
                if found and found.version != expected:
                    return await self._is_there(found, record, step)
            if (pause := next(pauses, None)) is None:
                return False
            await anyio.sleep(pause)

    async def _is_there(self, found: Workflow, record: Workflow, step: Step) -> bool:
        """Return whether a step is part of a workflow that has changed since: by it, by it and more that came after,
        or by an operator in its place."""
        if found.last and found.last.call_id == step.call_id:
            return found.state == record.state
        try:
            with anyio.fail_after(STORE_TIMEOUT):
                newest = await self.store.history(record.scope, record.handle, limit=_NEWEST)
        except Exception as error:
            _log.exception("cannot read the history of workflow %s", _name(record), extra={WORKFLOW: _name(record)})
            raise StoreUnavailable from error
        return any(each.call_id == step.call_id for each in newest)

    async def announce(self, step: Moved) -> None:
        """Tell about a committed step; a notification that fails must not make the step look undone."""
        try:
            await self._on_moved(step)
        except Exception:
            _log.exception("cannot tell about the menu that changed")

    def _dated(self, record: Workflow, step: Step | None) -> Workflow:
        return records.dated(record, step.at if step else self._clock(), self._expires_after)

    async def _read(self, scope: str, handle: str) -> Workflow | None:
        try:
            with anyio.fail_after(STORE_TIMEOUT):
                return await self.store.read(scope, handle)
        except UnknownStateError:
            raise
        except Exception as error:
            name = workflow_name(scope, handle)
            _log.exception("cannot read workflow %s", name, extra={WORKFLOW: name})
            raise StoreUnavailable from error

    async def _write(self, record: Workflow, expected: int, step: Step | None = None) -> bool:
        try:
            with anyio.fail_after(STORE_TIMEOUT):
                return await self.store.write(self._dated(record, step), expected_version=expected, step=step)
        except Exception as error:
            _log.exception(
                "cannot write workflow %s", _name(record), extra={WORKFLOW: _name(record), STATE: record.state}
            )
            raise StoreUnavailable from error


def _pauses() -> Iterator[float]:
    """Yield how long to wait before each further attempt at a write, until patience is at an end."""
    until, pause = anyio.current_time() + PATIENCE, 0.05
    for attempt in itertools.count(1):
        if attempt >= ATTEMPTS and anyio.current_time() + pause > until:
            return
        yield pause
        pause = min(2 * pause, 0.5)


def _name(record: Workflow) -> str:
    return workflow_name(record.scope, record.handle)
