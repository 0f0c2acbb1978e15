"""What can go wrong with a handoff. Messages hold no secret, token or state."""

from typing import Literal

AuthCode = Literal[
    "MISSING_DELEGATION_TOKEN",
    "INVALID_DELEGATION_TOKEN",
    "EXPIRED_DELEGATION_TOKEN",
    "INVALID_SIGNATURE",
    "SCOPE_MISMATCH",
    "REPLAYED_DELEGATION_TOKEN",
]

HandoffCode = Literal[
    "UNKNOWN_TARGET",
    "TOO_MANY_SESSIONS",
    "TOO_MANY_HANDOFFS",
    "TOO_DEEP",
    "PING_PONG",
    "UPSTREAM_UNAVAILABLE",
    "UPSTREAM_TIMEOUT",
    "UPSTREAM_REFUSED",
    "STATE_NOT_SHARED",
    "NO_HANDOFF",
    "NOT_IN_NAMESPACE",
    "TOOL_CHANGED",
    "HANDOFF_BUSY",
    "STORE_UNAVAILABLE",
]


class HandoffAuthError(Exception):
    """A delegation was not accepted.

    Attributes:
        code: Why; for the log. The caller is told FORBIDDEN and no more.
    """

    def __init__(self, code: AuthCode, detail: str = "") -> None:
        super().__init__(f"{code}: {detail}" if detail else code)
        self.code: AuthCode = code


class HandoffError(Exception):
    """A handoff, or a call through one, could not be done. The message is meant for the client.

    Attributes:
        code: Why, for programs.
    """

    def __init__(self, code: HandoffCode, message: str) -> None:
        super().__init__(message)
        self.code: HandoffCode = code
        self.message = message
