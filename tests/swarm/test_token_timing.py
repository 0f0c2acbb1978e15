"""How long a refusal takes says nothing about where the first wrong byte of a token is."""

import random
import time
from collections.abc import Sequence

import pytest

from mcpfusion.swarm import HandoffAuthError, keyring, mint_delegation_token, verify_delegation_token

pytestmark = pytest.mark.anyio

SECRET = "a-secret-that-is-long-enough-for-a-test-0001"
ROUNDS = 1500


def changed(text: str, place: int) -> str:
    return text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :]


def separation(one: Sequence[float], other: Sequence[float]) -> float:
    """Return how far two samples are apart: 0 when neither is the slower one, 0.5 when one always is.

    It is the probability that a value of one is above a value of the other (Mann-Whitney), less a half: it compares
    ranks, so that a pause of the machine in the middle of one measurement counts as one value and no more.
    """
    ranked = sorted([(value, 0) for value in one] + [(value, 1) for value in other])
    below = above = 0
    for _, whose in ranked:
        if whose:
            above += below
        else:
            below += 1
    return abs(above / (len(one) * len(other)) - 0.5)


async def times(tokens: dict[str, str]) -> dict[str, list[float]]:
    """Return how long the refusals of each token took, measured by turns in random order. It is the time of this
    thread that is taken, so that what else the machine does is not in it."""
    taken: dict[str, list[float]] = {name: [] for name in tokens}
    order = [*tokens] * ROUNDS
    random.Random(1).shuffle(order)
    for name in order:
        token = tokens[name]
        start = time.thread_time()
        try:
            await verify_delegation_token(token, SECRET)
        except HandoffAuthError:
            taken[name].append(time.thread_time() - start)
    return taken


def in_steps(a: bytes, b: bytes) -> bool:
    """Compare as nobody should, slowly, and stop at the first wrong byte."""
    for mine, given in zip(a, b, strict=False):
        if mine != given:
            return False
        sum(range(50))
    return len(a) == len(b)


@pytest.mark.parametrize("leaky", [False, True], ids=["as it is", "with a comparison that stops early"])
async def test_a_refusal_takes_as_long_wherever_the_first_wrong_byte_is(
    leaky: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload, _, signature = (await mint_delegation_token("finance", 60, SECRET, "g", {"a": 1})).partition(".")
    tokens = {
        f"signature {place}": f"{payload}.{changed(signature, place)}"
        for place in (0, len(signature) // 2, len(signature) - 1)
    }
    if leaky:
        # The measurement is worth something: it finds a comparison that does depend on the place.
        monkeypatch.setattr(keyring.hmac, "compare_digest", in_steps)
    else:
        tokens |= {f"payload {place}": f"{changed(payload, place)}.{signature}" for place in (0, len(payload) - 1)}
    first, *others = (await times(tokens)).values()
    apart = [separation(first, other) for other in others]
    if leaky:
        assert apart[-1] > 0.2, apart
    else:
        assert max(apart) < 0.1, apart
