"""The ledger: what handlers really did, whatever became of their processes."""

import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["began", "done", "ended"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line.

    Attributes:
        kind: The handler began; had its effect; ended, however it did.
        at: On the clock that never goes back, which all processes of a machine share.
        key: The step's idempotency key.
        call: The same for a call and its repeats.
        attempt: The one request.
        state: Where the workflow stood, as the handler was told.
        event: What the handler's success sends.
    """

    kind: Kind
    at: float
    order: str
    tool: str
    key: str
    call: str
    attempt: str
    state: str
    event: str
    process: int


class Ledger:
    """The file that one process writes. Each line is one write, and is there when the process is killed after it."""

    def __init__(self, folder: Path) -> None:
        self._process = os.getpid()
        self._file = os.open(folder / f"{self._process}.ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, kind: Kind, **of: str) -> None:
        """Add a line."""
        entry = Entry(kind, time.monotonic(), process=self._process, **of)
        os.write(self._file, (json.dumps(asdict(entry)) + "\n").encode())


class Ledgers:
    """The files of all processes, read as far as they are written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self.entries: list[Entry] = []

    def fresh(self) -> list[Entry]:
        """Read on, and return all entries so far."""
        for file in sorted(self._folder.glob("*.ledger")):
            with open(file, "rb") as lines:
                lines.seek(self._read.get(file, 0))
                text = lines.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read[file] = self._read.get(file, 0) + len(whole)
            self.entries += [Entry(**json.loads(line)) for line in whole.splitlines()]
        return self.entries


def effects(entries: Iterable[Entry], key: str) -> list[Entry]:
    """Return the effects that a step had."""
    return [entry for entry in entries if entry.kind == "done" and entry.key == key]
