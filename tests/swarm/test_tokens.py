"""Delegation tokens: what a verifier refuses, what nobody sees, and how secrets are changed."""

import logging
import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpfusion.swarm import (
    HandoffAuthError,
    InMemoryHandoffStateStore,
    InMemoryReplayStore,
    SwarmGateway,
    mint_delegation_token,
    require_gateway_clearance,
    verify_delegation_token,
)
from mcpfusion.swarm.jsontext import stringify
from mcpfusion.swarm.keyring import Secrets
from mcpfusion.swarm.open import open_swarm_stores
from mcpfusion.swarm.tokens import Act, encode_token

pytestmark = pytest.mark.anyio

SECRET = "a-secret-that-is-long-enough-for-a-test-0001"
OTHER = "another-secret-that-is-long-enough-for-a-test"
MARK = "PRIVATE-STATE-5d1f"
ACT = Act.of("refund", {"amount": 5})


async def code_of(token: str | None, secret: Any = SECRET, **options: Any) -> str:
    with pytest.raises(HandoffAuthError) as caught:
        await verify_delegation_token(token, secret, **options)
    if token:
        assert token not in str(caught.value)
    assert SECRET not in str(caught.value)
    assert MARK not in str(caught.value)
    return caught.value.code


def signed(**claims: Any) -> str:
    base = {"iss": "g", "sub": "finance", "iat": 1000, "exp": 1060, "tid": "t"}
    kept = {key: value for key, value in (base | claims).items() if value is not ...}
    return encode_token(kept, Secrets(SECRET))


def at(now: float) -> dict[str, Any]:
    return {"now": lambda: now}


# Bits.

_TOKEN = signed(state={"intent": "refund"}, jti="j", act={"tool": "refund", "args": ACT.arguments_sha256})


async def test_a_token_with_one_bit_changed_is_refused() -> None:
    for place in range(len(_TOKEN)):
        for bit in range(8):
            changed = bytearray(_TOKEN.encode())
            changed[place] ^= 1 << bit
            code = await code_of(changed.decode("latin-1"), **at(1010))
            assert code in {"INVALID_SIGNATURE", "INVALID_DELEGATION_TOKEN"}


_json = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5)


@settings(max_examples=25, deadline=None)
@given(state=st.dictionaries(st.text(max_size=8), _json, max_size=4), data=st.data())
async def test_whatever_a_token_carries_it_arrives_and_no_bit_of_it_can_be_changed(state: Any, data: Any) -> None:
    token = await mint_delegation_token("finance", 60, SECRET, carry_over_state=state, single_use=True)
    assert (await verify_delegation_token(token, SECRET)).state == state
    changed = bytearray(token.encode())
    changed[data.draw(st.integers(0, len(token) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert await code_of(changed.decode("latin-1")) in {"INVALID_SIGNATURE", "INVALID_DELEGATION_TOKEN"}


async def test_the_token_without_a_bit_changed_is_accepted() -> None:
    assert (await verify_delegation_token(_TOKEN, SECRET, act=ACT, **at(1010))).state == {"intent": "refund"}


@pytest.mark.parametrize("end", ["", "=", "\n", " ", "\0", "A", ".x"])
async def test_nothing_may_stand_around_a_token(end: str) -> None:
    if end:
        assert await code_of(_TOKEN + end, **at(1010)) == "INVALID_SIGNATURE"
        assert await code_of(end + _TOKEN, **at(1010)) == "INVALID_SIGNATURE"


async def test_a_token_of_more_than_16_kib_is_not_looked_at() -> None:
    assert await code_of("a" * 20_000 + "." + "b" * 43) == "INVALID_DELEGATION_TOKEN"
    assert await code_of(None) == "MISSING_DELEGATION_TOKEN"


async def test_the_signature_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from mcpfusion.swarm import keyring

    seen: list[tuple[bytes, bytes]] = []
    compare = keyring.hmac.compare_digest
    monkeypatch.setattr(keyring.hmac, "compare_digest", lambda a, b: seen.append((a, b)) or compare(a, b))
    payload, _, signature = _TOKEN.partition(".")
    for wrong in ("A" + signature[1:], signature[:-1] + "A"):
        seen.clear()
        await code_of(f"{payload}.{wrong}", [SECRET, OTHER], **at(1010))
        # Every secret is tried over the whole signature, wherever the first wrong byte stands.
        assert [given for _, given in seen] == [wrong.encode()] * 2


# Claims.


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": ...},
        {"exp": "1060"},
        {"exp": True},
        {"exp": 999},
        {"exp": 1e300},
        {"exp": 1000 + 7201},
        {"iat": ...},
        {"iat": None},
        {"iat": 1041},
        {"sub": ...},
        {"sub": ["finance"]},
        {"sub": ""},
        {"iss": 5},
        {"tid": ...},
        {"state": "text"},
        {"state": []},
        {"state": {}, "state_id": "x"},
        {"state_id": 7},
        {"traceparent": 1},
        {"aud": ["finance"]},
        {"jti": 5},
        {"act": "refund"},
        {"act": {"tool": "refund"}},
        {"act": {"tool": "refund", "args": 5}},
        {"depth": "1"},
    ],
    ids=str,
)
async def test_a_signed_token_with_a_malformed_claim_is_invalid(claims: dict[str, Any]) -> None:
    store = InMemoryHandoffStateStore()
    assert await code_of(signed(**claims), store=store, **at(1010)) == "INVALID_DELEGATION_TOKEN"


@pytest.mark.parametrize("text", ['{"iss":NaN}', "[]", "5", "null", "{", "[" * 100_000, '"x"'])
async def test_a_signed_payload_that_is_no_object_is_invalid(text: str) -> None:
    import base64

    payload = base64.urlsafe_b64encode(text.encode()[:9000]).rstrip(b"=")
    signature = base64.urlsafe_b64encode(Secrets(SECRET).sign(payload)).rstrip(b"=")
    assert await code_of(f"{payload.decode()}.{signature.decode()}") == "INVALID_DELEGATION_TOKEN"


@pytest.mark.parametrize(("now", "code"), [(969, "INVALID_DELEGATION_TOKEN"), (1091, "EXPIRED_DELEGATION_TOKEN")])
async def test_clocks_may_differ_by_30_seconds_and_no_more(now: float, code: str) -> None:
    assert await code_of(signed(), **at(now)) == code
    for near in (970, 1000, 1060, 1090):
        assert (await verify_delegation_token(signed(), SECRET, **at(near))).scope == "finance"
    with pytest.raises(ValueError, match="leeway"):
        await verify_delegation_token(signed(), SECRET, leeway=31)


async def test_a_token_for_legal_is_refused_at_finance() -> None:
    token = await mint_delegation_token("legal", 60, SECRET)
    assert await code_of(token, scope="finance") == "SCOPE_MISMATCH"
    token = await mint_delegation_token("finance", 60, SECRET, audience="legal")
    assert await code_of(token, scope="finance", audience="finance") == "SCOPE_MISMATCH"
    token = await mint_delegation_token("finance", 60, SECRET, "stranger")
    assert await code_of(token, issuers=["triage"]) == "INVALID_DELEGATION_TOKEN"


async def test_a_token_for_one_call_is_refused_for_another() -> None:
    token = await mint_delegation_token("finance", 60, SECRET, act=ACT)
    assert (await verify_delegation_token(token, SECRET, act=ACT)).act == ACT
    for other in (Act.of("payout", {"amount": 5}), Act.of("refund", {"amount": 6}), Act.of("tools/list", {})):
        assert await code_of(token, act=other) == "SCOPE_MISMATCH"
    assert Act.of("x", {"a": 1, "b": 2}) == Act.of("x", {"b": 2, "a": 1})


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_replayed_token_is_refused(kind: str, tmp_path: Any) -> None:
    url = "memory://" if kind == "memory" else f"sqlite:///{tmp_path}/swarm.db"
    replays = open_swarm_stores(url).replays
    token = await mint_delegation_token("finance", 60, SECRET, single_use=True)
    # A refusal for another reason does not use the token up.
    assert await code_of(token, scope="legal", replays=replays) == "SCOPE_MISMATCH"
    assert (await verify_delegation_token(token, SECRET, replays=replays)).jti
    assert await code_of(token, replays=replays) == "REPLAYED_DELEGATION_TOKEN"
    if kind == "sqlite":  # another process of the host knows it too
        assert await code_of(token, replays=open_swarm_stores(url).replays) == "REPLAYED_DELEGATION_TOKEN"


async def test_marks_of_used_tokens_are_bounded_and_fail_closed() -> None:
    now = [0.0]
    replays = InMemoryReplayStore(limit=2, clock=lambda: now[0])
    assert await replays.add("a", 50)
    assert await replays.add("b", 50)
    assert not await replays.add("c", 50)
    now[0] = 51
    assert await replays.add("c", 99)


# Secrets.


@pytest.mark.parametrize("secret", ["", "short", "x" * 31, [], ["y" * 40, "short"]])
def test_a_secret_shorter_than_32_bytes_is_refused_at_the_start(secret: Any) -> None:
    for make in (
        Secrets,
        require_gateway_clearance,
        lambda secret: SwarmGateway({}, secret),
        lambda secret: SwarmGateway({"a": {"url": "http://a", "secret": secret}}, SECRET),
    ):
        with pytest.raises(ValueError, match="secret") as caught:
            make(secret)
        assert "short" not in str(caught.value).replace("shorter", "")
        assert "yyyy" not in str(caught.value)
    Secrets("é" * 16)  # 32 bytes, 16 characters


async def test_secrets_rotate_without_a_refused_token() -> None:
    old, new = SECRET, OTHER
    stages: list[tuple[Any, Any]] = [
        (old, old),
        (old, [new, old]),
        ([new, old], [new, old]),
        (new, [new, old]),
        (new, new),
    ]
    for gateway, specialist in stages:
        token = await mint_delegation_token("finance", 60, gateway)
        assert (await verify_delegation_token(token, specialist)).scope == "finance"
    assert await code_of(await mint_delegation_token("finance", 60, [old, new]), new) == "INVALID_SIGNATURE"


# State.


@pytest.mark.parametrize("size", [2047, 2048, 2049, 1024 * 1024])
@pytest.mark.parametrize("char", ["a", "é"])
async def test_state_above_2048_bytes_goes_by_reference(size: int, char: str, tmp_path: Any) -> None:
    state = {"p": ""}
    room = size - len(stringify(state))
    state["p"] = char * (room // len(char.encode())) + "a" * (room % len(char.encode()))
    assert len(stringify(state).encode()) == size
    store = open_swarm_stores(f"sqlite:///{tmp_path}/swarm.db").states
    token = await mint_delegation_token("finance", 60, SECRET, carry_over_state=state, store=store)
    assert len(token) < 4096
    for _ in range(3):  # reading does not remove it
        assert (await verify_delegation_token(token, SECRET, store=store)).state == state
    if size > 2048:
        assert await code_of(token) == "INVALID_DELEGATION_TOKEN"
        with pytest.raises(ValueError, match="store"):
            await mint_delegation_token("finance", 60, SECRET, carry_over_state=state)
    else:
        assert (await verify_delegation_token(token, SECRET)).state == state


class Changed:
    """A store in which somebody changed what was kept."""

    shared = True

    async def set(self, key: str, state: Mapping[str, Any], ttl_seconds: float) -> None: ...

    async def get(self, key: str) -> Mapping[str, Any] | None:
        return {"p": "b" * 3000}

    async def delete(self, key: str) -> None: ...


async def test_state_that_was_changed_in_the_store_is_refused() -> None:
    store = Changed()
    token = await mint_delegation_token("finance", 60, SECRET, carry_over_state={"p": "a" * 3000}, store=store)
    assert await code_of(token, store=store) == "INVALID_DELEGATION_TOKEN"


async def test_state_expires_in_the_store_and_is_then_an_expired_token(tmp_path: Any) -> None:
    from mcpfusion.swarm.sqlite_state import SqliteSwarmStore

    now = [1000.0]
    for store in (
        InMemoryHandoffStateStore(clock=lambda: now[0]),
        SqliteSwarmStore(tmp_path / "s.db", clock=lambda: now[0]),
    ):
        now[0] = 1000.0
        token = await mint_delegation_token(
            "f", 60, SECRET, carry_over_state={"p": "a" * 3000}, store=store, now=lambda: now[0]
        )
        now[0] = 1061.0
        assert await code_of(token, store=store, now=lambda: now[0]) == "EXPIRED_DELEGATION_TOKEN"


@pytest.mark.parametrize(
    "state", [{"a": math.nan}, {"a": math.inf}, {"a": object()}, {1: 2}, {"a": b"x"}, {"a": {1}}]
)
async def test_state_that_is_no_json_is_refused_before_anything_is_signed(state: Any) -> None:
    with pytest.raises(ValueError):
        await mint_delegation_token("finance", 60, SECRET, carry_over_state=state)


@pytest.mark.parametrize("ttl", [0, -1, math.nan, math.inf])
async def test_a_lifetime_must_be_positive(ttl: float) -> None:
    with pytest.raises(ValueError, match="ttl_seconds"):
        await mint_delegation_token("finance", ttl, SECRET)


# What nobody sees.


async def test_no_secret_token_or_state_is_in_a_repr_a_message_or_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    token = await mint_delegation_token("finance", 60, SECRET, carry_over_state={"who": MARK}, single_use=True)
    clearance = require_gateway_clearance(SECRET, scope="finance")
    found = await clearance.check({"x-mcpfusion-delegation": token}, {}, ACT)
    assert found.state == {"who": MARK}
    with pytest.raises(HandoffAuthError) as replayed:
        await clearance.check({}, {"x-mcpfusion-delegation": token}, ACT)
    with pytest.raises(HandoffAuthError) as forged:
        await clearance.check({}, {"x-mcpfusion-delegation": token[:-4] + "AAAA"}, ACT)
    gateway = SwarmGateway({"f": {"url": "http://f", "secret": SECRET}}, SECRET)
    shown = [found, clearance, Secrets(SECRET), gateway, gateway.registry.specialists, replayed.value, forged.value]
    text = "\n".join([*(f"{value!r} {value}" for value in shown), caplog.text])
    assert "REPLAYED_DELEGATION_TOKEN" in caplog.text  # the log knows the reason
    for private in (SECRET, MARK, token, token[-20:], found.jti or "none"):
        assert private not in text
