import os
import signal
import subprocess
import sys
import time

import pytest

from mcpfusion._version import __version__

from .conftest import Cli, clean_environment, error_line

COMMANDS = [
    (),
    ("demo",),
    ("run",),
    ("workflows",),
    ("workflows", "list"),
    ("workflows", "show"),
    ("workflows", "resolve"),
    ("workflows", "reset"),
    ("workflows", "prune"),
]


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=60,
    )


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: "-".join(c) or "root")
def test_every_command_has_help_with_an_example(cli: Cli, command: tuple[str, ...]) -> None:
    result = cli(*command, "--help")
    assert result.returncode == 0
    assert result.stderr == ""
    assert "Example" in result.stdout
    assert " ".join(("mcpfusion", *command)) in result.stdout


def test_version(cli: Cli) -> None:
    result = cli("--version")
    assert (result.returncode, result.stdout) == (0, f"mcpfusion {__version__}\n")


def test_without_a_command_help_goes_to_stderr(cli: Cli) -> None:
    result = cli()
    assert result.returncode == 2
    assert result.stdout == ""
    assert "workflows" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("runn",), "Did you mean 'run'?"),
        (("run",), "Missing argument 'FILE[:OBJECT]'"),
        (("run", "a.py", "--tranport", "http"), "No such option '--tranport'"),
        (("run", "a.py", "--transport", "sse"), "'sse' is not one of 'stdio', 'http'"),
        (("run", "a.py", "--transport", "http", "--port", "65536"), "0<=x<=65535"),
        (("workflows", "list"), "Missing option '--store' (env var: 'MCPFUSION_STORE')"),
        (("workflows", "list", "--store", "sqlite:///a.db", "--limit", "0"), "0 is not in the range x>=1"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(cli: Cli, arguments: tuple[str, ...], said: str) -> None:
    line = error_line(cli(*arguments), 2)
    assert said in line
    assert "--help')" in line


def test_help_imports_nothing_heavy() -> None:
    result = python(
        "import sys; from mcpfusion.cli.main import main; code = main(['--help']);"
        "print('loaded', *sorted(sys.modules), file=sys.stderr); sys.exit(code)"
    )
    loaded = set(result.stderr.split())
    assert result.returncode == 0
    assert "click" in loaded
    heavy = {
        "mcp",
        "mcp_types",
        "starlette",
        "uvicorn",
        "pydantic",
        "fastmcp",
        "rich",
        "watchfiles",
        "sqlite3",
    }
    assert not loaded & heavy


@pytest.mark.parametrize(
    ("missing", "arguments"),
    [
        ("click", ("--help",)),
        ("rich", ("workflows", "list", "--store", "sqlite:///nowhere.db")),
        ("watchfiles", ("run", __file__, "--transport", "http", "--reload")),
    ],
)
def test_a_missing_extra_says_how_to_get_it(missing: str, arguments: tuple[str, ...]) -> None:
    result = python(
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from mcpfusion.cli.main import main; sys.exit(main(sys.argv[1:]))",
        *arguments,
    )
    assert error_line(result) == f'this needs {missing}: pip install "mcpfusion[cli]"'


def test_an_unforeseen_error_is_one_line_too_and_has_a_traceback_on_demand() -> None:
    code = (
        "import sys; import mcpfusion.cli.app as app\n"
        "def main(*a, **k): raise ExceptionGroup('tasks', [ExceptionGroup('more', [ValueError('first\\nsecond')])])\n"
        "app.app.main = main\n"
        "from mcpfusion.cli.main import main; sys.exit(main([]))"
    )
    assert error_line(python(code)) == "ValueError: first second"
    result = python("import os; os.environ['MCPFUSION_TRACEBACK'] = '1'\n" + code)
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1] == "mcpfusion: ValueError: first second"


def test_a_reader_that_goes_away_gets_no_traceback() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as stdout:
        result = subprocess.run(
            [sys.executable, "-m", "mcpfusion.cli.main", "--help"],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert (result.returncode, result.stderr) == (1, "")


WAITING = """
import sys, time
import mcpfusion.cli.demo as demo
def main():
    print("waiting", flush=True)
    {wait}
demo.main = main
from mcpfusion.cli.main import main
sys.exit(main(["demo"]))
"""


@pytest.mark.parametrize(
    "wait",
    [
        "time.sleep(60)",
        "import click; click.confirm('Sure?')",
        "__import__('anyio').run(__import__('anyio').sleep, 60)",
    ],
)
def test_an_interrupt_is_quiet_and_has_its_own_exit_code(wait: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING.format(wait=wait)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    time.sleep(0.3)  # until it waits
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert (process.returncode, said.strip()) == (130, "")
