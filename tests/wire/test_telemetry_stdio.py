"""Spans and metrics of a server that is a process of its own, over stdio. As a script it is that server."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.serving import ERAS, sdk_client, stdio_server
from tests.wire.ways import INVOICE

pytestmark = pytest.mark.anyio

HANDLE, ARGUMENT, SAID = "wf-canary-handle", "canary-argument", "canary-message"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
META: Any = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}


def serve(spans: Path, points: Path) -> None:
    """Serve over stdio, and leave behind what was recorded."""
    from opentelemetry import metrics, trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

    from mcpfusion import Fusion

    f = Fusion("invoices")

    @f.action("invoice.submit").describe("Submit.").bind_state("draft", "SUBMIT").handle
    async def submit(note: str) -> str:
        if note == f"{ARGUMENT}-bad":
            raise ValueError(f"{SAID} {note}")
        return note

    with spans.open("w") as file:
        exporter = ConsoleSpanExporter(out=file, formatter=lambda span: span.to_json(indent=None) + "\n")
        tracers, reader = TracerProvider(), InMemoryMetricReader()
        tracers.add_span_processor(SimpleSpanProcessor(exporter))
        trace.set_tracer_provider(tracers)
        metrics.set_meter_provider(MeterProvider([reader]))
        f.server(fsm=f.fsm(INVOICE), state_handle_key="id").run()
        data = reader.get_metrics_data()
        points.write_text(data.to_json() if data else "")


@pytest.mark.parametrize("mode", ERAS)
async def test_a_process_over_stdio_records_the_same(mode: str, tmp_path: Path) -> None:
    files = tmp_path / "spans", tmp_path / "points"
    root = {"PYTHONPATH": str(Path(__file__).parents[2])}
    server = stdio_server(__file__, args=tuple(map(str, files)), env=root)
    async with sdk_client(server, mode) as client:
        for note in (f"{ARGUMENT}-bad", ARGUMENT, ARGUMENT):
            await client.call_tool("invoice.submit", {"id": HANDLE, "note": note}, meta=META)
        await client.call_tool("invoice.submit", {"id": HANDLE, "note": "another"}, meta=META)

    spans = [json.loads(line) for line in files[0].read_text().splitlines()]
    ours = [span for span in spans if span["name"].startswith("gate.")]
    assert {span["context"]["trace_id"] for span in ours} == {f"0x{TRACE}"}
    assert [(span["name"], span["attributes"]["mcpfusion.outcome"]) for span in ours] == [
        ("gate.admit", "admitted"),
        ("gate.claim", "claimed"),
        ("gate.commit", "released"),
        ("gate.admit", "admitted"),
        ("gate.claim", "claimed"),
        ("gate.commit", "committed"),
        ("gate.admit", "refused"),
        ("gate.admit", "refused"),
    ]
    calls = {span["context"]["span_id"] for span in spans if span["name"] == "tools/call invoice.submit"}
    assert {span["parent_id"] for span in ours} == calls

    points = json.loads(files[1].read_text())
    counted = {
        (metric["name"], point["attributes"].get("mcpfusion.outcome") or point["attributes"].get("error.type"))
        for resource in points["resource_metrics"]
        for scope in resource["scope_metrics"]
        for metric in scope["metrics"]
        for point in metric["data"]["data_points"]
        if metric["name"].startswith("mcpfusion.")
    }
    assert counted == {
        ("mcpfusion.gate.steps", "released"),
        ("mcpfusion.gate.steps", "committed"),
        ("mcpfusion.gate.claim.wait", "claimed"),
        ("mcpfusion.gate.refusals", "ALREADY_DONE"),
        ("mcpfusion.gate.refusals", "FORBIDDEN"),
    }
    everything = json.dumps(ours) + files[1].read_text()
    for canary in (HANDLE, ARGUMENT, SAID):
        assert canary not in everything


if __name__ == "__main__":
    serve(Path(sys.argv[2]), Path(sys.argv[3]))
