"""Measuring things side by side: in turns, in one run, so that whatever slows the machine down slows all of them."""

import argparse
import contextlib
import gc
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from benchmarks import servers

VERSION = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1.0"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


@dataclass(frozen=True)
class Settings:
    """How much is measured: rounds for each subject, and seconds that a round takes."""

    tools: int
    rounds: int
    seconds: float


def settings(about: str) -> Settings:
    """Read the settings from the command line."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--tools", type=int, default=500, help="tools of each server (default: 500)")
    parser.add_argument("--rounds", type=int, default=9, help="rounds for each (default: 9)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a round (default: 1 s)")
    return Settings(**vars(parser.parse_args()))


@dataclass(frozen=True)
class Subject:
    """What is measured.

    Attributes:
        operation: Carried out again and again.
        cpu: Tells the CPU seconds that the process behind it has used so far.
    """

    operation: Callable[[], Awaitable[Any]]
    cpu: Callable[[], float] = time.process_time


@dataclass(frozen=True)
class Round:
    """Seconds per operation in one round: as a clock on the wall sees it, and of CPU time."""

    wall: float
    cpu: float


async def measure(subjects: Mapping[str, Subject], how: Settings) -> dict[str, list[Round]]:
    """Measure the subjects in turns."""
    found: dict[str, list[Round]] = {name: [] for name in subjects}
    for subject in subjects.values():
        await subject.operation()
    gc.collect()
    gc.freeze()  # one server's tools must not make the collector slow for another
    for _ in range(how.rounds):
        for name, subject in subjects.items():
            found[name].append(await _round(subject, how.seconds))
    return found


async def _round(subject: Subject, seconds: float) -> Round:
    count, cpu, start = 0, subject.cpu(), time.perf_counter()
    while (now := time.perf_counter()) - start < seconds or not count:
        await subject.operation()
        count += 1
    return Round((now - start) / count, (subject.cpu() - cpu) / count)


def report(title: str, found: Mapping[str, list[Round]], reference: str) -> None:
    """Print the medians, and the medians of the ratios to `reference` in the same round."""
    out = sys.stdout.write
    out(f"\n{title}\n{'':28}{'wall':>12}{'ratio':>8}{'CPU':>14}{'ratio':>8}\n")
    for name, rounds in found.items():
        pairs = list(zip(rounds, found[reference], strict=True))
        wall = statistics.median(mine.wall / theirs.wall for mine, theirs in pairs)
        cpu = statistics.median(mine.cpu / max(theirs.cpu, 1e-9) for mine, theirs in pairs)
        walls, cpus = (statistics.median(getattr(each, kind) for each in rounds) * 1e6 for kind in ("wall", "cpu"))
        out(f"{name:28}{walls:>9.0f} µs{wall:>8.2f}{cpus:>11.0f} µs{cpu:>8.2f}\n")
    sys.stdout.flush()


def print_machine() -> None:
    """Say what it was measured on."""
    from importlib.metadata import version

    libraries = ", ".join(f"{name} {version(name)}" for name in ("mcp", "fastmcp", "mcpfusion"))
    cores, kind = os.cpu_count(), platform.machine()
    sys.stdout.write(f"Python {platform.python_version()}, {cores} cores, {kind}; {libraries}\n")


class HttpServer:
    """One of the servers in a process of its own, and a connection that is kept open to it."""

    def __init__(self, kind: str, port: int, process: int) -> None:
        self._kind = kind
        self._process = process
        self._connection = HTTPConnection("127.0.0.1", port, timeout=30)

    async def list(self) -> None:
        """Ask for the list once."""
        self._post("tools/list", {}, {})

    async def call(self) -> None:
        """Call the first tool once."""
        name = servers.names(self._kind, 1)[0]
        self._post("tools/call", {"name": name, "arguments": servers.ARGUMENTS}, {"Mcp-Name": name})

    def cpu(self) -> float:
        """Return the CPU seconds that the server's process has used so far; 0 where the system does not say."""
        try:
            fields = Path(f"/proc/{self._process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _post(self, method: str, params: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}})
        fixed = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": VERSION,
            "Mcp-Method": method,
        }
        self._connection.request("POST", "/mcp", body, {**fixed, **headers})
        response = self._connection.getresponse()
        answer = response.read()
        if response.status != 200 or b'"result"' not in answer or b'"isError":true' in answer:
            raise RuntimeError(f"{self._kind}: {response.status} {answer[:300]!r}")


@contextlib.contextmanager
def http_server(kind: str, tools: int, store: str = "memory://") -> Iterator[HttpServer]:
    """Start a server over HTTP, and end it afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.servers", kind, str(tools), store, str(port)]
    process = subprocess.Popen(command)  # noqa: S603 - our own module
    try:
        _wait_for(port, process)
        yield HttpServer(kind, port, process.pid)
    finally:
        process.terminate()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError("a server did not start")
