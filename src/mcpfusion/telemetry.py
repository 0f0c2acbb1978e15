"""Spans and metrics by OpenTelemetry's API, and what a log may say of a workflow.

Nothing is imported or made before its first use. Where no OpenTelemetry SDK is set up a span is one look, and a
metric one call that does nothing. Attributes hold states, tools and specialists of the server's own definitions:
never a handle, an argument, a token, or a name that only a caller has said.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, cast

from mcpfusion._version import __version__

SCOPE = "mcpfusion"
"""The instrumentation scope of all that is made here."""

# Of the semantic conventions for MCP, and of our own.
METHOD = "mcp.method.name"
TOOL = "gen_ai.tool.name"
ERROR = "error.type"
STATE = "mcpfusion.workflow.state"
WORKFLOW = "mcpfusion.workflow"
OUTCOME = "mcpfusion.outcome"
SPECIALIST = "mcpfusion.specialist"

CALL = "tools/call"

Attributes = Mapping[str, str]

_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Span:
    """A span that may be recorded; this class itself is one that is not."""

    __slots__ = ()

    recorded = False

    def __enter__(self) -> "Span":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def set(self, key: str, value: str) -> None:
        """Set an attribute."""

    def fail(self, kind: str) -> None:
        """Say that it failed, with the kind of failure as `error.type`."""


class _Recorded(Span):
    """A span of an SDK, current from `with` on. An exception leaves its code or its type's name behind, and
    never its message."""

    __slots__ = ("_span", "_token")

    recorded = True

    def __init__(self, span: Any) -> None:
        self._span = span

    def __enter__(self) -> Span:
        self._token = _otel.context.attach(_otel.trace.set_span_in_context(self._span))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            code = getattr(error, "code", None)
            self.fail(code if isinstance(code, str) else kind.__qualname__)
        _otel.context.detach(self._token)
        self._span.end()

    def set(self, key: str, value: str) -> None:
        self._span.set_attribute(key, value)

    def fail(self, kind: str) -> None:
        self._span.set_attribute(ERROR, kind)
        self._span.set_status(_otel.trace.StatusCode.ERROR)


_NOT_RECORDED = Span()


class _OpenTelemetry:
    """The API as far as it is used here, imported at the first use; its providers may be set up before or after."""

    trace: Any
    context: Any
    metrics: Any
    given = False
    tracer: Any = None
    meter: Any = None

    def __init__(self) -> None:
        self.instruments: dict[str, Any] = {}

    def load(self) -> bool:
        """Import it; False when it is not installed."""
        try:
            from opentelemetry import context, metrics, trace
        except ImportError:
            return False
        self.trace, self.context, self.metrics = trace, context, getattr(metrics, "_internal", metrics)
        self.tracer = trace.get_tracer(SCOPE, __version__)
        self.meter = metrics.get_meter(SCOPE, __version__)
        return True

    @property
    def here(self) -> bool:
        """Whether it is installed."""
        return self.tracer is not None or self.load()

    @property
    def traces(self) -> bool:
        """Whether anybody has set up a provider of tracers; else all that a span would cost can be saved."""
        return self.given or (self.here and getattr(self.trace, "_TRACER_PROVIDER", self) is not None)

    @property
    def measures(self) -> bool:
        """Whether anybody has set up a provider of meters."""
        return self.given or (self.here and getattr(self.metrics, "_METER_PROVIDER", self) is not None)


_otel = _OpenTelemetry()


def use_providers(tracer_provider: Any, meter_provider: Any) -> None:
    """Record with these instead of with the global providers. Before anything has been recorded."""
    if _otel.here:
        _otel.tracer = tracer_provider.get_tracer(SCOPE, __version__)
        _otel.meter = meter_provider.get_meter(SCOPE, __version__)
        _otel.instruments.clear()
        _otel.given = True


def span(name: str, attributes: Attributes) -> Span:
    """Return a span, to be entered: a child of the one that is current."""
    if not _otel.traces:
        return _NOT_RECORDED
    made = _otel.tracer.start_span(name, attributes=attributes, record_exception=False, set_status_on_exception=False)
    return _Recorded(made) if made.is_recording() else _NOT_RECORDED


def traceparent() -> str | None:
    """Return the span that is being recorded as W3C Trace Context has it; None where none is recorded."""
    if not _otel.traces:
        return None
    current = _otel.trace.get_current_span()
    if not current.is_recording():
        return None
    context = current.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


@contextmanager
def continued(given: str | None) -> Generator[None]:
    """Continue a trace that came as a `traceparent`, where no other is being continued."""
    if given is None or not _otel.here or _otel.trace.get_current_span().get_span_context().is_valid:
        yield
        return
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    token = _otel.context.attach(TraceContextTextMapPropagator().extract({"traceparent": given}))
    try:
        yield
    finally:
        _otel.context.detach(token)


def trace_ids() -> tuple[str, str] | None:
    """Return the ids of the trace and the span that something happens in, in hex; None outside of any."""
    trace = sys.modules.get("opentelemetry.trace")  # what nobody has imported traces nothing
    context = trace.get_current_span().get_span_context() if trace is not None else None
    if context is None or not context.is_valid:
        return None
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


class Counter:
    """A metric that counts."""

    def __init__(self, name: str, unit: str, description: str) -> None:
        self.name = name
        self._about = {"unit": unit, "description": description}

    def add(self, attributes: Attributes) -> None:
        """Count one."""
        if _otel.measures:
            made = _otel.instruments.get(self.name)
            if made is None:
                made = _otel.instruments[self.name] = _otel.meter.create_counter(self.name, **self._about)
            made.add(1, attributes)


class Duration:
    """A metric of seconds that something took."""

    def __init__(self, name: str, description: str) -> None:
        self.name = name
        self._about = {"unit": "s", "description": description, "explicit_bucket_boundaries_advisory": _BUCKETS}

    def record(self, seconds: float, attributes: Attributes) -> None:
        """Record one."""
        if _otel.measures:
            made = _otel.instruments.get(self.name)
            if made is None:
                made = _otel.instruments[self.name] = _otel.meter.create_histogram(self.name, **self._about)
            made.record(seconds, attributes)


class Level:
    """A metric of how many there are now, which those who know are asked for."""

    def __init__(self, name: str, unit: str, description: str) -> None:
        self.name = name
        self._about = {"unit": unit, "description": description}
        self._asked: dict[object, Callable[[], Iterable[tuple[int, Attributes]]]] = {}

    @contextmanager
    def told_by(self, count: Callable[[], Iterable[tuple[int, Attributes]]]) -> Generator[None]:
        """Ask `count` from now on, until the context ends."""
        key = object()
        self._asked[key] = count
        if _otel.here and self.name not in _otel.instruments:
            _otel.instruments[self.name] = _otel.meter.create_observable_up_down_counter(
                self.name, [self._observe], **self._about
            )
        try:
            yield
        finally:
            del self._asked[key]

    def _observe(self, options: Any) -> Iterable[Any]:
        from opentelemetry.metrics import Observation

        total: dict[tuple[tuple[str, str], ...], int] = {}
        for count in list(self._asked.values()):
            for number, attributes in count():
                place = tuple(attributes.items())
                total[place] = total.get(place, 0) + number
        return [Observation(number, dict(place)) for place, number in total.items()]


STEPS = Counter("mcpfusion.gate.steps", "{step}", "Steps that ended, by outcome.")
REFUSALS = Counter("mcpfusion.gate.refusals", "{call}", "Calls of bound tools that were refused, by code.")
CONFLICTS = Counter("mcpfusion.gate.conflicts", "{call}", "Calls that met another call's claim.")
IN_DOUBT = Counter("mcpfusion.gate.in_doubt", "{call}", "Calls that left a step in doubt, or met one.")
CLAIM_WAIT = Duration("mcpfusion.gate.claim.wait", "From a call's arrival at the gate until it held its claim.")
HANDOFFS = Counter("mcpfusion.swarm.handoffs", "{handoff}", "Handoffs that were made or failed, by outcome.")
ACTIVE_HANDOFFS = Level("mcpfusion.swarm.handoffs.active", "{handoff}", "Handoffs in force that this process keeps.")
UPSTREAM = Duration("mcp.client.operation.duration", "Requests to specialists, until their answer was there.")


def workflow_name(scope: str, handle: str) -> str:
    """Return what logs call a workflow: a digest, since a handle may open it and a scope may be a person."""
    return "wf-" + hashlib.sha256(json.dumps([scope, handle]).encode()).hexdigest()[:12]


def chain_of(error: BaseException) -> list[BaseException]:
    """Return an exception and those it came from, five at most; of a group's the first stands for it."""
    found: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and len(found) < 5:
        if isinstance(each, BaseExceptionGroup):
            each = cast("BaseExceptionGroup[BaseException]", each).exceptions[0]
            continue
        found.append(each)
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    return found


def kind_of(error: BaseException) -> str:
    """Return the names of an exception's type and of those it came from, without their messages."""
    return " from ".join(type(each).__qualname__ for each in chain_of(error))
