"""Runs of a fleet that are made up, and right."""

import random
from typing import Any

from mcpfusion.stores.protocol import Step
from tests.fleet.driver import Answer
from tests.fleet.facts import Run, Standing
from tests.fleet.ledger import Entry
from tests.fleet.orders import LEASE, TARGETS, TOOLS, menu

KILLED, ALIVE = 666, 1


class Made:
    """A right run that is made up: calls one after another, each with an end that may really come about."""

    def __init__(self, chosen: random.Random, *, calls: int) -> None:
        self.random = chosen
        self.now = 0.0
        self.entries: list[Entry] = []
        self.answers: list[Answer] = []
        self.states = {"a": "draft", "b": "draft"}
        self.histories: dict[str, list[Step]] = {"a": [], "b": []}
        self.keys: dict[tuple[str, str], str] = {}
        for number in range(calls):
            self._call(f"call-{number}")

    def run(self) -> Run:
        """Return all of it."""
        standings = {
            order: Standing(state, sum(step.outcome != "resolved_not_done" for step in steps), tuple(steps))
            for order, state in self.states.items()
            for steps in (self.histories[order],)
        }
        return Run(tuple(self.entries), tuple(self.answers), standings, frozenset({KILLED}))

    def _call(self, name: str) -> None:
        order = self.random.choice("ab")
        state = self.states[order]
        due = sorted(tool for tool in TOOLS if TOOLS[tool].state == state)
        if not due or self.random.random() < 0.2:
            self._refused(order, name)
            return
        tool = self.random.choice(due)
        end = self.random.choice(["done", "done", "done", "lost", "fails", "unsure_after", "unsure", "killed"])
        getattr(self, f"_{end}")(order, tool, name)

    def _refused(self, order: str, name: str) -> None:
        state = self.states[order]
        tool = self.random.choice([tool for tool in TOOLS if TOOLS[tool].state != state])
        answer = self._answer(order, tool, name, "FORBIDDEN", state)
        answer.data = {"code": "FORBIDDEN"}

    def _done(self, order: str, tool: str, name: str, code: str = "OK") -> None:
        began = self._ran(order, tool, name)
        key, event = began.key, began.event
        after = TARGETS[began.state, event]
        answer = self._answer(order, tool, name, code, after if code == "OK" else None)
        result = {"attempt": answer.attempt, "call": name, "key": key, "event": event}
        answer.data = result if code == "OK" else {}
        self._move(order, began, after, "committed", arguments={"call": name}, result=result, call_id=f"id-{name}")

    def _lost(self, order: str, tool: str, name: str) -> None:
        self._done(order, tool, name, "LOST")

    def _fails(self, order: str, tool: str, name: str) -> None:
        state = self.states[order]
        self._ran(order, tool, name, done=False)
        self._answer(order, tool, name, "NOT_NOW", state, how="fails")

    def _unsure_after(self, order: str, tool: str, name: str, done: bool = True) -> None:
        began = self._ran(order, tool, name, done=done)
        how = "unsure_after" if done else "unsure"
        answer = self._answer(order, tool, name, "IN_DOUBT", began.state, how=how)
        answer.allowed, answer.data = set(), {"idempotencyKey": began.key}
        self._resolve(order, began, done)

    def _unsure(self, order: str, tool: str, name: str) -> None:
        self._unsure_after(order, tool, name, done=False)

    def _killed(self, order: str, tool: str, name: str) -> None:
        done = self.random.random() < 0.5
        began = self._ran(order, tool, name, done=done, killed=True)
        self._answer(order, tool, name, "LOST", None)
        self.now += LEASE
        self._resolve(order, began, done)

    def _ran(self, order: str, tool: str, name: str, *, done: bool = True, killed: bool = False) -> Entry:
        state = self.states[order]
        key = self.keys.setdefault((order, tool), f"key-{len(self.entries)}")
        event = self.random.choice(TOOLS[tool].events)
        kinds = ["began", *(["done"] if done else []), *([] if killed else ["ended"])]
        process = KILLED if killed else ALIVE
        self.now += 1
        made = [
            Entry(kind, self.now + n / 10, order, tool, key, name, f"{name}.1", state, event, process)
            for n, kind in enumerate(kinds)
        ]
        self.now += 0.5
        self.entries += made
        return made[0]

    def _resolve(self, order: str, began: Entry, done: bool) -> None:
        """Let the operator do so; or let somebody else take the step again."""
        if TOOLS[began.tool].retry and self.random.random() < 0.5:
            return
        after = TARGETS[began.state, began.event] if done else began.state
        self._move(order, began, after, "resolved_done" if done else "resolved_not_done", principal=began.key)

    def _move(self, order: str, began: Entry, after: str, outcome: Any, **of: Any) -> None:
        of = {"principal": None, "call_id": "", **of}
        event = began.event if outcome != "resolved_not_done" else None
        step = Step("", order, began.state, after, event, began.tool, at=self.now, outcome=outcome, **of)
        self.histories[order].append(step)
        self.states[order] = after
        if outcome != "resolved_not_done":
            self.keys = {(of, tool): key for (of, tool), key in self.keys.items() if of != order}

    def _answer(self, order: str, tool: str, name: str, code: str, state: str | None, how: str = "ok") -> Answer:
        sent = self.now - 1
        self.now += 0.1
        answer = Answer(order, tool, name, f"{name}.1", how, sent, self.now, code, state, state and menu(state))
        self.answers.append(answer)
        return answer


def made(seed: int, calls: int = 30) -> Run:
    """Return one of them."""
    return Made(random.Random(seed), calls=calls).run()
