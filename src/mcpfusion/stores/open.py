"""From a store's URL to the store."""

import re
from collections.abc import Callable

from .protocol import VersionedFsmStateStore

_SUPPORTED = "supported are memory:// (ends with the process), sqlite:///relative.db and sqlite:////absolute/path.db"


def open_store(url: str, *, create: bool = True) -> VersionedFsmStateStore:
    """Return the store that `url` names. Nothing is opened before it is first used.

    Args:
        url: `memory://`, `sqlite:///relative.db` or `sqlite:////absolute/path.db`. A relative path counts
            from the current folder; percent escapes in a path are decoded (`%20`).
        create: False refuses, at the first use, a file that does not exist yet.

    Raises:
        ValueError: The URL names no store. The message never repeats what stands before an `@`.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        raise ValueError(f"{_masked(url)!r} is no store URL{_meant_path(url)}; {_SUPPORTED}")
    opener = _OPENERS.get(scheme.lower())
    if opener is None:
        from difflib import get_close_matches

        near = get_close_matches(scheme.lower(), _OPENERS, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f"no store for {scheme}:// URLs{hint}; {_SUPPORTED}")
    return opener(rest, create)


def _open_memory(rest: str, create: bool) -> VersionedFsmStateStore:
    if rest.strip("/"):
        raise ValueError(f"memory:// takes no name: every store in memory is one of its own; {_SUPPORTED}")
    from .memory import MemoryStore

    return MemoryStore()


def _open_sqlite(rest: str, create: bool) -> VersionedFsmStateStore:
    from urllib.parse import unquote

    path, options, _ = rest.partition("?")
    if options or "#" in path:
        raise ValueError(f"a sqlite URL takes no options (write ? as %3F and # as %23); {_SUPPORTED}")
    if not path.startswith("/"):
        shown = _masked(path)
        hint = f" (did you mean sqlite:///{shown}?)" if shown and not shown.startswith(":") else ""
        raise ValueError(f"sqlite:// needs three slashes and a path{hint}; {_SUPPORTED}")
    name = unquote(path[1:])
    if not name.strip("/") or name.startswith(":memory:"):
        raise ValueError(f"a sqlite URL names a file; for a store in memory write memory://; {_SUPPORTED}")
    from .sqlite import SqliteStore

    return SqliteStore(name, create=create)


def _meant_path(url: str) -> str:
    if "@" in url or not url or ":" in url:
        return ""
    return f" (did you mean sqlite:///{url}?)"


def _masked(url: str) -> str:
    # Everything up to the last @ may be a secret: a password can itself hold @, : and /.
    _, at, host = url.rpartition("@")
    return f"***@{host}" if at else url


_OPENERS: dict[str, Callable[[str, bool], VersionedFsmStateStore]] = {
    "memory": _open_memory,
    "sqlite": _open_sqlite,
}
