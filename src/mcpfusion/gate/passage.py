"""The passage: one gated call on its way through the gate: load, admit, claim, run, commit.

Exactly one of any number of calls at the same step runs, across processes, because the claim is a
compare-and-set in the store. Once a step is claimed it ends in one of three ways: committed, released
(nothing moved), or in doubt (nobody knows), and the record says which.
"""

import copy
import hashlib
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import anyio

from mcpfusion.actions.context import WorkflowView
from mcpfusion.actions.results import ToolResult
from mcpfusion.gate import records, refusal
from mcpfusion.gate.binding import Binding, Bindings
from mcpfusion.gate.options import Options
from mcpfusion.gate.ticket import Outcome, Ticket
from mcpfusion.gate.workflows import GoneError, Moved, StoreUnavailable, StuckError, Workflows
from mcpfusion.machine import Snapshot, UnknownStateError
from mcpfusion.stores.protocol import Claim, LastStep, Step, Workflow
from mcpfusion.telemetry import TOOL, WORKFLOW, workflow_name

_log = logging.getLogger(__name__)

KEPT_RESULT_LIMIT = 256 * 1024
"""Largest result in bytes of JSON that is kept for a repeat."""

_SLOW_CLAIM = 1.0
"""Seconds that writing a claim may take however short the margin; else half of the margin, as the lease counts from
before it."""

_FIRST_LOOK, _LONGEST_LOOK = 0.01, 0.25


Work = Callable[[WorkflowView], Awaitable[Outcome]]
Prepare = Callable[[], ToolResult | None]


class Passages:
    """Takes the calls of bound tools through the gate.

    Args:
        bindings: The compiled gate.
        workflows: Where the workflows are.
        options: Limits and the clock.
    """

    def __init__(self, bindings: Bindings, workflows: Workflows, options: Options) -> None:
        self._bindings = bindings
        self._machine = bindings.machine
        self._workflows = workflows
        self._options = options
        self._claim_limit = max(options.lease_margin / 2, _SLOW_CLAIM)
        self._waiting: dict[tuple[str, str], anyio.Event] = {}

    async def run(self, ticket: Ticket, prepare: Prepare, work: Work) -> ToolResult:
        """Take one call through the gate and return its answer, the workflow block included.

        `prepare` is called when the call is admitted and before anything is claimed; a result it returns is the
        answer. `work` runs at most once; whatever it raises goes through after the claim was released.
        """
        try:
            return await self._pass(ticket, prepare, work)
        except StoreUnavailable:
            answer = refusal.unavailable()
        except GoneError as gone:
            answer = refusal.gone(ticket.tool.name, ticket.handle, gone.expired_at, self._bindings.minting)
        except (UnknownStateError, StuckError) as error:
            name = workflow_name(ticket.scope, ticket.handle)
            _log.error("workflow %s: %s", name, error, extra={WORKFLOW: name, TOOL: ticket.tool.name})
            answer = refusal.unknown_state(ticket.handle)
        ticket.seen.refused(answer)
        return answer

    async def _pass(self, ticket: Ticket, prepare: Prepare, work: Work) -> ToolResult:
        deadline = time.monotonic() + self._options.conflict_wait
        while True:
            with ticket.seen.admit() as span:
                admitted, record, snapshot, allowed = await self._admit(ticket, prepare, deadline)
                refused = admitted if isinstance(admitted, ToolResult) else None
                ticket.seen.judged(span, snapshot.state, refused)
            if isinstance(admitted, ToolResult):
                return self._with_block(ticket, snapshot, admitted, allowed)
            if admitted.transition is None and not ticket.opens:
                outcome = await work(self._view(ticket, snapshot, None))
                return self._with_block(ticket, snapshot, outcome.result, allowed)
            record = record or records.new_record(ticket.scope, ticket.handle, snapshot, self._options.clock())
            answer = await self._claim_and_run(ticket, admitted, record, snapshot, work)
            if answer is not None:
                return answer

    async def _admit(
        self, ticket: Ticket, prepare: Prepare, deadline: float
    ) -> tuple[ToolResult | Binding, Workflow | None, Snapshot, list[str]]:
        """Wait while another call holds the workflow. Return the answer or the binding under which the call is
        admitted, the record, where the workflow stands, and what is allowed there."""
        pause = _FIRST_LOOK
        while True:
            record, snapshot = await self._workflows.load(ticket.scope, ticket.handle, opens=ticket.opens)
            judged = self._judge(ticket, record, snapshot)
            allowed = [] if records.withheld(record, self._options.clock()) else self._bindings.allowed(snapshot)
            if isinstance(judged, ToolResult):
                return judged, record, snapshot, allowed
            if isinstance(judged, Binding):
                return prepare() or judged, record, snapshot, allowed
            if time.monotonic() >= deadline:
                answer = refusal.conflict(ticket.tool.name, ticket.handle, snapshot, allowed, judged)
                return answer, record, snapshot, allowed
            ticket.seen.waits()
            await self._wait(ticket, min(pause, max(deadline - time.monotonic(), 0)))
            pause = min(pause * 2, _LONGEST_LOOK)

    def _judge(self, ticket: Ticket, record: Workflow | None, snapshot: Snapshot) -> ToolResult | Claim | Binding:
        """Return a refusal, the claim to wait for, or the binding under which the call is admitted."""
        tool, now = ticket.tool, self._options.clock()
        binding = tool.binding_in(snapshot) if tool.bindings or not ticket.opens else Binding((), frozenset())
        if ticket.opens and record and record.last:
            binding = None  # only this very call, sent again with its answers, can name the workflow it opened
        claim = record.claim if record else None
        if record and claim:
            moves = binding is not None and (binding.transition is not None or ticket.opens)
            if not records.in_doubt(record, now):
                if moves or claim.digest == ticket.digest:
                    return claim
            elif claim.on_doubt == "hold" and (moves or binding is None):
                return refusal.doubt(ticket.handle, snapshot, claim, "An earlier step did not end.")
        if record and record.last and self._repeats(ticket, record.last, binding):
            return self._repeat(ticket, snapshot, record.last)
        if binding is None or (binding.event and not self._machine.can(snapshot, self._event(binding.event, ticket))):
            return refusal.forbidden(tool.name, ticket.handle, snapshot, self._bindings.allowed(snapshot))
        return binding

    def _repeats(self, ticket: Ticket, last: LastStep, binding: Binding | None) -> bool:
        same = (last.tool, last.digest, last.principal) == (ticket.tool.name, ticket.digest, ticket.principal)
        # Where the same call is due again by the machine's own definition it is a new step, not a repeat, unless
        # the action keeps its result for exactly this case.
        return same and (binding is None or last.keep_until > self._options.clock())

    def _repeat(self, ticket: Ticket, snapshot: Snapshot, last: LastStep) -> ToolResult:
        if last.result is not None and last.keep_until > self._options.clock():
            return ToolResult.from_wire(last.result)
        allowed = self._bindings.allowed(snapshot)
        return refusal.already_done(ticket.tool.name, ticket.handle, snapshot, allowed, last)

    async def _claim_and_run(
        self, ticket: Ticket, binding: Binding, record: Workflow, snapshot: Snapshot, work: Work
    ) -> ToolResult | None:
        """Claim the step and run it; None when the claim was lost and the call has to be judged again."""
        claim = self._new_claim(ticket, binding, record, snapshot)
        held = records.claimed(record, claim)
        # Once the claim is being written it must be known how that ended, so the caller's going does not count.
        claiming = anyio.CancelScope(shield=True)
        with claiming:
            with ticket.seen.claim(snapshot.state) as span:
                is_held = await self._workflows.claim(held, record.version, self._claim_limit)
                ticket.seen.claimed(span, is_held)
            if not is_held:
                return None
            claiming.shield = ticket.tool.policies.on_cancel == "finish"
            try:
                return await self._run_claimed(ticket, binding, held, snapshot, work)
            finally:
                self._wake(ticket)
        return None

    async def _run_claimed(
        self, ticket: Ticket, binding: Binding, held: Workflow, snapshot: Snapshot, work: Work
    ) -> ToolResult:
        limit = ticket.tool.policies.time_limit or self._options.time_limit
        outcome: Outcome | None = None
        watch = anyio.CancelScope(deadline=anyio.current_time() + limit)
        try:
            with watch:
                outcome = await work(self._view(ticket, snapshot, held.claim))
        except BaseException as error:
            await self._abandon(ticket, held, snapshot, error, overrun=watch.cancel_called)
            raise
        if watch.cancel_called and outcome is not None and not outcome.success:
            outcome = None  # it did not fail by itself: it was stopped, and made an error of that
        with anyio.CancelScope(shield=True), ticket.seen.commit(snapshot.state):
            return await self._conclude(ticket, binding, held, snapshot, outcome, limit)
        raise AssertionError  # a shielded scope that nobody cancels does not end early

    async def _abandon(
        self, ticket: Ticket, held: Workflow, snapshot: Snapshot, error: BaseException, *, overrun: bool
    ) -> None:
        """The handler did not return. A finishing step is cancelled only by the process's end: that leaves doubt."""
        cancelled = isinstance(error, anyio.get_cancelled_exc_class())
        doubt = overrun or (cancelled and ticket.tool.policies.on_cancel == "finish")
        with anyio.CancelScope(shield=True), ticket.seen.commit(snapshot.state):
            if doubt:
                await self._doubt(ticket, held, snapshot)
            else:
                await self._release(ticket, held, snapshot)

    async def _conclude(
        self,
        ticket: Ticket,
        binding: Binding,
        held: Workflow,
        snapshot: Snapshot,
        outcome: Outcome | None,
        limit: float,
    ) -> ToolResult:
        """Commit, release or leave in doubt, by how the handler ended; no outcome: by its time limit."""
        if outcome is None:
            why = f"'{ticket.tool.name}' took longer than its time limit of {limit:g} s."
            return await self._leave_in_doubt(ticket, held, snapshot, why)
        if outcome.in_doubt:
            return await self._leave_in_doubt(ticket, held, snapshot, _message(outcome.result))
        if not outcome.success:
            await self._release(ticket, held, snapshot)
            return self._with_block(ticket, snapshot, outcome.result)
        return await self._commit(ticket, binding, held, snapshot, outcome)

    async def _commit(
        self, ticket: Ticket, binding: Binding, held: Workflow, snapshot: Snapshot, outcome: Outcome
    ) -> ToolResult:
        assert held.claim is not None
        now = self._options.clock()
        try:
            event, after = self._next(ticket, binding, snapshot, outcome, now)
        except Exception:
            _log.exception("the transition of %r cannot be carried out", ticket.tool.name)
            why = f"'{ticket.tool.name}' ran, but the event that follows from its result is not possible here."
            return await self._leave_in_doubt(ticket, held, snapshot, why)
        if event is None and not ticket.opens:
            await self._release(ticket, held, snapshot)
            return self._with_block(ticket, snapshot, outcome.result)
        answer = self._with_block(ticket, after, outcome.result)
        record = records.moved(held, after.to_json(), self._last(ticket, held.claim, answer, now), now)
        step = self._redacted(records.step_of(held, record, held.claim, event, now), ticket, outcome.result)
        if not await self._workflows.commit(record, held.version, step):
            why = f"'{ticket.tool.name}' ran, but this could not be recorded."
            ticket.seen.ended("in_doubt", snapshot.state)
            answer = refusal.doubt(ticket.handle, snapshot, held.claim, why)
            return self._with_block(ticket, snapshot, answer, allowed=[])
        ticket.seen.ended("committed", snapshot.state)
        await self._workflows.announce(Moved(ticket.scope, ticket.handle, snapshot, after, ticket.opens))
        return answer

    def _event(self, name: str, ticket: Ticket, value: Any = None) -> str | dict[str, Any]:
        """Return the event for the machine; a statechart's guards and actions see the call's data."""
        if self._machine.flat:
            return name
        return {"type": name, "arguments": dict(ticket.arguments), "result": value}

    def _next(
        self, ticket: Ticket, binding: Binding, snapshot: Snapshot, outcome: Outcome, now: float
    ) -> tuple[str | None, Snapshot]:
        """Return the event to send and where it leads; no event when the workflow stays where it is."""
        transition = binding.transition
        name = transition(dict(ticket.arguments), outcome.value) if callable(transition) else transition
        if name is None:
            return None, snapshot
        after = self._machine.transition(snapshot, self._event(name, ticket, outcome.value), now=now)
        if after is not snapshot:
            return name, after
        accepting = self._machine.accepting(name)
        if "" not in accepting and accepting.isdisjoint(snapshot.paths):
            raise ValueError(f"state {snapshot.state!r} does not take the event {name!r}")
        return None, snapshot  # a guard that has seen the result denied it

    def _last(self, ticket: Ticket, claim: Claim, answer: ToolResult, now: float) -> LastStep:
        keep = ticket.tool.policies.keep_result
        return LastStep(
            claim.call_id,
            claim.tool,
            claim.digest,
            claim.principal,
            now,
            _kept(ticket.tool.name, answer) if keep else None,
            now + keep if keep else 0.0,
        )

    def _redacted(self, step: Step, ticket: Ticket, result: ToolResult) -> Step:
        if self._options.redact is None:
            return step
        try:
            # Copies, because a hook may well strike out in place what the client is still to get.
            given = copy.deepcopy((dict(ticket.arguments), result))
            arguments, kept = self._options.redact(ticket.tool.name, *given)
            json.dumps([arguments, kept], allow_nan=False)
        except Exception:
            _log.exception("the redaction hook failed; the history keeps nothing of this call")
            return step
        return replace(step, arguments=arguments, result=kept)

    async def _leave_in_doubt(self, ticket: Ticket, held: Workflow, snapshot: Snapshot, why: str) -> ToolResult:
        assert held.claim is not None
        await self._doubt(ticket, held, snapshot)
        answer = refusal.doubt(ticket.handle, snapshot, held.claim, why)
        return self._with_block(ticket, snapshot, answer, allowed=[])

    async def _doubt(self, ticket: Ticket, held: Workflow, snapshot: Snapshot) -> None:
        await self._workflows.settle(records.doubtful(held, self._options.clock()), held.version)
        ticket.seen.ended("in_doubt", snapshot.state)

    async def _release(self, ticket: Ticket, held: Workflow, snapshot: Snapshot) -> None:
        released = await self._workflows.settle(records.released(held), held.version)
        ticket.seen.ended("released" if released else "in_doubt", snapshot.state)

    def _new_claim(self, ticket: Ticket, binding: Binding, record: Workflow, snapshot: Snapshot) -> Claim:
        now, policies = self._options.clock(), ticket.tool.policies
        leads_to = None
        if self._machine.flat and not callable(binding.transition):
            event = binding.event
            leads_to = (self._machine.transition(snapshot, event, now=now) if event else snapshot).to_json()
        return Claim(
            call_id=secrets.token_hex(8),
            idempotency_key=self._idempotency_key(ticket, record),
            tool=ticket.tool.name,
            event=binding.event,
            principal=ticket.principal,
            digest=ticket.digest,
            claimed_at=now,
            lease_until=now + (policies.time_limit or self._options.time_limit) + self._options.lease_margin,
            on_doubt=policies.on_doubt,
            opens=ticket.opens,
            leads_to=leads_to,
        )

    def _idempotency_key(self, ticket: Ticket, record: Workflow) -> str:
        text = json.dumps([record.id, record.steps, ticket.tool.name])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def _view(self, ticket: Ticket, snapshot: Snapshot, claim: Claim | None) -> WorkflowView:
        return WorkflowView(
            handle=ticket.handle,
            state=snapshot.state,
            idempotency_key=claim.idempotency_key if claim else "",
            value=snapshot.value,
        )

    def _with_block(
        self, ticket: Ticket, snapshot: Snapshot, result: ToolResult, allowed: list[str] | None = None
    ) -> ToolResult:
        names = self._bindings.allowed(snapshot) if allowed is None else allowed
        block = refusal.workflow_block(ticket.handle, snapshot, names)
        return result.with_meta({refusal.WORKFLOW_META_KEY: block})

    async def _wait(self, ticket: Ticket, seconds: float) -> None:
        key = (ticket.scope, ticket.handle)
        event = self._waiting.setdefault(key, anyio.Event())
        try:
            with anyio.move_on_after(seconds):
                await event.wait()
        finally:
            # A claim of another process wakes nobody here, so the last one to wait tidies up.
            if self._waiting.get(key) is event and not event.statistics().tasks_waiting:
                del self._waiting[key]

    def _wake(self, ticket: Ticket) -> None:
        event = self._waiting.pop((ticket.scope, ticket.handle), None)
        if event:
            event.set()


def _kept(tool: str, answer: ToolResult) -> dict[str, Any] | None:
    """Return the result as it is kept for a repeat, None when it cannot be: the step counts all the same."""
    wire = answer.to_wire()
    try:
        size = len(json.dumps(wire, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        _log.exception("the result of %r is no JSON and cannot be kept for a repeat", tool)
        return None
    if size > KEPT_RESULT_LIMIT:
        _log.warning("the result of %r is too large to be kept for a repeat", tool)
        return None
    return wire


def _message(result: ToolResult) -> str:
    return next((str(block["text"]) for block in result.content if block.get("type") == "text"), "The step failed.")
