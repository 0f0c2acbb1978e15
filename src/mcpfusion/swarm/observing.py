"""What operators see of a gateway: a span for each request to a specialist, and what is counted of handoffs."""

import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

from mcpfusion import telemetry
from mcpfusion.swarm.errors import HandoffError
from mcpfusion.swarm.upstream import UpstreamError
from mcpfusion.telemetry import ERROR, METHOD, OUTCOME, SPECIALIST, TOOL, Span


class Asked:
    """One request to a specialist."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self.outcome = "answered"

    def names(self, tool: str, listed: Iterable[Mapping[str, Any]], wire_name: str) -> None:
        """Note the tool that is called, if the specialist has it on its list: another name is the caller's own."""
        if self._span.recorded and any(each["name"] == wire_name for each in listed):
            self._span.set(TOOL, tool)

    def answered(self, result: Mapping[str, Any]) -> None:
        """The specialist has answered the call."""
        if result.get("isError") is True:
            self.outcome = "tool_error"
            self._span.fail("tool_error")


@contextmanager
def request(specialist: str, method: str, traceparent: str | None) -> Generator[Asked]:
    """Watch a request to a specialist; what it sends on meanwhile is a part of its span."""
    about = {METHOD: method, SPECIALIST: specialist}
    began = time.monotonic()
    with telemetry.continued(traceparent), telemetry.span("swarm.upstream", about) as span:
        asked = Asked(span)
        try:
            yield asked
        except BaseException as error:
            asked.outcome = _outcome_of(error)
            raise
        finally:
            span.set(OUTCOME, asked.outcome)
            error = {} if asked.outcome == "answered" else {ERROR: asked.outcome}
            telemetry.UPSTREAM.record(time.monotonic() - began, {**about, **error})


@contextmanager
def handoff(specialist: str) -> Generator[None]:
    """Count a handoff by how it ended."""
    outcome = "failed"
    try:
        yield
        outcome = "made"
    except HandoffError as error:
        outcome = error.code
        raise
    finally:
        telemetry.HANDOFFS.add({SPECIALIST: specialist, OUTCOME: outcome})


def _outcome_of(error: BaseException) -> str:
    if isinstance(error, UpstreamError):
        return "refused" if error.refused else "lost"
    if isinstance(error, HandoffError):
        return error.code
    return "failed" if isinstance(error, Exception) else "cancelled"
