"""What every store's URL has in common: how it names an engine, and what of it may be shown."""

import re
from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")

SUPPORTED = (
    "supported are memory:// (ends with the process), sqlite:///relative.db, sqlite:////absolute/path.db, "
    "postgresql://user@host/database and redis://host:port/0"
)

REDIS_SCHEMES = tuple(
    f"{engine}{tls}{kind}"
    for engine in ("redis", "valkey")
    for tls in ("", "s")
    for kind in ("", "+sentinel", "+cluster")
)


def opener_for(url: str, openers: Mapping[str, T]) -> T:
    """Return the one of `openers`, by scheme in lower case, that the URL's scheme names.

    Raises:
        ValueError: The URL names none of them. The message never repeats what stands before an `@`.
    """
    scheme, separator, _ = url.partition("://")
    if not separator or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        raise ValueError(f"{masked(url)!r} is no store URL{_meant_path(url)}; {SUPPORTED}")
    opener = openers.get(scheme.lower())
    if opener is None:
        from difflib import get_close_matches

        near = get_close_matches(scheme.lower(), openers, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f"no store for {scheme}:// URLs{hint}; {SUPPORTED}")
    return opener


def check_memory(url: str) -> None:
    """Refuse a name in a memory URL.

    Raises:
        ValueError: There is one.
    """
    if url.partition("://")[2].strip("/"):
        raise ValueError(f"memory:// takes no name: every store in memory is one of its own; {SUPPORTED}")


def sqlite_path(url: str) -> str:
    """Return the path in a sqlite URL, with its percent escapes decoded.

    Raises:
        ValueError: It names no file, or carries options.
    """
    from urllib.parse import unquote

    path, options, _ = url.partition("://")[2].partition("?")
    if options or "#" in path:
        raise ValueError(f"a sqlite URL takes no options (write ? as %3F and # as %23); {SUPPORTED}")
    if not path.startswith("/"):
        shown = masked(path)
        hint = f" (did you mean sqlite:///{shown}?)" if shown and not shown.startswith(":") else ""
        raise ValueError(f"sqlite:// needs three slashes and a path{hint}; {SUPPORTED}")
    name = unquote(path[1:])
    if not name.strip("/") or name.startswith(":memory:"):
        raise ValueError(f"a sqlite URL names a file; for a store in memory write memory://; {SUPPORTED}")
    return name


def masked(url: str) -> str:
    """Return the URL without what may be secret in it."""
    # Everything up to the last @ may be a secret: a password can itself hold @, : and /.
    _, at, host = url.rpartition("@")
    return f"***@{host}" if at else url


def _meant_path(url: str) -> str:
    if "@" in url or not url or ":" in url:
        return ""
    return f" (did you mean sqlite:///{url}?)"
