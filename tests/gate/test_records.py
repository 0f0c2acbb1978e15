"""The pure functions from one record to the next."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mcpfusion.gate import records
from mcpfusion.machine import Machine
from mcpfusion.stores.protocol import Claim, LastStep, Workflow
from tests.gate.payments import CONFIG

MACHINE = Machine(CONFIG)
LAST = LastStep("c0", "payment.capture", "digest", "alice", 900.0)


def new() -> Workflow:
    return records.new_record("scope", "p1", MACHINE.initial(), 1000.0)


def claim(**changes: Any) -> Claim:
    given = Claim("c1", "key", "payment.capture", "PAY", "alice", "digest", 1000.0, 1065.0, "hold")
    return replace(given, **changes)


def test_a_new_record_stands_in_the_initial_state_and_was_never_written() -> None:
    record = new()
    assert (record.scope, record.handle, record.version, record.steps) == ("scope", "p1", 0, 0)
    assert (record.state, record.snapshot, record.updated_at) == ("due", MACHINE.initial().to_json(), 1000.0)
    assert (record.claim, record.last) == (None, None)


def test_two_workflows_have_two_ids() -> None:
    assert len({new().id for _ in range(100)}) == 100


def test_a_claim_and_its_release_change_nothing_but_the_version() -> None:
    record = new()
    held = records.claimed(record, claim())
    assert held == replace(record, version=1, claim=claim())
    assert records.released(held) == replace(record, version=2)


def test_a_step_moves_the_record_and_ends_the_claim() -> None:
    held = records.claimed(new(), claim())
    after = MACHINE.transition(MACHINE.initial(), "PAY").to_json()
    moved = records.moved(held, after, LAST, 1010.0)
    assert moved == replace(
        held, version=2, steps=1, state="paid", snapshot=after, updated_at=1010.0, claim=None, last=LAST
    )


def test_doubt_is_kept_with_the_claim_and_begins_now_at_the_latest() -> None:
    held = records.claimed(new(), claim())
    doubtful = records.doubtful(held, 1010.0)
    assert doubtful == replace(held, version=2, claim=claim(in_doubt=True, lease_until=1010.0))
    assert records.doubtful(held, 2000.0).claim == claim(in_doubt=True)


times = st.floats(0, 2000)


@given(times, times, st.booleans(), st.sampled_from(["hold", "retry"]))
def test_a_claim_is_in_doubt_when_it_says_so_or_its_lease_has_ended(
    lease_until: float, now: float, marked: bool, on_doubt: Any
) -> None:
    held = records.claimed(new(), claim(lease_until=lease_until, in_doubt=marked, on_doubt=on_doubt))
    doubt = marked or lease_until <= now
    assert records.in_doubt(held, now) == doubt
    assert records.free_again(held, now) == (doubt and on_doubt == "retry")
    assert not records.in_doubt(records.released(held), now)
    assert not records.free_again(records.released(held), now)
    assert records.in_doubt(records.doubtful(held, now), now)


def test_the_history_line_is_of_the_claim_and_of_both_records() -> None:
    held = records.claimed(new(), claim(principal=None))
    moved = records.moved(held, MACHINE.transition(MACHINE.initial(), "PAY").to_json(), LAST, 1010.0)
    step = records.step_of(held, moved, held.claim, "PAY", 1010.0)
    assert (step.scope, step.handle, step.from_state, step.to_state) == ("scope", "p1", "due", "paid")
    assert (step.event, step.tool, step.principal, step.call_id) == ("PAY", "payment.capture", None, "c1")
    assert (step.at, step.outcome, step.arguments, step.result) == (1010.0, "committed", None, None)


def test_records_are_not_changed_but_made_anew() -> None:
    held = records.claimed(new(), claim())
    kept = replace(held)
    records.released(held)
    records.doubtful(held, 1.0)
    records.moved(held, held.snapshot, None, 1.0)
    assert held == kept
