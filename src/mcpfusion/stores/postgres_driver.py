"""The names of psycopg that are used here, or a word on how to get it."""

from .protocol import StoreError

try:
    from psycopg import AsyncConnection, AsyncRawCursor, Error, Notify, OperationalError
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.errors import ReadOnlySqlTransaction
    from psycopg.pq import ConnStatus, ExecStatus, Format
    from psycopg.pq.abc import PGresult
except ImportError as error:
    raise StoreError("a postgresql:// store needs psycopg: pip install 'mcpfusion[postgres]'") from error

__all__ = [
    "AsyncConnection",
    "AsyncRawCursor",
    "ConnStatus",
    "Error",
    "ExecStatus",
    "Format",
    "Notify",
    "OperationalError",
    "PGresult",
    "ReadOnlySqlTransaction",
    "conninfo_to_dict",
]
