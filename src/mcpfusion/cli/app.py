"""The command's root. Its commands import what they need when they run, so that `--help` is quick."""

import click

from mcpfusion._version import __version__
from mcpfusion.cli.check import check
from mcpfusion.cli.graph import graph
from mcpfusion.cli.run import run
from mcpfusion.cli.store import store
from mcpfusion.cli.swarm import pins, swarm
from mcpfusion.cli.token import token
from mcpfusion.cli.workflows import workflows


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="mcpfusion", message="%(prog)s %(version)s")
def app() -> None:
    """Workflow-gated MCP servers: run them, and look after their workflows.

    \b
    Examples:
      mcpfusion demo
      mcpfusion run server.py --transport http --port 8000
      mcpfusion workflows list --store sqlite:///invoices.db

    \b
    Exit codes: 0 it went well, 1 it was refused or failed, 2 wrong usage.
    """


@app.command()
def demo() -> int | None:
    """Show a gated workflow from the first call to the last.

    Starts an invoice server with a fresh SQLite file and drives it with real clients: over HTTP in both
    protocol eras, and over stdio.

    \b
    Example:
      mcpfusion demo
    """
    from mcpfusion.cli.demo import main

    return main()


app.add_command(run)
app.add_command(check)
app.add_command(store)
app.add_command(graph)
app.add_command(swarm)
app.add_command(pins)
app.add_command(token)
app.add_command(workflows)
