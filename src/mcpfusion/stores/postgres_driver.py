"""The names of psycopg that are used here, or a word on how to get it."""

from .protocol import StoreError

try:
    from psycopg import AsyncConnection, Error, Notify, OperationalError
    from psycopg.abc import PQGen
    from psycopg.adapt import PyFormat, Transformer
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.errors import ReadOnlySqlTransaction, error_from_result
    from psycopg.generators import execute, notifies
    from psycopg.pq import ConnStatus, ExecStatus, Format
    from psycopg.pq.abc import PGconn, PGresult
    from psycopg.waiting import Ready, Wait
except ImportError as error:
    raise StoreError("a postgresql:// store needs psycopg: pip install 'mcpfusion[postgres]'") from error

__all__ = [
    "AsyncConnection",
    "ConnStatus",
    "Error",
    "ExecStatus",
    "Format",
    "Notify",
    "OperationalError",
    "PGconn",
    "PGresult",
    "PQGen",
    "PyFormat",
    "ReadOnlySqlTransaction",
    "Ready",
    "Transformer",
    "Wait",
    "conninfo_to_dict",
    "error_from_result",
    "execute",
    "notifies",
]
