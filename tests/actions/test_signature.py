from __future__ import annotations

import contextvars
import dataclasses
import datetime
import enum
import functools
import inspect
import json
import sys
import threading
import typing
import uuid
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType

import anyio
import anyio.from_thread
import anyio.to_thread
import jsonschema
import pytest
import typing_extensions
from fastmcp import Context as FastMCPContext
from mcp.server.mcpserver import Context as SdkContext
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from mcpfusion.actions import ActionBuilder, ArgumentsError, Context, InputRequired, RegistrationError, Signature

if TYPE_CHECKING:
    from fractions import Fraction


SENTINEL = object()


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Item(BaseModel):
    sku: str
    quantity: int = Field(gt=0)


class Node(BaseModel):
    name: str
    children: list[Node] = []


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Address(typing.TypedDict):
    street: str
    floor: typing.NotRequired[int]


Cents = NewType("Cents", int)
Amount = Annotated[int, Field(gt=0, description="In cents")]


class Special(Context):
    pass


def signature(fn: Callable[..., Any]) -> Signature:
    return Signature.of(fn, name="a.b")


def context() -> Context:
    return Context(tool="a.b")


def properties(fn: Callable[..., Any]) -> dict[str, Any]:
    return signature(fn).input_schema["properties"]


def test_the_input_schema_of_a_plain_function() -> None:
    def fn(id: str, amount: float = 1.5) -> None: ...

    assert signature(fn).input_schema == {
        "type": "object",
        "properties": {"id": {"type": "string"}, "amount": {"type": "number", "default": 1.5}},
        "required": ["id"],
        "additionalProperties": False,
    }


def test_a_function_without_arguments() -> None:
    def fn() -> None: ...

    assert signature(fn).input_schema == {"type": "object", "properties": {}, "additionalProperties": False}
    assert signature(fn).validate({}) == {}
    with pytest.raises(ArgumentsError):
        signature(fn).validate({"x": 1})


def everything(
    ctx: Context,
    color: Color,
    items: list[Item],
    node: Node,
    point: Point,
    address: Address,
    cents: Cents,
    amount: Amount,
    when: datetime.datetime,
    kind: Literal["a", "b"],
    pair: tuple[int, str],
    key: uuid.UUID,
    price: Decimal,
    free,  # pyright: ignore[reportMissingParameterType]
    named: Annotated[int, Field(alias="customerId", title="Customer", description="Who pays")],
    old: int = Field(3, ge=1),
    inside: Annotated[int, Field(default=4)] = 5,
    only_inside: Annotated[int, Field(default=6)] = Field(),
    maybe: str | None = None,
    union: int | list[str] = 0,
    mapping: dict[str, float] | None = None,
    sentinel: Any = SENTINEL,
) -> None:
    pass


EVERYTHING: dict[str, Any] = {
    "color": "red",
    "items": [{"sku": "a", "quantity": 1}],
    "node": {"name": "n", "children": [{"name": "m"}]},
    "point": {"x": 1},
    "address": {"street": "s"},
    "cents": 5,
    "amount": 7,
    "when": "2024-01-02T03:04:05Z",
    "kind": "b",
    "pair": [1, "x"],
    "key": "12345678-1234-5678-1234-567812345678",
    "price": "1.10",
    "free": {"any": [None, 1]},
    "customerId": 9,
}


def test_arguments_become_the_types_of_the_parameters() -> None:
    values = signature(everything).validate(EVERYTHING)
    assert values["color"] is Color.RED
    assert values["items"] == [Item(sku="a", quantity=1)]
    assert values["node"] == Node(name="n", children=[Node(name="m")])
    assert values["point"] == Point(1, 0)
    assert values["address"] == {"street": "s"}
    assert (values["cents"], values["amount"], values["named"]) == (5, 7, 9)
    assert values["when"] == datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    assert values["pair"] == (1, "x")
    assert values["key"] == uuid.UUID(EVERYTHING["key"])
    assert values["price"] == Decimal("1.10")
    assert values["free"] == {"any": [None, 1]}
    assert "customerId" not in values


def test_defaults_of_every_spelling() -> None:
    values = signature(everything).validate(EVERYTHING)
    assert (values["old"], values["inside"], values["only_inside"]) == (3, 5, 6)
    assert (values["maybe"], values["union"], values["mapping"]) == (None, 0, None)
    assert values["sentinel"] is SENTINEL


def test_the_schema_says_what_validation_does() -> None:
    schema = signature(everything).input_schema
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(EVERYTHING, schema, cls=jsonschema.Draft202012Validator)
    given = schema["properties"]
    assert set(schema["required"]) == set(EVERYTHING)
    assert given["customerId"] == {"type": "integer", "title": "Customer", "description": "Who pays"}
    assert given["amount"] == {"type": "integer", "exclusiveMinimum": 0, "description": "In cents"}
    assert given["old"] == {"type": "integer", "default": 3, "minimum": 1}
    assert (given["inside"]["default"], given["only_inside"]["default"]) == (5, 6)
    assert given["free"] == {}
    assert given["sentinel"] == {}, "a default that is not JSON is left out"
    assert given["maybe"] == {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
    assert "ctx" not in given
    assert "title" not in schema


def test_titles_that_only_repeat_the_name_are_left_out() -> None:
    assert "Sku" not in json.dumps(signature(everything).input_schema)


@pytest.mark.parametrize(
    "name", ["schema", "json", "copy", "model_config", "validate", "dict", "model_fields", "fields", "self_", "name"]
)
def test_parameters_may_have_the_names_of_pydantics_own_attributes(name: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def fn({name}: int, other: str = 'x'): return {name}", scope)
    read = signature(scope["fn"])
    assert read.input_schema["properties"][name] == {"type": "integer"}
    assert scope["fn"](**read.validate({name: 3})) == 3


def test_a_mutable_default_is_not_shared_between_calls() -> None:
    def fn(tags: list[str] = []) -> None: ...  # noqa: B006

    read = signature(fn)
    read.validate({})["tags"].append("x")
    assert read.validate({})["tags"] == []


def test_context_is_injected_whatever_its_parameter_is_called() -> None:
    def plain(surroundings: Context, id: str) -> None: ...
    def optional(id: str, c: Context | None = None) -> None: ...
    def old_optional(id: str, c: typing.Optional[Context] = None) -> None: ...  # noqa: UP045
    def annotated(id: str, c: Annotated[Context, "x"]) -> None: ...
    def special(id: str, c: Special) -> None: ...
    def twice(id: str, c: Context, d: Context) -> None: ...

    for fn in (plain, optional, old_optional, annotated, special, twice):
        assert set(properties(fn)) == {"id"}
        with pytest.raises(ArgumentsError):
            signature(fn).validate({"id": "a", "c": {}})


def test_a_string_annotation_of_the_modules_own_types_resolves() -> None:
    def fn(item: Item) -> Item: ...  # type: ignore[empty-body]

    assert isinstance(signature(fn).validate({"item": {"sku": "a", "quantity": 1}})["item"], Item)


def test_string_annotations_of_types_local_to_a_function_resolve() -> None:
    class Local(BaseModel):
        n: int

    @functools.lru_cache
    def fn(item: Local, more: list[Local]) -> Local | None: ...

    values = signature(fn).validate({"item": {"n": 1}, "more": [{"n": 2}]})
    assert values == {"item": Local(n=1), "more": [Local(n=2)]}


def test_a_local_type_hides_the_modules_type_of_the_same_name() -> None:
    class Item(BaseModel):
        other: bool

    def fn(item: Item) -> None: ...

    assert signature(fn).validate({"item": {"other": True}}) == {"item": Item(other=True)}


def make_later() -> Callable[..., Any]:
    class Local(BaseModel):
        n: int

    def fn(item: Local) -> None: ...

    return fn


def make_later_closed() -> Callable[..., Any]:
    class Local(BaseModel):
        n: int

    def fn(item: Local) -> Any:
        return Local

    return fn


def test_a_local_type_that_is_gone_is_refused_with_its_parameter() -> None:
    with pytest.raises(RegistrationError, match=r"action 'a\.b': parameter 'item': the annotation 'Local' cannot be"):
        signature(make_later())


def test_a_local_type_in_the_closure_outlives_its_function() -> None:
    assert set(properties(make_later_closed())) == {"item"}


def test_types_imported_for_checking_only_are_refused_with_the_place() -> None:
    def argument(x: Fraction) -> None: ...
    def result() -> Fraction: ...  # type: ignore[empty-body]

    with pytest.raises(RegistrationError, match=r"parameter 'x': .*'Fraction'.*TYPE_CHECKING"):
        signature(argument)
    with pytest.raises(RegistrationError, match=r"the return type: .*'Fraction'.*TYPE_CHECKING"):
        signature(result)


def star(*args: int) -> None: ...
def stars(**kwargs: int) -> None: ...
def positional(x: int, /) -> None: ...
def underscore(_x: int) -> None: ...
def unbound(self, x: int) -> None: ...  # type: ignore[no-untyped-def]
def lock(x: threading.Lock) -> None: ...
def callback(x: Callable[[], int]) -> None: ...
def aliases(x: Annotated[int, Field(validation_alias=AliasChoices("a", "b"))]) -> None: ...
def same_name(x: Annotated[int, Field(alias="y")], y: int) -> None: ...
def generator() -> typing.Iterator[int]:
    yield 1


async def async_generator() -> typing.AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (star, r"parameter '\*args' has no schema; name each argument"),
        (stars, r"parameter '\*\*kwargs' has no schema; name each argument"),
        (positional, r"parameter 'x' is positional-only"),
        (underscore, "parameter '_x' begins with an underscore; rename it"),
        (unbound, "parameter 'self': register a method of an object"),
        (lock, "parameter 'x' has a type without JSON Schema"),
        (callback, "parameter 'x' has a type without JSON Schema"),
        (aliases, "parameter 'x': its alias must be one name"),
        (same_name, "two parameters are called 'y'"),
        (generator, "the handler is a generator; return a list"),
        (async_generator, "the handler is a generator; return a list"),
        (Item, "the handler must be a function, not <class"),
        (5, "the handler must be a function, not 5"),
        (dict.fromkeys, "positional-only|no readable signature"),
        (type.mro, "positional-only|no readable signature"),
    ],
)
def test_handlers_that_are_refused(fn: Any, says: str) -> None:
    with pytest.raises(RegistrationError, match=says) as error:
        signature(fn)
    assert str(error.value).startswith("action 'a.b': ")


def test_unknown_arguments_are_refused() -> None:
    def fn(amount: int = 1) -> None: ...

    with pytest.raises(ArgumentsError, match=r"amout: .*unknown .did you mean 'amount'"):
        signature(fn).validate({"amout": 1})


def test_takes() -> None:
    read = signature(everything)
    assert read.takes("color")
    assert read.takes("customerId")
    assert not read.takes("named")
    assert not read.takes("ctx")
    assert not read.takes("nothing")


def test_a_typeddict_of_typing_works_on_every_python() -> None:
    class Inner(typing.TypedDict, total=False):
        a: typing.Required[int]
        b: Annotated[str, Field(description="b")]

    class Outer(typing.TypedDict):
        inner: list[Inner]
        maybe: typing.NotRequired[Inner | None]

    def fn(outer: Outer, more: dict[str, Inner] | None = None) -> Outer: ...  # type: ignore[empty-body]

    read = signature(fn)
    outer = {"inner": [{"a": 1, "b": "x"}], "maybe": None}
    assert read.validate({"outer": outer})["outer"] == outer
    with pytest.raises(ArgumentsError, match=r"outer\.inner\.0\.a: expected a value; it is missing"):
        read.validate({"outer": {"inner": [{}]}})
    assert read.output_schema is not None
    assert read.output_schema["required"] == ["inner"]
    assert read.encode(outer).structured == outer


class Loop(typing.TypedDict):
    next: typing.NotRequired[Loop]


def test_a_recursive_typeddict_works_or_is_refused_with_its_parameter() -> None:
    def fn(loop: Loop) -> None: ...

    if sys.version_info >= (3, 12):
        assert signature(fn).validate({"loop": {"next": {}}}) == {"loop": {"next": {}}}
    else:
        with pytest.raises(RegistrationError, match=r"parameter 'loop'.*typing_extensions\.TypedDict"):
            signature(fn)


def test_types_local_to_a_class_body_resolve() -> None:
    class Outer:
        class Inner(BaseModel):
            n: int

        @ActionBuilder("action", "a.b").handle
        def act(item: Inner) -> None: ...  # type: ignore[misc]  # pyright: ignore[reportSelfClsParameterName]

    assert Outer.act.signature.takes("item")


def test_a_typeddict_of_typing_extensions_works_too() -> None:
    class Closed(typing_extensions.TypedDict):
        a: int

    def fn(x: Closed) -> Closed: ...  # type: ignore[empty-body]

    assert signature(fn).validate({"x": {"a": 1}}) == {"x": {"a": 1}}


class StrictModel(BaseModel):
    model_config = ConfigDict(strict=True)
    day: datetime.date
    color: Color


def test_strict_types_read_what_json_can_say_of_them() -> None:
    def fn(x: StrictModel, y: Annotated[uuid.UUID, Field(strict=True)], n: int) -> None: ...

    arguments = {"x": {"day": "2024-01-02", "color": "red"}, "y": EVERYTHING["key"], "n": 1}
    values = signature(fn).validate(arguments)
    assert values["x"] == StrictModel(day=datetime.date(2024, 1, 2), color=Color.RED)
    assert values["y"] == uuid.UUID(EVERYTHING["key"])
    with pytest.raises(ArgumentsError) as bad:
        signature(fn).validate({**arguments, "n": "x"})
    assert [field["field"] for field in bad.value.data["fields"]] == ["n"]


def test_arrays_and_objects_may_come_as_json_text() -> None:
    def fn(items: list[Item], point: Point, text: str, either: str | list[int] = "") -> None: ...

    values = signature(fn).validate(
        {"items": '[{"sku": "a", "quantity": 2}]', "point": '{"x": 1}', "text": "[1]", "either": "[1]"}
    )
    assert values["items"] == [Item(sku="a", quantity=2)]
    assert values["point"] == Point(1)
    assert (values["text"], values["either"]) == ("[1]", "[1]"), "text stays what it is where text is allowed"
    with pytest.raises(ArgumentsError, match=r"items\.0\.quantity: expected an integer") as bad:
        signature(fn).validate({"items": '[{"sku": "a", "quantity": []}]', "point": "{", "text": "x"})
    assert "point: expected an object; got the string" in str(bad.value)


@pytest.mark.parametrize("annotation", [SdkContext, SdkContext[Any, Any], FastMCPContext, FastMCPContext | None])
def test_the_context_of_another_library_is_refused_and_not_made_an_argument(annotation: Any) -> None:
    def fn(ctx: Any) -> None: ...

    fn.__annotations__["ctx"] = annotation
    with pytest.raises(
        RegistrationError, match=r"parameter 'ctx': another library's Context; use mcpfusion\.Context"
    ):
        signature(fn)


@pytest.mark.anyio
async def test_an_async_handler_is_awaited_in_the_event_loop() -> None:
    async def fn(id: str, ctx: Context) -> Any:
        return id, ctx, threading.get_ident()

    given = context()
    assert await signature(fn).call({"id": "a"}, given) == ("a", given, threading.get_ident())


@pytest.mark.anyio
async def test_a_sync_handler_runs_in_a_worker_thread_with_the_context_variables() -> None:
    variable = contextvars.ContextVar[str]("variable")
    variable.set("carried")

    def fn(id: str, ctx: Context) -> Any:
        return id, ctx, threading.get_ident(), variable.get()

    given = context()
    id, got, thread, value = await signature(fn).call({"id": "a"}, given)
    assert (id, got, value) == ("a", given, "carried")
    assert thread != threading.get_ident()


@pytest.mark.anyio
async def test_every_context_parameter_gets_the_context() -> None:
    async def fn(first: Context, id: str, second: Context | None = None) -> Any:
        return [first, second]

    given = context()
    assert await signature(fn).call({"id": "a"}, given) == [given, given]


class AsyncTool:
    async def __call__(self, n: int) -> int:
        return threading.get_ident() * 0 + n

    async def method(self, n: int) -> int:
        return n

    @classmethod
    async def by_class(cls, n: int) -> int:
        return n

    @staticmethod
    async def static(n: int) -> int:
        return n


class SyncTool:
    def __call__(self, n: int) -> int:
        return n


async def with_secret(secret: str, n: int) -> str:
    return f"{secret}{n}"


def sync_decorator(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return wrapper


async def simple(n: int) -> int:
    return n


@pytest.mark.anyio
@pytest.mark.parametrize(
    "fn",
    [
        simple,
        AsyncTool(),
        AsyncTool().method,
        AsyncTool.by_class,
        AsyncTool.static,
        SyncTool(),
        functools.partial(simple),
        functools.partial(AsyncTool()),
        sync_decorator(simple),
        lambda n: n,
        lambda n: simple(n),
    ],
)
async def test_callables_of_every_kind_are_called_rightly(fn: Any) -> None:
    read = signature(fn)
    assert list(read.input_schema["properties"]) == ["n"]
    assert await read.call(read.validate({"n": 3}), context()) == 3


@pytest.mark.anyio
async def test_what_a_partial_has_bound_is_no_argument_and_shows_nowhere() -> None:
    for fn in (functools.partial(with_secret, "hush"), functools.partial(with_secret, secret="hush")):
        read = signature(fn)
        assert "hush" not in json.dumps(read.input_schema)
        assert list(read.input_schema["properties"]) == ["n"]
        assert await read.call(read.validate({"n": 3}), context()) == "hush3"
        with pytest.raises(ArgumentsError):
            read.validate({"n": 3, "secret": "other"})


def test_a_function_that_returns_an_awaitable_promises_what_it_awaits() -> None:
    def fn() -> Awaitable[dict[str, int]]: ...  # type: ignore[empty-body]

    assert signature(fn).output_schema == {"type": "object", "additionalProperties": {"type": "integer"}}


@pytest.mark.anyio
async def test_whatever_the_handler_raises_is_raised() -> None:
    error = InputRequired("k", "m", {})

    def in_thread() -> None:
        raise error

    async def in_loop() -> None:
        raise LookupError("x")

    with pytest.raises(InputRequired) as raised:
        await signature(in_thread).call({}, context())
    assert raised.value is error
    with pytest.raises(LookupError):
        await signature(in_loop).call({}, context())


@pytest.mark.anyio
async def test_a_worker_thread_is_left_behind_when_the_call_is_cancelled() -> None:
    started, release, ended = threading.Event(), threading.Event(), threading.Event()

    def fn() -> None:
        started.set()
        release.wait(10)
        ended.set()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(signature(fn).call, {}, context())
            await anyio.to_thread.run_sync(started.wait, 5)
            tasks.cancel_scope.cancel()
    assert not ended.is_set()
    release.set()
    assert ended.wait(5)


@pytest.mark.anyio
async def test_a_sync_handler_reaches_the_async_context_through_anyio() -> None:
    sent: list[float] = []

    async def send(progress: float, total: float | None, message: str | None) -> None:
        sent.append(progress)

    def fn(ctx: Context) -> None:
        anyio.from_thread.run(ctx.progress, 0.5)

    await signature(fn).call({}, Context(tool="a.b", send_progress=send))
    assert sent == [0.5]


def test_nothing_is_inspected_after_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fn(id: str, ctx: Context) -> dict[str, str]:
        return {"id": id}

    action = ActionBuilder("action", "a.b").handle(fn)

    def forbidden(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("inspected at call time")

    for name in ("signature", "iscoroutinefunction", "get_annotations", "unwrap"):
        monkeypatch.setattr(inspect, name, forbidden)
    monkeypatch.setattr(typing, "get_type_hints", forbidden)

    async def main() -> Any:
        return await action.signature.call(action.signature.validate({"id": "a"}), context())

    assert action.signature.encode(anyio.run(main)).structured == {"id": "a"}
