"""How records are shown: as tables for people, as JSON for programs.

Handles, scopes and states come from callers. What a terminal would obey instead of showing is escaped.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mcpfusion.gate.operator import in_doubt
from mcpfusion.stores.protocol import Claim, Step, Workflow

EVERYBODY = "(everybody)"
_WIDE = 10_000


def time_text(seconds: float, timespec: str = "seconds") -> str:
    """Return a time given in seconds since the epoch as ISO 8601 in UTC."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec=timespec).replace("+00:00", "Z")
    except (OverflowError, OSError, ValueError):
        return f"{seconds:g}"


def scope_text(scope: str) -> str:
    """Return a scope for people."""
    return scope or EVERYBODY


def safe(text: str) -> str:
    """Return `text` with everything that is not printable written as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def call_text(record: Workflow, now: float) -> str:
    """Return what holds the workflow: nothing, a call that runs, or one that is in doubt."""
    if record.claim is None:
        return ""
    return f"{record.claim.tool} {'in doubt' if in_doubt(record, now) else 'running'}"


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under headings, one line each unless a terminal is too narrow."""
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for column in table.columns:
        column.overflow = "fold"
    for row in rows:
        table.add_row(*(Text(safe(cell)) for cell in row))
    _console().print(table)


def print_fields(fields: Mapping[str, str]) -> None:
    """Print names and values; fields without a value are left out."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields.items():
        if value:
            table.add_row(name, Text(safe(value)))
    _console().print(table)


def print_json(data: Any) -> None:
    """Print data as JSON, ASCII only."""
    click.echo(json.dumps(data, indent=2, default=dict))


def record_json(record: Workflow, now: float) -> dict[str, Any]:
    """Return what a list says of a workflow."""
    return {
        "handle": record.handle,
        "scope": record.scope,
        "state": record.state,
        "steps": record.steps,
        "updated_at": time_text(record.updated_at, "milliseconds"),
        "expires_at": None if record.expires_at is None else time_text(record.expires_at, "milliseconds"),
        "in_doubt": in_doubt(record, now),
        "claim": _claim_json(record.claim) if record.claim else None,
    }


def step_json(step: Step) -> dict[str, Any]:
    """Return a step; `arguments` and `result` are what the server's redaction hook made of them."""
    return {
        "at": time_text(step.at, "milliseconds"),
        "from": step.from_state,
        "event": step.event,
        "to": step.to_state,
        "tool": step.tool,
        "principal": step.principal,
        "call_id": step.call_id,
        "outcome": step.outcome,
        "arguments": step.arguments,
        "result": step.result,
    }


def _claim_json(claim: Claim) -> dict[str, Any]:
    return {
        "tool": claim.tool,
        "event": claim.event,
        "principal": claim.principal,
        "call_id": claim.call_id,
        "idempotency_key": claim.idempotency_key,
        "claimed_at": time_text(claim.claimed_at, "milliseconds"),
        "lease_until": time_text(claim.lease_until, "milliseconds"),
        "on_doubt": claim.on_doubt,
        "leads_to": claim.leads_to,
    }


def _console() -> Console:
    # Into a pipe or file each row is one line, however long, so that grep and awk can work on it.
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=_WIDE)
