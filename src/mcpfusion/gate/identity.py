"""Whose request it is: the caller's identity, the scope it lives in, the handle of its workflow."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from typing import Any, Literal, cast

HANDLE_LIMIT = 1024
"""Longest handle in bytes of UTF-8."""

_RESERVED = ("@session:", "@principal", "@process")

MINTED_PREFIX = "wf_"
"""What the handles that the gate mints begin with."""

PROCESS_HANDLE = "@process"
PRINCIPAL_HANDLE = "@principal"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who sends a request, as far as the server knows.

    Attributes:
        principal: The authenticated caller, or None.
        session_id: The session's id in the handshake eras over HTTP, or None.
        headers: The HTTP request's headers, lower-case names; empty over stdio.
        http: The request came over HTTP, where callers who do not say who they are can be many.
    """

    principal: str | None = None
    session_id: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    http: bool = False


Access = Literal["owner", "shared"] | Callable[[Identity], str]
"""Who shares workflows: each principal his own, all callers one scope, or what the callable says (a tenant)."""


class HandleError(ValueError):
    """A handle that cannot name a workflow. The message is meant for the caller."""


class ScopeError(ValueError):
    """The access callable did not return a scope. The message is for the log."""


def check_access(access: object) -> None:
    """Refuse an access rule that could not name any caller's scope.

    Raises:
        ValueError: It is none of `owner`, `shared` and a callable that is not async.
    """
    if iscoroutinefunction(access) or iscoroutinefunction(getattr(access, "__call__", None)):  # noqa: B004
        raise ValueError(f"access: {access!r} is async; a scope is told from the Identity without waiting")
    if access not in ("owner", "shared") and not callable(access):
        raise ValueError(
            f"access: expected 'owner', 'shared' or a callable from an Identity to a scope, got {access!r}"
        )


def scope_of(access: Access, identity: Identity) -> str:
    """Return the scope the caller's workflows live in; "" is everybody's.

    Raises:
        ScopeError: The access callable raised, or returned something that is no string that can be kept.
    """
    if access == "owner":
        return identity.principal or ""
    if access == "shared":
        return ""
    try:
        scope = access(identity)
    except Exception as error:
        raise ScopeError(f"access callable raised {type(error).__name__}") from error
    if not isinstance(cast(object, scope), str):
        raise ScopeError(f"access callable returned {type(scope).__name__}, expected str")
    try:
        scope.encode()
    except UnicodeEncodeError:
        raise ScopeError("access callable returned text with an unpaired surrogate") from None
    return scope


def own_handle(identity: Identity) -> str:
    """Return the handle of a caller who names none: his session's, his own, or the process's."""
    if identity.session_id is not None:
        return f"@session:{identity.session_id}"
    return PRINCIPAL_HANDLE if identity.principal is not None else PROCESS_HANDLE


def is_own(handle: str) -> bool:
    """Return whether the gate gave the handle to a caller who names none."""
    return handle.startswith(_RESERVED)


def handle_argument(key: str, arguments: Mapping[str, Any]) -> str | None:
    """Return the handle that the call's arguments carry, or None when the argument is absent.

    Raises:
        HandleError: It is not a non-empty string or an integer, too long, or a reserved name.
    """
    value = arguments.get(key)
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        if value.bit_length() > 4 * HANDLE_LIMIT:  # Python refuses to write out numbers that are much longer
            raise HandleError(f"{key}: at most {HANDLE_LIMIT} bytes, got a longer number")
        value = str(value)
    if not isinstance(value, str):
        raise HandleError(f"{key}: expected a string that names the workflow, got {type(value).__name__}")
    if not value:
        raise HandleError(f"{key}: expected a string that names the workflow, got an empty one")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise HandleError(f"{key}: expected valid Unicode text, got an unpaired surrogate") from None
    if size > HANDLE_LIMIT:
        raise HandleError(f"{key}: at most {HANDLE_LIMIT} bytes, got {size}")
    reserved = next((name for name in _RESERVED if value.startswith(name)), None)
    if reserved is not None:
        raise HandleError(f"{key}: names that begin with {reserved!r} are reserved")
    return value
