import asyncio
import collections
import dataclasses
import datetime
import enum
import math
import typing
import uuid
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NewType

import jsonschema
import mcp_types
import pytest
from fastmcp.tools.base import ToolResult as FastMCPToolResult
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, RootModel, computed_field, field_serializer
from typing_extensions import TypeAliasType, TypedDict

from mcpfusion.actions import RegistrationError, ResultError, Signature, ToolResult
from tests.support.ids import case_name


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Receipt(BaseModel):
    id: str
    paid: bool = True


class Detailed(Receipt):
    internal: str = "do not show"


class Aliased(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    invoice_id: str = Field(alias="invoiceId")

    @computed_field
    @property
    def short(self) -> str:
        return self.invoice_id[:2]


class Broken(BaseModel):
    x: int

    @field_serializer("x")
    def refuse(self, value: int) -> str:
        raise LookupError("internal")


class Node(BaseModel):
    name: str
    children: list["Node"] = []


class Names(RootModel[list[str]]):
    pass


class Table(RootModel[dict[str, int]]):
    pass


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0


class Options(TypedDict, total=False):
    deep: bool


class Pair(NamedTuple):
    a: int
    b: str


class Opaque:
    pass


Text = NewType("Text", str)
Ids = TypeAliasType("Ids", list[int])

TEXT = mcp_types.TextContent(text="t")
IMAGE = mcp_types.ImageContent(data="aGk=", mime_type="image/png")
AUDIO = mcp_types.AudioContent(data="aGk=", mime_type="audio/wav")
LINK = mcp_types.ResourceLink(uri="file:///a", name="a")
RESOURCE = mcp_types.EmbeddedResource(resource=mcp_types.TextResourceContents(uri="file:///a", text="x"))
WIRE_IMAGE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
WIRE_TEXT = {"type": "text", "text": "t"}


def signature(annotation: Any = ...) -> Signature:
    def fn() -> Any: ...

    if annotation is ...:
        del fn.__annotations__["return"]
    else:
        fn.__annotations__["return"] = annotation
    return Signature.of(fn, name="a.b")


def encode(value: Any, annotation: Any = ...) -> ToolResult:
    return signature(annotation).encode(value)


OBJECTS = [
    (Receipt, Receipt(id="a"), {"id": "a", "paid": True}),
    (Receipt, {"id": "a"}, {"id": "a", "paid": True}),
    (Annotated[Receipt, "noted"], Receipt(id="a"), {"id": "a", "paid": True}),
    (Aliased, Aliased(invoiceId="abc"), {"invoiceId": "abc", "short": "ab"}),
    (Node, Node(name="a", children=[Node(name="b")]), {"name": "a", "children": [{"name": "b", "children": []}]}),
    (Point, Point(1), {"x": 1, "y": 0.0}),
    (Options, {"deep": True}, {"deep": True}),
    (Options, {}, {}),
    (dict, {"a": [1, None]}, {"a": [1, None]}),
    (dict[str, Any], {"a": Receipt(id="a")}, {"a": {"id": "a", "paid": True}}),
    (dict[int, float], {1: 2}, {"1": 2.0}),
    (dict[str, datetime.date], {"d": datetime.date(2024, 1, 2)}, {"d": "2024-01-02"}),
    (Mapping[str, Point], {"p": Point(1)}, {"p": {"x": 1, "y": 0.0}}),
    (typing.Dict[str, int], collections.Counter(a=1), {"a": 1}),  # noqa: UP006
    (Table, Table({"a": 1}), {"a": 1}),
]

VALUES = [
    (int, 5, 5),
    (float, 5, 5.0),
    (bool, False, False),
    (list[int], [1, 2], [1, 2]),
    (list[str], ["a"], ["a"]),
    (list[Receipt], [Receipt(id="a")], [{"id": "a", "paid": True}]),
    (Sequence[int], (1, 2), [1, 2]),
    (tuple[int, str], (1, "a"), [1, "a"]),
    (set[int], {1}, [1]),
    (Color, Color.RED, "red"),
    (Level, Level.LOW, 1),
    (datetime.datetime, datetime.datetime(2024, 1, 2), "2024-01-02T00:00:00"),
    (datetime.timedelta, datetime.timedelta(seconds=90), "PT1M30S"),
    (Decimal, Decimal("1.10"), "1.10"),
    (uuid.UUID, uuid.UUID(int=0), str(uuid.UUID(int=0))),
    (Literal["a", "b"], "a", "a"),
    (int | str, "x", "x"),
    (str | int, 5, 5),
    (int | None, None, None),
    (Receipt | None, Receipt(id="a"), {"id": "a", "paid": True}),
    (Receipt | None, None, None),
    (Receipt | Point, Point(1), {"x": 1, "y": 0.0}),
    (Pair, Pair(1, "a"), [1, "a"]),
    (Names, Names(["a"]), ["a"]),
    (Ids, [1], [1]),
]


@pytest.mark.parametrize(("annotation", "value", "expected"), OBJECTS, ids=case_name)
def test_objects_are_structured_content_with_a_schema(annotation: Any, value: Any, expected: Any) -> None:
    read = signature(annotation)
    assert read.output_schema is not None
    assert read.output_schema["type"] == "object"
    assert "title" not in read.output_schema
    result = read.encode(value)
    assert result.structured == expected
    jsonschema.validate(result.structured, read.output_schema, cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize(("annotation", "value", "expected"), VALUES, ids=case_name)
def test_other_values_are_wrapped_as_result(annotation: Any, value: Any, expected: Any) -> None:
    read = signature(annotation)
    assert read.output_schema is not None
    assert (read.output_schema["type"], read.output_schema["required"]) == ("object", ["result"])
    result = read.encode(value)
    assert result.structured == {"result": expected}
    assert type(result.structured["result"]) is type(expected)
    jsonschema.validate(result.structured, read.output_schema, cls=jsonschema.Draft202012Validator)


def test_structured_content_comes_with_its_compact_json_as_text() -> None:
    assert encode({"a": [1, 2], "ü": None}, dict).content == [{"type": "text", "text": '{"a":[1,2],"ü":null}'}]
    assert encode(5, int).content == [{"type": "text", "text": '{"result":5}'}]


def test_the_wire_form() -> None:
    assert encode(Receipt(id="a"), Receipt).to_wire() == {
        "content": [{"type": "text", "text": '{"id":"a","paid":true}'}],
        "structuredContent": {"id": "a", "paid": True},
    }


@pytest.mark.parametrize("annotation", [str, Text, Annotated[str, Field(description="x")], str | None])
def test_text_is_one_text_block_and_has_no_schema(annotation: Any) -> None:
    read = signature(annotation)
    assert read.output_schema is None
    assert read.encode("hällo").to_wire() == {"content": [{"type": "text", "text": "hällo"}]}


@pytest.mark.parametrize("annotation", [None, type(None), str | None, ..., Any, object])
def test_none_is_no_content(annotation: Any) -> None:
    read = signature(annotation)
    assert read.output_schema is None
    assert read.encode(None).to_wire() == {"content": []}


@pytest.mark.parametrize("block", [TEXT, IMAGE, AUDIO, LINK, RESOURCE], ids=lambda b: b.type)
def test_content_blocks_of_every_type_go_out_as_they_are(block: Any) -> None:
    wire = block.model_dump(by_alias=True, mode="json", exclude_none=True)
    for annotation in (..., Any, type(block), mcp_types.ContentBlock, type(block) | None, str | type(block)):
        read = signature(annotation)
        assert read.output_schema is None
        assert read.encode(block).to_wire() == {"content": [wire]}
        mcp_types.CallToolResult.model_validate(read.encode(block).to_wire())
    assert encode(wire).to_wire() == {"content": [wire]}
    for annotation in (..., list[mcp_types.ContentBlock], list[str | type(block)], Sequence[type(block)]):
        assert encode([block, block], annotation).content == [wire, wire]
    assert encode((block, "and", wire)).content == [wire, {"type": "text", "text": "and"}, wire]
    assert encode([block, "and"], list[type(block) | str]).content == [wire, {"type": "text", "text": "and"}]


def test_a_promise_of_content_makes_texts_of_a_list_of_strings() -> None:
    assert encode(["a", "b"], list[mcp_types.TextContent | str]).content == [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
    ]


def test_a_type_alone_does_not_make_a_block() -> None:
    mine = {"type": "image", "id": 7}
    assert encode(mine).structured == mine
    assert encode([mine]).structured == {"result": [mine]}
    assert encode({"type": "text", "text": 5}).structured == {"type": "text", "text": 5}
    assert encode({"type": ["text"], "text": "t"}).structured == {"type": ["text"], "text": "t"}


def test_a_dict_that_is_promised_as_data_is_data_even_if_it_looks_like_a_block() -> None:
    assert encode(WIRE_TEXT, dict).structured == WIRE_TEXT
    assert encode(WIRE_TEXT, dict[str, str]).structured == WIRE_TEXT


def test_a_models_own_type_field_is_data_when_it_is_promised() -> None:
    class Note(BaseModel):
        type: Literal["text"] = "text"
        text: str

    read = signature(Note)
    assert read.output_schema is not None
    assert read.encode(Note(text="x")).structured == {"type": "text", "text": "x"}


@pytest.mark.parametrize(
    ("value", "structured"),
    [
        ({"a": 1}, {"a": 1}),
        (Receipt(id="a"), {"id": "a", "paid": True}),
        (Aliased(invoiceId="abc"), {"invoiceId": "abc", "short": "ab"}),
        (Point(1), {"x": 1, "y": 0}),
        (collections.OrderedDict(a=Color.RED), {"a": "red"}),
        (Table({"a": 1}), {"a": 1}),
        (Names(["a"]), {"result": ["a"]}),
        (5, {"result": 5}),
        (True, {"result": True}),
        (["a", "b"], {"result": ["a", "b"]}),
        ([], {"result": []}),
        ([1, "a"], {"result": [1, "a"]}),
        ({1, 2}, {"result": [1, 2]}),
        (Color.RED, {"result": "red"}),
        (datetime.date(2024, 1, 2), {"result": "2024-01-02"}),
        ({"d": datetime.date(2024, 1, 2), "p": Point(1)}, {"d": "2024-01-02", "p": {"x": 1, "y": 0}}),
    ],
    ids=case_name,
)
def test_without_annotation_the_value_decides_and_there_is_no_schema(value: Any, structured: Any) -> None:
    for annotation in (..., Any):
        read = signature(annotation)
        assert read.output_schema is None
        assert read.encode(value).structured == structured


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, "x"),
        (int, None),
        (Receipt, {"paid": True}),
        (Receipt, "x"),
        (Receipt, Point(1)),
        (Receipt, None),
        (list[int], ["x"]),
        (dict[str, int], {"a": "x"}),
        (dict, [1]),
        (Color, "green"),
        (Literal["a"], "b"),
        (Point, Point("far")),  # pyright: ignore[reportArgumentType]
        (Receipt, Receipt.model_construct(id=5)),
        (Options, {"deep": "maybe"}),
        (str, 5),
        (str, None),
        (str, ["a"]),
        (str, TEXT),
        (None, "x"),
        (None, {}),
        (str | None, 5),
        (mcp_types.TextContent, {"a": 1}),
        (mcp_types.TextContent, None),
        (list[mcp_types.TextContent], [5]),
        (float, math.nan),
        (dict[str, float], {"a": math.inf}),
        (Point, Point(1, math.nan)),
        (dict, {"a": "\ud800"}),
        (dict, {"\ud800": 1}),
        (dict, {"a": b"\xff"}),
        (dict, {"a": Opaque()}),
        (Broken, Broken(x=1)),
        (..., {"a": ["\ud800"]}),
        (..., Opaque()),
        (..., b"bytes"),
        (..., bytearray(b"bytes")),
        (..., (n for n in [1])),
        (..., {"a": Opaque()}),
        (..., Broken(x=1)),
        (..., ToolResult([5])),  # pyright: ignore[reportArgumentType]
        (..., ToolResult([{"type": "text"}])),
        (..., ToolResult([], structured={"a": Opaque()})),
        (..., ToolResult([], meta={"a": Opaque()})),
        (Receipt, ToolResult([], structured={"paid": 1})),
        (Receipt, ToolResult([WIRE_TEXT])),
        (int, ToolResult([], structured={"reslt": 1})),
        (int, ToolResult([], structured=5)),
    ],
    ids=case_name,
)
def test_what_does_not_fit_is_a_result_error(annotation: Any, value: Any) -> None:
    with pytest.raises(ResultError):
        encode(value, annotation)


@pytest.mark.parametrize(
    "block",
    [
        {**WIRE_IMAGE, "_meta": {"a": Opaque()}},
        {**WIRE_IMAGE, "data": "\ud800"},
        {**WIRE_IMAGE, "_meta": {"a": "\ud800"}},
        {"type": "resource_link", "uri": "file:///\ud800", "name": "a"},
        {"type": "resource", "resource": {"uri": "file:///a", "blob": b"\xff"}},
    ],
    ids=case_name,
)
def test_a_content_block_that_is_not_json_is_a_result_error(block: Any) -> None:
    for value in (block, [block, "text"], ToolResult([block])):
        with pytest.raises(ResultError, match="not JSON"):
            encode(value)


def test_a_content_block_may_hold_what_becomes_json() -> None:
    block = {"type": "resource", "resource": {"uri": "file:///ä", "text": "ä", "at": datetime.date(2024, 1, 2)}}
    assert encode(block).content == [
        {"type": "resource", "resource": {"uri": "file:///ä", "text": "ä", "at": "2024-01-02"}}
    ]


def test_a_coroutine_and_an_async_generator_are_no_results() -> None:
    async def coroutine() -> None: ...
    async def generator() -> Any:
        yield 1

    waiting = coroutine()
    with pytest.raises(ResultError, match="a coroutine is no result"):
        encode(waiting)
    waiting.close()
    with pytest.raises(ResultError, match="async_generator"):
        encode(generator())
    with pytest.raises(ResultError):
        encode(asyncio.Event())


def test_what_contains_itself_is_a_result_error() -> None:
    loop: dict[str, Any] = {}
    loop["loop"] = loop
    nested: list[Any] = []
    for _ in range(5000):
        nested = [nested]
    for annotation in (..., dict, Any):
        with pytest.raises(ResultError):
            encode(loop, annotation)
        with pytest.raises(ResultError):
            encode({"nested": nested}, annotation)


def test_not_a_number_is_null_where_no_number_is_promised() -> None:
    for annotation in (..., Any, dict, dict[str, Any]):
        assert encode({"a": math.nan, "b": [math.inf]}, annotation).structured == {"a": None, "b": [None]}
    assert encode(math.nan).structured == {"result": None}
    assert encode(ToolResult([], structured={"a": math.nan})).structured == {"a": None}


def test_words_that_look_like_numbers_are_fine_in_texts() -> None:
    value = {"a": "NaN", "Infinity": "-Infinity"}
    assert encode(value, dict).content == [{"type": "text", "text": '{"a":"NaN","Infinity":"-Infinity"}'}]


def test_lone_surrogates_in_text_become_question_marks() -> None:
    assert encode("a\ud800b", str).content == [{"type": "text", "text": "a?b"}]
    assert encode("a\ud800b").content == [{"type": "text", "text": "a?b"}]
    assert encode({"type": "text", "text": "a\ud800b"}).content == [{"type": "text", "text": "a?b"}]


def test_a_subclass_shows_no_more_than_the_annotation_promises() -> None:
    assert encode(Detailed(id="a"), Receipt).structured == {"id": "a", "paid": True}


@pytest.mark.parametrize("annotation", [bytes, bytearray, bytes | None])
def test_bytes_are_refused_when_declared(annotation: Any) -> None:
    with pytest.raises(RegistrationError, match=r"action 'a\.b': return type: bytes are no result; return an image"):
        signature(annotation)


@pytest.mark.parametrize("annotation", [Opaque, list[Opaque], typing.Callable[[], int], type(asyncio.Lock())])
def test_a_type_without_schema_is_refused_when_declared(annotation: Any) -> None:
    with pytest.raises(RegistrationError, match=r"action 'a\.b': no JSON Schema for the return type .*leave the"):
        signature(annotation)


def test_a_whole_result_of_ones_own() -> None:
    result = ToolResult([IMAGE, "text"], structured={"d": datetime.date(2024, 1, 2)}, meta={"a": 1}, is_error=True)  # type: ignore[list-item]
    for annotation in (..., ToolResult, ToolResult | None, ToolResult | dict[str, int]):
        assert signature(annotation).output_schema is None
        assert encode(result, annotation).to_wire() == {
            "content": [WIRE_IMAGE, {"type": "text", "text": "text"}],
            "structuredContent": {"d": "2024-01-02"},
            "isError": True,
            "_meta": {"a": 1},
        }


def test_a_whole_result_keeps_the_promise_or_is_an_error() -> None:
    good = ToolResult([WIRE_TEXT], structured={"id": "a", "paid": True})
    assert encode(good, Receipt) == good
    assert encode(ToolResult([], structured={"result": 5}), int).structured == {"result": 5}
    failed = ToolResult([WIRE_TEXT], is_error=True)
    assert encode(failed, Receipt) == failed


def test_structured_content_without_content_gets_its_text() -> None:
    assert encode(ToolResult([], structured={"a": 1})).content == [{"type": "text", "text": '{"a":1}'}]


@pytest.mark.parametrize(
    "result",
    [
        mcp_types.CallToolResult(content=[IMAGE], structured_content={"a": 1}, is_error=True, meta={"m": 1}),
        FastMCPToolResult(content=[IMAGE], structured_content={"a": 1}, is_error=True, meta={"m": 1}),
    ],
    ids=["sdk", "fastmcp"],
)
def test_a_whole_result_of_the_sdk_or_of_fastmcp_passes(result: Any) -> None:
    for annotation in (..., type(result)):
        assert signature(annotation).output_schema is None
        assert encode(result, annotation).to_wire() == {
            "content": [WIRE_IMAGE],
            "structuredContent": {"a": 1},
            "isError": True,
            "_meta": {"m": 1},
        }


def test_what_is_content_and_data_both_is_decided_by_the_value() -> None:
    read = signature(mcp_types.ImageContent | Receipt)
    assert read.output_schema is None
    assert read.encode(IMAGE).content == [WIRE_IMAGE]
    assert read.encode(Receipt(id="a")).structured == {"id": "a", "paid": True}


def test_the_schema_of_a_recursive_type_has_an_object_at_its_root() -> None:
    schema = signature(Node).output_schema
    assert schema is not None
    assert (schema["type"], set(schema["properties"])) == ("object", {"name", "children"})
    assert "$ref" not in schema


@pytest.mark.parametrize("case", [*OBJECTS, *VALUES], ids=case_name)
def test_the_sdk_takes_every_schema_and_every_result(case: tuple[Any, Any, Any]) -> None:
    read = signature(case[0])
    mcp_types.Tool(name="a.b", input_schema=read.input_schema, output_schema=read.output_schema)
    mcp_types.CallToolResult.model_validate(read.encode(case[1]).to_wire())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@settings(max_examples=150, deadline=None)
@given(JSON, st.sampled_from([..., Any, dict, str, int | None, list[Any], Receipt, Options, dict[str, float] | str]))
def test_any_value_is_a_result_that_can_be_sent_or_a_result_error(value: Any, annotation: Any) -> None:
    read = signature(annotation)
    try:
        wire = read.encode(value).to_wire()
    except ResultError:
        return
    sent = mcp_types.CallToolResult.model_validate(wire).model_dump_json(by_alias=True)
    assert mcp_types.CallToolResult.model_validate_json(sent).structured_content == wire.get("structuredContent")
    if read.output_schema is not None:
        jsonschema.validate(wire["structuredContent"], read.output_schema, cls=jsonschema.Draft202012Validator)
