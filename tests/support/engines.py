"""The engines that replicas share, alike for tests that hold for each of them."""

import atexit
import shutil
import tempfile
import uuid
from functools import cache
from pathlib import Path
from typing import Protocol

from . import postgres_servers, redis_servers

ENGINES = ("redis", "postgresql")


class Engine(Protocol):
    """A server that runs for as long as the tests of this process do."""

    def new_store(self) -> str:
        """Return the URL of a store that is ready and holds nothing."""
        ...

    def cut_listeners(self) -> None:
        """Break the connections on which processes hear what others tell."""
        ...


class _Postgres:
    def new_store(self) -> str:
        return postgres_servers.shared().schema_url()

    def cut_listeners(self) -> None:
        postgres_servers.shared().execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN %' OR query = 'SELECT 1'"
        )


class _Redis:
    def __init__(self) -> None:
        folder = tempfile.mkdtemp(prefix="mcpfusion-redis-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        self._server = redis_servers.Server(Path(folder))
        atexit.register(self._server.kill)
        self._server.start()

    def new_store(self) -> str:
        return f"{self._server.url()}?prefix=test-{uuid.uuid4().hex[:12]}:"

    def cut_listeners(self) -> None:
        self._server.client().execute_command("CLIENT KILL TYPE pubsub")


@cache
def shared_engine(name: str) -> Engine:
    """Return one of `ENGINES`, started at the first call."""
    return _Redis() if name == "redis" else _Postgres()
