"""One SQLite file: how it is opened, what is in it, and what its errors mean. Runs in worker threads."""

import os
import sqlite3
import time
from pathlib import Path

from .protocol import StoreError

SCHEMA_VERSION = 2
APPLICATION_ID = 0x6D637066  # "mcpf": tells our file from another application's, as file(1) does

_SCHEMA = """
CREATE TABLE workflow (
    scope TEXT NOT NULL,
    handle TEXT NOT NULL,
    version INTEGER NOT NULL,
    state TEXT NOT NULL,
    steps INTEGER NOT NULL,
    doubtful_from REAL,
    due REAL,
    expires REAL,
    record TEXT NOT NULL,
    PRIMARY KEY (scope, handle)
);
CREATE INDEX workflow_state ON workflow (scope, state, handle);
CREATE INDEX workflow_in_use ON workflow (scope, state, steps) WHERE steps > 0;
CREATE INDEX workflow_handle ON workflow (handle, scope);
CREATE INDEX workflow_due ON workflow (due, scope, handle) WHERE due IS NOT NULL;
CREATE INDEX workflow_doubt ON workflow (scope, handle) WHERE doubtful_from IS NOT NULL;
CREATE INDEX workflow_expires ON workflow (expires, scope, handle)
WHERE expires IS NOT NULL AND doubtful_from IS NULL;
CREATE TABLE step (
    number INTEGER PRIMARY KEY,
    scope TEXT NOT NULL,
    handle TEXT NOT NULL,
    record TEXT NOT NULL
);
CREATE INDEX step_workflow ON step (scope, handle);
"""

_UPGRADES = {
    1: """
ALTER TABLE workflow ADD COLUMN expires REAL;
CREATE INDEX workflow_expires ON workflow (expires, scope, handle)
WHERE expires IS NOT NULL AND doubtful_from IS NULL;
""",
}
"""What makes a file of each earlier schema version one of the next."""

_REMEDIES = {
    sqlite3.SQLITE_BUSY: "another process holds its lock; see which one, or raise busy_timeout",
    sqlite3.SQLITE_READONLY: "make the file and its folder writable for this process",
    sqlite3.SQLITE_CANTOPEN: "make the file and its folder readable and writable for this process",
    sqlite3.SQLITE_FULL: "free some space on its disk",
    sqlite3.SQLITE_IOERR: "check its disk",
    sqlite3.SQLITE_NOTADB: "it is no SQLite database; name another file, or move this one away",
    sqlite3.SQLITE_CORRUPT: "the file is damaged; restore it from a backup",
}


class SqliteFile:
    """Where the database is, and every connection that was opened to it.

    Attributes:
        path: Absolute, so that a later change of folder does not move it.
        connections: Those still open.
    """

    def __init__(self, path: str | os.PathLike[str], *, busy_timeout: float, create: bool) -> None:
        self.path = Path(os.path.abspath(os.fspath(path)))
        self.connections: set[sqlite3.Connection] = set()
        self._busy_timeout = busy_timeout
        self._create = create
        # Both are those of the first connection.
        self._process: int | None = None
        self._identity: tuple[int, int] | None = None

    def connect(self) -> sqlite3.Connection:
        """Return a new connection that is ready for use, creating the database where there is none.

        Raises:
            StoreError: The file cannot be opened or is not ours.
            sqlite3.Error: As the engine says; `explain` turns it into a StoreError.
        """
        self._check_place()
        self._process = os.getpid()
        connection = sqlite3.connect(
            self.path, timeout=self._busy_timeout, isolation_level=None, check_same_thread=False
        )
        try:
            # Asked before anything is changed: a file that is not ours is left as it is.
            # In one transaction, or another process's new schema would be seen by halves.
            connection.execute("BEGIN")
            version = self._schema_version(connection)
            connection.execute("COMMIT")
            self._use_wal(connection)
            if version != SCHEMA_VERSION:
                self._bring_up_to_date(connection)
            self.check_unmoved()
        except BaseException:
            connection.close()
            raise
        self.connections.add(connection)
        return connection

    def close(self, connection: sqlite3.Connection) -> None:
        """Close one connection; an open transaction is rolled back."""
        self.connections.discard(connection)
        connection.close()

    def close_all(self) -> None:
        """Close every connection, unless this is a forked child: SQLite forbids that there."""
        if os.getpid() == self._process:
            while self.connections:
                self.connections.pop().close()

    def check_unmoved(self) -> None:
        """Refuse to go on with a file that is no longer at its path.

        A process that goes on with a deleted file commits steps that nobody will ever read again.

        Raises:
            StoreError: The file was moved, deleted or replaced, or the process was forked.
        """
        if os.getpid() != self._process:
            raise self.error("was opened before this process was forked", "make the store after the fork")
        try:
            found = os.stat(self.path)
        except OSError as error:
            raise self.error(f"is gone ({error.strerror})", "put it back and restart") from error
        if self._identity is None:
            self._identity = (found.st_dev, found.st_ino)
        elif self._identity != (found.st_dev, found.st_ino):
            raise self.error("was replaced by another file while in use", "restart this process")

    def explain(self, error: Exception) -> StoreError:
        """Return the StoreError, one line with a remedy, for what went wrong in the engine."""
        if isinstance(error, StoreError):
            return error
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        reason = " ".join(str(error).split()) or type(error).__name__
        return self.error(reason, _REMEDIES.get(code, ""))

    def error(self, reason: str, remedy: str) -> StoreError:
        """Return a StoreError of one line that names the file."""
        return StoreError(f"SQLite store {str(self.path)!r}: {reason}" + (f"; {remedy}" if remedy else ""))

    def _check_place(self) -> None:
        if "\0" in str(self.path):
            raise self.error("a path cannot hold a NUL character", "name another file")
        if not self.path.parent.is_dir():
            raise self.error("its folder does not exist", f"create {str(self.path.parent)!r} first")
        if self.path.is_dir():
            raise self.error("is a folder", "name a file in it")
        if self._identity is None and not self._create and not self.path.exists():
            raise self.error("there is no such file", "check the path")
        if self._identity is not None:
            self.check_unmoved()

    def _schema_version(self, connection: sqlite3.Connection) -> int:
        """Return the version of our schema that the file has, 0 when it is empty."""
        application = _pragma(connection, "application_id")
        version = _pragma(connection, "user_version")
        if application == APPLICATION_ID:
            if version != SCHEMA_VERSION and version not in _UPGRADES:
                raise self.error(
                    f"has schema version {version}, this mcpfusion reads version {SCHEMA_VERSION}",
                    "upgrade mcpfusion, or name another file",
                )
            return int(version)
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if application or version or tables:
            raise self.error("is the database of another application", "name a file of its own")
        return 0

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        deadline = time.monotonic() + self._busy_timeout
        while _pragma(connection, "journal_mode") != "wal":
            # SQLite does not wait here when several processes change the mode of one new file at once.
            try:
                mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.005)
                continue
            if mode != "wal":
                raise self.error(f"its file system allows no WAL (mode {mode})", "put it on a local disk")
        connection.execute("PRAGMA synchronous = FULL")
        # macOS: without it fsync() leaves the data in the disk's own cache. Does nothing elsewhere.
        connection.execute("PRAGMA fullfsync = ON")

    def _bring_up_to_date(self, connection: sqlite3.Connection) -> None:
        """Create the schema in an empty file, or make a file of an earlier version one of today's."""
        connection.execute("BEGIN IMMEDIATE")
        # Looked at again: another process may have done it since.
        version = self._schema_version(connection)
        scripts = [_UPGRADES[older] for older in range(version, SCHEMA_VERSION)] if version else [_SCHEMA]
        if version != SCHEMA_VERSION:
            for statement in ";".join(scripts).split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")


def _pragma(connection: sqlite3.Connection, name: str) -> int | str:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]
