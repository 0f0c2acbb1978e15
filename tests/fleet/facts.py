"""What is known of a run of the fleet, put in order for its checker."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from mcpfusion.stores.protocol import Claim, Step
from tests.fleet.driver import Answer
from tests.fleet.ledger import Entry
from tests.fleet.orders import LEASE, TIME_LIMIT

DOUBTS = {"unsure", "unsure_after", "overruns", "overruns_after"}
"""Ways for a handler to end that leave doubt."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a workflow stands in the end, by the store.

    Attributes:
        doubt: The claim that was left when all calls had ended and all leases had run out.
        reported: Whether the store listed it as in doubt then.
        claimed: Whether there is a claim after everything in doubt was resolved.
    """

    state: str
    steps: int
    history: Sequence[Step] = ()
    doubt: Claim | None = None
    reported: bool = False
    claimed: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """All that is known of a run.

    Attributes:
        killed: The processes that were killed.
        disturbed: Whether the engine was away at times, so that writes and their acknowledgements got lost.
    """

    entries: Sequence[Entry]
    answers: Sequence[Answer]
    workflows: dict[str, Standing]
    killed: frozenset[int] = frozenset()
    disturbed: bool = False


@dataclass(slots=True)
class Visit:
    """One run of a handler, as its ledger tells."""

    began: Entry
    done: Entry | None = None
    ended: Entry | None = None
    answer: Answer | None = None
    faults: list[str] = field(default_factory=list)

    @property
    def tool(self) -> str:
        return self.began.tool


class Facts:
    """A run, put in order."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.answers = {answer.attempt: answer for answer in run.answers}
        self.visits: dict[str, Visit] = {}
        self.stray: list[Entry] = []
        for entry in sorted(run.entries, key=lambda each: each.at):
            self._note(entry)
        for attempt, visit in self.visits.items():
            visit.answer = self.answers.get(attempt)
        self.steps: dict[str, Step] = {
            step.result["attempt"]: step for _, step in self._all_steps() if step.outcome == "committed"
        }
        self.by_key: dict[str, list[Visit]] = defaultdict(list)
        for visit in self.visits.values():
            self.by_key[visit.began.key].append(visit)

    @cached_property
    def by_order(self) -> dict[str, list[Visit]]:
        """The runs of each workflow, in the order in which they began."""
        found: dict[str, list[Visit]] = defaultdict(list)
        for visit in self.visits.values():
            found[visit.began.order].append(visit)
        return found

    def _note(self, entry: Entry) -> None:
        visit = self.visits.get(entry.attempt)
        if entry.kind == "began":
            if visit is None:
                self.visits[entry.attempt] = Visit(entry)
            else:
                visit.faults.append("began twice")
        elif visit is None:
            self.stray.append(entry)
        elif getattr(visit, entry.kind) is not None:
            visit.faults.append(f"{entry.kind} twice")
        else:
            setattr(visit, entry.kind, entry)

    def _all_steps(self) -> Iterator[tuple[str, Step]]:
        for order, standing in self.run.workflows.items():
            for step in standing.history:
                yield order, step

    def doubtful(self, visit: Visit) -> bool:
        """Return whether nobody can be blamed that the run was not committed, whatever its handler did."""
        answer = visit.answer
        if answer is None or answer.code not in ("IN_DOUBT", "LOST"):
            return False
        # What the client was told came after the attempts to commit; where it left, there is only the handler's end.
        end = answer.got if answer.code == "IN_DOUBT" else visit.ended.at if visit.ended else math.inf
        slow = end - answer.sent >= TIME_LIMIT
        return (
            answer.how in DOUBTS
            or self.run.disturbed
            or (answer.code == "LOST" and visit.began.process in self.run.killed)
            or (slow and visit.began.process not in self.run.killed)
        )

    def outlasted(self, visit: Visit) -> bool:
        """Return whether the call took longer than its lease, so that it was in doubt before it was committed."""
        return visit.answer is not None and visit.answer.got - visit.answer.sent >= LEASE

    def counts(self, visit: Visit) -> bool:
        """Return whether the run is a step of the history: by itself, or because an operator said so."""
        if visit.began.attempt in self.steps:
            return True
        standing = self.run.workflows.get(visit.began.order)
        history = standing.history if standing else ()
        return any(step.outcome == "resolved_done" and step.principal == visit.began.key for step in history)
