"""What the demo writes, and how it checks what it shows."""

import sys
import textwrap

import click

from mcpfusion.cli.demo_stage import DemoError

WIDTH = 96


def heading(text: str) -> None:
    """Begin a scene."""
    click.echo()
    click.secho(text, bold=True)


def say(text: str) -> None:
    """Write a remark."""
    write(f"  {text}")


def write(text: str) -> None:
    """Write a line, wrapped under its own indentation."""
    indent = text[: len(text) - len(text.lstrip())]
    for part in textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False):
        click.echo(part)
    sys.stdout.flush()


def check(right: bool, otherwise: str) -> None:
    """Go on when something is as it should be.

    Raises:
        DemoError: It is not.
    """
    if not right:
        raise DemoError(otherwise)
