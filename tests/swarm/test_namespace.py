"""Namespaces: a specialist's tools under its name, and back, by table."""

import json
from pathlib import Path
from typing import Any

import pytest

from mcpfusion.swarm import NamespaceError, NamespaceRewriter

_VECTORS = json.loads((Path(__file__).parent.parent / "data" / "delegation" / "namespace.json").read_text())


@pytest.mark.parametrize("vector", _VECTORS["rewrite"], ids=lambda vector: vector["prefix"])
def test_tools_are_rewritten_as_the_original_does(vector: dict[str, Any]) -> None:
    given = json.loads(json.dumps(vector["tools"]))
    assert NamespaceRewriter(vector["prefix"]).rewrite_tools(given) == vector["out"]
    assert given == vector["tools"]


@pytest.mark.parametrize("vector", _VECTORS["strip"], ids=lambda vector: vector["name"])
def test_names_are_stripped_as_the_original_does(vector: dict[str, Any]) -> None:
    rewriter = NamespaceRewriter(vector["prefix"])
    if "out" in vector:
        assert rewriter.strip(vector["name"]) == vector["out"]
        return
    with pytest.raises(NamespaceError) as caught:
        rewriter.strip(vector["name"])
    assert (caught.value.tool_name, caught.value.expected_prefix) == (vector["toolName"], vector["expectedPrefix"])


def test_a_name_leads_back_by_table_and_not_by_splitting() -> None:
    rewriter = NamespaceRewriter("finance")
    rewriter.rewrite_tools([{"name": "refund"}, {"name": "finance.refund"}])
    assert rewriter.original("finance.refund") == "refund"
    assert rewriter.original("finance.finance.refund") == "finance.refund"
    for other in ("finance.payout", "refund", "finance.", "support.refund", ""):
        with pytest.raises(NamespaceError):
            rewriter.original(other)


def test_names_that_only_clients_of_few_characters_accept() -> None:
    rewriter = NamespaceRewriter("fin.eu", separator="__")
    names = [tool["name"] for tool in rewriter.rewrite_tools([{"name": "a.b"}, {"name": "c/d"}, {"name": "é"}])]
    assert names == ["fin_eu__a_b", "fin_eu__c_d", "fin_eu___"]
    assert [rewriter.original(name) for name in names] == ["a.b", "c/d", "é"]


def test_two_tools_that_become_one_name_are_refused_with_both_names() -> None:
    rewriter = NamespaceRewriter("finance", separator="__")
    with pytest.raises(ValueError, match=r"'a\.b' and 'a_b'"):
        rewriter.rewrite_tools([{"name": "a.b"}, {"name": "a_b"}])
    # With a dot they are two.
    assert len(NamespaceRewriter("finance").rewrite_tools([{"name": "a.b"}, {"name": "a_b"}])) == 2


def test_names_past_64_characters_are_known() -> None:
    rewriter = NamespaceRewriter("finance")
    rewriter.rewrite_tools([{"name": "x" * 56}, {"name": "y" * 57}])
    assert rewriter.too_long() == ["finance." + "y" * 57]


@pytest.mark.parametrize("separator", ["", ":", "..", "x"])
def test_an_odd_separator_is_refused(separator: str) -> None:
    with pytest.raises(ValueError, match="separator"):
        NamespaceRewriter("finance", separator=separator)


def test_other_characters_stay_where_the_separator_is_one_of_them() -> None:
    for separator in ("__", "_", "-"):
        (tool,) = NamespaceRewriter("f", separator=separator).rewrite_tools([{"name": "a.b"}])
        assert tool["name"] == f"f{separator}a_b"
    (tool,) = NamespaceRewriter("f", separator="/").rewrite_tools([{"name": "a.b"}])
    assert tool["name"] == "f/a.b"
