"""`mcpfusion workflows`: look after the workflows in a store."""

import click

from mcpfusion.cli.workflows.list import list_workflows
from mcpfusion.cli.workflows.prune import prune
from mcpfusion.cli.workflows.reset import reset
from mcpfusion.cli.workflows.resolve import resolve
from mcpfusion.cli.workflows.show import show


@click.group(short_help="Look after the workflows in a store.")
def workflows() -> None:
    """List and show the workflows in a store, end steps that are in doubt, start over, and clear out.

    Arguments and results of calls are never shown, except what the server's redaction hook put into the
    history, and that only with --json.

    \b
    Examples:
      mcpfusion workflows list --store sqlite:///invoices.db --in-doubt
      mcpfusion workflows show INV-7 --store sqlite:///invoices.db
      mcpfusion workflows resolve INV-7 --done --store sqlite:///invoices.db
      mcpfusion workflows reset INV-7 --machine server.py --store sqlite:///invoices.db
      mcpfusion workflows prune --store sqlite:///invoices.db
    """


workflows.add_command(list_workflows)
workflows.add_command(show)
workflows.add_command(resolve)
workflows.add_command(reset)
workflows.add_command(prune)
