"""A client over stdio that is killed, or closes the pipe, in the middle of a payment: it is paid once."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from tests.gate.payments import Settings, make_server
from tests.gate.processes import PATIENCE, record_of, start, until
from tests.support.serving import ERAS, stdio_server

pytestmark = pytest.mark.anyio

LEGACY, MODERN = ERAS
SERVER = Path(__file__).parent / "payments.py"
CALL = ("payment.capture", {"id": "p1", "note": "n"})


def be_a_client(settings: Settings, mode: str) -> None:
    """Start a server over stdio and call it, until somebody kills us."""

    async def main() -> None:
        server = stdio_server(SERVER, env=settings.env)
        async with Client(server, mode=mode, read_timeout_seconds=PATIENCE) as client:
            await client.call_tool(*CALL)

    anyio.run(main)


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False


async def check_paid_once(settings: Settings) -> None:
    record, history = await record_of(settings, "p1")
    assert (record.state, record.claim, len(history)) == ("paid", None, 1)
    async with Client(make_server(settings).lowlevel, mode=MODERN) as client:
        answer = await client.call_tool(*CALL)
    assert answer.structured_content["code"] == "ALREADY_DONE"
    assert len(settings.traces("started")) == len(settings.traces("done")) == 1


@pytest.mark.parametrize("mode", ERAS)
async def test_the_server_of_a_killed_client_finishes_the_step_and_ends(tmp_path: Path, mode: str) -> None:
    settings = Settings(str(tmp_path), wait=True)
    client = start(be_a_client, settings, mode)
    await until(lambda: settings.traces("started"))
    [trace] = settings.traces("started")
    client.kill()
    client.join()
    assert alive(trace["process"])
    settings.go("p1")
    await until(lambda: not alive(trace["process"]))
    await check_paid_once(settings)


def messages(mode: str) -> list[dict[str, Any]]:
    """The lines of a client that begins a payment."""
    params: dict[str, Any] = {"name": CALL[0], "arguments": CALL[1]}
    if mode == MODERN:
        params["_meta"] = {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
        }
        return [{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}]
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    return [
        {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params},
    ]


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("reads_on", [True, False])
async def test_the_end_of_the_input_does_not_stop_a_step_half_way(tmp_path: Path, mode: str, reads_on: bool) -> None:
    settings = Settings(str(tmp_path), wait=True)
    with subprocess.Popen(
        [sys.executable, str(SERVER)],
        env={**os.environ, **settings.env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as server:
        for message in messages(mode):
            server.stdin.write(json.dumps(message).encode() + b"\n")
        server.stdin.flush()
        await until(lambda: settings.traces("started"))
        server.stdin.close()
        if not reads_on:
            server.stdout.close()
        await anyio.sleep(0.2)  # for the server to see it; there is nothing outside by which to tell
        assert server.poll() is None
        settings.go("p1")
        assert await anyio.to_thread.run_sync(server.wait, PATIENCE) == 0
        errors = server.stderr.read().decode()
        assert "Traceback" not in errors, errors
    await check_paid_once(settings)
