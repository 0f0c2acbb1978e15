"""Where workflows are kept: the protocols, and the engines that come with the package."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .open import open_store
from .protocol import (
    Claim,
    DoubtPolicy,
    FsmSnapshot,
    FsmStateStore,
    LastStep,
    Outcome,
    Step,
    StoreError,
    VersionedFsmStateStore,
    Workflow,
)

if TYPE_CHECKING:
    from .keyvalue import KeyValueFsmStateStore
    from .memory import InMemoryFsmStateStore, MemoryStore
    from .postgres import PostgresStore
    from .redis import RedisStore
    from .sqlite import SqliteStore

__all__ = [
    "Claim",
    "DoubtPolicy",
    "FsmSnapshot",
    "FsmStateStore",
    "InMemoryFsmStateStore",
    "KeyValueFsmStateStore",
    "LastStep",
    "MemoryStore",
    "Outcome",
    "PostgresStore",
    "RedisStore",
    "SqliteStore",
    "Step",
    "StoreError",
    "VersionedFsmStateStore",
    "Workflow",
    "open_store",
]

_ENGINES = {
    "InMemoryFsmStateStore": ".memory",
    "KeyValueFsmStateStore": ".keyvalue",
    "MemoryStore": ".memory",
    "PostgresStore": ".postgres",
    "RedisStore": ".redis",
    "SqliteStore": ".sqlite",
}


def __getattr__(name: str) -> Any:
    if name not in _ENGINES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_ENGINES[name], __name__), name)
