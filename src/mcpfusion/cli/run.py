"""`mcpfusion run`: run the server that a Python file makes."""

import logging
import multiprocessing
import os
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import click

from mcpfusion.cli import load
from mcpfusion.cli.server import server_in
from mcpfusion.logs import LEVELS, Form, configure_logging

Logs = tuple[Form | None, str | None]

_WATCHED = (".json", ".yaml", ".yml")
LOG_FORMAT = "How logs are written to standard error, without what exceptions say.  [default: text]"
LOG_LEVEL = "What is logged, at the least.  [default: warning]"


@click.command(short_help="Run the server that a Python file makes.")
@click.argument("target", metavar="FILE[:OBJECT]")
@click.option(
    "--transport",
    type=click.Choice(["stdio", "http"]),
    default="stdio",
    show_default=True,
    help="How clients reach it.",
)
@click.option("--host", default=None, help="Address to listen on, with http.  [default: 127.0.0.1]")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=None,
    help="Port to listen on, with http; 0: a free one.  [default: 8000]",
)
@click.option("--store", metavar="URL", default=None, help="Where workflows are kept, instead of what the file says.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default=None, help=LOG_FORMAT)
@click.option("--log-level", type=click.Choice(LEVELS), default=None, help=LOG_LEVEL)
@click.option("--reload", is_flag=True, help="Start again when a file beside FILE changes, with http.")
def run(
    target: str,
    transport: str,
    host: str | None,
    port: int | None,
    store: str | None,
    log_format: Form | None,
    log_level: str | None,
    reload: bool,
) -> None:
    """Run the server that FILE makes.

    FILE is a Python file, or the dotted name of a module. OBJECT is a server or a Fusion in it; without it,
    the only one there, or else the one called server, mcp or app. The file is executed under its own name, so
    what stands below "if __name__ == '__main__'" does not run.

    \b
    Examples:
      mcpfusion run server.py
      mcpfusion run server.py:server --transport http --port 8000
      mcpfusion run shop.server --transport http --store sqlite:///shop.db --log-format json
      mcpfusion run server.py --transport http --reload

    \b
    Exit codes: 0 the server ended or was interrupted, 1 it could not be loaded or started, 2 wrong usage.
    """
    if transport == "stdio":
        if reload:
            raise click.UsageError("--reload needs --transport http: over stdio the client would lose its session")
        if host is not None or port is not None:
            raise click.UsageError("--host and --port need --transport http")
    where = _address(host or "127.0.0.1", 8000 if port is None else port) if transport == "http" else {}
    try:
        (_watch if reload else _serve)(target, transport, where, store, (log_format, log_level))
    except KeyboardInterrupt:
        return


def _serve(target: str, transport: str, where: dict[str, Any], store: str | None, logs: Logs) -> None:
    name, wanted = load.split(target)
    start = server_in(load.load(name), wanted, store)
    configure_logging(*logs)  # not where the file has set up its own logging, unless an option says so
    if where:
        _say(f"serving {target} at {_url(**where)}", logs[0])
    try:
        start(transport, **where)
    except SystemExit as error:  # a server that cannot start, and has logged why
        raise click.exceptions.Exit(1 if error.code else 0) from error
    except (OSError, ValueError) as error:
        raise click.ClickException(f"cannot serve: {error}") from error


def _say(what: str, form: Form | None) -> None:
    """Tell who started it, in the form of the logs."""
    if form == "json":
        log = logging.getLogger("mcpfusion.run")
        log.setLevel(logging.INFO)
        log.info(what)
    else:
        click.echo(f"mcpfusion: {what}", err=True)


def _address(host: str, port: int) -> dict[str, Any]:
    """Return where to listen, with a free port for 0. What cannot be listened on is said before anything runs."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            return {"host": host, "port": probe.getsockname()[1]}
    except (OSError, UnicodeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise click.ClickException(f"cannot listen on {host} port {port}: {why}") from error


def _url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/mcp"


def _watch(target: str, transport: str, where: dict[str, Any], store: str | None, logs: Logs) -> None:
    from watchfiles import PythonFilter, run_process

    # What it has to say of interrupts and of servers that have ended is said here already.
    logging.getLogger("watchfiles").setLevel(logging.ERROR)
    path = load.source(load.split(target)[0])
    run_process(
        path.parent if path else Path.cwd(),
        target=_serve_again,
        args=(target, transport, where, store, logs),
        watch_filter=PythonFilter(extra_extensions=_WATCHED),
        callback=lambda changes: click.echo(f"mcpfusion: {_changed(changes)} changed, starting again", err=True),
        debounce=300,
    )


def _changed(changes: set[Any]) -> str:
    return ", ".join(sorted({Path(path).name for _, path in changes}))


def _serve_again(target: str, transport: str, where: dict[str, Any], store: str | None, logs: Logs) -> None:
    threading.Thread(target=_end_with_the_watcher, daemon=True).start()
    try:
        _serve(target, transport, where, store, logs)
    except click.ClickException as error:
        # The next change may mend it, so the watcher stays.
        click.echo(f"mcpfusion: {' '.join(error.format_message().split())}", err=True)
    except (KeyboardInterrupt, click.exceptions.Exit):
        return


def _end_with_the_watcher() -> None:
    # A watcher that was killed cannot end its server, which would go on holding the port.
    watcher = multiprocessing.parent_process()
    if watcher is not None:
        watcher.join()
        os.kill(os.getpid(), signal.SIGINT)
