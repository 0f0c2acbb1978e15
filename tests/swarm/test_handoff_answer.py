"""`handoff()`: what is refused at once, how a target finds its specialist, and what a registry may hold."""

import math
from typing import Any

import pytest

from mcpfusion import Fusion
from mcpfusion.swarm import Handoff, HandoffError, Specialist, handoff
from mcpfusion.swarm.registry import Registry

REGISTRY = Registry({"finance": "http://127.0.0.1:1", "support-agent": "mcp://h/x", "a.b": "https://h"})


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("finance", "finance"),
        ("mcp://finance", "finance"),
        ("mcp://finance-agent", "finance"),
        ("mcps://finance-agent.internal.example:8443/mcp", "finance"),
        ("finance-agent", "finance"),
        ("http://finance.example", "finance"),
        ("mcp://FINANCE-agent", "finance"),
        ("support-agent", "support-agent"),
        ("mcp://support-agent.example", "support-agent"),
        ("a.b", "a.b"),
        ("mcp://a.b", "a.b"),
    ],
)
def test_a_target_finds_its_specialist(target: str, found: str) -> None:
    assert REGISTRY.find(handoff(target))[0] == found


@pytest.mark.parametrize("target", ["mcp://legal-agent", "financ", "support", "mcp://finance-agent-agent", "b"])
def test_an_unknown_target_is_refused_with_what_there_is(target: str) -> None:
    with pytest.raises(HandoffError, match=r"there are: finance, support-agent, a\.b") as caught:
        REGISTRY.find(handoff(target))
    assert caught.value.code == "UNKNOWN_TARGET"
    if target == "financ":
        assert "did you mean 'finance'" in str(caught.value)


@pytest.mark.parametrize(
    "target",
    ["", " ", "a b", "mcp://", "ftp://finance", "javascript://x", "mcp://[", "x" * 3000, None, 5, "a\nb", "é"],
)
def test_a_target_that_is_none_is_refused_at_once(target: Any) -> None:
    with pytest.raises(ValueError, match="target"):
        handoff(target)


@pytest.mark.parametrize("state", [[], "text", {"a": math.nan}, {"a": object()}, {1: 1}, {"a": "x" * 1_100_000}])
def test_state_that_cannot_be_carried_is_refused_at_once(state: Any) -> None:
    with pytest.raises(ValueError):
        handoff("finance", carry_over_state=state)


def test_a_megabyte_of_state_is_accepted_and_no_repr_shows_it() -> None:
    answer = handoff("finance", carry_over_state={"who": "PRIVATE" + "x" * 1_048_500}, reason="r", model_hint="fast")
    assert answer._MCPFUSION_handoff is True
    assert isinstance(answer, Handoff)
    assert "PRIVATE" not in repr(answer)
    assert (answer.reason, answer.model_hint) == ("r", "fast")


@pytest.mark.parametrize(
    ("at", "url"),
    [
        ("http://finance-agent:8081", "http://finance-agent:8081/mcp"),
        ("http://h/", "http://h/mcp"),
        ("https://h/x?y=1", "https://h/x?y=1"),
        ("mcp://h:1/", "http://h:1/mcp"),
        ("mcps://h", "https://h/mcp"),
    ],
)
def test_a_url_without_a_path_means_mcp(at: str, url: str) -> None:
    assert Specialist(at).url == url


@pytest.mark.parametrize(
    "entry",
    [
        "ftp://h",
        "finance",
        "http://",
        [],
        [1],
        {"url": "http://h", "command": ["x"]},
        {},
        {"url": "http://h", "alow": ["x"]},
        {"url": "http://h", "secret": "short"},
        None,
        {"url": "http://h", "transport": "carrier-pigeon"},
        {"url": "http://h", "max_sessions": 0},
        {"url": "http://h:99999"},
        {"url": 5},
        {"server": {}},
    ],
    ids=str,
)
def test_a_registry_entry_that_cannot_be_right_is_refused_at_the_start(entry: Any) -> None:
    with pytest.raises(ValueError, match=r"registry\.finance|secret"):
        Registry({"finance": entry})


@pytest.mark.parametrize("name", ["", "a b", "é", "x" * 65, "a\n"])
def test_a_registry_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="registry"):
        Registry({name: "http://h"})


@pytest.mark.parametrize("promised", [Handoff, Handoff | None, Handoff | dict[str, int]])
def test_an_action_that_promises_a_handoff_promises_nothing_of_the_answer(promised: Any) -> None:
    """The gateway answers in its place, and clients hold an answer against the schema."""

    def route() -> Any:
        return handoff("finance")

    route.__annotations__["return"] = promised
    f = Fusion("triage")
    f.action("triage.route").describe("Route").handle(route)
    (action,) = f.registry()
    assert action.signature.output_schema is None
