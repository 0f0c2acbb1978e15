import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """The real command, as a process of its own in an empty folder."""

    def run(*arguments: str, input: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "mcpfusion.cli.main", *arguments],
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=clean_environment() | environment,
            timeout=100,
        )

    return run


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("MCPFUSION_")}


def error_line(result: subprocess.CompletedProcess[str], code: int = 1) -> str:
    """The one line that an error is: on stderr, nothing else there, nothing on stdout."""
    assert result.returncode == code, result
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("mcpfusion: ")
    return lines[0].removeprefix("mcpfusion: ")
