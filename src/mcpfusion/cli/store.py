"""`mcpfusion store`: make a store ready, and see whether it is."""

import anyio
import click

from mcpfusion.cli.workflows.access import store_option
from mcpfusion.stores.protocol import Maintained, StoreError, VersionedFsmStateStore, Workflow


@click.group(short_help="Make a store ready, and see whether it is.")
def store() -> None:
    """Make a store ready for use, and see whether it is.

    A schema in PostgreSQL is made and brought up to date here and nowhere else: no server does it by itself. A
    SQLite file and a Redis need nothing made; for them "init" does what "check" does, and creates the file.

    \b
    Examples:
      mcpfusion store init --store postgresql://app@db.example/shop
      mcpfusion store check --store postgresql://app@db.example/shop
    """


@store.command(short_help="Make a store ready.")
@store_option
def init(url: str) -> None:
    """Make a store ready for use: create its schema, or bring it up to date.

    Doing it again changes nothing, and it may be done by several at once. Do it with the new version before its
    servers start. Its role needs the right to create in the schema, and, where there is none, in the database.

    \b
    Examples:
      mcpfusion store init --store postgresql://owner@db.example/shop
      mcpfusion store init --store "postgresql://owner@db.example/shop?mcpfusion_schema=gates"
      mcpfusion store init --store sqlite:///invoices.db

    \b
    Exit codes: 0 it is ready, 1 it cannot be made ready, 2 wrong usage.
    """
    for line in _run(url, True):
        click.echo(line)


@store.command(short_help="See whether a store can be used.")
@store_option
def check(url: str) -> None:
    """See whether a store can be reached, has a schema of this version, and takes reads and writes.

    Nothing is changed in it.

    \b
    Examples:
      mcpfusion store check --store postgresql://app@db.example/shop
      mcpfusion store check --store sqlite:///invoices.db

    \b
    Exit codes: 0 it can be used, 1 it cannot, 2 wrong usage.
    """
    for line in _run(url, False):
        click.echo(line)


def _run(url: str, create: bool) -> list[str]:
    from mcpfusion.stores.open import open_store

    if url.startswith("memory:"):
        raise click.BadParameter("a store in memory ends with its server's process", param_hint="--store")
    try:
        opened = open_store(url, create=create)
        return anyio.run(_look, opened, create)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--store") from error
    except StoreError as error:
        raise click.ClickException(str(error)) from error


async def _look(opened: VersionedFsmStateStore, create: bool) -> list[str]:
    try:
        lines: list[str] = []
        if isinstance(opened, Maintained):
            lines += await (opened.initialise() if create else opened.describe())
        await _try(opened)
    finally:
        await opened.aclose()
    return [*lines, "it is ready" if create else "it can be used"]


async def _try(opened: VersionedFsmStateStore) -> None:
    """Read and write as the gate does, without leaving a trace."""
    await opened.next_due(limit=1)
    # Of a version that it cannot have, as nobody's call has this name: the write finds nothing to change.
    version = 2**40
    probe = Workflow("", "@store-check", "", version + 1, 0, "", {}, 0.0)
    await opened.write(probe, expected_version=version)
