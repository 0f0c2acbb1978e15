"""Other processes for the tests: small scripts that use a store on the file the test names."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

_TESTS = str(Path(__file__).parent.parent)


def start_script(script: str, *arguments: str, flags: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Start `script` with `stores.records` importable. Its output is piped."""
    return subprocess.Popen(
        [sys.executable, *flags, "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([_TESTS, *sys.path])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_script(script: str, *arguments: str, flags: tuple[str, ...] = ()) -> str:
    """Run `script` to its end, which must be a good one, and return what it printed."""
    with start_script(script, *arguments, flags=flags) as process:
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert err == ""
    return out


def check_whole(path: Path) -> None:
    """Assert that SQLite finds nothing wrong with the file."""
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
