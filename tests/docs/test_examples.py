"""Every Python example of the README and the documentation runs, and what it asserts holds. See `pages.py`."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from mcpfusion.cli.app import app

from . import pages

PAGES = pages.pages()


def python_of(page: Path) -> str:
    return "\n".join(part.text for part in pages.parts(page) if part.file is None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path) -> None:
    if not python_of(page):
        pytest.skip("no Python on this page")
    command = [sys.executable, str(Path(pages.__file__)), str(page)]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=110)
    assert result.returncode == 0, result.stderr[-3000:]


@pytest.mark.parametrize("name", ["README.md", "gating.md", "passage.md", "attaching.md"])
def test_the_examples_assert_something(name: str) -> None:
    page = next(page for page in PAGES if page.name == name)
    assert len(re.findall(r"^ *assert ", python_of(page), re.MULTILINE)) >= 8


def test_a_page_whose_example_is_wrong_fails(tmp_path: Path) -> None:
    page = tmp_path / "wrong.md"
    page.write_text("# Wrong\n\n```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n")
    command = [sys.executable, str(Path(pages.__file__)), str(page)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert f'File "{page}", line 8' in result.stderr


def test_hidden_parts_run_and_files_are_written(tmp_path: Path) -> None:
    page = tmp_path / "parts.md"
    page.write_text(
        "<!-- file: answer.py -->\n```python\nvalue = 42\n```\n\n```yaml\nnot: python\n```\n\n"
        "<!-- python\nimport asyncio\nimport answer\n-->\n\n"
        "```python\nawait asyncio.sleep(0)\nprint(answer.value)\n```\n"
    )
    command = [sys.executable, str(Path(pages.__file__)), str(page)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.splitlines() == ["42", "2 pieces of Python"]


def commands() -> list[str]:
    """The `mcpfusion` commands in the console blocks and indented listings of all pages."""
    lines = "\n".join(page.read_text() for page in PAGES).splitlines()
    found = [line.removeprefix("$ ") for line in lines if re.match(r"(\$ )?mcpfusion (run|workflows|demo)", line)]
    return [line for line in found if "[" not in line and "HANDLE" not in line]


@pytest.mark.parametrize("line", commands())
def test_commands_are_understood(line: str) -> None:
    """Parsed only: nothing runs."""
    command: click.Command = app
    arguments = shlex.split(line)[1:]
    context = click.Context(app, info_name="mcpfusion")
    while isinstance(command, click.Group):
        _, command, arguments = command.resolve_command(context, arguments)  # type: ignore[assignment]
    command.make_context(command.name, list(arguments), parent=context)
