"""What operators see of one call on its way through the gate: its spans, and what is counted of it."""

import time
from collections.abc import Mapping
from typing import Any, Literal

from mcpfusion import telemetry
from mcpfusion.actions.results import ToolResult
from mcpfusion.gate.refusal import Code, refusal
from mcpfusion.telemetry import CALL, ERROR, METHOD, OUTCOME, STATE, TOOL, Span

Ended = Literal["committed", "released", "in_doubt"]


class Observed:
    """One call of a bound tool, from its arrival at the gate on."""

    __slots__ = ("_began", "_commit", "_tool", "_waited")

    def __init__(self, tool: str) -> None:
        self._tool = {METHOD: CALL, TOOL: tool}
        self._began = time.monotonic()
        self._waited = False
        self._commit = Span()

    def admit(self) -> Span:
        """The call is judged from here on, waiting for the claim in force included."""
        return telemetry.span("gate.admit", self._tool)

    def judged(self, span: Span, state: str, refused: ToolResult | None) -> None:
        """The call is admitted, or has its answer."""
        span.set(STATE, state)
        span.set(OUTCOME, "admitted" if refused is None else "refused" if refused.is_error else "repeated")
        if refused is not None and refused.is_error:
            span.fail(_code(refused))
            self.refused(refused, state)

    def waits(self) -> None:
        """The call has met the claim of another one, which it waits for."""
        if not self._waited:
            self._waited = True
            telemetry.CONFLICTS.add({**self._tool, OUTCOME: "waited"})

    def refused(self, answer: ToolResult, state: str | None = None) -> None:
        """The call is refused."""
        code = _code(answer)
        at = {} if state is None else {STATE: state}
        telemetry.REFUSALS.add({**self._tool, **at, ERROR: code})
        if code == "IN_DOUBT":
            telemetry.IN_DOUBT.add({**self._tool, OUTCOME: "met"})
        elif code == "CONFLICT":
            telemetry.CLAIM_WAIT.record(time.monotonic() - self._began, {**self._tool, OUTCOME: "refused"})

    def claim(self, state: str) -> Span:
        """The claim is being written."""
        return telemetry.span("gate.claim", {**self._tool, STATE: state})

    def claimed(self, span: Span, held: bool) -> None:
        """The call holds its claim, or another one came first."""
        span.set(OUTCOME, "claimed" if held else "lost")
        if held:
            telemetry.CLAIM_WAIT.record(time.monotonic() - self._began, {**self._tool, OUTCOME: "claimed"})
        else:
            telemetry.CONFLICTS.add({**self._tool, OUTCOME: "lost"})

    def commit(self, state: str) -> Span:
        """The handler has ended, and what comes of it is being written."""
        self._commit = telemetry.span("gate.commit", {**self._tool, STATE: state})
        return self._commit

    def ended(self, outcome: Ended, state: str) -> None:
        """The step has ended."""
        self._commit.set(OUTCOME, outcome)
        telemetry.STEPS.add({**self._tool, STATE: state, OUTCOME: outcome})
        if outcome == "in_doubt":
            self._commit.fail("IN_DOUBT")
            telemetry.IN_DOUBT.add({**self._tool, OUTCOME: "left"})


def refused(tool: str, code: Code, message: str, data: Mapping[str, Any] | None = None) -> ToolResult:
    """Return the refusal of a call that does not get as far as the gate, and count it."""
    answer = refusal(code, message, data)
    Observed(tool).refused(answer)
    return answer


def _code(refused: ToolResult) -> str:
    return str(refused.structured["code"])
