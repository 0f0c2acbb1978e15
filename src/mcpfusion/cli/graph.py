"""`mcpfusion graph`: a machine as a picture, with the tools on their states."""

import shutil
import subprocess
import sys
from pathlib import Path

import click

from mcpfusion.cli.definition import definition, labels, machine_of

_LAYOUT_SECONDS = 60


@click.command(short_help="Draw a machine with the tools on its states.")
@click.argument("target", metavar="FILE[:OBJECT]")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["mermaid", "dot", "svg"]),
    default="mermaid",
    show_default=True,
    help="What to write.",
)
@click.option("--output", type=click.Path(dir_okay=False), default=None, help="A file, instead of the output.")
def graph(target: str, kind: str, output: str | None) -> None:
    """Draw a machine, with the tools that are bound to a state written on it.

    FILE is a machine's config (JSON or YAML), or a Python file with a server or a gate in it. SVG is laid out by
    Graphviz: the dot command where there is one, else the package graphviz-pure (the extra "graph").

    \b
    Examples:
      mcpfusion graph invoice.yaml
      mcpfusion graph server.py --format svg --output invoice.svg

    \b
    Exit codes: 0 it is drawn, 1 it could not be, 2 wrong usage.
    """
    from mcpfusion.machine.diagram import to_dot, to_mermaid

    found = definition(target)
    machine = machine_of(found)
    written = labels(found.bindings)
    text = to_mermaid(machine, written) if kind == "mermaid" else to_dot(machine, written)
    if kind == "svg":
        text = _svg(text)
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        Path(output).write_text(text)
    except OSError as error:
        raise click.ClickException(f"cannot write {output}: {error.strerror}") from error


def _svg(dot: str) -> str:
    beside = Path(sys.executable).parent / "graphviz-pure"
    program = shutil.which("dot") or (str(beside) if beside.exists() else shutil.which("graphviz-pure"))
    if program is None:
        raise click.ClickException('svg needs Graphviz: install its dot command, or pip install "mcpfusion[graph]"')
    try:
        done = subprocess.run(  # noqa: S603 - a program of this machine, and no shell
            [program, "-Tsvg"], input=dot, capture_output=True, text=True, timeout=_LAYOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise click.ClickException(f"cannot lay it out: {error}") from error
    if done.returncode != 0:
        raise click.ClickException(f"cannot lay it out: {' '.join(done.stderr.split())[:200]}")
    return done.stdout
