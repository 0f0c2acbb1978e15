"""Workflows in any key-value backend that `py-key-value-aio` knows: DynamoDB, MongoDB, S3, files and more."""

from hashlib import sha256
from typing import TYPE_CHECKING

from .protocol import FsmSnapshot, StoreError

if TYPE_CHECKING:
    from key_value.aio.protocols.key_value import AsyncKeyValueProtocol


class KeyValueFsmStateStore:
    """An `FsmStateStore` over a key-value store. The key-value store stays its owner's, to open and to close.

    Backends forbid different characters and lengths in their keys, and some do not tell capitals from small letters.
    So a snapshot is kept under the SHA-256 of its handle, in 64 hexadecimal digits, which all of them take; the
    handle itself is in the value.

    Args:
        store: Any store of `key_value.aio.stores`, with wrappers around it or not.
        collection: Where in it the snapshots are: letters, digits and underscores are right for every backend.
        ttl: After how many seconds without a move a workflow may be forgotten; None keeps it. A process that has
            served it goes on knowing where it stood, until it ends.

    Raises:
        ValueError: `ttl` is not positive.
    """

    def __init__(
        self, store: "AsyncKeyValueProtocol", *, collection: str = "mcpfusion", ttl: float | None = None
    ) -> None:
        if ttl is not None and not ttl > 0:
            raise ValueError(f"ttl must be positive, not {ttl!r}")
        self._store = store
        self._collection = collection
        self._ttl = ttl

    async def load(self, handle: str) -> FsmSnapshot | None:
        """Return what was last saved under `handle`, or None when there is nothing (any more).

        Raises:
            StoreError: There is something that no snapshot of this handle can be.
            Exception: As the backend says.
        """
        value = await self._store.get(_key(handle), collection=self._collection)
        if value is None:
            return None
        state, updated_at = value.get("state"), value.get("updated_at")
        if value.get("handle") != handle or not isinstance(state, str) or not isinstance(updated_at, str):
            raise StoreError(f"key-value store: what is kept under {_key(handle)} is no snapshot of its handle")
        return FsmSnapshot(state, updated_at)

    async def save(self, handle: str, snapshot: FsmSnapshot) -> None:
        """Keep `snapshot` under `handle`. As durable as the backend makes it.

        Raises:
            Exception: As the backend says.
        """
        value = {"handle": handle, "state": snapshot.state, "updated_at": snapshot.updated_at}
        await self._store.put(_key(handle), value, collection=self._collection, ttl=self._ttl)


def _key(handle: str) -> str:
    return sha256(handle.encode("utf-8", "surrogatepass")).hexdigest()
