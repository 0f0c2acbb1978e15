"""Delegation tokens: what a gateway signs for a specialist, in MCP Fusion's wire form.

`base64url(JSON claims) "." base64url(HMAC-SHA256(secret, first part))`, without padding. The claims `iss`, `sub`,
`iat`, `exp`, `tid`, `state` or `state_id`, and `traceparent` are MCP Fusion's in every language; `aud`, `jti`, `kid`,
`act` and `state_sha256` are added here and ignored elsewhere.
"""

import base64
import hashlib
import json
import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from mcpfusion.swarm.errors import AuthCode, HandoffAuthError
from mcpfusion.swarm.jsontext import stringify
from mcpfusion.swarm.keyring import Secrets
from mcpfusion.swarm.state import HandoffStateStore, ReplayStore

INLINE_STATE_LIMIT = 2048
"""Largest carried state, in bytes of compact UTF-8 JSON, that travels in the token itself."""

LEEWAY = 30.0
"""Seconds by which the clocks of a gateway and a specialist may differ."""

MAX_LIFETIME = 7200.0
"""Longest lifetime of a token, in seconds, that a verifier accepts."""

TOKEN_LIMIT = 16 * 1024
"""Longest token in characters that is looked at."""

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Act:
    """The call that a token is for: the tool as the specialist names it, and a digest of its arguments."""

    tool: str
    arguments_sha256: str

    @classmethod
    def of(cls, tool: str, arguments: Mapping[str, Any] | None) -> "Act":
        """Return the act of one call."""
        text = json.dumps(arguments or {}, sort_keys=True, separators=(",", ":"))
        return cls(tool, hashlib.sha256(text.encode()).hexdigest())


@dataclass(frozen=True, slots=True)
class Delegation:
    """A verified delegation: what a gateway lets the caller do, and what it carries along.

    Attributes:
        issuer: The gateway.
        scope: The specialist it is for.
        tid: The handoff's id.
        issued_at: Seconds since the epoch, and so is `expires_at`.
        state: The carried state, or None.
        traceparent: W3C Trace Context, or None.
        depth: How many gateways the conversation has come through.
    """

    issuer: str
    scope: str
    tid: str
    issued_at: float
    expires_at: float
    state: Mapping[str, Any] | None = field(default=None, repr=False)
    traceparent: str | None = None
    audience: str | None = None
    jti: str | None = field(default=None, repr=False)
    act: Act | None = None
    depth: int = 0


def encode_token(claims: Mapping[str, Any], secrets: Secrets) -> str:
    """Return the token of these claims; the same claims and secret give the same bytes in every language."""
    payload = _encode(stringify(claims).encode())
    return f"{payload.decode()}.{_encode(secrets.sign(payload)).decode()}"


async def mint_delegation_token(
    scope: str,
    ttl_seconds: float,
    secret: str | Sequence[str] | Secrets,
    issuer: str = "mcpfusion-gateway",
    carry_over_state: Mapping[str, Any] | None = None,
    store: HandoffStateStore | None = None,
    traceparent: str | None = None,
    *,
    tid: str | None = None,
    audience: str | None = None,
    act: Act | None = None,
    single_use: bool = False,
    more: Mapping[str, Any] | None = None,
    now: Clock = time.time,
    new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
) -> str:
    """Mint a token for one specialist.

    Args:
        scope: The specialist's name.
        ttl_seconds: How long it is valid.
        secret: Shared with the specialist; of several the first signs.
        issuer: The gateway's name.
        carry_over_state: Travels along: inside the token up to 2,048 bytes of JSON, above that in `store`.
        store: For state that is too large.
        traceparent: The trace to go on with.
        tid: The handoff's id; a new one without it.
        audience: Who may accept it; the original ignores this.
        act: The one call that it is for.
        single_use: Give it an id that a verifier accepts once.
        more: Further claims, such as those of state that is carried by reference already.

    Raises:
        ValueError: A secret that is too short, a lifetime that is not positive, state that is no JSON, or state
            that is too large without a store.
    """
    if not ttl_seconds > 0 or not math.isfinite(ttl_seconds):
        raise ValueError(f"ttl_seconds must be a positive number of seconds, not {ttl_seconds!r}")
    issued = math.floor(now())
    claims: dict[str, Any] = {"iss": issuer, "sub": scope, "iat": issued, "exp": issued + math.ceil(ttl_seconds)}
    claims["tid"] = tid or new_id()
    if traceparent is not None:
        claims["traceparent"] = traceparent
    if carry_over_state is not None:
        claims |= await carried(carry_over_state, store, ttl_seconds, new_id)
    extra = {"aud": audience, "jti": new_id() if single_use else None}
    claims |= {name: value for name, value in extra.items() if value is not None}
    claims |= more or {}
    if act is not None:
        claims["act"] = {"tool": act.tool, "args": act.arguments_sha256}
    return encode_token(claims, Secrets(secret))


async def carried(
    state: Mapping[str, Any], store: HandoffStateStore | None, ttl_seconds: float, new_id: Callable[[], str]
) -> dict[str, Any]:
    """Return the claims that carry `state`: the state itself, or a reference to it and its digest.

    Raises:
        ValueError: See `mint_delegation_token`.
    """
    text = stringify(state)
    if len(text.encode()) <= INLINE_STATE_LIMIT:
        return {"state": dict(state)}
    if store is None:
        raise ValueError(
            f"the carried state has {len(text.encode())} bytes, more than the {INLINE_STATE_LIMIT} that fit a token: "
            "give a handoff state store (store=…) that the specialist shares"
        )
    reference = new_id()
    await store.set(reference, state, ttl_seconds)
    return {"state_id": reference, "state_sha256": state_digest(state)}


def state_digest(state: Mapping[str, Any]) -> str:
    """Return a digest of carried state that does not depend on the order of its keys."""
    return hashlib.sha256(json.dumps(state, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


async def verify_delegation_token(
    token: str | None,
    secret: str | Sequence[str] | Secrets,
    *,
    scope: str | None = None,
    audience: str | None = None,
    issuers: Sequence[str] | None = None,
    store: HandoffStateStore | None = None,
    replays: ReplayStore | None = None,
    act: Act | None = None,
    max_lifetime: float = MAX_LIFETIME,
    leeway: float = LEEWAY,
    now: Clock = time.time,
) -> Delegation:
    """Verify a token: its signature first, over the bytes as received, then every claim.

    Args:
        scope: What `sub` must be; None accepts any.
        audience: What `aud` must be where the token has one; a token without one is accepted.
        issuers: Who may have signed; None accepts any holder of the secret.
        store: Where state that was too large for the token is.
        replays: Where used tokens are marked; a token with an id is then accepted once.
        act: The call at hand; a token for another call is refused.
        max_lifetime: Longest lifetime of a token, in seconds.
        leeway: Seconds by which the clocks may differ, at most 30.

    Raises:
        HandoffAuthError: It is not accepted; see its code.
        ValueError: A secret that is too short, or more leeway than 30 seconds.
    """
    if not 0 <= leeway <= LEEWAY:
        raise ValueError(f"leeway must be between 0 and {LEEWAY:g} seconds, not {leeway!r}")
    claims = _signed_claims(token, Secrets(secret))
    delegation = _typed(claims, max_lifetime)
    _check_time(delegation, now(), leeway)
    if scope is not None and delegation.scope != scope:
        raise HandoffAuthError("SCOPE_MISMATCH", "the token is for another specialist")
    if audience is not None and delegation.audience not in (None, audience):
        raise HandoffAuthError("SCOPE_MISMATCH", "the token is for another audience")
    if issuers is not None and delegation.issuer not in issuers:
        raise HandoffAuthError("INVALID_DELEGATION_TOKEN", "the issuer is not on the list")
    if act is not None and delegation.act is not None and delegation.act != act:
        raise HandoffAuthError("SCOPE_MISMATCH", "the token is for another call")
    delegation = await _with_state(delegation, claims, store)
    # Last, so that a token that is refused for another reason is not used up by that.
    if replays is not None and delegation.jti is not None:
        fresh = await replays.add(delegation.jti, delegation.expires_at + leeway)
        if not fresh:
            raise HandoffAuthError("REPLAYED_DELEGATION_TOKEN", "the token was used before")
    return delegation


def _signed_claims(token: str | None, secrets: Secrets) -> dict[str, Any]:
    if token is None:
        raise HandoffAuthError("MISSING_DELEGATION_TOKEN")
    payload, separator, signature = token.partition(".")
    if not separator or len(token) > TOKEN_LIMIT:
        raise HandoffAuthError("INVALID_DELEGATION_TOKEN", "not of the form payload.signature")
    try:
        signed, given = payload.encode("ascii"), signature.encode("ascii")
    except UnicodeEncodeError:
        raise HandoffAuthError("INVALID_SIGNATURE") from None
    if not secrets.verify(signed, given, _encode):
        raise HandoffAuthError("INVALID_SIGNATURE")
    try:
        # The signature covers these very bytes, so padding or the other alphabet is the signer's own doing.
        text = base64.b64decode(_standard(payload), validate=True).decode()
        claims: object = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise HandoffAuthError("INVALID_DELEGATION_TOKEN", "the payload is no JSON") from None
    if not isinstance(claims, dict):
        raise HandoffAuthError("INVALID_DELEGATION_TOKEN", "the payload is no JSON object")
    return cast(dict[str, Any], claims)


def _typed(claims: Mapping[str, Any], max_lifetime: float) -> Delegation:
    issued, expires = _number(claims, "iat"), _number(claims, "exp")
    if not issued <= expires or expires - issued > max_lifetime:
        raise HandoffAuthError("INVALID_DELEGATION_TOKEN", "the lifetime is negative or too long")
    if "state" in claims and not isinstance(claims["state"], dict):
        raise HandoffAuthError("INVALID_DELEGATION_TOKEN", "claim state is no object")
    if "state" in claims and "state_id" in claims:
        raise HandoffAuthError("INVALID_DELEGATION_TOKEN", "claims state and state_id exclude each other")
    return Delegation(
        issuer=_text(claims, "iss"),
        scope=_text(claims, "sub"),
        tid=_text(claims, "tid"),
        issued_at=issued,
        expires_at=expires,
        state=cast("dict[str, Any] | None", claims.get("state")),
        traceparent=_text(claims, "traceparent") if "traceparent" in claims else None,
        audience=_text(claims, "aud") if "aud" in claims else None,
        jti=_text(claims, "jti") if "jti" in claims else None,
        act=_act(claims["act"]) if "act" in claims else None,
        depth=int(_number(claims, "depth")) if "depth" in claims else 0,
    )


def _check_time(delegation: Delegation, now: float, leeway: float) -> None:
    if now > delegation.expires_at + leeway:
        raise HandoffAuthError("EXPIRED_DELEGATION_TOKEN")
    if delegation.issued_at > now + leeway:
        raise HandoffAuthError("INVALID_DELEGATION_TOKEN", "the token is from the future")


async def _with_state(
    delegation: Delegation, claims: Mapping[str, Any], store: HandoffStateStore | None
) -> Delegation:
    if "state_id" not in claims:
        return delegation
    reference = _text(claims, "state_id")
    if store is None:
        raise HandoffAuthError("INVALID_DELEGATION_TOKEN", "the carried state is in a store, and none is given here")
    state = await store.get(reference)
    if state is None:
        raise HandoffAuthError("EXPIRED_DELEGATION_TOKEN", "the carried state is no longer there")
    digest = claims.get("state_sha256")
    if digest is not None and digest != state_digest(state):
        raise HandoffAuthError("INVALID_DELEGATION_TOKEN", "the carried state is not the one that was signed")
    return replace(delegation, state=state)


def _text(claims: Mapping[str, Any], name: str) -> str:
    value = claims.get(name)
    if not isinstance(value, str) or not value:
        raise _malformed(name)
    return value


def _number(claims: Mapping[str, Any], name: str) -> float:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e15 < value < 1e15:
        raise _malformed(name)
    return value


def _act(value: object) -> Act:
    if not isinstance(value, dict):
        raise _malformed("act")
    claims = cast(dict[str, Any], value)
    return Act(_text(claims, "tool"), _text(claims, "args"))


def _malformed(name: str, code: AuthCode = "INVALID_DELEGATION_TOKEN") -> HandoffAuthError:
    return HandoffAuthError(code, f"claim {name} is missing or of the wrong type")


def _encode(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _standard(payload: str) -> str:
    text = payload.rstrip("=").replace("-", "+").replace("_", "/")
    return text + "=" * (-len(text) % 4)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
