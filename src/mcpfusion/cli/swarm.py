"""`mcpfusion swarm` and `mcpfusion pins`: a gateway from a config file, and what it has pinned."""

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import click

from mcpfusion.cli.run import LOG_FORMAT, LOG_LEVEL
from mcpfusion.logs import LEVELS, Form, configure_logging

if TYPE_CHECKING:
    from mcpfusion.swarm.pins import PinStore

T = TypeVar("T")


@click.command(short_help="Run a gateway from a config file.")
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--transport", type=click.Choice(["stdio", "http"]), default="stdio", show_default=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on, with http.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port, with http.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default=None, help=LOG_FORMAT)
@click.option("--log-level", type=click.Choice(LEVELS), default=None, help=LOG_LEVEL)
def swarm(file: str, transport: str, host: str, port: int, log_format: Form | None, log_level: str | None) -> None:
    """Run a gateway that hands conversations to the specialists of a YAML file.

    The triage tool is made from the registry's descriptions. The delegation secret comes from the variable
    MCPFUSION_DELEGATION_SECRET, or from what the file names under secret_env or secret_file.

    \b
    Example of a file:
      name: triage
      registry:
        finance: {url: "http://127.0.0.1:8081/mcp", description: "Refunds and invoices", allow: ["refund*"]}
        support: {url: "http://127.0.0.1:8082/mcp", description: "Everything else"}

    \b
    Example:
      mcpfusion swarm triage.yaml --transport http --port 8080

    \b
    Exit codes: 0 it ended or was interrupted, 1 it could not be started, 2 wrong usage.
    """
    from mcpfusion.proxy.gateway import ConfigError, read_gateway

    configure_logging(log_format, log_level)
    try:
        server = read_gateway(file)
        where: dict[str, Any] = {"host": host, "port": port} if transport == "http" else {}
        server.run(transport, **where)
    except ConfigError as error:
        raise click.ClickException(f"{file}: {error}") from error
    except OSError as error:
        raise click.ClickException(f"cannot serve: {error}") from error
    except KeyboardInterrupt:
        return


@click.group(short_help="Look after the pinned definitions of specialists' tools.")
def pins() -> None:
    """Look after the pinned definitions of specialists' tools.

    A gateway remembers the tools of a specialist with "pin: true" as it first saw them, in its store. A tool whose
    definition changed is left out until the change is accepted here.
    """


_STORE = click.option("--store", metavar="URL", required=True, help="The gateway's store, such as sqlite:///path.")


@pins.command("list", short_help="List the pins.")
@_STORE
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_pins(store: str, as_json: bool) -> None:
    """List the pins, and which tools have changed.

    \b
    Example:
      mcpfusion pins list --store sqlite:///swarm.db
    """
    found = _with_pins(store, lambda pins: pins.pins())
    if as_json:
        rows = [{"specialist": p.specialist, "tool": p.tool, "changed": p.refused is not None} for p in found]
        click.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    for pin in found:
        state = "changed, waits to be accepted" if pin.refused else "as accepted"
        click.echo(f"{pin.specialist}  {pin.tool}  {state}")


@pins.command(short_help="Accept a tool's changed definition.")
@click.argument("specialist")
@click.argument("tool")
@_STORE
def accept(specialist: str, tool: str, store: str) -> None:
    """Accept the changed definition of a specialist's TOOL.

    \b
    Example:
      mcpfusion pins accept finance refund --store sqlite:///swarm.db

    \b
    Exit codes: 0 it is accepted, 1 no change waits, 2 wrong usage.
    """
    if not _with_pins(store, lambda pins: pins.accept(specialist, tool)):
        raise click.ClickException(f"no changed definition of {tool!r} of {specialist!r} waits to be accepted")
    click.echo(f"accepted {tool} of {specialist}")


def _with_pins(store: str, work: "Callable[[PinStore], Awaitable[T]]") -> T:
    from mcpfusion.stores import StoreError
    from mcpfusion.swarm.open import open_swarm_stores

    try:
        stores = open_swarm_stores(store, create=False)
    except ValueError as error:
        raise click.BadParameter(f"--store: {error}") from error
    if not stores.states.shared:
        raise click.BadParameter("--store: what memory:// keeps is seen by the gateway's own process only")

    async def use() -> T:
        try:
            return await work(stores.pins)
        finally:
            await stores.aclose()

    try:
        return anyio.run(use)
    except StoreError as error:
        raise click.ClickException(str(error)) from error
