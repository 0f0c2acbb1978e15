"""Spans, metrics and logs of gated calls: what they say, and what they never say."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import anyio
import pytest
from mcp.shared.exceptions import MCPError

from mcpfusion import Context, Fusion, ToolError
from mcpfusion.gate import records
from mcpfusion.gate.identity import MINTED_PREFIX
from mcpfusion.machine import Machine
from mcpfusion.stores.protocol import Workflow
from mcpfusion.telemetry import workflow_name
from tests.support.recording import Recording, recording
from tests.support.serving import ERAS, call, http_app, http_client, post, sdk_client
from tests.wire.by_hand import open_session
from tests.wire.test_health import MovableStore
from tests.wire.ways import INVOICE

pytestmark = pytest.mark.anyio

MODERN = ERAS[1]
HANDLE, ARGUMENT, SAID, STORED = "wf-canary-handle", "canary-argument", "canary-message", "canary-in-a-record"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recording]:
    with recording(monkeypatch) as recorded:
        yield recorded


class Slow:
    """A call that takes as long as a test wants it to."""

    def __init__(self) -> None:
        self.began = anyio.Event()
        self.may_end = anyio.Event()


def invoices(store: Any = "memory://", slow: Slow | None = None, **options: Any) -> Any:
    f = Fusion("invoices")

    @f.action("invoice.submit").describe("Submit.").bind_state("draft", "SUBMIT").handle
    async def submit(how: str, note: str, ctx: Context) -> str:
        ctx.logger.info("submitting")
        if how == "raise":
            raise ValueError(f"{SAID} {note}")
        if how == "doubt":
            raise ToolError("who knows", in_doubt=True)
        if how == "slow" and slow is not None:
            slow.began.set()
            await slow.may_end.wait()
        return note

    f.action("invoice.approve").describe("Approve.").bind_state("review", "APPROVE").handle(lambda: "approved")
    return f.server(fsm=f.fsm(INVOICE), store=store, state_handle_key="id", **options)


def unfit() -> Workflow:
    """A record that a store holds and the machine does not fit."""
    record = records.new_record("", f"{HANDLE}-unfit", Machine(INVOICE).initial(), 1.0)
    return replace(record, version=1, state=STORED, snapshot={"value": STORED, "status": STORED, STORED: STORED})


async def submit(client: Any, how: str = "well", handle: str = HANDLE) -> Any:
    return await client.call_tool("invoice.submit", {"id": handle, "how": how, "note": ARGUMENT})


@pytest.mark.parametrize("mode", ERAS)
async def test_a_step_has_its_spans_in_the_trace_of_its_request(mode: str, seen: Recording) -> None:
    async with (
        http_app(invoices().asgi(host="127.0.0.1")) as origin,
        http_client(f"{origin}/mcp", mode) as client,
    ):
        assert not (await submit(client)).is_error
    (server,) = [span for span in seen.spans() if span.name == "tools/call invoice.submit"]
    for name, outcome in (("gate.admit", "admitted"), ("gate.claim", "claimed"), ("gate.commit", "committed")):
        (span,) = seen.spans(name)
        assert span.parent.span_id == server.context.span_id
        assert span.context.trace_id == server.context.trace_id
        assert dict(span.attributes) == {
            "mcp.method.name": "tools/call",
            "gen_ai.tool.name": "invoice.submit",
            "mcpfusion.workflow.state": "draft",
            "mcpfusion.outcome": outcome,
        }
    (said,) = [line for line in seen.logs() if line["message"] == "submitting"]
    assert said["trace_id"] == f"{server.context.trace_id:032x}"
    assert said["span_id"] == f"{server.context.span_id:016x}"


def by_hand(mode: str) -> tuple[dict[str, Any], dict[str, str]]:
    """A call and its headers as a client sends them that says nothing of a trace in `_meta`."""
    body = call("own.echo")
    if mode != MODERN:
        return body, {}
    about = "io.modelcontextprotocol/"
    client = {"clientInfo": {"name": "hand", "version": "1"}, "clientCapabilities": {}, "protocolVersion": MODERN}
    body["params"]["_meta"] = {about + key: value for key, value in client.items()}
    return body, {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "own.echo"}


@pytest.mark.parametrize("mode", ERAS)
async def test_a_trace_that_comes_in_a_header_goes_on(mode: str, seen: Recording) -> None:
    f = Fusion("plain")
    f.action("own.echo").describe("Echo.").handle(lambda: "x")
    body, headers = by_hand(mode)
    async with http_app(f.server().asgi(host="127.0.0.1")) as origin:
        session = {} if mode == MODERN else await open_session(f"{origin}/mcp")
        answer = await post(f"{origin}/mcp", body, {**headers, **session, "traceparent": TRACEPARENT})
    assert answer.status_code == 200
    (server,) = seen.spans("tools/call own.echo")
    assert f"{server.context.trace_id:032x}" == TRACE


async def test_what_is_counted(seen: Recording) -> None:
    store = MovableStore()
    slow = Slow()
    server = invoices(store, slow, conflict_wait=0.05)
    async with (
        http_app(server.asgi(host="127.0.0.1")) as origin,
        http_client(f"{origin}/mcp", ERAS[1]) as client,
    ):
        await submit(client, "raise")  # released
        await client.call_tool("invoice.approve", {"id": HANDLE})  # refused
        async with anyio.create_task_group() as group:
            group.start_soon(submit, client, "slow")  # committed
            await slow.began.wait()
            await submit(client, "well")  # conflict
            slow.may_end.set()
        await submit(client, "doubt", "another")
        await submit(client, "well", "another")  # meets it
        store.away = True
        assert (await submit(client)).structured_content["code"] == "STORE_UNAVAILABLE"

    def by(name: str, *keys: str) -> set[tuple[Any, ...]]:
        return {(*(at.get(key) for key in keys), number) for at, number in seen.metric(name)}

    assert by("mcpfusion.gate.steps", "mcpfusion.outcome", "mcpfusion.workflow.state") == {
        ("released", "draft", 1),
        ("committed", "draft", 1),
        ("in_doubt", "draft", 1),
    }
    assert by("mcpfusion.gate.refusals", "error.type", "gen_ai.tool.name") == {
        ("FORBIDDEN", "invoice.approve", 1),
        ("CONFLICT", "invoice.submit", 1),
        ("IN_DOUBT", "invoice.submit", 1),
        ("STORE_UNAVAILABLE", "invoice.submit", 1),
    }
    assert by("mcpfusion.gate.conflicts", "mcpfusion.outcome") == {("waited", 1)}
    assert by("mcpfusion.gate.in_doubt", "mcpfusion.outcome") == {("left", 1), ("met", 1)}
    assert by("mcpfusion.gate.claim.wait", "mcpfusion.outcome") == {("claimed", 3), ("refused", 1)}
    (refused,) = [s for s in seen.spans("gate.admit") if s.attributes.get("error.type") == "FORBIDDEN"]
    assert refused.attributes["mcpfusion.outcome"] == "refused"


async def test_refusals_are_counted_by_code_also_where_no_workflow_is_found(seen: Recording) -> None:
    now = 1_000.0
    f = Fusion("orders")
    f.mutation("order.open").mints_handle().handle(lambda: "open")
    f.action("order.pay").bind_state("draft", "SUBMIT").handle(lambda: "paid")
    server = f.server(fsm=f.fsm(INVOICE), state_handle_key="id", expires_after=60.0, clock=lambda: now)
    async with sdk_client(server.lowlevel, MODERN) as client:
        opened = await client.call_tool("order.open", {})
        await client.call_tool("order.pay", {"id": "x" * 10_000})
        await client.call_tool("order.pay", {"id": f"{MINTED_PREFIX}nobody-ever-opened-it"})
        now += 61.0
        await client.call_tool("order.pay", {"id": opened.meta["io.mcpfusion/workflow"]["handle"]})
    assert {at["error.type"]: number for at, number in seen.metric("mcpfusion.gate.refusals")} == {
        "INVALID_HANDLE": 1,
        "UNKNOWN_HANDLE": 1,
        "EXPIRED": 1,
    }


@pytest.mark.parametrize("mode", ERAS)
async def test_no_handle_argument_or_message_is_in_any_of_it(mode: str, seen: Recording) -> None:
    store = MovableStore()
    async with (
        http_app(invoices(store).asgi(host="127.0.0.1")) as origin,
        http_client(f"{origin}/mcp", mode) as client,
    ):
        for how in ("raise", "well", "doubt"):
            await submit(client, how)
            await submit(client, how, f"{HANDLE}-2")
        await store.write(unfit(), expected_version=0)
        assert (await submit(client, handle=f"{HANDLE}-unfit")).structured_content["code"] == "UNKNOWN_STATE"
        with pytest.raises(MCPError):
            await client.call_tool("no.such.tool", {"id": HANDLE})
        record = await store.read("", HANDLE)
        assert record is not None
        store.away = True
        await submit(client)
        await client.list_tools()
    everything = seen.everything()
    for canary in (HANDLE, ARGUMENT, SAID, STORED, "s3cret"):
        assert canary not in everything
    assert "no.such.tool" not in everything
    failed = [line for line in seen.logs() if line.get("mcpfusion.workflow") == workflow_name("", HANDLE)]
    assert failed
    assert failed[0]["exception"]["type"].startswith("ConnectionError")
    raised = [line for line in seen.logs() if "raised" in line["message"]]
    assert raised[0]["exception"]["type"] == "ValueError"
    assert raised[0]["gen_ai.tool.name"] == "invoice.submit"
    assert any("in submit" in at or at.endswith(" submit") for at in raised[0]["exception"]["at"])


def test_without_opentelemetry_installed_nothing_is_missed() -> None:
    script = (
        "import sys\n"
        "sys.modules['opentelemetry'] = None\n"
        "from mcpfusion import telemetry\n"
        "with telemetry.span('x', {}) as span: span.set('a', 'b'); span.fail('c')\n"
        "telemetry.STEPS.add({}); telemetry.CLAIM_WAIT.record(1.0, {})\n"
        "with telemetry.ACTIVE_HANDOFFS.told_by(lambda: []), telemetry.continued('x'): pass\n"
        "assert telemetry.traceparent() is None and telemetry.trace_ids() is None\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_importing_the_package_imports_no_opentelemetry() -> None:
    script = "import mcpfusion, mcpfusion.telemetry, sys; print(json.dumps('opentelemetry' in sys.modules))"
    done = subprocess.run([sys.executable, "-c", f"import json; {script}"], capture_output=True, check=True)
    assert json.loads(done.stdout) is False
