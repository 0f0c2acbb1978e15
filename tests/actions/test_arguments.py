import dataclasses
import datetime
import enum
import json
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, EmailStr, Field, HttpUrl
from typing_extensions import TypedDict

from mcpfusion.actions import ArgumentsError, Signature, ToolError
from tests.support.ids import case_name


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Item(BaseModel):
    sku: str = Field(pattern="^[a-z]+$")
    quantity: int = Field(gt=0)


class Closed(BaseModel, extra="forbid"):
    a: int


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Tree(BaseModel):
    children: list["Tree"] = []


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0


class Options(TypedDict, total=False):
    deep: bool


def even(value: int) -> int:
    if value % 2:
        raise ValueError(f"{value} is odd")
    return value


def problems(fn: Callable[..., Any], **arguments: Any) -> list[str]:
    with pytest.raises(ArgumentsError) as error:
        Signature.of(fn, name="a.b").validate(arguments)
    return str(error.value).split("\n")


def test_the_message_has_a_line_for_each_bad_field_and_the_data_the_same() -> None:
    def fn(id: str, amount: float, note: str = "") -> None: ...

    with pytest.raises(ArgumentsError) as error:
        Signature.of(fn, name="a.b").validate({"amount": "much", "nte": "x"})
    assert isinstance(error.value, ToolError)
    assert error.value.code == "INVALID_ARGUMENTS"
    assert error.value.in_doubt is False
    assert str(error.value).split("\n") == [
        "id: expected a string; it is missing",
        'amount: expected a number; got the string "much"',
        "nte: expected one of id, amount, note; it is unknown (did you mean 'note'?)",
    ]
    assert error.value.data == {
        "fields": [
            {"field": "id", "expected": "a string", "problem": "it is missing"},
            {"field": "amount", "expected": "a number", "problem": 'got the string "much"'},
            {
                "field": "nte",
                "expected": "one of id, amount, note",
                "problem": "it is unknown (did you mean 'note'?)",
            },
        ]
    }


@pytest.mark.parametrize(
    ("annotation", "value", "line"),
    [
        (int, "x", 'expected an integer; got the string "x"'),
        (int, 1.5, "expected an integer; got the number 1.5"),
        (int, None, "expected an integer; got null"),
        (int, [1], "expected an integer; got an array"),
        (float, {}, "expected a number; got an object"),
        (float, True and "yes", 'expected a number; got the string "yes"'),
        (Decimal, "x", 'expected a number; got the string "x"'),
        (bool, 5, "expected true or false; got the number 5"),
        (bool, "perhaps", 'expected true or false; got the string "perhaps"'),
        (str, 5, "expected a string; got the number 5"),
        (str, False, "expected a string; got false"),
        (str, 10**50, "expected a string; got a large number"),
        (list[int], 5, "expected an array; got the number 5"),
        (set[int], "x", 'expected an array; got the string "x"'),
        (tuple[int, int], 5, "expected an array; got the number 5"),
        (dict[str, int], [], "expected an object; got an array"),
        (Item, "x", 'expected an object; got the string "x"'),
        (Item, 7, "expected an object; got the number 7"),
        (Point, [], "expected an object; got an array"),
        (Options, 3, "expected an object; got the number 3"),
        (None, 3, "expected null; got the number 3"),
        (datetime.date, "soon", 'expected a date (YYYY-MM-DD); got the string "soon"'),
        (datetime.datetime, "soon", 'expected a date and time (ISO 8601); got the string "soon"'),
        (datetime.time, "soon", 'expected a time (ISO 8601); got the string "soon"'),
        (datetime.timedelta, "soon", 'expected a duration (ISO 8601); got the string "soon"'),
        (UUID, "soon", 'expected a UUID; got the string "soon"'),
        (HttpUrl, "soon", 'expected a URL; got the string "soon"'),
        (Color, "green", "expected one of 'red' or 'blue'; got the string \"green\""),
        (Literal["a", "b"], "c", "expected one of 'a' or 'b'; got the string \"c\""),
        (int | None, "x", 'expected an integer; got the string "x"'),
        (int | str, [], "expected an integer or a string; got an array"),
        (Annotated[int, Field(gt=0, le=9)], 0, "expected greater than 0; got the number 0"),
        (Annotated[int, Field(gt=0, le=9)], 10, "expected less than or equal to 9; got the number 10"),
        (Annotated[int, Field(multiple_of=5)], 7, "expected a multiple of 5; got the number 7"),
        (Annotated[int, AfterValidator(even)], 7, "expected 7 is odd; got the number 7"),
    ],
    ids=case_name,
)
def test_what_was_expected_and_what_was_given(annotation: Any, value: Any, line: str) -> None:
    def fn(x: Any) -> None: ...

    fn.__annotations__["x"] = annotation
    assert problems(fn, x=value) == [f"x: {line}"]


def test_long_texts_and_lists() -> None:
    def fn(
        name: Annotated[str, Field(min_length=3, max_length=5)], items: Annotated[list[int], Field(max_length=1)]
    ) -> None: ...

    name, items = problems(fn, name="x", items=[1, 2])
    assert name.startswith("name: expected ")
    assert "3 characters" in name
    assert items.startswith("items: expected ")
    assert "1 item" in items


@pytest.mark.parametrize(
    ("annotation", "missing"),
    [
        (str, "a string"),
        (int | None, "an integer or null"),
        (list[int], "an array"),
        (Literal["a", "b"], "one of 'a', 'b'"),
        (Item, "a value"),
        (Any, "a value"),
    ],
)
def test_a_missing_argument_is_named_with_its_type(annotation: Any, missing: str) -> None:
    def fn(x: Any) -> None: ...

    fn.__annotations__["x"] = annotation
    assert problems(fn) == [f"x: expected {missing}; it is missing"]


def test_the_place_inside_of_arguments() -> None:
    def fn(items: list[Item], either: int | Item, table: dict[str, Point], pet: Cat | Dog) -> None: ...

    assert problems(
        fn,
        items=[{"sku": "a", "quantity": 1}, {"sku": "A", "quantity": 0}, {}],
        either={"sku": "a", "quantity": "many"},
        table={"p": {"x": "left"}},
        pet={"kind": "dog"},
    ) == [
        "items.1.sku: expected String should match pattern '^[a-z]+$'; got the string \"A\"",
        "items.1.quantity: expected greater than 0; got the number 0",
        "items.2.sku: expected a value; it is missing",
        "items.2.quantity: expected a value; it is missing",
        "either: expected an integer; got an object",
        'either.quantity: expected an integer; got the string "many"',
        'table.p.x: expected an integer; got the string "left"',
        "pet.kind: expected one of 'cat'; got the string \"dog\"",
        "pet.lives: expected a value; it is missing",
        "pet.name: expected a value; it is missing",
    ]


def test_a_discriminated_union_says_which_tags_there_are() -> None:
    def fn(pet: Annotated[Cat | Dog, Field(discriminator="kind")]) -> None: ...

    assert problems(fn, pet={"kind": "c" * 1000}) == [
        "pet: expected 'kind' to be one of 'cat', 'dog'; got another one"
    ]
    assert problems(fn, pet={}) == ["pet: expected Unable to extract tag using discriminator 'kind'; got an object"]
    assert problems(fn, pet={"kind": "cat"}) == ["pet.lives: expected a value; it is missing"]


def test_unknown_fields_inside_of_arguments() -> None:
    def fn(x: Closed) -> None: ...

    assert problems(fn, x={"a": 1, "aa": 2}) == ["x.aa: expected no such field; it is unknown"]


def test_an_email() -> None:
    def fn(to: EmailStr) -> None: ...

    (line,) = problems(fn, to="nobody")
    assert line.startswith("to: expected ")
    assert line.endswith('got the string "nobody"')


def test_a_long_value_is_not_repeated() -> None:
    secret = "sesame" * 20

    def refuse(value: str) -> str:
        raise ValueError(f"{value} is not welcome")

    def fn(n: int, s: Annotated[str, AfterValidator(refuse)], c: Color) -> None: ...

    text = "\n".join(problems(fn, n=secret, s=secret, c=secret, **{secret: 1, "\n": 2}))
    assert "sesame" * 14 not in text
    assert "n: expected an integer; got a string of length 120" in text
    assert "s: expected the value is not welcome" in text
    assert "\n\\n: expected" in text


def test_a_value_of_40_characters_is_repeated_and_one_of_41_is_not() -> None:
    def fn(n: int) -> None: ...

    assert problems(fn, n="x" * 40) == [f'n: expected an integer; got the string "{"x" * 40}"']
    assert problems(fn, n="x" * 41) == ["n: expected an integer; got a string of length 41"]
    assert problems(fn, n="a\nb") == ["n: expected an integer; got a string of length 3"]


def test_many_bad_fields_are_counted_from_the_51st_on() -> None:
    def fn(items: list[int]) -> None: ...

    lines = problems(fn, items=["x"] * 60)
    assert len(lines) == 51
    assert lines[0].startswith("items.0:")
    assert lines[-1] == "... and 10 more"


def test_a_function_with_very_many_arguments_does_not_list_them() -> None:
    names = [f"argument_number_{n}" for n in range(60)]
    scope: dict[str, Any] = {}
    exec(f"def fn({', '.join(f'{name}: int = 0' for name in names)}): ...", scope)
    assert problems(scope["fn"], argument_numbr_7=1)[0].startswith("argument_numbr_7: expected no such field; it is")


def test_nothing_chained_shows_the_arguments_in_a_traceback() -> None:
    def fn(n: int) -> None: ...

    with pytest.raises(ArgumentsError) as error:
        Signature.of(fn, name="a.b").validate({"n": "secret"})
    assert error.value.__suppress_context__


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=()))
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)
NAMES = st.sampled_from(
    ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "customerId", "o", "x", ""]
)


def anything(
    a: int,
    b: str,
    c: list[Item],
    d: dict[str, Point] | None = None,
    e: Color = Color.RED,
    f: Annotated[Cat | Dog, Field(discriminator="kind")] | None = None,
    g: datetime.datetime | None = None,
    h: Decimal | UUID | bool = False,
    i: tuple[int, str] | None = None,
    j: Any = None,
    k: Options | None = None,
    l: Tree | None = None,  # noqa: E741
    m: set[str] | bytes | None = None,
    n: Annotated[int, Field(alias="customerId")] = 0,
    o: Closed | list[Closed] | None = None,
) -> None:
    pass


ANYTHING = Signature.of(anything, name="a.b")


@settings(max_examples=120, deadline=None)
@given(
    st.dictionaries(NAMES | st.text(), JSON)
    | st.fixed_dictionaries({"a": st.integers(), "b": st.text(), "c": st.just([])}, optional={"j": JSON, "k": JSON})
)
@example({"a": math.nan, "b": "\ud800", "c": "[" * 5000})
@example({"a": "9" * 5000, "b": "x", "c": "[{}"})
@example({"a": 10**5000, "b": 10**5000, "c": [], "h": 10**5000})
@example({"a": 1, "b": "x", "c": [], "g": "1e400", "h": "Infinity"})
@example({"a": 1, "b": "x", "c": [], "f": {"kind": "\ud800" * 500}})
def test_any_json_object_validates_or_is_refused_and_nothing_else(arguments: dict[str, Any]) -> None:
    try:
        values = ANYTHING.validate(arguments)
    except ArgumentsError as error:
        lines = str(error).split("\n")
        fields = error.data["fields"]
        assert fields
        assert len(lines) == min(len(fields), 51)
        assert len({field["field"] for field in fields}) == len(fields)
        for line, field in zip(lines[:50], fields, strict=False):
            assert line.startswith(f"{field['field']}: expected {field['expected']}; ")
            assert len(line) < 900
        str(error).encode()
        json.dumps(error.data).encode()
    else:
        assert set(values) == set("abcdefghijklmno")
        anything(**values)


@pytest.mark.parametrize("name", ["c", "f", "j", "k", "l"])
def test_deeply_nested_arguments_validate_or_are_refused(name: str) -> None:
    for deep in (json.loads('{"children": [' * 400 + "]}" * 400), json.loads("[" * 900 + "]" * 900)):
        with pytest.raises(ArgumentsError):
            ANYTHING.validate({"a": "x", name: deep})


def test_a_name_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(ArgumentsError, match="arguments: expected a valid string") as error:
        ANYTHING.validate({"a": 1, "b": "x", "c": [], "\ud800": 1})
    str(error.value).encode()


@settings(max_examples=60, deadline=None)
@given(st.text(min_size=81, max_size=400), st.sampled_from(["a", "c", "d", "e", "f", "g", "h", "i", "k", "o"]))
def test_no_more_than_80_characters_of_a_value_are_repeated(value: str, name: str) -> None:
    try:
        ANYTHING.validate({"a": 1, "b": "x", "c": [], name: value, value: 1})
    except ArgumentsError as error:
        text = str(error) + json.dumps(error.data, ensure_ascii=False)
        assert value not in text
        for at in range(len(value) - 80):
            assert value[at : at + 81] not in text
