"""Questions to the person at the client: their schema on the wire, and their answers.

The MCP specification allows flat schemas only (`PrimitiveSchemaDefinition`): text, numbers, booleans, choices, and
lists of choices.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, cast

import jsonschema
from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from .arguments import explain, in_words
from .errors import ToolError

T = TypeVar("T")

_FORMATS = ("email", "uri", "date", "date-time")
_COMMON = ("type", "title", "description", "default")
_KEYWORDS: dict[str, tuple[str, ...]] = {
    "string": ("minLength", "maxLength", "format", "enum", "enumNames", "oneOf"),
    "integer": ("minimum", "maximum"),
    "number": ("minimum", "maximum"),
    "boolean": (),
    "array": ("items", "minItems", "maxItems"),
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
        read: Turns the content of an accepted answer into data; raises ValidationError or
            `jsonschema.ValidationError`.
    """

    schema: dict[str, Any]
    read: Callable[[Mapping[str, Any]], Any]

    @staticmethod
    def of(schema: Any) -> "Question":
        """Return the question for a model class, a dataclass, or a JSON Schema.

        Raises:
            TypeError: It is none of these, or a field cannot be asked for; the field is named.
        """
        if isinstance(schema, Mapping):
            return _from_json_schema(cast(Mapping[str, Any], schema))
        return _from_type(schema)

    def key(self, ordinal: int, message: str) -> str:
        """Return what names this question within one call: its place in the run, and a digest of what is asked."""
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
                raise ToolError("The answer does not fit the question: unknown action.", code="INVALID_ANSWER")

    def _data(self, content: Any) -> Any:
        given: Mapping[str, Any] = cast(Mapping[str, Any], content) if isinstance(content, Mapping) else {}
        try:
            return self.read(given)
        except ValidationError as error:
            lines = in_words(explain(error, given, self.schema.get("properties", {})))
        except jsonschema.ValidationError as error:
            where = ".".join(str(part) for part in error.absolute_path) or "answer"
            lines = f"{where}: does not fit {error.validator}"
        raise ToolError(f"The answer does not fit the question:\n{lines}", code="INVALID_ANSWER")


class _FlatSchema(GenerateJsonSchema):
    """Renders an optional field as a plain one that is not required, which is the form the specification has."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        rendered = super().default_schema(schema)
        if rendered.get("default", ...) is None:
            del rendered["default"]
        return rendered


@functools.lru_cache(maxsize=512)
def _from_type(schema: type[Any]) -> Question:
    name = getattr(schema, "__name__", repr(schema))
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(schema)
        rendered = adapter.json_schema(schema_generator=_FlatSchema)
    except PydanticUserError as error:
        raise TypeError(f"{name} cannot be asked for: {error.message}") from error
    return Question(_flat(rendered, name), adapter.validate_python)


def _from_json_schema(schema: Mapping[str, Any]) -> Question:
    flat = _flat(schema, "schema")
    validator = jsonschema.Draft202012Validator(flat)

    def read(content: Mapping[str, Any]) -> dict[str, Any]:
        validator.validate(dict(content))  # pyright: ignore[reportUnknownMemberType]
        return dict(content)

    return Question(flat, read)


def _flat(schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    root = _followed(schema, schema)
    if root.get("type") != "object":
        raise TypeError(f"{name} cannot be asked for: a question needs fields (a model, a dataclass, an object schema)")
    properties: Mapping[str, Any] = root.get("properties", {})
    flat: dict[str, Any] = {
        "type": "object",
        "properties": {field: _primitive(prop, schema, f"{name}.{field}") for field, prop in properties.items()},
    }
    if required := root.get("required"):
        flat["required"] = list(required)
    return flat


def _followed(prop: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    ref = prop.get("$ref")
    if not isinstance(ref, str):
        return dict(prop)
    definition = root.get("$defs", {}).get(ref.removeprefix("#/$defs/"), {})
    return {**definition, **{k: v for k, v in prop.items() if k != "$ref"}}


def _primitive(prop: Mapping[str, Any], root: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return `prop` with what the form can say; the rest (a pattern, say) is checked when the answer comes."""
    prop = _followed(prop, root)
    kind = prop.get("type")
    if "const" in prop:
        prop["enum"] = [prop["const"]]
    if not isinstance(kind, str) or kind not in _KEYWORDS:
        raise TypeError(f"{where}: elicitation asks for text, numbers, booleans and choices only, not {_kind(prop)}")
    if kind in ("integer", "number", "boolean") and "enum" in prop:
        raise TypeError(f"{where}: choices in elicitation are text only, not {kind}")
    if "format" in prop and prop["format"] not in _FORMATS:
        raise TypeError(f"{where}: elicitation knows the formats {', '.join(_FORMATS)}, not {prop['format']!r}")
    flat = {key: prop[key] for key in (*_COMMON, *_KEYWORDS[kind]) if key in prop}
    if kind == "array":
        flat["items"] = _choices(_followed(prop.get("items", {}), root), where)
    return flat


def _choices(items: Mapping[str, Any], where: str) -> dict[str, Any]:
    if "const" in items:
        items = {**items, "enum": [items["const"]]}
    if items.get("type") == "string" and "enum" in items:
        return {"type": "string", "enum": items["enum"]}
    if "anyOf" in items and all(isinstance(o, Mapping) and "const" in o and "title" in o for o in items["anyOf"]):
        return {"anyOf": items["anyOf"]}
    raise TypeError(f"{where}: elicitation asks for lists of choices only (`list[Literal['a', 'b']]`)")


def _kind(prop: Mapping[str, Any]) -> str:
    return next((str(prop[key]) for key in ("type",) if key in prop), None) or next(
        (key for key in ("anyOf", "oneOf", "allOf") if key in prop), "any value"
    )
