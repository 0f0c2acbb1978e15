"""What is wrong with the arguments of a call, said so that a model can put it right."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from .errors import did_you_mean

_LONGEST_NAME = 80
_LONGEST_ECHO = 40
_LONGEST_MESSAGE = 300
_LINES = 50

_BY_TYPE = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
_BY_ERROR = {
    "int": "an integer",
    "float": "a number",
    "decimal": "a number",
    "bool": "true or false",
    "string": "a string",
    "list": "an array",
    "tuple": "an array",
    "set": "an array",
    "frozen_set": "an array",
    "dict": "an object",
    "mapping": "an object",
    "model": "an object",
    "dataclass": "an object",
    "none_required": "null",
    "date": "a date (YYYY-MM-DD)",
    "datetime": "a date and time (ISO 8601)",
    "time": "a time (ISO 8601)",
    "time_delta": "a duration (ISO 8601)",
    "uuid": "a UUID",
    "url": "a URL",
    "bytes": "a string",
}
_ENDINGS = (
    "_from_date_parsing",
    "_from_datetime_parsing",
    "_from_datetime_inexact",
    "_attributes_type",
    "_parsing_size",
    "_from_float",
    "_parsing",
    "_type",
)


def explain(error: ValidationError, given: Mapping[str, Any], schema: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return one `{"field", "expected", "problem"}` for each bad field of `given`, in the order of the error.

    `schema` is the JSON Schema of the whole. At most 80 characters of a value are repeated.
    """
    expected: dict[str, list[str]] = {}
    problems: dict[str, str] = {}
    for detail in error.errors(include_url=False):
        field = _path(detail, given)
        wanted, problem = _judge(detail, schema)
        # A field of a union type fails once for each member of the union.
        if wanted not in expected.setdefault(field, []):
            expected[field].append(wanted)
        problems.setdefault(field, problem)
    return [
        {"field": field, "expected": " or ".join(wanted), "problem": problems[field]}
        for field, wanted in expected.items()
    ]


def in_words(fields: Sequence[Mapping[str, str]]) -> str:
    """Return one line for each field; from the 51st on only their number."""
    lines = [f"{field['field']}: expected {field['expected']}; {field['problem']}" for field in fields[:_LINES]]
    if len(fields) > _LINES:
        lines.append(f"... and {len(fields) - _LINES} more")
    return "\n".join(lines)


def _judge(detail: ErrorDetails, schema: Mapping[str, Any]) -> tuple[str, str]:
    """Return what was expected and what is wrong."""
    kind, loc, given = detail["type"], detail["loc"], detail["input"]
    ctx: Mapping[str, Any] = detail.get("ctx", {})
    properties: Mapping[str, Any] = schema.get("properties", {})
    match kind:
        case "missing":
            return _in_schema(properties.get(str(loc[-1]), {}) if len(loc) == 1 else {}), "it is missing"
        case "extra_forbidden" | "invalid_key":
            if len(loc) != 1:
                return "no such field", "it is unknown"
            known = ", ".join(properties)
            wanted = f"one of {known}" if known and len(known) <= _LONGEST_MESSAGE else "no such field"
            return wanted, f"it is unknown{did_you_mean(str(loc[0]), properties)}"
        case "literal_error" | "enum":
            return f"one of {_cut(str(ctx.get('expected')))}", f"got {given_as(given)}"
        case "union_tag_invalid":
            wanted = f"{ctx.get('discriminator')} to be one of {_cut(str(ctx.get('expected_tags')))}"
            return wanted, "got another one"
        case _:
            return _in_words(detail), f"got {given_as(given)}"


def _in_schema(schema: Mapping[str, Any]) -> str:
    match schema:
        case {"enum": choices}:
            return "one of " + _cut(", ".join(map(repr, choices)))
        case {"type": str() as kind}:
            return _BY_TYPE.get(kind, "a value")
        case {"anyOf": members}:
            return " or ".join(dict.fromkeys(map(_in_schema, members)))
        case _:
            return "a value"


def _in_words(detail: ErrorDetails) -> str:
    kind, message, given = detail["type"], detail["msg"], detail["input"]
    for ending in _ENDINGS:
        if kind.endswith(ending) and (words := _BY_ERROR.get(kind.removesuffix(ending))):
            return words
    if kind in _BY_ERROR:
        return _BY_ERROR[kind]
    for beginning in ("Input should be ", "Value error, ", "Assertion failed, "):
        message = message.removeprefix(beginning)
    if isinstance(given, str) and len(given) > _LONGEST_ECHO:
        message = message.replace(given, "the value")
    return _cut(message)


def _cut(message: str) -> str:
    return message if len(message) <= _LONGEST_MESSAGE else message[: _LONGEST_MESSAGE - 3] + "..."


def given_as(value: Any) -> str:
    """Say what was given: its JSON type, and the value itself where that is short."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return f"the number {value}" if abs(value) < 10**_LONGEST_ECHO else "a large number"
        case float():
            return f"the number {value!r}"
        case str():
            return f"the string {json.dumps(value)}" if _is_plain(value) else f"a string of length {len(value)}"
        case Mapping():
            return "an object"
        case list() | tuple():
            return "an array"
        case _:
            return f"a {type(value).__name__}"


def _is_plain(value: str) -> bool:
    return len(value) <= _LONGEST_ECHO and value.isprintable()


def _path(detail: ErrorDetails, given: Any) -> str:
    """Return the place of an error as `items.0.price`.

    Pydantic puts the members of unions into the place; what is not to be found in `given` is such a member, except
    for the last step to what is missing.
    """
    loc = detail["loc"]
    parts: list[str] = []
    here: Any = given
    for at, step in enumerate(loc):
        found, below = _step(here, step)
        if found:
            here = below
        elif detail["type"] != "missing" or at < len(loc) - 1:
            continue
        parts.append(_shown(str(step)))
    return ".".join(parts) or "arguments"


def _step(here: Any, step: int | str) -> tuple[bool, Any]:
    if isinstance(here, Mapping):
        container = cast(Mapping[Any, Any], here)
        return (True, container[step]) if step in container else (False, None)
    if isinstance(here, list | tuple) and isinstance(step, int):
        items = cast(Sequence[Any], here)
        return (True, items[step]) if 0 <= step < len(items) else (False, None)
    return False, None


def _shown(name: str) -> str:
    if not name.isprintable():
        name = json.dumps(name)[1:-1]
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 3] + "..."
