"""What is to be done before workflows that expired can be removed from a store."""

from mcpfusion.gate import records
from mcpfusion.stores.protocol import VersionedFsmStateStore

_PAGE = 100


async def release_abandoned(store: VersionedFsmStateStore, *, before: float, pages: int = 10) -> None:
    """Take the claims from workflows that expired before `before` with a step in doubt that may be taken again.

    Nobody called them since, and a store removes nothing that is claimed. What `hold` keeps stays as it is.

    Args:
        pages: How many hundreds of the workflows in doubt to look at.

    Raises:
        StoreError: The store failed.
    """
    after: tuple[str, str] | None = None
    for _ in range(pages):
        page = await store.list_workflows(in_doubt_at=before, after=after, limit=_PAGE)
        for record in page:
            if records.expired(record, before):
                await store.write(records.released(record), expected_version=record.version)
        if len(page) < _PAGE:
            return
        after = (page[-1].scope, page[-1].handle)
