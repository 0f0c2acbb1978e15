"""Spans, metrics and logs of a test, recorded without touching OpenTelemetry's global providers."""

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from mcp.shared import _otel as sdk
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mcpfusion import telemetry
from mcpfusion.logs import JsonFormatter


class Recording:
    """What has been recorded so far."""

    def __init__(self) -> None:
        self._spans = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self._logs = io.StringIO()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.meters = MeterProvider([self._reader])
        self.handler = logging.StreamHandler(self._logs)
        self.handler.setFormatter(JsonFormatter())

    def spans(self, name: str = "") -> list[Any]:
        """The spans that have ended, by name."""
        return [span for span in self._spans.get_finished_spans() if not name or span.name == name]

    def metric(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        """The points of a metric: attributes, and the value or the count."""
        data = self._reader.get_metrics_data()
        return [
            (dict(point.attributes), getattr(point, "value", None) or getattr(point, "count", 0))
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]

    def logs(self) -> list[dict[str, Any]]:
        """The log's lines."""
        return [json.loads(line) for line in self._logs.getvalue().splitlines()]

    def everything(self) -> str:
        """All of it as text."""
        data = self._reader.get_metrics_data()
        spans = "".join(span.to_json() for span in self.spans() if span.instrumentation_scope.name == "mcpfusion")
        return spans + (data.to_json() if data else "") + self._logs.getvalue()


@contextmanager
def recording(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recording]:
    """Record from here on; the SDK's own spans too."""
    recorded = Recording()
    monkeypatch.setattr(sdk, "_tracer", recorded.tracers.get_tracer("mcp"))
    monkeypatch.setattr(telemetry, "_otel", telemetry._OpenTelemetry())
    telemetry.use_providers(recorded.tracers, recorded.meters)
    root = logging.getLogger()
    root.addHandler(recorded.handler)
    level = logging.getLogger("mcpfusion").level
    logging.getLogger("mcpfusion").setLevel(logging.DEBUG)
    try:
        yield recorded
    finally:
        root.removeHandler(recorded.handler)
        logging.getLogger("mcpfusion").setLevel(level)
