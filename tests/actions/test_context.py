import dataclasses
import datetime
import enum
import logging
import math
import uuid
from typing import Annotated, Any, Literal

import pytest
from mcp_types._v2025_11_25 import PrimitiveSchemaDefinition
from pydantic import BaseModel, Field, TypeAdapter
from typing_extensions import TypedDict

from mcpfusion.actions import Answer, Context, InputRequired, ToolError, WorkflowView

pytestmark = pytest.mark.anyio

WIRE = TypeAdapter[Any](PrimitiveSchemaDefinition)


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


class Order(BaseModel):
    name: str = Field(min_length=2, max_length=20, description="Who eats it", pattern="^[A-Z]")
    count: int = Field(gt=0, le=12)
    price: float = Field(default=1.5, ge=0, le=99)
    spicy: bool = False
    size: Size = Size.SMALL
    crust: Literal["thin", "thick"] = "thin"
    only: Literal["one"] = "one"
    toppings: list[Literal["ham", "olives"]] = []
    sizes: list[Size] = Field(default=[], max_length=2)
    mail: str | None = Field(None, json_schema_extra={"format": "email"})
    day: datetime.date | None = None
    at: datetime.datetime | None = None
    note: str | None = None


class Confirm(BaseModel):
    sure: bool


@dataclasses.dataclass
class Card:
    digits: str
    year: int = 2030


class Options(TypedDict):
    deep: bool


def context(**keywords: Any) -> Context:
    return Context(tool="pizza.order", request_id=7, **{"can_elicit": True, **keywords})


SURE = {"type": "boolean", "title": "Sure"}


async def key_of(message: str, schema: Any, **keywords: Any) -> InputRequired:
    with pytest.raises(InputRequired) as asked:
        await context(**keywords).elicit(message, schema)
    return asked.value


async def answered(schema: Any, content: Any, action: str = "accept") -> Answer[Any]:
    need = await key_of("?", schema)
    return await context(answers={need.key: {"action": action, "content": content}}).elicit("?", schema)


async def test_the_first_run_ends_with_the_question() -> None:
    need = await key_of("Sure?", Confirm)
    assert need.message == "Sure?"
    assert need.schema == {"type": "object", "properties": {"sure": SURE}, "required": ["sure"]}
    assert not isinstance(need, Exception), "a handler's `except Exception` must not eat it"


async def test_a_later_run_finds_the_answer() -> None:
    answer = await answered(Confirm, {"sure": True})
    assert answer == Answer("accept", Confirm(sure=True))
    assert answer.accepted
    assert answer.data is not None
    assert answer.data.sure is True


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_no_answer_is_an_answer(action: Any) -> None:
    answer = await answered(Confirm, None, action)
    assert answer == Answer(action, None)
    assert not answer.accepted


async def handler(ctx: Context, effects: list[str]) -> str:
    effects.append("top")
    first = await ctx.elicit("Sure?", Confirm)
    if not first.accepted:
        return "no"
    second = await ctx.elicit("Sure?", Confirm)
    third = await ctx.elicit("Card?", Card)
    effects.append("paid")
    assert third.data is not None
    return f"{second.action} {third.data.digits}"


async def test_a_handler_with_several_questions_runs_again_from_its_top_until_all_are_answered() -> None:
    replies: list[Any] = [
        {"action": "accept", "content": {"sure": True}},
        {"action": "decline"},
        {"action": "accept", "content": {"digits": "1234"}},
    ]
    answers: dict[str, Any] = {}
    effects: list[str] = []
    ctx = context()
    keys: list[str] = []
    for reply in replies:
        with pytest.raises(InputRequired) as need:
            await handler(ctx, effects)
        keys.append(need.value.key)
        answers[need.value.key] = reply
        ctx = ctx.again(answers=answers)
    assert await handler(ctx, effects) == "decline 1234"
    assert effects == ["top", "top", "top", "top", "paid"]
    assert len(set(keys)) == 3, "the same question asked twice is two questions"


async def test_a_key_names_the_place_and_what_is_asked() -> None:
    key = (await key_of("Sure?", Confirm)).key
    assert key == (await key_of("Sure?", Confirm)).key, "the same in every run and process"
    assert key.startswith("1:")
    assert key != (await key_of("Really?", Confirm)).key
    assert key != (await key_of("Sure?", Options)).key


async def test_an_answer_to_another_question_is_not_taken() -> None:
    need = await key_of("Pay 5?", Confirm)
    answers = {need.key: {"action": "accept", "content": {"sure": True}}}
    assert (await key_of("Pay 500?", Confirm, answers=answers)).key != need.key


async def test_a_client_that_cannot_be_asked() -> None:
    with pytest.raises(ToolError) as error:
        await context(can_elicit=False).elicit("Sure?", Confirm)
    assert error.value.code == "ELICITATION_UNSUPPORTED"
    assert "elicitation" in error.value.message


async def test_nobody_is_asked_unless_somebody_says_that_they_can_be() -> None:
    with pytest.raises(ToolError, match="elicitation"):
        await Context(tool="a.b").elicit("Sure?", Confirm)


async def test_an_answer_that_is_there_counts_even_if_the_client_cannot_be_asked_again() -> None:
    need = await key_of("Sure?", Confirm)
    ctx = context(can_elicit=False, answers={need.key: {"action": "decline"}})
    assert (await ctx.elicit("Sure?", Confirm)).action == "decline"


async def test_every_kind_of_field_becomes_a_primitive_of_the_specification() -> None:
    schema = (await key_of("?", Order)).schema
    assert schema["required"] == ["name", "count"]
    properties = schema["properties"]
    for prop in properties.values():
        WIRE.validate_python(prop)
        assert not {"$ref", "anyOf", "pattern", "exclusiveMinimum", "const"} & prop.keys()
    assert properties["name"] == {
        "type": "string",
        "title": "Name",
        "description": "Who eats it",
        "minLength": 2,
        "maxLength": 20,
    }
    assert properties["price"] == {"type": "number", "title": "Price", "default": 1.5, "minimum": 0, "maximum": 99}
    assert properties["size"] == {"type": "string", "default": "s", "enum": ["s", "l"]}
    assert properties["only"]["enum"] == ["one"]
    assert properties["toppings"]["items"] == {"type": "string", "enum": ["ham", "olives"]}
    assert properties["sizes"]["items"] == {"type": "string", "enum": ["s", "l"]}
    assert properties["sizes"]["maxItems"] == 2
    assert (properties["day"]["format"], properties["at"]["format"]) == ("date", "date-time")
    assert properties["mail"]["format"] == "email"
    assert "default" not in properties["note"]


async def test_a_title_that_somebody_wrote_stays() -> None:
    class Titled(BaseModel):
        box: Size = Field(title="Size of the box")
        bag: Size

    properties = (await key_of("?", Titled)).schema["properties"]
    assert properties["box"] == {"type": "string", "title": "Size of the box", "enum": ["s", "l"]}
    assert properties["bag"] == {"type": "string", "enum": ["s", "l"]}


async def test_what_a_form_cannot_say_is_checked_on_the_answer() -> None:
    good = {"name": "Ada", "count": 1, "sizes": ["l"], "day": "2024-01-02"}
    answer = await answered(Order, good)
    assert answer.data == Order(name="Ada", count=1, sizes=[Size.LARGE], day=datetime.date(2024, 1, 2))
    with pytest.raises(ToolError) as error:
        await answered(Order, {"name": "ada", "count": 0})
    assert error.value.code == "INVALID_ANSWER"
    lines = error.value.message.split("\n")
    assert lines[0] == "The answer does not fit the question:"
    assert lines[1].startswith("name: expected ")
    assert lines[2] == "count: expected greater than 0; got the number 0"


@pytest.mark.parametrize("content", [None, {}, {"sure": "perhaps"}, "yes", [], 5])
async def test_an_answer_that_does_not_fit(content: Any) -> None:
    with pytest.raises(ToolError, match="does not fit") as error:
        await answered(Confirm, content)
    assert error.value.code == "INVALID_ANSWER"


@pytest.mark.parametrize("action", ["ok", None, "", 5])
async def test_an_answer_with_an_unknown_action_does_not_fit(action: Any) -> None:
    with pytest.raises(ToolError, match="expected accept, decline or cancel"):
        await answered(Confirm, {"sure": True}, action)


async def test_a_dataclass_and_a_typeddict_may_be_asked_for() -> None:
    assert (await answered(Card, {"digits": "1"})).data == Card("1", 2030)
    assert (await answered(Options, {"deep": True})).data == {"deep": True}


async def test_a_question_without_fields_is_a_plain_confirmation() -> None:
    class Nothing(BaseModel):
        pass

    assert (await key_of("Go on?", Nothing)).schema == {"type": "object", "properties": {}}
    assert (await answered(Nothing, None)).data == Nothing()


SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "title": "Order",
    "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 4, "format": "email"},
        "count": {"type": "integer", "minimum": 1},
        "price": {"type": "number", "maximum": 9.5},
        "spicy": {"type": "boolean"},
        "size": {"type": "string", "enum": ["s", "l"], "enumNames": ["Small", "Large"]},
        "crust": {"type": "string", "oneOf": [{"const": "a", "title": "A"}, {"const": "b", "title": "B"}]},
        "tops": {"type": "array", "items": {"type": "string", "enum": ["x", "y"]}, "maxItems": 1, "minItems": 1},
        "more": {"type": "array", "items": {"anyOf": [{"const": "x", "title": "X"}]}},
    },
    "required": ["name"],
}


async def test_a_json_schema_may_be_asked_for() -> None:
    schema = (await key_of("?", SCHEMA)).schema
    assert schema == {key: SCHEMA[key] for key in ("type", "properties", "required")}
    for prop in schema["properties"].values():
        WIRE.validate_python(prop)
    content = {"name": "Ada", "count": 1, "price": 5, "spicy": True, "size": "s", "crust": "b", "tops": ["x"]}
    assert (await answered(SCHEMA, content)).data == content
    assert (await answered(SCHEMA, {"name": "Ada"})).data == {"name": "Ada"}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"name": "A"}, "name: expected "),
        ({"name": "Adele"}, "name: expected "),
        ({"name": 5}, "name: expected a string"),
        ({}, "name: expected a string; it is missing"),
        ({"name": "Ada", "count": 0}, "count: expected "),
        ({"name": "Ada", "count": "many"}, "count: expected an integer"),
        ({"name": "Ada", "price": 10}, "price: expected "),
        ({"name": "Ada", "spicy": "yes"}, "spicy: expected true or false"),
        ({"name": "Ada", "size": "m"}, "size: expected one of 's' or 'l'"),
        ({"name": "Ada", "crust": "A"}, "crust: expected one of 'a' or 'b'"),
        ({"name": "Ada", "tops": ["z"]}, "tops.0: expected one of 'x' or 'y'"),
        ({"name": "Ada", "tops": ["x", "y"]}, "tops: expected "),
        ({"name": "Ada", "tops": []}, "tops: expected "),
        ({"name": "Ada", "more": ["y"]}, "more.0: expected one of 'x'"),
    ],
    ids=str,
)
async def test_an_answer_is_checked_against_a_json_schema_too(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ToolError) as error:
        await answered(SCHEMA, wrong)
    assert error.value.code == "INVALID_ANSWER"
    assert f"\n{says}" in error.value.message


class Nested(BaseModel):
    inner: Confirm


class ListOfText(BaseModel):
    names: list[str]


class Either(BaseModel):
    one: int | str


class Id(BaseModel):
    key: uuid.UUID


class Table(BaseModel):
    rows: dict[str, int]


class Free(BaseModel):
    x: Any


class Number(enum.IntEnum):
    ONE = 1


class Numbers(BaseModel):
    n: Number


class Opaque(BaseModel):
    model_config = {"arbitrary_types_allowed": True}
    o: logging.Logger


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (Nested, r"Nested\.inner: elicitation asks for text, numbers, booleans and choices, not for object"),
        (ListOfText, r"ListOfText\.names: elicitation asks for lists of choices"),
        (Either, r"Either\.one: elicitation asks for text.* not for anyOf"),
        (Id, r"Id\.key: elicitation knows the formats email, uri, date, date-time, not 'uuid'"),
        (Table, r"Table\.rows: elicitation asks for text.* not for object"),
        (Free, r"Free\.x: elicitation asks for text.* not for any value"),
        (Numbers, r"Numbers\.n: choices in elicitation are text, not integer"),
        (Opaque, r"Opaque cannot be asked for"),
        (str, r"str cannot be asked for: a question needs named fields"),
        (Annotated[int, "x"], r"cannot be asked for"),
        ({"type": "string"}, r"schema cannot be asked for: a question needs named fields"),
        (
            {"type": "object", "properties": {"a": {"type": "array", "items": {"anyOf": [{"title": "x"}]}}}},
            r"schema\.a: elicitation asks for lists of choices",
        ),
        (
            {"type": "object", "properties": {"a": {"type": "array", "items": {"anyOf": ["const"]}}}},
            r"schema\.a: elicitation asks for lists of choices",
        ),
        (
            {"type": "object", "properties": {"a": {"type": "array"}}},
            r"schema\.a: elicitation asks for lists of choices",
        ),
        ({"type": "object", "properties": {"a": {"type": "object"}}}, r"schema\.a: elicitation asks for"),
        ({"type": "object", "properties": {"a": {"type": ["string", "null"]}}}, r"schema\.a: elicitation asks for"),
    ],
    ids=str,
)
async def test_fields_that_cannot_be_asked_for_are_named(schema: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        await context().elicit("?", schema)


async def test_progress_goes_to_the_client_if_it_asked_for_it() -> None:
    sent: list[Any] = []

    async def send(progress: float, total: float | None, message: str | None) -> None:
        sent.append((progress, total, message))

    ctx = context(send_progress=send)
    await ctx.progress(1)
    await ctx.progress(2, 4, "half")
    assert sent == [(1, None, None), (2, 4, "half")]
    await context().progress(1, 2, "nobody asked")


async def test_progress_only_grows() -> None:
    sent: list[float] = []

    async def send(progress: float, total: float | None, message: str | None) -> None:
        sent.append(progress)

    ctx = context(send_progress=send)
    for value in (0, 0.5, 0.5, 0.4, 1):
        await ctx.progress(value)
    assert sent == [0, 0.5, 1]


@pytest.mark.parametrize("numbers", [(math.nan, None), (math.inf, None), (1, math.nan), (1, math.inf)])
async def test_progress_must_be_finite(numbers: tuple[float, float | None]) -> None:
    with pytest.raises(ValueError, match="finite"):
        await context().progress(*numbers)


async def test_what_a_context_knows() -> None:
    view = WorkflowView("inv-1", "draft", "key-1", "draft")
    ctx = context(
        workflow=view,
        headers={"X-Tenant": "acme", "Authorization": "Bearer secret"},
        principal="ada",
        session_id="s1",
        lifespan={"db": 1},
        meta={"traceparent": "00"},
    )
    assert (ctx.tool, ctx.request_id, ctx.workflow) == ("pizza.order", 7, view)
    assert ctx.headers == {"x-tenant": "acme", "authorization": "Bearer secret"}
    assert (ctx.principal, ctx.session_id, ctx.lifespan) == ("ada", "s1", {"db": 1})
    assert ctx.meta == {"traceparent": "00"}
    assert repr(ctx) == str(ctx) == "Context(tool='pizza.order', request_id=7)"


async def test_what_a_context_does_not_know() -> None:
    ctx = Context(tool="a.b")
    assert (ctx.principal, ctx.session_id, ctx.lifespan, ctx.request_id) == (None,) * 4
    assert not ctx.has_workflow
    with pytest.raises(RuntimeError, match=r"'a\.b' is not bound to states.*has_workflow"):
        _ = ctx.workflow
    assert not ctx.has_handoff
    with pytest.raises(RuntimeError, match=r"'a\.b' carries no verified delegation.*has_handoff"):
        _ = ctx.handoff
    assert (dict(ctx.headers), dict(ctx.meta)) == ({}, {})


async def test_the_logger_is_named_after_the_tool() -> None:
    assert context().logger.name == "mcpfusion.action.pizza.order"


async def test_another_run_keeps_everything_but_what_is_new() -> None:
    sent: list[float] = []

    async def send(progress: float, total: float | None, message: str | None) -> None:
        sent.append(progress)

    need = await key_of("Sure?", Confirm)
    first = context(
        principal="ada", headers={"X-A": "1"}, meta={"m": 1}, session_id="s", lifespan=5, send_progress=send
    )
    with pytest.raises(InputRequired):
        await first.elicit("Sure?", Confirm)
    view = WorkflowView("h", "draft")
    again = first.again(workflow=view, answers={need.key: {"action": "cancel"}})
    assert (await again.elicit("Sure?", Confirm)).action == "cancel", "questions are counted from the start again"
    assert (again.tool, again.request_id, again.principal, again.session_id) == ("pizza.order", 7, "ada", "s")
    assert (again.headers, again.meta, again.lifespan, again.workflow) == ({"x-a": "1"}, {"m": 1}, 5, view)
    assert again.again().workflow is view
    await again.progress(1)
    assert sent == [1]


async def test_a_handler_that_catches_everything_does_not_eat_the_question() -> None:
    async def careless(ctx: Context) -> str:
        try:
            await ctx.elicit("Sure?", Confirm)
        except Exception:
            return "eaten"
        return "answered"

    with pytest.raises(InputRequired):
        await careless(context())
