"""`mcpfusion check`: what is wrong with a machine and its tools, before an agent finds it."""

import json
import sys
from dataclasses import asdict
from typing import Any

import click

from mcpfusion.cli.definition import Definition, definition


@click.command(short_help="Find what is wrong with a machine and its tools.")
@click.argument("target", metavar="FILE[:OBJECT]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(target: str, as_json: bool) -> None:
    """Find what is wrong with a machine and its tools, before an agent does.

    FILE is a machine's config (JSON or YAML), or a Python file with a server or a gate in it. A config alone is
    checked for itself: states that are never reached or never left, candidates that never win, endless loops. With
    its tools it is also checked for tools that nobody sees, and events that nobody sends.

    \b
    Examples:
      mcpfusion check invoice.yaml
      mcpfusion check server.py:gate --json

    \b
    Exit codes: 0 nothing is wrong, or only warnings; 1 there are errors; 2 wrong usage.
    """
    findings = _findings(definition(target))
    if as_json:
        click.echo(json.dumps(findings, indent=2, ensure_ascii=False))
    else:
        for each in findings:
            click.echo(f"{target}: {each['where']}: {each['level']}: {each['message']} [{each['code']}]")
            click.echo(f"    fix: {each['fix']}")
        errors = sum(each["level"] == "error" for each in findings)
        click.echo(f"{errors} errors, {len(findings) - errors} warnings")
    if any(each["level"] == "error" for each in findings):
        sys.exit(1)


def _findings(found: Definition) -> list[dict[str, Any]]:
    from mcpfusion.gate.check import check as check_bindings

    if found.refused is not None:
        place, colon, message = found.refused.partition(": ")
        fix = "correct what it names"
        where = place if colon else ""
        return [
            {"level": "error", "code": "refused", "where": where, "message": message or found.refused, "fix": fix}
        ]
    return [asdict(each) for each in check_bindings(found.bindings)]
