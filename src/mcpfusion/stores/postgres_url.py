"""A PostgreSQL URL: what is libpq's, what is ours, and what may never be shown of it."""

from typing import Any
from urllib.parse import unquote

from .postgres_driver import Error, conninfo_to_dict

DEFAULT_SCHEMA = "mcpfusion"
DEFAULT_POOL_SIZE = 10
_OWN = "mcpfusion_"

_DEFAULTS: dict[str, Any] = {
    "fallback_application_name": "mcpfusion",
    # Per host, so that after one that hangs the next still has its turn within an operation's time.
    "connect_timeout": 2,
    # A server that vanished without a word is noticed within seconds, not hours.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}


class PostgresUrl:
    """What a URL says. Its `repr` shows nothing of it.

    Args:
        url: `postgresql://` or `postgres://`, as libpq takes it, with `mcpfusion_schema` and
            `mcpfusion_pool_size` among its parameters when they are not the default.

    Attributes:
        parameters: For `psycopg.AsyncConnection.connect`.
        schema: The schema that holds the tables.
        pool_size: Connections that one process opens at most for its operations.

    Raises:
        ValueError: libpq does not understand the URL, or a parameter of ours is wrong. Repeats nothing of the URL.
    """

    def __init__(self, url: str) -> None:
        plain, own = _split(url)
        self.parameters = {**_DEFAULTS, **_parse(plain), "client_encoding": "utf8"}
        self.schema = own.pop("schema", DEFAULT_SCHEMA)
        size = own.pop("pool_size", str(DEFAULT_POOL_SIZE))
        if own:
            raise ValueError(
                f"a postgresql URL has no parameter {_OWN + min(own)!r}; ours are {_OWN}schema and {_OWN}pool_size"
            )
        if not 0 < len(self.schema.encode()) <= 63 or "\0" in self.schema or self.schema.startswith("pg_"):
            raise ValueError(f"{_OWN}schema: expected a schema's name of at most 63 bytes")
        if not (size.isascii() and size.isdigit() and 0 < int(size) <= 1000):
            raise ValueError(f"{_OWN}pool_size: expected a number from 1 to 1000")
        self.pool_size = int(size)

    @property
    def quoted_schema(self) -> str:
        """The schema's name as SQL writes it."""
        return '"' + self.schema.replace('"', '""') + '"'


def _split(url: str) -> tuple[str, dict[str, str]]:
    """Return the URL without our parameters, and those."""
    head, _, rest = url.partition("://")
    # As libpq: whatever stands before an @ that comes before the first slash is user and password, ? and all.
    before_slash = rest.partition("/")[0]
    after = len(head) + 3 + (before_slash.find("@") + 1)
    place, mark, query = url[after:].partition("?")
    own: dict[str, str] = {}
    kept: list[str] = []
    for pair in query.split("&") if mark else []:
        name, _, value = pair.partition("=")
        if name.startswith(_OWN):
            own[name.removeprefix(_OWN)] = unquote(value)
        else:
            kept.append(pair)
    return head.lower() + url[len(head) : after] + place + ("?" + "&".join(kept) if kept else ""), own


def _parse(url: str) -> dict[str, Any]:
    try:
        found = dict(conninfo_to_dict(url))
    except Error:
        found = {"port": "unreadable"}
    # Else parts of a password that was not escaped would be taken for other parts, and be named in errors.
    ports = str(found.get("port") or "").split(",")
    if "@" in str(found.get("dbname") or "") or not all(port.isdigit() or not port for port in ports):
        # What libpq says quotes the part it cannot read.
        raise ValueError(
            "the postgresql URL cannot be read; expected postgresql://user:password@host:port/database?parameter=…, "
            "with %-escapes for /, @, :, ?, & and % in names and passwords"
        )
    return found
