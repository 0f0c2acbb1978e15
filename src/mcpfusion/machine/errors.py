"""What a machine refuses, and the near miss it names when it does."""

import difflib
import json
import re
from collections.abc import Iterable


class MachineError(Exception):
    """A machine cannot do what it was asked: the base of every error of this package."""


class MachineConfigError(MachineError, ValueError):
    """A configuration, an implementation or a pattern is wrong; the message starts with where."""


class UnknownStateError(MachineError):
    """A stored state does not fit the machine. Nothing is assumed in its place: it is never reset."""


_PLAIN_KEY = re.compile(r"[\w\-]+\Z")


def at(where: str, key: str) -> str:
    """Return the path of `key` below `where`; a key that is no plain word is quoted: `states["v1.0"]`."""
    if not _PLAIN_KEY.match(key):
        return f"{where}[{json.dumps(key, ensure_ascii=False)}]"
    return f"{where}.{key}" if where else key


def fault(where: str, problem: str) -> MachineConfigError:
    """Return the error for a fault at the path `where` ("" is the configuration itself)."""
    return MachineConfigError(f"{where or 'machine'}: {problem}")


def near_miss(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the known name closest to `name`, or "" when none is close."""
    folded = {candidate.casefold(): candidate for candidate in known}
    close = difflib.get_close_matches(name.casefold(), list(folded), n=1, cutoff=0.6)
    return f" (did you mean {folded[close[0]]!r}?)" if close else ""
