"""The benchmarks run and print their tables; how fast anything is, is not tested."""

import subprocess
import sys

import pytest

from .pages import ROOT

ROWS = ["MCPServer", "FastMCP", "mcpfusion, no gate", "mcpfusion, gated, memory", "mcpfusion, gated, SQLite"]


@pytest.mark.parametrize("name", ["menu", "calls"])
def test_a_benchmark_prints_its_tables(name: str) -> None:
    command = [sys.executable, "-m", f"benchmarks.{name}", "--tools", "3", "--rounds", "1", "--seconds", "0.01"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=110)
    assert result.returncode == 0, result.stderr[-2000:]
    for row in ROWS:
        lines = [line for line in result.stdout.splitlines() if line.startswith(f"{row}  ")]
        assert len(lines) == 2
        assert all("µs" in line for line in lines)


def test_the_machines_benchmark_prints_its_table() -> None:
    command = [sys.executable, "-m", "benchmarks.machine", "--rounds", "1", "--seconds", "0.001"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=110)
    assert result.returncode == 0, result.stderr[-2000:]
    for what in ("transition", "can", "initial", "restore", "python-statemachine"):
        for kind in ("flat", "nested"):
            [line] = [line for line in result.stdout.splitlines() if line.startswith(f"{what}, {kind}  ")]
            assert " ns" in line


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        (
            ["--engines", "memory,sqlite", "--rounds", "1", "--seconds", "0.02", "--workers", "2"],
            ["memory", "sqlite"],
        ),
        (["--million", "--engines", "sqlite", "--count", "250"], ["sqlite"]),
    ],
)
def test_the_benchmark_of_the_stores_prints_its_table(options: list[str], rows: list[str]) -> None:
    command = [sys.executable, "-m", "benchmarks.stores", *options]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=110)
    assert result.returncode == 0, result.stderr[-2000:]
    for row in rows:
        (line,) = [line for line in result.stdout.splitlines() if line.startswith(f"{row}  ")]
        assert " ms" in line
