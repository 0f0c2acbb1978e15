"""The secrets that a gateway and its specialists share."""

import hashlib
import hmac
from collections.abc import Callable, Sequence

SHORTEST_SECRET = 32
"""Bytes that a secret must have (RFC 2104 §3: at least the hash's output, 32 bytes for SHA-256)."""


class Secrets:
    """One secret or several, the newest first: the newest signs, all of them verify.

    Raises:
        ValueError: There is none, or one is shorter than 32 bytes in UTF-8. The message does not show it.
    """

    __slots__ = ("_keys",)

    def __init__(self, secrets: "str | Sequence[str] | Secrets") -> None:
        if isinstance(secrets, Secrets):
            self._keys: tuple[bytes, ...] = secrets._keys
            return
        given = (secrets,) if isinstance(secrets, str) else tuple(secrets)
        if not given:
            raise ValueError("a delegation secret is needed: at least 32 random bytes")
        for number, secret in enumerate(given, 1):
            if len(secret.encode()) < SHORTEST_SECRET:
                raise ValueError(
                    f"delegation secret number {number} has {len(secret.encode())} bytes, at least {SHORTEST_SECRET} "
                    'are needed; make one with: python -c "import secrets; print(secrets.token_hex(32))"'
                )
        self._keys = tuple(secret.encode() for secret in given)

    def __repr__(self) -> str:
        return f"<Secrets: {len(self._keys)}>"

    def sign(self, data: bytes) -> bytes:
        """Return the HMAC-SHA256 of `data` under the newest secret."""
        return hmac.digest(self._keys[0], data, hashlib.sha256)

    def verify(self, data: bytes, matches: bytes, encode: Callable[[bytes], bytes]) -> bool:
        """Return whether `matches` is the encoded HMAC of `data` under one of the secrets, in constant time."""
        found = False
        for key in self._keys:
            found |= hmac.compare_digest(encode(hmac.digest(key, data, hashlib.sha256)), matches)
        return found
