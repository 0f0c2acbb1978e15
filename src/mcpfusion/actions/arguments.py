"""What is wrong with the arguments of a call, said so that a model can put it right."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from .errors import did_you_mean

_ECHO = 60
_LINES = 50

_EXPECTED = {
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
    "typed_dict": "an object",
    "none": "null",
    "date": "a date (YYYY-MM-DD)",
    "datetime": "a date and time (ISO 8601)",
    "time": "a time (ISO 8601)",
    "time_delta": "a duration (ISO 8601)",
    "uuid": "a UUID",
    "url": "a URL",
    "bytes": "a string",
}
_SHAPE = ("_type", "_parsing", "_from_float", "_attributes_type", "_from_datetime_parsing", "_parsing_size")


def explain(error: ValidationError, given: Mapping[str, Any], known: Collection[str]) -> list[dict[str, str]]:
    """Return one `{"field", "expected", "problem"}` for each bad field of `given`, in the order of the error.

    `known` are the names that would have been right. No more than 80 characters of any value are repeated.
    """
    merged: dict[str, dict[str, str]] = {}
    for detail in error.errors(include_url=False):
        field = _path(detail["loc"], given, missing=detail["type"] in ("missing", "missing_argument"))
        expected, problem = _problem(detail, known)
        if (seen := merged.get(field)) is None:
            merged[field] = {"field": field, "expected": expected, "problem": problem}
        elif expected not in seen["expected"].split(" or "):
            # One field of a union type fails once for each member.
            seen["expected"] += f" or {expected}"
    return list(merged.values())


def in_words(fields: Sequence[Mapping[str, str]]) -> str:
    """Return one line for each field; from the 51st on only their number."""
    lines = [_line(field) for field in fields[:_LINES]]
    if len(fields) > _LINES:
        lines.append(f"... and {len(fields) - _LINES} more")
    return "\n".join(lines)


def _line(field: Mapping[str, str]) -> str:
    expected, problem = field["expected"], field["problem"]
    return f"{field['field']}: expected {expected}, {problem}" if expected else f"{field['field']}: {problem}"


def _problem(detail: ErrorDetails, known: Collection[str]) -> tuple[str, str]:
    kind, got = detail["type"], detail["input"]
    ctx: Mapping[str, Any] = detail.get("ctx", {})
    match kind:
        case "missing" | "missing_argument":
            return "a value", "missing"
        case "extra_forbidden" | "unexpected_keyword_argument" | "invalid_key":
            name = str(detail["loc"][-1])
            return "", "unknown field" + (did_you_mean(name, known) if len(detail["loc"]) == 1 else "")
        case "literal_error" | "enum":
            return f"one of {ctx['expected']}", f"got {given_as(got)}"
        case "union_tag_invalid" | "union_tag_not_found":
            tags = ctx.get("expected_tags")
            return f"{ctx['discriminator']} to be one of {tags}" if tags else f"a {ctx['discriminator']}", "not found"
        case _:
            return _expected(kind, detail["msg"], got), f"got {given_as(got)}"


def _expected(kind: str, message: str, got: Any) -> str:
    for ending in _SHAPE:
        if kind.endswith(ending) and (words := _EXPECTED.get(kind.removesuffix(ending))):
            return words
    for start in ("Input should be ", "Value error, ", "Assertion failed, "):
        message = message.removeprefix(start)
    if isinstance(got, str) and len(got) > _ECHO:
        message = message.replace(got, "the value")
    return message if len(message) <= 300 else message[:300] + "..."


def given_as(value: Any) -> str:
    """Say what was given: its JSON type, and the value itself where that is short."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            shown = repr(value) if not isinstance(value, int) or abs(value) < 10**_ECHO else "a large one"
            return f"number {shown}"
        case str():
            return f"string {json.dumps(value)}" if len(value) <= 20 else f"string of {len(value)} characters"
        case Mapping():
            return "object"
        case list() | tuple():
            return "array"
        case _:
            return type(cast(object, value)).__name__


def _path(loc: Iterable[int | str], given: Any, *, missing: bool) -> str:
    """Return the place of an error as `items.0.price`.

    Pydantic puts the members of unions into the place; what is not a key of the arguments is such a member.
    """
    parts: list[str] = []
    steps = list(loc)
    here: Any = given
    for at, step in enumerate(steps):
        last = at == len(steps) - 1
        if isinstance(here, Mapping) and step in here:
            here = cast(Mapping[Any, Any], here)[step]
        elif isinstance(here, list | tuple) and isinstance(step, int) and step < len(cast(Sequence[Any], here)):
            here = cast(Sequence[Any], here)[step]
        elif not (missing and last):
            continue
        parts.append(shown_name(str(step)))
    return ".".join(parts) or "arguments"


def shown_name(name: str) -> str:
    """Return a field name fit to be repeated: plain ASCII escapes for what is not printable, at most 80 characters."""
    if not name.isprintable() or "\n" in name:
        name = json.dumps(name)[1:-1]
    return name if len(name) <= 80 else name[:77] + "..."
