"""What PostgreSQL's errors mean: one line with a remedy, and nothing in it of the URL's secrets or the data."""

import re

from .postgres_driver import Error
from .protocol import StoreError

INIT = "mcpfusion store init --store URL"

_UNREACHABLE = "start it, or correct the URL"
_REMEDIES = {
    "25006": "it only takes reads: name all hosts in the URL, with target_session_attrs=read-write",
    "28000": "check the user in the URL, and pg_hba.conf",
    "28P01": "check the user and password in the URL",
    "3D000": "create the database, or correct the URL",
    "3F000": f"run {INIT}",
    "42501": f"give the role of the URL its rights on the schema, or run {INIT} as the schema's owner",
    "42883": f"run {INIT}",
    "42P01": f"run {INIT}",
    "53100": "free some space on its disk",
    "53300": "raise max_connections, or lower mcpfusion_pool_size in the URL",
    "57014": "it was too slow; see what it is busy with",
}
# libpq hands no SQLSTATE over for a connection that failed. Servers that speak another language than English fall
# through to what they say.
_CONNECTING = (
    (r"too many (clients|connections)|remaining connection slots|connection limit", "53300", ""),
    (r"password authentication failed|no password supplied", "28P01", ""),
    (r"no pg_hba\.conf entry|role .* (does not exist|is not permitted)|authentication failed", "28000", ""),
    (r"database .* does not exist", "3D000", ""),
    (r"database system is|recovery", "57P03", "wait until it has started"),
    (r"failed to resolve host|could not translate host", "", "its host's name is not known; correct the URL"),
    (r"[Cc]onnection refused|No such file|[Tt]imed? ?out|timeout expired|unreachable|No route", "", _UNREACHABLE),
    (r"read-only|read-write|hot standby", "25006", ""),
)


def explain(error: BaseException) -> StoreError:
    """Return the StoreError for what went wrong in the driver or the server."""
    if isinstance(error, StoreError):
        return error
    if not isinstance(error, Error):
        return failure(type(error).__name__)
    if error.sqlstate is None:
        return _connecting(error)
    # The primary message alone: details quote rows and keys.
    reason = _line(error.diag.message_primary or type(error).__name__)
    remedy = _REMEDIES.get(error.sqlstate, "")
    if error.sqlstate in ("3F000", "42P01", "42883"):
        reason = "its schema is missing or incomplete"
    return failure(f"{reason} ({error.sqlstate})", remedy)


def failure(reason: str, remedy: str = "") -> StoreError:
    """Return a StoreError of one line."""
    return StoreError(f"PostgreSQL store: {reason}" + (f"; {remedy}" if remedy else ""))


def is_full(error: BaseException) -> bool:
    """Whether the server takes no more connections for now."""
    return isinstance(error, Error) and re.search(_CONNECTING[0][0], str(error)) is not None


def _connecting(error: Error) -> StoreError:
    said = str(error).partition("\nMultiple connection attempts failed")[0]
    reason = _line(re.sub(r"^(connection (failed|is bad): )?(connection to server .*? failed: )?", "", said, count=1))
    reason = re.sub(r"^[A-Z]+: +", "", reason)
    for pattern, code, remedy in _CONNECTING:
        if re.search(pattern, said):
            return failure(reason if code else "it cannot be reached", remedy or _REMEDIES.get(code, ""))
    return failure(reason or "the connection was lost")


def _line(text: str) -> str:
    return " ".join(text.split())
