"""What Redis's errors mean: one line with a remedy, and nothing in it of the URL, of keys or of data."""

from .protocol import StoreError

try:
    from redis.exceptions import (
        AuthenticationError,
        BusyLoadingError,
        ClusterDownError,
        ConnectionError,
        MaxConnectionsError,
        NoPermissionError,
        OutOfMemoryError,
        ReadOnlyError,
        RedisError,
        ResponseError,
        TimeoutError,
    )
except ImportError as error:
    raise StoreError("a redis:// store needs redis: pip install 'mcpfusion[redis]'") from error

_REPLACED = frozenset({"READONLY", "CLUSTERDOWN", "MASTERDOWN", "UNBLOCKED"})

_KINDS: tuple[tuple[type[RedisError], str, str], ...] = (
    (AuthenticationError, "the user or password is refused", "check those in the URL, and the server's ACL"),
    (NoPermissionError, "its user may not do this", "allow it the commands and keys that the documentation names"),
    (BusyLoadingError, "it is still loading its data", "wait until it has started"),
    (
        MaxConnectionsError,
        "it takes no more connections",
        "raise its maxclients, or lower max_connections",
    ),
    (ReadOnlyError, "it only takes reads", "name its master in the URL, or the Sentinels that know it"),
    (OutOfMemoryError, "it is full", "raise its maxmemory, or remove what is no longer needed"),
    (ClusterDownError, "the Cluster does not serve this slot", "see which of its nodes are away"),
    (TimeoutError, "cannot be reached in time", "see whether it answers"),
)
_WORDS = (
    ("max number of clients", _KINDS[3]),
    ("OOM command not allowed", _KINDS[5]),
    ("READONLY", _KINDS[4]),
    ("MISCONF", (RedisError, "it cannot save to its disk and takes no writes", "see its log")),
    (
        "NOREPLICAS",
        (RedisError, "it has too few replicas to take writes", "see min-replicas-to-write"),
    ),
    ("UNBLOCKED", (RedisError, "it was replaced as the master while it waited for its replicas", "")),
    ("certificate", (RedisError, "its TLS certificate is not trusted", "see ssl_ca_certs and ssl_check_hostname")),
    ("LATE", (RedisError, "no answer in time", "see what the server is busy with")),
)


class NotMasterError(StoreError):
    """The server is a replica: nothing was done, and another one is to be asked."""


def explain(error: BaseException) -> StoreError:
    """Return the StoreError for what went wrong in redis-py or the server."""
    if isinstance(error, StoreError):
        return error
    said = str(error)
    for word, (_, reason, remedy) in _WORDS:
        if word in said:
            return failure(reason, remedy)
    for kind, reason, remedy in _KINDS:
        if isinstance(error, kind):
            return failure(reason, remedy)
    if isinstance(error, ConnectionError | OSError):
        return failure("cannot be reached, or the connection was lost", "start it, or correct the URL")
    if isinstance(error, ResponseError):
        # The code alone: what follows may quote a key.
        return failure(f"it answered with the error {code_of(error)}")
    return failure(type(error).__name__)


def failure(reason: str, remedy: str = "") -> StoreError:
    """Return a StoreError of one line."""
    return StoreError(f"Redis store: {reason}" + (f"; {remedy}" if remedy else ""))


def is_replaced(error: object) -> bool:
    """Whether a server says that it is not the one to ask any more."""
    # What a command in a script says stands somewhere in what is said of the script.
    return isinstance(error, RedisError) and (code_of(error) in _REPLACED or "READONLY" in str(error))


def code_of(error: RedisError) -> str:
    """Return the first word of an error as the server sent it, which says its kind."""
    code = getattr(error, "status_code", None) or str(error).partition(" ")[0]
    return code if code.isalnum() and code.isupper() else "ERR"


__all__ = ["NotMasterError", "RedisError", "ResponseError", "code_of", "explain", "failure", "is_replaced"]
