"""A Redis URL: which servers it names and how to reach them; what is redis-py's, what is ours."""

import re
from collections.abc import Mapping
from inspect import signature
from typing import Any, Literal
from urllib.parse import unquote

from redis.asyncio.connection import Connection, parse_url

Address = tuple[str, int]
Kind = Literal["single", "sentinel", "cluster"]

DEFAULT_PREFIX = "mcpfusion:"
DEFAULT_POOL_SIZE = 2
CONNECT_LIMIT = 2.0
"""Seconds for one attempt to connect, so that another server of the URL still has its turn."""

_PORTS: Mapping[Kind, int] = {"single": 6379, "sentinel": 26379, "cluster": 6379}
_SCHEME = re.compile(r"(?P<engine>redis|valkey)(?P<tls>s?)(\+(?P<kind>sentinel|cluster))?", re.IGNORECASE)
_KINDS: Mapping[str, Kind] = {"": "single", "sentinel": "sentinel", "cluster": "cluster"}
_SHAPES: Mapping[Kind, str] = {
    "single": "redis://[user:password@]host[:port][/database]",
    "sentinel": "redis+sentinel://[user:password@]host[:port][,…]/service[/database]",
    "cluster": "redis+cluster://[user:password@]host[:port][,…]",
}
# How an answer is read, and how often something is tried, is our affair.
_FIXED: Mapping[str, Any] = {
    "protocol": 2,
    "socket_timeout": None,
    "socket_connect_timeout": CONNECT_LIMIT,
    "health_check_interval": 0,
    "decode_responses": False,
    "encoding": "utf-8",
    "driver_info": None,
}
_PASSED_ON = re.compile(r"client_name|socket_keepalive|ssl_\w+")


class RedisUrl:
    """What a URL says. Its `repr` shows nothing of it.

    Args:
        url: `redis://`, `redis+sentinel://` or `redis+cluster://`, with `rediss` for TLS and `valkey` for `redis` if
            you like. Options: `prefix`, `wait`, `max_connections`, `sentinel_username`, `sentinel_password`, and
            redis-py's `client_name`, `socket_keepalive` and `ssl_…`.

    Attributes:
        kind: One server, a service that Sentinels watch, or a Cluster.
        hosts: The server; the Sentinels; some of the Cluster's nodes.
        service: What the Sentinels call it.
        database: Its number.
        prefix: What every key begins with.
        wait: How many replicas must have a write before it counts.
        pool_size: Connections that one process opens at most to one server for its operations.

    Raises:
        ValueError: It cannot be read. The message repeats nothing of it but the names of options.
    """

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        named = _SCHEME.fullmatch(scheme)
        if named is None:
            raise ValueError("expected redis://, redis+sentinel:// or redis+cluster://, with rediss for TLS")
        self.kind: Kind = _KINDS[(named["kind"] or "").lower()]
        place, _, query = rest.partition("?")
        credentials, _, place = place.rpartition("@")
        netloc, _, path = place.partition("/")
        self.hosts = self._addresses(netloc)
        self.service, self.database = self._service_and_database(path)
        options = self._options("rediss" if named["tls"] else "redis", credentials, query)
        self.prefix = self._prefix(options.pop("prefix", DEFAULT_PREFIX))
        self.wait = self._count(options, "wait", 0 if self.kind == "single" else 1, 0, 100)
        self.pool_size = self._count(options, "max_connections", DEFAULT_POOL_SIZE, 1, 1000)
        sentinel = {name: options.pop(f"sentinel_{name}", None) for name in ("username", "password")}
        self._class: type[Connection] = options.pop("connection_class", Connection)
        unknown = next(
            (name for name in options if name not in ("username", "password") and not self._known(name)), ""
        )
        if unknown:
            raise ValueError(f"a {scheme.lower()} URL has no option {unknown!r}")
        self._options_of_server = {**options, **_FIXED, "db": self.database}
        self._options_of_sentinel = {**options, **_FIXED, **sentinel, "db": 0}
        self.connection(self.hosts[0])

    def connection(self, address: Address) -> Connection:
        """Return a connection to a server, not yet made."""
        return self._connection(address, self._options_of_server)

    def sentinel_connection(self, address: Address) -> Connection:
        """Return a connection to a Sentinel, not yet made."""
        return self._connection(address, self._options_of_sentinel)

    def _connection(self, address: Address, options: Mapping[str, Any]) -> Connection:
        try:
            return self._class(host=address[0], port=address[1], **options)
        except Exception as error:
            raise ValueError(f"an option of the {self.kind} URL cannot be used ({type(error).__name__})") from None

    def _known(self, name: str) -> bool:
        return bool(_PASSED_ON.fullmatch(name)) and any(
            name in signature(each.__init__).parameters for each in self._class.__mro__
        )

    def _malformed(self) -> ValueError:
        return ValueError(
            f"the URL cannot be read; expected {_SHAPES[self.kind]}, "
            "with %-escapes for /, @, :, ? and % in names and passwords"
        )

    def _addresses(self, netloc: str) -> list[Address]:
        found: list[Address] = []
        for each in netloc.split(","):
            parts = re.fullmatch(r"(\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^\[\]:@\s]*))(:(?P<port>\d{1,5}))?", each)
            host = parts and (parts["v6"] or unquote(parts["name"]))
            if parts is None or not host:
                raise self._malformed()
            found.append((host, int(parts["port"] or _PORTS[self.kind])))
        if self.kind == "single" and len(found) > 1:
            raise ValueError("a redis URL names one server; for several there are redis+sentinel and redis+cluster")
        return found

    def _service_and_database(self, path: str) -> tuple[str, int]:
        service = ""
        if self.kind == "sentinel":
            service, _, path = path.partition("/")
            if not service:
                raise self._malformed()
        number = path.rstrip("/")
        if number and not (number.isascii() and number.isdigit() and len(number) < 6):
            raise ValueError("the database in a redis URL is a number from 0 up")
        if self.kind == "cluster" and int(number or 0):
            raise ValueError("a Redis Cluster has no databases but 0")
        return unquote(service), int(number or 0)

    def _options(self, scheme: str, credentials: str, query: str) -> dict[str, Any]:
        try:
            # The host is put in later: there may be several, which redis-py's function does not take.
            at = f"{credentials}@" if credentials else ""
            options: dict[str, Any] = dict(parse_url(f"{scheme}://{at}host?{query}"))
        except ValueError:
            raise self._malformed() from None
        if options.pop("host", None) != "host":
            raise self._malformed()
        return options

    def _prefix(self, prefix: str) -> str:
        if "{" in prefix or "}" in prefix or not 0 < len(prefix) <= 100:
            raise ValueError("prefix: expected 1 to 100 characters, without braces")
        return prefix

    def _count(self, options: dict[str, Any], name: str, default: int, least: int, most: int) -> int:
        value = str(options.pop(name, default))
        if not (value.isascii() and value.isdigit() and least <= int(value) <= most):
            raise ValueError(f"{name}: expected a number from {least} to {most}")
        return int(value)
