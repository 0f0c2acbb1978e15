"""The logs of `mcpfusion run` as a process, over HTTP and over stdio, in both eras and both forms."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client.stdio import stdio_client

from ..support.serving import ERAS, http_client, sdk_client
from .test_run import KINDS, Start, over_stdio, start

__all__ = ["start"]

pytestmark = pytest.mark.anyio

HANDLE, ARGUMENT, SAID, TOKEN = "wf-canary-handle", "canary-argument", "canary-message", "canary-token"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
META: Any = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}

MACHINE = '{"initial": "draft", "states": {"draft": {"on": {"SUBMIT": "review"}}, "review": {}}}'

OWN = f"""
import warnings
from mcpfusion import Context, Fusion

f = Fusion("invoices")

@f.action("invoice.submit").describe("Submit.").bind_state("draft", "SUBMIT").handle
async def submit(note: str, ctx: Context) -> str:
    ctx.logger.info("submitting")
    if note.endswith("bad"):
        warnings.warn("an old way")
        raise ValueError("{SAID} " + note)
    return note

server = f.server(fsm=f.fsm({MACHINE}), state_handle_key="id", store="sqlite:///invoices.db")
"""

THEIRS = f"""
from MODULE import KIND
from mcpfusion import StateMachineGate, gate_server

server = KIND("invoices")

@server.tool(name="invoice.submit")
async def submit(id: str, note: str) -> str:
    if note.endswith("bad"):
        raise ValueError("{SAID} " + note)
    return note

gate = StateMachineGate({MACHINE})
gate.bind_tool("invoice.submit", ["draft"], "SUBMIT")
gate_server(server, gate, store="sqlite:///invoices.db", state_handle_key="id")
"""


async def talk(client: Any) -> None:
    for note in (7, f"{ARGUMENT} bad", ARGUMENT, ARGUMENT):
        await client.call_tool("invoice.submit", {"id": HANDLE, "note": note}, meta=META)
    await client.list_tools()


@asynccontextmanager
async def over_a_pipe(folder: Path, mode: str, *arguments: str) -> AsyncIterator[Any]:
    with (folder / "stderr.txt").open("w") as stderr:
        transport = stdio_client(over_stdio(folder, *arguments), errlog=stderr)
        async with sdk_client(transport, mode) as client:
            yield client


async def said_by(folder: Path, start: Start, transport: str, mode: str, *options: str) -> str:
    """Return what a server writes that is called well and badly."""
    given = ("server.py", *options)
    if transport == "stdio":
        async with over_a_pipe(folder, mode, *given) as client:
            await talk(client)
    else:
        running = start(*given)
        token = {"x-mcpfusion-delegation": TOKEN, "authorization": f"Bearer {TOKEN}"}
        async with http_client(running.url, mode, headers=token) as client:
            await talk(client)
    return (folder / "stderr.txt").read_text()


def check_nothing_is_given_away(said: str) -> None:
    for canary in (HANDLE, ARGUMENT, SAID, TOKEN):
        assert canary not in said, said


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_every_line_is_json_and_has_the_trace(transport: str, mode: str, tmp_path: Path, start: Start) -> None:
    (tmp_path / "server.py").write_text(OWN)
    said = await said_by(tmp_path, start, transport, mode, "--log-format", "json", "--log-level", "debug")
    check_nothing_is_given_away(said)
    lines = [json.loads(line) for line in said.splitlines()]
    for line in lines:
        assert datetime.fromisoformat(line["time"]).tzinfo is not None
        assert line["level"] in ("debug", "info", "warning", "error")
        assert line["logger"]
        assert isinstance(line["message"], str)
    assert [line["trace_id"] for line in lines if line["message"] == "submitting"] == [TRACE, TRACE]
    (raised,) = [line for line in lines if "exception" in line]
    assert raised["trace_id"] == TRACE
    assert raised["gen_ai.tool.name"] == "invoice.submit"
    assert raised["exception"]["type"] == "ValueError"
    assert raised["exception"]["at"][-1].endswith(" submit")
    assert any(line["logger"] == "py.warnings" for line in lines)
    assert any(line["message"].startswith("serving server.py at http:") for line in lines) == (transport == "http")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_of_another_kind_logs_alike_and_has_probes(kind: str, tmp_path: Path, start: Start) -> None:
    (tmp_path / "server.py").write_text(THEIRS.replace("KIND", kind).replace("MODULE", KINDS[kind]))
    running = start("server.py", "--log-format", "json", "--log-level", "info")
    async with sdk_client(running.url, ERAS[0]) as client, httpx2.AsyncClient() as http:
        await talk(client)
        for probe, body in (("/healthz", {"status": "ok"}), ("/readyz", {"status": "ok", "checks": {"store": "ok"}})):
            answer = await http.get(running.url.removesuffix("/mcp") + probe)
            assert (answer.status_code, answer.json()) == (200, body)
    check_nothing_is_given_away(running.said)
    lines = [json.loads(line) for line in running.said.splitlines()]
    assert any(line["level"] == "error" for line in lines), lines


async def test_what_the_sdk_sets_up_by_itself_gives_nothing_away(tmp_path: Path, start: Start) -> None:
    (tmp_path / "server.py").write_text(THEIRS.replace("KIND", "MCPServer").replace("MODULE", "mcp.server"))
    said = await said_by(tmp_path, start, "stdio", ERAS[1])
    check_nothing_is_given_away(said)
    assert re.search(r"^  \w+ from ValueError\n(    .*\n)*    \S*server\.py:\d+ submit$", said, re.M), said


async def test_logging_that_the_file_sets_up_is_left_alone(tmp_path: Path, start: Start) -> None:
    own = "import logging, sys\nlogging.basicConfig(format='MINE %(message)s', stream=sys.stderr)\n"
    (tmp_path / "server.py").write_text(own + THEIRS.replace("KIND", "MCPServer").replace("MODULE", "mcp.server"))
    said = await said_by(tmp_path, start, "stdio", ERAS[1])
    assert said.startswith("MINE ")


async def test_text_gives_nothing_away_either(tmp_path: Path, start: Start) -> None:
    (tmp_path / "server.py").write_text(OWN)
    said = await said_by(tmp_path, start, "http", ERAS[0], "--log-format", "text", "--log-level", "info")
    check_nothing_is_given_away(said)
    assert f"[trace {TRACE}]\n  ValueError\n" in said
    assert re.search(r"^    \S*server\.py:\d+ submit$", said, re.M)
