"""The checker: whether what handlers did, what clients were told and what the store keeps can all be true.

A pure function of the three. The ledger is what happened; the history is what the store says of it; an answer is a
promise to a client. What can be known for sure is demanded, and what a killed process or an engine that was away
leaves open is allowed there only.
"""

import math
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise, zip_longest

from tests.fleet.driver import Answer
from tests.fleet.facts import Facts, Run, Standing, Visit
from tests.fleet.orders import CONFLICT_WAIT, LEASE, LOOK, TARGETS, TIME_LIMIT, TOOLS, menu

INITIAL = "draft"
MOVING = ("committed", "resolved_done")
NOTHING_RAN = {"FORBIDDEN", "CONFLICT", "ALREADY_DONE", "STORE_UNAVAILABLE", "UNSENT"}


def check(run: Run) -> list[str]:
    """Return what cannot be true, a line each; nothing when all is well."""
    facts = Facts(run)
    rules = (_visits, _histories, _steps, _effects, _turns, _answers, _views, _left)
    return [f"{rule.__name__.lstrip('_')}: {fault}" for rule in rules for fault in rule(facts)]


def _visits(facts: Facts) -> Iterator[str]:
    """Each handler ran for a call that was made, once for each attempt."""
    for entry in facts.stray:
        yield f"{entry.attempt} {entry.kind} without having begun"
    for attempt, visit in facts.visits.items():
        began, answer = visit.began, visit.answer
        for fault in visit.faults:
            yield f"{attempt} {fault}"
        if answer is None:
            yield f"{attempt} was never sent"
        elif (answer.order, answer.tool, answer.call) != (began.order, began.tool, began.call):
            yield f"{attempt} ran as {began.tool} of {began.order}"
        if began.tool not in TOOLS or began.state != TOOLS[began.tool].state:
            yield f"{attempt}: {began.tool} ran in state {began.state}"
        for entry in (visit.done, visit.ended):
            same = entry is None or (entry.order, entry.tool, entry.key) == (began.order, began.tool, began.key)
            if not same:
                yield f"{attempt} changed while it ran"
        if visit.ended is None and began.process not in facts.run.killed:
            yield f"{attempt} never ended, and its process was not killed"


def _histories(facts: Facts) -> Iterator[str]:
    """Each history is a path of the machine, and leads to where the workflow stands."""
    for order, standing in facts.run.workflows.items():
        state = INITIAL
        for number, step in enumerate(standing.history):
            where = f"{order} step {number}"
            if step.from_state != state:
                yield f"{where} goes from {step.from_state}, and the workflow stood in {state}"
            if step.outcome in MOVING:
                if TARGETS.get((step.from_state, step.event or "")) != step.to_state:
                    yield f"{where}: {step.event} does not lead from {step.from_state} to {step.to_state}"
                if step.tool not in TOOLS or step.event not in TOOLS[step.tool].events:
                    yield f"{where}: {step.tool} does not send {step.event}"
            elif step.outcome != "resolved_not_done" or step.to_state != step.from_state:
                yield f"{where}: nobody did {step.outcome} from {step.from_state} to {step.to_state}"
            state = step.to_state
        if state != standing.state:
            yield f"{order} stands in {standing.state}, its history ends in {state}"
        if (moves := sum(step.outcome in MOVING for step in standing.history)) != standing.steps:
            yield f"{order} counts {standing.steps} steps, its history has {moves}"


def _steps(facts: Facts) -> Iterator[str]:
    """Each committed step is one run of its handler, which had its effect, in the same order as in the ledger."""
    attempts: Counter[str] = Counter()
    call_ids: Counter[str] = Counter()
    for order, standing in facts.run.workflows.items():
        before = -math.inf
        for step in standing.history:
            if step.outcome != "committed":
                continue
            attempt = step.result["attempt"]
            attempts[attempt] += 1
            call_ids[step.call_id] += 1
            visit = facts.visits.get(attempt)
            if visit is None or visit.done is None:
                yield f"{order}: {attempt} is in the history, and its handler did not do it"
                continue
            did = visit.done
            if (did.order, did.tool, did.key, did.state, did.event, did.call) != (
                order, step.tool, step.result["key"], step.from_state, step.event, step.arguments["call"],
            ):  # fmt: skip
                yield f"{order}: {attempt} is in the history as something else than it did"
            if visit.began.at < before:
                yield f"{order}: {attempt} began before the step before it was done"
            before = did.at
    for name, times in (attempts + call_ids).items():
        if times > 1:
            yield f"{name} is in the histories {times} times"


def _effects(facts: Facts) -> Iterator[str]:
    """No step had its effect twice, and each effect is a step of its history."""
    moving: Counter[str] = Counter()
    for standing in facts.run.workflows.values():
        for step in standing.history:
            if step.outcome in MOVING:
                moving[step.result["key"] if step.outcome == "committed" else str(step.principal)] += 1
    for key, visits in facts.by_key.items():
        names = {(visit.began.order, visit.tool) for visit in visits}
        if len(names) > 1:
            yield f"the key {key} is that of {names}"
        done = [visit for visit in visits if visit.done]
        tool = TOOLS.get(visits[0].tool)
        retry = tool is not None and tool.retry
        if len(done) > 1 and not retry:
            yield f"{visits[0].tool} of {visits[0].began.order} was done {len(done)} times"
        if moving[key] > 1 or (done and not retry and moving[key] != 1):
            yield f"{visits[0].tool} of {visits[0].began.order} was done, and is {moving[key]} steps in the history"
        for visit in visits:
            yield from _unfinished(facts, visit)
    for key in moving.keys() - facts.by_key.keys():
        yield f"a step has the key {key}, which no handler was given"


def _unfinished(facts: Facts, visit: Visit) -> Iterator[str]:
    """A run that is not in the history failed as it was told to, or is in doubt."""
    attempt = visit.began.attempt
    if facts.counts(visit) or facts.doubtful(visit):
        return
    answer = visit.answer
    if visit.done is not None:
        yield f"{attempt} was done, nobody has doubts, and it is not in the history"
    elif answer is not None and answer.how != "fails":
        yield f"{attempt} began, was not done, and nobody knows why"


def _turns(facts: Facts) -> Iterator[str]:
    """No two handlers of one workflow ran at the same time."""
    for order, visits in facts.by_order.items():
        for earlier, later in pairwise(visits):
            if earlier.ended is not None:
                # One that was stopped from outside for longer than its lease may be overtaken.
                free_at = min(earlier.ended.at, earlier.began.at + LEASE)
            else:
                # The lease counts from the claim on, which was written some time before.
                free_at = earlier.began.at + LEASE / 2
            if later.began.at < free_at:
                yield f"{order}: {later.began.attempt} began while {earlier.began.attempt} was running"


def _answers(facts: Facts) -> Iterator[str]:
    """What clients were told is so."""
    for answer in facts.run.answers:
        for fault in _answer(facts, answer):
            yield f"{answer.attempt} ({answer.tool} of {answer.order}, {answer.code}): {fault}"


def _answer(facts: Facts, answer: Answer) -> Iterator[str]:
    visit = facts.visits.get(answer.attempt)
    step = facts.steps.get(answer.attempt)
    if answer.code in NOTHING_RAN:
        if visit is not None:
            yield "nothing was to run, and the handler did"
        yield from _refusal(facts, answer)
    elif answer.code == "OK":
        yield from _success(facts, answer)
    elif answer.code == "NOT_NOW":
        if visit is None or visit.done is not None or answer.how != "fails":
            yield "it was to fail"
    elif answer.code == "IN_DOUBT":
        if visit is not None and not facts.doubtful(visit):
            yield "it ran, and there is no cause for doubt"
        if visit is None and not _known_doubt(facts, answer.data.get("idempotencyKey", ""), answer.got):
            yield "no step was in doubt"
    elif answer.code != "LOST":
        yield f"nobody expects that: {answer.data}"
    if (
        step is not None
        and answer.code not in ("OK", "LOST")
        and not (answer.code == "IN_DOUBT" and facts.run.disturbed)
    ):
        yield "it is in the history"
    if answer.allowed is not None and answer.state is not None:
        right = set() if answer.code == "IN_DOUBT" else menu(answer.state)
        withheld = answer.tool == LOOK and not answer.allowed
        if answer.allowed != right and not withheld:
            yield f"the menu of {answer.state} is {sorted(answer.allowed)}"


def _refusal(facts: Facts, answer: Answer) -> Iterator[str]:
    if answer.code == "FORBIDDEN" and (answer.state is None or answer.tool in menu(answer.state)):
        yield f"it is allowed in {answer.state}"
    elif answer.code == "CONFLICT" and answer.got - answer.sent < CONFLICT_WAIT:
        yield "it did not wait"
    elif answer.code == "STORE_UNAVAILABLE" and not (facts.run.disturbed or answer.got - answer.sent >= TIME_LIMIT):
        yield "the store was neither away nor slow"
    elif answer.code == "ALREADY_DONE":
        calls = {visit.began.call for visit in facts.by_order.get(answer.order, ()) if facts.counts(visit)}
        if answer.call not in calls:
            yield "no such call was done"


def _success(facts: Facts, answer: Answer) -> Iterator[str]:
    if answer.tool == LOOK:
        return
    told = answer.data.get("attempt", "")
    step, visit = facts.steps.get(told), facts.visits.get(told)
    if step is None and visit is not None and visit.began.call == answer.call and facts.counts(visit):
        return  # its commit took so long that an operator was quicker to say that it is done
    if step is None or visit is None:
        yield "it is not in the history"
    elif visit.began.call != answer.call or (told != answer.attempt and not TOOLS[answer.tool].keep):
        yield f"it has the result of {told}"
    elif told == answer.attempt and step.to_state != answer.state:
        yield f"it led to {step.to_state}, and the client was told {answer.state}"


def _known_doubt(facts: Facts, key: str, at: float = math.inf) -> bool:
    """Return whether there is a cause for a step to have been in doubt at that moment."""
    if facts.run.disturbed:
        return True  # the engine was away when a claim was to be taken back, or a release to be written
    visits = facts.by_key.get(key, [])
    committed = [visit for visit in visits if visit.began.attempt in facts.steps]
    if any(facts.outlasted(visit) for visit in committed):
        return True
    if any(
        facts.doubtful(visit) or visit.began.process in facts.run.killed for visit in visits if visit not in committed
    ):
        return True
    # Or a process was killed after the claim and before the handler, as long as nobody has made the step.
    return bool(facts.run.killed) and not any(visit.began.at < at for visit in committed)


def _views(facts: Facts) -> Iterator[str]:
    """Whoever was told where a workflow stands was told where it stood at some moment of his call."""
    timelines = {order: list(_timeline(facts, standing)) for order, standing in facts.run.workflows.items()}
    untouched = [(INITIAL, -math.inf, math.inf)]
    for answer in facts.run.answers:
        kept = answer.code == "OK" and answer.data.get("attempt", answer.attempt) != answer.attempt
        if answer.state is None or kept:
            continue  # a result that was kept is of long ago
        times = timelines.get(answer.order, untouched)
        if not any(
            state == answer.state and since <= answer.got and answer.sent <= until for state, since, until in times
        ):
            yield f"{answer.attempt}: {answer.order} did not stand in {answer.state}"


def _timeline(facts: Facts, standing: Standing) -> Iterator[tuple[str, float, float]]:
    """Yield each state with the earliest moment from which, and the latest until which, the workflow stood in it."""
    moves = [step for step in standing.history if step.outcome in MOVING]
    visits = [facts.visits.get(step.result["attempt"]) if step.outcome == "committed" else None for step in moves]
    since = [-math.inf]
    for visit in visits:
        # A commit comes after the effect.
        since.append(max(since[-1], visit.done.at if visit and visit.done else -math.inf))
    until = [math.inf]
    for visit, later in reversed(list(zip_longest(visits, visits[1:]))):
        # It comes before its answer, and before the next step begins.
        told = visit.answer.got if visit and visit.answer and visit.answer.code == "OK" else math.inf
        until.append(min(until[-1], told, later.began.at if later else math.inf))
    states = [INITIAL, *(step.to_state for step in moves)]
    yield from zip(states, since, [*reversed(until[1:]), math.inf], strict=True)


def _left(facts: Facts) -> Iterator[str]:
    """Claims that nobody ended are reported in doubt, have a cause, and can be resolved."""
    for order, standing in facts.run.workflows.items():
        if standing.claimed:
            yield f"{order} is still claimed"
        if standing.doubt is None:
            continue
        if not standing.reported:
            yield f"{order} was left claimed, and is not in doubt"
        if not _known_doubt(facts, standing.doubt.idempotency_key):
            yield f"{order} was left in doubt without a cause"
