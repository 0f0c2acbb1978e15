"""What a store keeps, and the two protocols through which the gate reaches it.

`FsmStateStore` is the small one: two methods, written in ten lines over whatever a team already has. The
gate then serialises passages within its own process, and that is all it can promise. `VersionedFsmStateStore`
adds compare-and-set, and with it everything that holds across processes: claims, leases, history, operators.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

DoubtPolicy = Literal["hold", "retry"]
Outcome = Literal["committed", "elapsed", "migrated", "resolved_done", "resolved_not_done", "reset"]
"""How a step came about: by a call, a timer, a migration, or an operator."""


class StoreError(Exception):
    """A store could not do what was asked. The message is for the log and never reaches a client.

    It names a workflow by `mcpfusion.telemetry.workflow_name`, never by its handle or scope, and holds nothing of
    what is stored.
    """

    safe_to_log = True


@dataclass(frozen=True, slots=True)
class FsmSnapshot:
    """Where one workflow stands, as the small protocol keeps it.

    Attributes:
        state: The state's name, or the JSON text of a nested state value.
        updated_at: When it last moved, RFC 3339 in UTC.
    """

    state: str
    updated_at: str


@runtime_checkable
class FsmStateStore(Protocol):
    """The store a user implements: load and save one snapshot by key.

    `handle` is an opaque key of at most 2 kB (the workflow's handle, preceded by its scope when it has one).
    Both methods may raise anything: the gate then refuses the call, logs the cause and says nothing internal.
    """

    async def load(self, handle: str) -> FsmSnapshot | None:
        """Return what was last saved under `handle`, or None."""
        ...

    async def save(self, handle: str, snapshot: FsmSnapshot) -> None:
        """Keep `snapshot` under `handle`, replacing what was there. Durable when it returns."""
        ...


@dataclass(frozen=True, slots=True)
class Claim:
    """A passage that holds a workflow: from the claim until commit or release, or until its lease runs out.

    Attributes:
        call_id: Random name of this one attempt.
        idempotency_key: The same for every attempt at this step.
        tool: The tool that is being called.
        event: The event it will send, or None when the result decides.
        principal: Who called, or None.
        digest: Digest of the tool's name and arguments; never the arguments.
        claimed_at: Seconds since the epoch.
        lease_until: Seconds since the epoch; after it the step is in doubt.
        on_doubt: What happens then: `hold` refuses until somebody resolves it, `retry` frees the claim.
        in_doubt: True once the outcome is known to be unknown, whatever the lease says.
        opens: True when the call opened this workflow (it minted the handle).
        leads_to: The snapshot that the commit would write, as JSON data, where the event alone decides it.
    """

    call_id: str
    idempotency_key: str
    tool: str
    event: str | None
    principal: str | None
    digest: str
    claimed_at: float
    lease_until: float
    on_doubt: DoubtPolicy
    in_doubt: bool = False
    opens: bool = False
    leads_to: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class LastStep:
    """The step just committed, so that a repeat of its call is recognised.

    Attributes:
        result: The wire result, kept only where the action asks for it (`keep_result`).
        keep_until: Until when `result` may be handed out, seconds since the epoch.
    """

    call_id: str
    tool: str
    digest: str
    principal: str | None
    committed_at: float
    result: Mapping[str, Any] | None = None
    keep_until: float = 0.0


@dataclass(frozen=True, slots=True)
class Workflow:
    """One workflow's record. Immutable; a change is a new record with the next version.

    Attributes:
        scope: Whose workflow it is; "" for everybody's.
        handle: Its name within the scope.
        id: Random, given when the record is first written; a reset gives a new one.
        version: 0 before the first write; each write adds one.
        steps: How many steps have been committed.
        state: The snapshot's canonical state text, for listing and for `states_in_use`.
        snapshot: The machine's snapshot as JSON data.
        updated_at: When the state last moved, seconds since the epoch.
        claim: The passage in force, or None.
        last: The step just committed, or None.
        due: When the snapshot's next timer goes off, seconds since the epoch; None without one, or while claimed.
        expires_at: From when on its calls are refused and it may be pruned, seconds since the epoch; None: never.
    """

    scope: str
    handle: str
    id: str
    version: int
    steps: int
    state: str
    snapshot: Mapping[str, Any]
    updated_at: float
    claim: Claim | None = None
    last: LastStep | None = None
    due: float | None = None
    expires_at: float | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One committed step, as the history keeps it.

    Attributes:
        from_state: Canonical state text before; `to_state` after.
        call_id: The attempt that made it ("" for an operator's step).
        at: Seconds since the epoch.
        outcome: How the step came about.
        arguments: What the user's redaction hook returned for the call's arguments, else None.
        result: What the hook returned for the result, else None.
    """

    scope: str
    handle: str
    from_state: str
    to_state: str
    event: str | None
    tool: str
    principal: str | None
    call_id: str
    at: float
    outcome: Outcome
    arguments: Any = None
    result: Any = None


@runtime_checkable
class VersionedFsmStateStore(Protocol):
    """A store with compare-and-set: the workflows, their claims and their history.

    What an implementation must guarantee:
    - `write` is atomic and durable when it returns True: record and step together, or neither.
    - Of two writers with the same `expected_version` at most one gets True, across processes.
    - `states_in_use` costs as many look-ups as there are distinct states, not workflows.
    - Any method may raise; a `write` that raises may or may not have been carried out.
    """

    async def read(self, scope: str, handle: str) -> Workflow | None:
        """Return the workflow's record, or None when it was never written."""
        ...

    async def write(self, workflow: Workflow, *, expected_version: int, step: Step | None = None) -> bool:
        """Write `workflow` (whose version is `expected_version + 1`) if the stored version is still
        `expected_version` (0: no record yet), together with `step` in the history. False when it is not."""
        ...

    async def states_in_use(self, scope: str) -> Sequence[str]:
        """Return the distinct canonical state texts, sorted, of the scope's workflows that have taken a step.
        One whose `steps` are 0 was only ever claimed: its first call is running, or failed, and it is not open."""
        ...

    async def next_due(self, *, limit: int = 100) -> Sequence[tuple[float, str, str]]:
        """Return the (due, scope, handle) of up to `limit` workflows that have a timer, the soonest first.
        The cost grows with `limit`, not with the workflows."""
        ...

    async def list_workflows(
        self,
        *,
        scope: str | None = None,
        state: str | None = None,
        in_doubt_at: float | None = None,
        after: tuple[str, str] | None = None,
        limit: int = 100,
    ) -> Sequence[Workflow]:
        """Return up to `limit` workflows ordered by (scope, handle), from after the given pair on.
        `in_doubt_at` keeps those whose claim is marked in doubt or whose lease ended before that time."""
        ...

    async def find(self, handle: str) -> Sequence[Workflow]:
        """Return the workflows of every scope that have this handle, ordered by scope (at most 100)."""
        ...

    async def history(self, scope: str, handle: str, *, limit: int = 1000) -> Sequence[Step]:
        """Return the workflow's newest `limit` committed steps, oldest first."""
        ...

    async def prune(self, *, before: float, limit: int = 1000) -> int:
        """Remove up to `limit` workflows that have an `expires_at` earlier than `before` and no claim, the soonest
        first, with their history. Return how many. The cost grows with `limit`, not with the workflows."""
        ...

    async def aclose(self) -> None:
        """Let go of files and connections. The store is not used afterwards; calling it again does nothing."""
        ...


@runtime_checkable
class EngineClock(Protocol):
    """What a store offers besides when its engine has a clock that all processes share.

    Leases and timers are then told by that clock, whatever the clocks of the processes say.
    """

    def now(self) -> float:
        """Return the engine's time in seconds since the epoch: what its latest answer said, and what went by since
        that answer arrived. It may lag by one round trip and is never ahead, so that no lease ends early. Before
        the first answer it is this process's own time."""
        ...


@runtime_checkable
class Bus(Protocol):
    """What a store offers besides when its processes can tell each other something through the engine.

    A message is lost for whoever is not listening; it is a hint to look at the store, never the only record.
    """

    async def publish(self, messages: Sequence[str]) -> None:
        """Send messages of at most 7,000 bytes of UTF-8 each to all who listen, this process included. May raise."""
        ...

    def listen(self) -> AsyncGenerator[str | None]:
        """Yield the messages of all processes, from the first None on.

        None is yielded when listening has begun, and again each time after the connection was lost and made anew:
        what was published in between is not known. It connects again by itself, waiting 1 second at most between
        two attempts, and ends only by being closed or cancelled.
        """
        ...


@runtime_checkable
class Maintained(Protocol):
    """What a store offers besides when there is something to see, or to make ready, in its engine."""

    async def initialise(self) -> Sequence[str]:
        """Make it ready for use, and return what was done and what is there, a line each. Doing it again changes
        nothing. Raises StoreError."""
        ...

    async def describe(self) -> Sequence[str]:
        """Return what is there, a line each, changing nothing. Raises StoreError when it is not ready for use."""
        ...
