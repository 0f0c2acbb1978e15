"""The checker finds nothing wrong with what is right, and something with everything that is not."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpfusion.stores.protocol import Claim, Step
from tests.fleet.driver import Answer
from tests.fleet.facts import Run
from tests.fleet.ledger import Entry
from tests.fleet.made import ALIVE, KILLED, made
from tests.fleet.model import check
from tests.fleet.orders import TOOLS, menu


@given(st.integers(0, 2**32), st.integers(0, 40))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_what_is_right_is_right(seed: int, calls: int) -> None:
    assert check(made(seed, calls)) == []


# What can be wrong: each takes a right run and breaks it in one place, or returns None where it has no such place.

Break = Callable[[Run, random.Random], Run | None]


def with_history(run: Run, order: str, history: list[Step], **of: Any) -> Run:
    steps = sum(step.outcome != "resolved_not_done" for step in history)
    state = history[-1].to_state if history else "draft"
    standing = replace(run.workflows[order], history=history, **{"steps": steps, "state": state, **of})
    return replace(run, workflows={**run.workflows, order: standing})


def a_committed(run: Run, chosen: random.Random) -> tuple[str, int] | None:
    places = [
        (order, number)
        for order, standing in run.workflows.items()
        for number, step in enumerate(standing.history)
        if step.outcome == "committed"
    ]
    return chosen.choice(places) if places else None


def an_entry(run: Run, chosen: random.Random, wanted: Callable[[Entry], bool]) -> Entry | None:
    found = [entry for entry in run.entries if wanted(entry)]
    return chosen.choice(found) if found else None


def an_answer(run: Run, chosen: random.Random, *codes: str) -> Answer | None:
    found = [answer for answer in run.answers if answer.code in codes]
    return chosen.choice(found) if found else None


def committed(run: Run) -> dict[str, Step]:
    steps = (step for standing in run.workflows.values() for step in standing.history)
    return {step.result["attempt"]: step for step in steps if step.outcome == "committed"}


def with_answer(run: Run, old: Answer, **of: Any) -> Run:
    return replace(run, answers=[replace(each, **of) if each is old else each for each in run.answers])


def a_step_is_missing(run: Run, chosen: random.Random) -> Run | None:
    if (place := a_committed(run, chosen)) is None:
        return None
    history = list(run.workflows[place[0]].history)
    del history[place[1]]
    return with_history(run, place[0], history)


def the_last_step_is_missing(run: Run, chosen: random.Random) -> Run | None:
    found = [
        order for order, each in run.workflows.items() if each.history and each.history[-1].outcome == "committed"
    ]
    if not found:
        return None
    order = chosen.choice(found)
    return with_history(run, order, list(run.workflows[order].history[:-1]))


def a_step_is_there_twice(run: Run, chosen: random.Random) -> Run | None:
    if (place := a_committed(run, chosen)) is None:
        return None
    history = list(run.workflows[place[0]].history)
    history.insert(place[1], history[place[1]])
    return with_history(run, place[0], history)


def a_round_is_there_twice(run: Run, chosen: random.Random) -> Run | None:
    """A part of the history that is a path of the machine all the same."""
    for order, standing in run.workflows.items():
        for start, first in enumerate(standing.history):
            for stop in range(start + 1, len(standing.history)):
                part = standing.history[start : stop + 1]
                if part[-1].to_state == first.from_state and first.outcome == "committed":
                    history = [*standing.history[: stop + 1], *part, *standing.history[stop + 1 :]]
                    return with_history(run, order, history)
    return None


def two_steps_changed_places(run: Run, chosen: random.Random) -> Run | None:
    for order, standing in run.workflows.items():
        history = list(standing.history)
        for number in range(1, len(history)):
            pair = history[number - 1], history[number]
            if all(step.outcome == "committed" for step in pair):
                # What is told of the two stays; that it is somebody else's is what is wrong.
                names = [(step.result, step.arguments, step.call_id) for step in reversed(pair)]
                for at, (result, arguments, call_id) in zip((number - 1, number), names, strict=True):
                    history[at] = replace(history[at], result=result, arguments=arguments, call_id=call_id)
                return with_history(run, order, history)
    return None


def a_step_has_another_key(run: Run, chosen: random.Random) -> Run | None:
    if (place := a_committed(run, chosen)) is None:
        return None
    history = list(run.workflows[place[0]].history)
    step = history[place[1]]
    history[place[1]] = replace(step, result={**step.result, "key": "another"})
    return with_history(run, place[0], history)


def a_step_has_another_event(run: Run, chosen: random.Random) -> Run | None:
    if (place := a_committed(run, chosen)) is None:
        return None
    history = list(run.workflows[place[0]].history)
    history[place[1]] = replace(history[place[1]], event="VANISH")
    return with_history(run, place[0], history)


def the_state_is_another(run: Run, chosen: random.Random) -> Run | None:
    order = chosen.choice("ab")
    state = "paid" if run.workflows[order].state != "paid" else "draft"
    return with_history(run, order, list(run.workflows[order].history), state=state)


def the_count_is_another(run: Run, chosen: random.Random) -> Run | None:
    order = chosen.choice("ab")
    return with_history(run, order, list(run.workflows[order].history), steps=run.workflows[order].steps + 1)


def a_refused_call_ran(run: Run, chosen: random.Random) -> Run | None:
    if (answer := an_answer(run, chosen, "FORBIDDEN")) is None:
        return None
    state = TOOLS[answer.tool].state
    visit = [
        Entry(kind, answer.sent, answer.order, answer.tool, "new", answer.call, answer.attempt, state, "X", ALIVE)
        for kind in ("began", "ended")
    ]
    return replace(run, entries=[*run.entries, *visit])


def a_step_was_done_twice(run: Run, chosen: random.Random) -> Run | None:
    """By another call, which was lost; with the key of a step that is held when in doubt."""
    done = an_entry(run, chosen, lambda entry: entry.kind == "done" and not TOOLS[entry.tool].retry)
    if done is None:
        return None
    again = [replace(done, kind=kind, attempt="again.1", call="again", process=KILLED) for kind in ("began", "done")]
    lost = Answer(done.order, done.tool, "again", "again.1", "ok", done.at, done.at, "LOST")
    return replace(run, entries=[*run.entries, *again], answers=[*run.answers, lost])


def an_attempt_ran_twice(run: Run, chosen: random.Random) -> Run | None:
    began = an_entry(run, chosen, lambda entry: entry.kind == "began")
    return began and replace(run, entries=[*run.entries, replace(began, at=began.at + 0.01)])


def an_effect_did_not_happen(run: Run, chosen: random.Random) -> Run | None:
    steps = committed(run)
    done = an_entry(run, chosen, lambda entry: entry.kind == "done" and entry.attempt in steps)
    return done and replace(run, entries=[entry for entry in run.entries if entry is not done])


def a_handler_never_ended(run: Run, chosen: random.Random) -> Run | None:
    ended = an_entry(run, chosen, lambda entry: entry.kind == "ended")
    return ended and replace(run, entries=[entry for entry in run.entries if entry is not ended])


def a_handler_ran_for_nobody(run: Run, chosen: random.Random) -> Run | None:
    began = an_entry(run, chosen, lambda entry: entry.kind == "began")
    return began and replace(run, answers=[each for each in run.answers if each.attempt != began.attempt])


def a_handler_ran_in_another_state(run: Run, chosen: random.Random) -> Run | None:
    attempt = an_entry(run, chosen, lambda entry: entry.kind == "began")
    if attempt is None:
        return None
    changed = [
        replace(entry, state="archived") if entry.attempt == attempt.attempt else entry for entry in run.entries
    ]
    return replace(run, entries=changed)


def two_handlers_ran_at_once(run: Run, chosen: random.Random) -> Run | None:
    for order in "ab":
        begun = [entry for entry in run.entries if entry.kind == "began" and entry.order == order]
        if len(begun) > 1:
            number = chosen.randrange(1, len(begun))
            early = replace(begun[number], at=begun[number - 1].at + 0.05)
            return replace(run, entries=[early if entry is begun[number] else entry for entry in run.entries])
    return None


def a_success_was_not_one(run: Run, chosen: random.Random) -> Run | None:
    answer = an_answer(run, chosen, "NOT_NOW", "IN_DOUBT", "FORBIDDEN")
    return answer and with_answer(run, answer, code="OK", data={"attempt": answer.attempt})


def a_success_was_refused(run: Run, chosen: random.Random) -> Run | None:
    answer = an_answer(run, chosen, "OK")
    code = chosen.choice(["FORBIDDEN", "CONFLICT", "NOT_NOW", "IN_DOUBT", "INTERNAL_ERROR", "ALREADY_DONE"])
    return answer and with_answer(run, answer, code=code, data={})


def a_success_led_elsewhere(run: Run, chosen: random.Random) -> Run | None:
    answer = an_answer(run, chosen, "OK")
    if answer is None:
        return None
    state = "archived" if answer.state != "archived" else "draft"
    return with_answer(run, answer, state=state, allowed=menu(state))


def a_state_was_told_that_never_was(run: Run, chosen: random.Random) -> Run | None:
    answer = an_answer(run, chosen, "FORBIDDEN")
    if answer is None:
        return None
    been = {"draft", *(step.to_state for step in run.workflows[answer.order].history)}
    never = sorted({"review", "approved", "paid", "archived"} - been - {TOOLS[answer.tool].state})
    return with_answer(run, answer, state=never[0], allowed=menu(never[0])) if never else None


def a_state_was_told_that_was_over(run: Run, chosen: random.Random) -> Run | None:
    """The first answer's, at the very end."""
    last = max((entry.at for entry in run.entries), default=0.0) + 100
    for order, standing in run.workflows.items():
        later = {step.to_state for step in standing.history}
        steps = [step for step in standing.history if step.outcome == "committed"]
        told = {answer.attempt for answer in run.answers if answer.code == "OK"}
        if "draft" in later or not steps or steps[-1].result["attempt"] not in told:
            continue
        stale = Answer(
            order, "order.pay", "late", "late.1", "ok", last, last + 1, "FORBIDDEN", "draft", menu("draft")
        )
        return replace(run, answers=[*run.answers, stale])
    return None


def a_menu_was_wrong(run: Run, chosen: random.Random) -> Run | None:
    answer = an_answer(run, chosen, "OK", "FORBIDDEN")
    return answer and with_answer(run, answer, allowed={"order.pay", "order.submit"})


def what_is_allowed_was_forbidden(run: Run, chosen: random.Random) -> Run | None:
    answer = an_answer(run, chosen, "FORBIDDEN")
    return answer and with_answer(run, answer, state=TOOLS[answer.tool].state, allowed=menu(TOOLS[answer.tool].state))


def a_repeat_of_nothing(run: Run, chosen: random.Random) -> Run | None:
    answer = an_answer(run, chosen, "FORBIDDEN")
    return answer and with_answer(run, answer, code="ALREADY_DONE")


def the_engine_was_said_to_be_away(run: Run, chosen: random.Random) -> Run | None:
    answer = an_answer(run, chosen, "FORBIDDEN")
    return answer and with_answer(
        run, answer, code="STORE_UNAVAILABLE", state=None, allowed=None, sent=answer.got - 0.1
    )


def a_call_hung(run: Run, chosen: random.Random) -> Run | None:
    answer = an_answer(run, chosen, "LOST")
    return answer and with_answer(run, answer, code="HUNG")


def a_claim_was_left(run: Run, chosen: random.Random) -> Run | None:
    steps = committed(run)
    began = an_entry(run, chosen, lambda entry: entry.attempt in steps and not TOOLS[entry.tool].retry)
    if began is None or len({entry.attempt for entry in run.entries if entry.key == began.key}) > 1:
        return None
    claim = Claim("id", began.key, began.tool, None, None, "", 0.0, 0.0, "hold")
    standing = replace(run.workflows[began.order], doubt=claim, reported=True)
    return replace(run, workflows={**run.workflows, began.order: standing})


def a_claim_was_not_reported(run: Run, chosen: random.Random) -> Run | None:
    claim = Claim("id", "unknown", "order.pay", None, None, "", 0.0, 0.0, "hold")
    return replace(run, workflows={**run.workflows, "a": replace(run.workflows["a"], doubt=claim, reported=False)})


def a_claim_cannot_be_resolved(run: Run, chosen: random.Random) -> Run | None:
    return replace(run, workflows={**run.workflows, "a": replace(run.workflows["a"], claimed=True)})


def a_doubt_was_settled_wrongly(run: Run, chosen: random.Random) -> Run | None:
    """An operator who knows better than the ledger."""
    for order, standing in run.workflows.items():
        last = standing.history[-1] if standing.history else None
        if last and last.outcome == "resolved_done" and not TOOLS[last.tool].retry:
            not_done = replace(last, to_state=last.from_state, event=None, outcome="resolved_not_done")
            return with_history(run, order, [*standing.history[:-1], not_done])
    return None


BREAKS: list[Break] = [
    value for value in list(globals().values())
    if callable(value) and getattr(value, "__annotations__", {}).get("return") == Run | None
]  # fmt: skip


def test_there_are_all_of_them() -> None:
    assert len(BREAKS) == 31


@pytest.mark.parametrize("break_it", BREAKS, ids=lambda each: each.__name__)
def test_what_is_wrong_is_found(break_it: Break) -> None:
    broken = 0
    for seed in range(300):
        run = break_it(made(seed), random.Random(seed))
        if run is None:
            continue
        assert check(run) != [], f"seed {seed}"
        broken += 1
        if broken == 25:
            return
    assert broken >= 5


def test_a_run_of_nothing_is_right() -> None:
    assert check(Run((), (), {})) == []
