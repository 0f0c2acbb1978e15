import dataclasses
import datetime
import json
import math
from typing import Any

import mcp_types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpfusion.actions import ResultError, ToolError, ToolResult, error_result, text
from mcpfusion.actions.results import as_block, structured_result


def test_what_is_not_set_is_not_on_the_wire() -> None:
    assert ToolResult([]).to_wire() == {"content": []}
    assert ToolResult([text("a")], {"b": 1}, True, {"c": 2}).to_wire() == {
        "content": [{"type": "text", "text": "a"}],
        "structuredContent": {"b": 1},
        "isError": True,
        "_meta": {"c": 2},
    }


def test_empty_and_false_structured_content_is_still_content() -> None:
    assert ToolResult([], {}).to_wire()["structuredContent"] == {}
    assert ToolResult([], 0).to_wire()["structuredContent"] == 0


def test_a_result_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ToolResult([]).is_error = True  # pyright: ignore[reportAttributeAccessIssue]


def test_a_result_comes_back_from_the_wire() -> None:
    for result in (
        ToolResult([]),
        ToolResult([text("a")], {"b": 1}, True, {"c": 2}),
        ToolResult([text("a")], 0),
    ):
        assert ToolResult.from_wire(result.to_wire()) == result
    assert ToolResult.from_wire({}) == ToolResult([])


def test_entries_are_added_to_the_meta_and_nothing_else_changes() -> None:
    result = ToolResult([text("a")], {"b": 1}, True, {"c": 2})
    assert result.with_meta({"d": 3}) == ToolResult([text("a")], {"b": 1}, True, {"c": 2, "d": 3})
    assert result.meta == {"c": 2}
    assert ToolResult([]).with_meta({"d": 3}).meta == {"d": 3}


def test_an_error_result() -> None:
    result = error_result("CARD_DECLINED", "no funds", {"retry": False, "at": datetime.date(2024, 1, 2)})
    assert result.to_wire() == {
        "content": [{"type": "text", "text": "CARD_DECLINED: no funds"}],
        "structuredContent": {"retry": False, "at": "2024-01-02", "code": "CARD_DECLINED", "message": "no funds"},
        "isError": True,
    }
    mcp_types.CallToolResult.model_validate(result.to_wire())


def test_an_error_without_code_is_its_message() -> None:
    assert error_result(None, "no funds").to_wire() == {
        "content": [{"type": "text", "text": "no funds"}],
        "structuredContent": {"message": "no funds"},
        "isError": True,
    }


def test_details_cannot_hide_code_and_message() -> None:
    structured = error_result("A", "b", {"code": "X", "message": "y", "more": 1}).structured
    assert structured == {"code": "A", "message": "b", "more": 1}


@pytest.mark.parametrize("data", [{"a": object()}, {"a": "\ud800"}, {"\ud800": 1}, {"a": b"\xff"}, {"a": math.nan}])
def test_an_error_result_does_not_fail_itself(data: Any) -> None:
    result = error_result("A", "b\ud800", data)
    assert result.content == [{"type": "text", "text": "A: b?"}]
    assert result.structured == {"code": "A", "message": "b?"}
    loop: dict[str, Any] = {}
    loop["loop"] = loop
    assert error_result("A", "b", loop).structured == {"code": "A", "message": "b"}


def test_a_structured_result_must_be_json() -> None:
    assert structured_result({"a": "é"}).content == [{"type": "text", "text": '{"a":"é"}'}]
    for data in ({"a": math.nan}, {"a": "\ud800"}, [math.inf, "NaN"]):
        with pytest.raises(ResultError):
            structured_result(data)


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(exclude_categories=())))
def test_a_text_block_can_always_be_sent(value: str) -> None:
    block = text(value)
    json.dumps(block, ensure_ascii=False).encode()
    assert len(block["text"]) == len(value)


def test_a_block_is_a_copy() -> None:
    mine = {"type": "text", "text": "a"}
    block = as_block(mine)
    assert block == mine
    assert block is not mine


@pytest.mark.parametrize("value", [None, 5, "x", [], {}, {"type": "nothing"}, {"type": "resource", "resource": 1}])
def test_what_is_no_block(value: Any) -> None:
    assert as_block(value) is None


def test_a_tool_error_carries_what_it_was_given() -> None:
    error = ToolError("declined", code="CARD_DECLINED", in_doubt=True, data={"a": 1})
    assert str(error) == error.message == "declined"
    assert (error.code, error.in_doubt, error.data) == ("CARD_DECLINED", True, {"a": 1})
    bare = ToolError("declined")
    assert (bare.code, bare.in_doubt, bare.data) == (None, False, {})
