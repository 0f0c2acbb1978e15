"""Questions to the person at the client: their schema on the wire, and their answers.

The MCP specification allows flat schemas only (`PrimitiveSchemaDefinition`): text, numbers, booleans, choices, and
lists of choices.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, NotRequired, TypeVar, cast

from pydantic import Field, PydanticUserError, TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import SchemaError, core_schema
from typing_extensions import TypedDict

from .annotations import portable
from .arguments import explain, in_words
from .errors import ToolError, gist

T = TypeVar("T")

_FORMATS = ("email", "uri", "date", "date-time")
_COMMON = ("type", "title", "description", "default")
_KEYWORDS: dict[str, tuple[str, ...]] = {
    "string": ("minLength", "maxLength", "format", "enum", "enumNames", "oneOf"),
    "integer": ("minimum", "maximum"),
    "number": ("minimum", "maximum"),
    "boolean": (),
    "array": ("minItems", "maxItems"),
}


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What came back.

    Attributes:
        action: `accept`, or `decline` (said no), or `cancel` (dismissed the question).
        data: The answer when it was accepted, else None.
    """

    action: Literal["accept", "decline", "cancel"]
    data: T | None = None

    @property
    def accepted(self) -> bool:
        """True when the question was answered."""
        return self.action == "accept"


@dataclass(frozen=True, slots=True)
class Question:
    """A schema made ready to be asked with.

    Attributes:
        schema: The JSON Schema that goes to the client.
        read: Turns the content of an accepted answer into data; raises pydantic's ValidationError.
    """

    schema: dict[str, Any]
    read: Callable[[Mapping[str, Any]], Any]

    @staticmethod
    def of(schema: Any) -> "Question":
        """Return the question for a model class, a dataclass, or a JSON Schema.

        Raises:
            TypeError: It is none of these, or a field cannot be asked for; the field is named.
        """
        if not isinstance(schema, Mapping):
            return _from_type(schema)
        flat = _flat(cast(Mapping[str, Any], schema), "schema")
        return Question(flat, _reader(flat))

    def key(self, ordinal: int, message: str) -> str:
        """Return what names this question within one call: its place in the run and a digest of what is asked."""
        asked = json.dumps([message, self.schema], sort_keys=True, separators=(",", ":"))
        return f"{ordinal}:{hashlib.sha256(asked.encode()).hexdigest()[:16]}"

    def answer(self, wire: Mapping[str, Any]) -> Answer[Any]:
        """Read an `ElicitResult`.

        Raises:
            ToolError: `INVALID_ANSWER`, when it does not fit the schema.
        """
        match wire.get("action"):
            case "decline":
                return Answer("decline")
            case "cancel":
                return Answer("cancel")
            case "accept":
                return Answer("accept", self._data(wire.get("content")))
            case _:
                raise _unfit("action: expected accept, decline or cancel")

    def _data(self, content: Any) -> Any:
        given: Mapping[str, Any] = cast(Mapping[str, Any], content) if isinstance(content, Mapping) else {}
        try:
            return self.read(given)
        except ValidationError as error:
            raise _unfit(in_words(explain(error, given, self.schema))) from None


def _unfit(lines: str) -> ToolError:
    return ToolError(f"The answer does not fit the question:\n{lines}", code="INVALID_ANSWER")


class _FlatSchema(GenerateJsonSchema):
    """Renders `T | None` as `T`: the form that the specification has for an optional field is not to require it."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        rendered = super().default_schema(schema)
        if rendered.get("default", ...) is None:
            del rendered["default"]
        return rendered


@functools.lru_cache(maxsize=512)
def _from_type(schema: Any) -> Question:
    name = getattr(schema, "__name__", repr(schema))
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(portable(schema, {}))
        rendered = adapter.json_schema(schema_generator=_FlatSchema)
    except (PydanticUserError, SchemaError, NameError, ValueError) as error:
        raise TypeError(f"{name} cannot be asked for: {gist(error)}") from error
    return Question(_flat(rendered, name), adapter.validate_python)


def _flat(schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    root = _followed(schema, schema)
    if root.get("type") != "object":
        raise TypeError(f"{name} cannot be asked for: a question needs named fields, as a model has them")
    properties: Mapping[str, Any] = root.get("properties", {})
    flat: dict[str, Any] = {
        "type": "object",
        "properties": {key: _primitive(prop, schema, f"{name}.{key}") for key, prop in properties.items()},
    }
    if required := root.get("required"):
        flat["required"] = list(required)
    return flat


def _followed(prop: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """Return `prop` with what it refers to in its place; the name of a class is no title for a person."""
    ref = prop.get("$ref")
    if not isinstance(ref, str):
        return dict(prop)
    definition = root.get("$defs", {}).get(ref.removeprefix("#/$defs/"), {})
    merged = {**definition, **prop}
    return {key: value for key, value in merged.items() if key != "$ref" and (key != "title" or key in prop)}


def _primitive(prop: Mapping[str, Any], root: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return `prop` with what a form can say; the rest, a pattern for instance, is checked on the answer."""
    prop = _followed(prop, root)
    kind = prop.get("type")
    if not isinstance(kind, str) or kind not in _KEYWORDS:
        found = kind or next((key for key in ("anyOf", "oneOf", "allOf") if key in prop), "any value")
        raise TypeError(f"{where}: elicitation asks for text, numbers, booleans and choices, not for {found}")
    if "const" in prop:
        prop["enum"] = [prop["const"]]
    if kind != "string" and "enum" in prop:
        raise TypeError(f"{where}: choices in elicitation are text, not {kind}")
    if prop.get("format", "date") not in _FORMATS and kind == "string":
        known = ", ".join(_FORMATS)
        raise TypeError(f"{where}: elicitation knows the formats {known}, not {prop['format']!r}")
    flat = {key: prop[key] for key in (*_COMMON, *_KEYWORDS[kind]) if key in prop}
    if kind == "array":
        flat["items"] = _choices(_followed(prop.get("items", {}), root), where)
    return flat


def _choices(items: Mapping[str, Any], where: str) -> dict[str, Any]:
    match items:
        case {"type": "string", "const": str() as only}:
            return {"type": "string", "enum": [only]}
        case {"type": "string", "enum": list()}:
            return {"type": "string", "enum": items["enum"]}
        case {"anyOf": [*members]} if all(isinstance(m, Mapping) and "const" in m for m in members):
            return {"anyOf": items["anyOf"]}
        case _:
            raise TypeError(f"{where}: elicitation asks for lists of choices, as in list[Literal['a', 'b']]")


def _reader(flat: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return what checks an answer to a question that was put as JSON Schema."""
    required: Sequence[str] = flat.get("required", ())
    fields = {
        key: _type_of(prop) if key in required else NotRequired[_type_of(prop)]
        for key, prop in flat["properties"].items()
    }
    answer = cast("Callable[[str, dict[str, Any]], Any]", TypedDict)("Answer", fields)
    return cast("TypeAdapter[dict[str, Any]]", TypeAdapter(answer)).validate_python


def _type_of(prop: Mapping[str, Any]) -> Any:
    match prop:
        case {"enum": choices} | {"oneOf": choices} | {"anyOf": choices}:
            return Literal[tuple(map(_choice, choices))]
        case {"type": "string"}:
            return Annotated[
                str, Field(min_length=prop.get("minLength"), max_length=prop.get("maxLength"), strict=True)
            ]
        case {"type": "boolean"}:
            return Annotated[bool, Field(strict=True)]
        case {"type": "array"}:
            member = _type_of(prop["items"])
            return Annotated[list[member], Field(min_length=prop.get("minItems"), max_length=prop.get("maxItems"))]
        case _:
            number = int if prop.get("type") == "integer" else int | float
            return Annotated[number, Field(ge=prop.get("minimum"), le=prop.get("maximum"))]


def _choice(choice: Any) -> Any:
    return cast(Mapping[str, Any], choice)["const"] if isinstance(choice, Mapping) else choice
