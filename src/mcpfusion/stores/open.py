"""From a store's URL to the store."""

from collections.abc import Callable

from .protocol import VersionedFsmStateStore
from .urls import REDIS_SCHEMES, check_memory, opener_for, sqlite_path


def open_store(url: str, *, create: bool = True) -> VersionedFsmStateStore:
    """Return the store that `url` names. Nothing is opened before it is first used.

    Args:
        url: `memory://`, `sqlite:///relative.db` or `sqlite:////absolute/path.db`, `redis://…`, `postgresql://…`. A
            relative path counts from the current folder; percent escapes in a path are decoded (`%20`).
        create: False refuses, at the first use, a file that does not exist yet.

    Raises:
        ValueError: The URL names no store. The message never repeats what stands before an `@`.
        StoreError: The package of its engine is not installed.
    """
    return opener_for(url, _OPENERS)(url, create)


def _open_memory(url: str, create: bool) -> VersionedFsmStateStore:
    check_memory(url)
    from .memory import MemoryStore

    return MemoryStore()


def _open_sqlite(url: str, create: bool) -> VersionedFsmStateStore:
    path = sqlite_path(url)
    from .sqlite import SqliteStore

    return SqliteStore(path, create=create)


def _open_postgres(url: str, create: bool) -> VersionedFsmStateStore:
    from .postgres import PostgresStore

    return PostgresStore(url)


def _open_redis(url: str, create: bool) -> VersionedFsmStateStore:
    from .redis import RedisStore

    return RedisStore(url)


_OPENERS: dict[str, Callable[[str, bool], VersionedFsmStateStore]] = {
    "memory": _open_memory,
    "sqlite": _open_sqlite,
    "postgresql": _open_postgres,
    "postgres": _open_postgres,
    **dict.fromkeys(REDIS_SCHEMES, _open_redis),
}
