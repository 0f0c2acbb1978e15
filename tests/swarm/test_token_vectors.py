"""Delegation tokens against those of MCP Fusion for TypeScript: the same bytes, and refused where they are odd."""

import json
from pathlib import Path
from typing import Any

import pytest

from mcpfusion.swarm import (
    Delegation,
    HandoffAuthError,
    InMemoryHandoffStateStore,
    mint_delegation_token,
    verify_delegation_token,
)
from mcpfusion.swarm.jsontext import stringify
from mcpfusion.swarm.keyring import Secrets
from mcpfusion.swarm.tokens import encode_token

pytestmark = pytest.mark.anyio

_DATA = Path(__file__).parent.parent / "data" / "delegation"
MINTED = json.loads((_DATA / "minted.json").read_text())["tokens"]
_ODD = json.loads((_DATA / "odd.json").read_text())
ODD, ODD_NOW = _ODD["vectors"], _ODD["now"]

CODES = {
    "INVALID_SIGNATURE",
    "INVALID_DELEGATION_TOKEN",
    "EXPIRED_DELEGATION_TOKEN",
}


def named(vectors: list[dict[str, Any]]) -> Any:
    return pytest.mark.parametrize("vector", vectors, ids=[vector["name"] for vector in vectors])


async def store_of(vector: dict[str, Any]) -> InMemoryHandoffStateStore | None:
    """Return the store that the vector's specialist has; "empty" is one, None is none."""
    kept = vector.get("store")
    if kept is None:
        return None
    store = InMemoryHandoffStateStore()
    for key, state in kept.items() if isinstance(kept, dict) else ():
        await store.set(key, {"p": "a" * state["p_len"]} if "p_len" in state else state, 3600)
    return store


async def verified(vector: dict[str, Any], now: float) -> Delegation:
    return await verify_delegation_token(
        vector["token"], vector["secret"], store=await store_of(vector), now=lambda: now, leeway=0
    )


@named(MINTED)
async def test_a_token_of_the_original_verifies_and_says_what_it_said_there(vector: dict[str, Any]) -> None:
    claims = vector["claims"]
    found = await verified(vector, claims["iat"] + 10)
    assert (found.issuer, found.scope, found.tid) == (claims["iss"], claims["sub"], claims["tid"])
    assert (found.issued_at, found.expires_at) == (claims["iat"], claims["exp"])
    assert found.traceparent == claims.get("traceparent")
    if "state_id" in claims:
        store = await store_of(vector)
        assert store is not None
        assert found.state == await store.get(claims["state_id"])
    else:
        assert found.state == json.loads(vector["payload_json"]).get("state")


@named(MINTED)
def test_the_same_claims_give_the_same_bytes(vector: dict[str, Any]) -> None:
    claims = json.loads(vector["payload_json"])
    assert stringify(claims) == vector["payload_json"]
    assert encode_token(claims, Secrets(vector["secret"])) == vector["token"]


@named([vector for vector in MINTED if "state_id" not in vector["claims"]])
async def test_minting_for_the_same_handoff_gives_the_originals_token(vector: dict[str, Any]) -> None:
    claims = json.loads(vector["payload_json"])
    token = await mint_delegation_token(
        claims["sub"],
        claims["exp"] - claims["iat"],
        vector["secret"],
        claims["iss"],
        claims.get("state"),
        None,
        claims.get("traceparent"),
        now=lambda: claims["iat"],
        new_id=lambda: claims["tid"],
    )
    assert token == vector["token"]


async def test_state_of_2049_bytes_goes_by_reference_as_in_the_original() -> None:
    (vector,) = (vector for vector in MINTED if vector["name"] == "claimcheck_2049_bytes")
    state = {"p": "a" * 2041}
    store = InMemoryHandoffStateStore()
    token = await mint_delegation_token("finance", 60, vector["secret"], "g", state, store)
    assert (await verify_delegation_token(token, vector["secret"], store=store)).state == state
    with pytest.raises(HandoffAuthError) as caught:
        await verify_delegation_token(token, vector["secret"])
    assert caught.value.code == "INVALID_DELEGATION_TOKEN"


@named(ODD)
async def test_an_odd_token_is_refused_or_accepted_as_the_vectors_say(vector: dict[str, Any]) -> None:
    said = vector["original_says"]
    now = vector.get("now", ODD_NOW)
    if said == "ok" and vector["name"].startswith(("boundary", "payload_std_base64")):
        assert (await verified(vector, now)).scope == "finance"
        return
    # Where the original let a signed token with malformed claims through, or fell over it, it is invalid here.
    expected = said if said in CODES else "INVALID_DELEGATION_TOKEN"
    if vector["name"] == "signed_exp_null":
        expected = "INVALID_DELEGATION_TOKEN"
    with pytest.raises(HandoffAuthError) as caught:
        await verified(vector, now)
    assert caught.value.code == expected
    assert vector["token"] not in str(caught.value) or not vector["token"].strip(".")
