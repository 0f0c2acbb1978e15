"""A handler's return annotation, read once: the schema of its structured content, and how to encode a value."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args, get_origin

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, SchemaError, to_jsonable_python

from .annotations import PlainSchema, portable, unwrapped
from .errors import RegistrationError, ResultError
from .results import ToolResult, as_block, structured_result, text

_REF = "#/$defs/"
_CONTENT_TYPES = frozenset(("text", "image", "audio", "resource_link", "resource"))
_BYTES = "bytes are not a result; return an image, audio or resource block with base64 data"
_UNFIT = (ValidationError, PydanticSerializationError, ValueError, TypeError, RecursionError)


@dataclass(frozen=True, slots=True)
class Output:
    """What becomes of a handler's return value.

    Attributes:
        schema: JSON Schema of the structured content, an object at its root, or None.
        encode: Turns a value into a result; raises ResultError.
    """

    schema: dict[str, Any] | None
    encode: Callable[[Any], ToolResult]

    @staticmethod
    def of(annotation: Any, *, name: str) -> "Output":
        """Read a resolved return annotation of the action `name`.

        Raises:
            RegistrationError: No JSON Schema can be made of it.
        """
        arms = [_Arm.of(arm) for arm in unwrapped(annotation)]
        if _Arm.BYTES in arms:
            raise RegistrationError(f"action {name!r}: return type: {_BYTES}")
        if all(arm in (_Arm.TEXT, _Arm.NONE, _Arm.CONTENT) for arm in arms):
            return Output(None, encode_content)
        if any(arm in (_Arm.FREE, _Arm.CONTENT) for arm in arms):
            return Output(None, encode_freely)
        return _structured(portable(annotation), name)


class _Arm:
    """What one member of a return annotation means for the wire."""

    TEXT, NONE, CONTENT, FREE, BYTES, DATA = range(6)

    @staticmethod
    def of(arm: Any) -> int:
        if arm is inspect.Signature.empty or arm is Any or arm is object or _is_result(arm):
            return _Arm.FREE
        if arm is str:
            return _Arm.TEXT
        if arm is None or arm is type(None):
            return _Arm.NONE
        if arm in (bytes, bytearray, memoryview):
            return _Arm.BYTES
        if _is_content(arm):
            return _Arm.CONTENT
        return _Arm.DATA


def _is_result(arm: Any) -> bool:
    """Whether `arm` is a whole result: ours, or a model that has the members of one."""
    if not isinstance(arm, type):
        return False
    fields: Mapping[str, Any] = getattr(arm, "model_fields", {})
    return issubclass(arm, ToolResult) or {"content", "structured_content", "is_error"} <= fields.keys()


def _is_content(arm: Any) -> bool:
    """Whether `arm` is a content block type of the MCP types, or a list or tuple of them."""
    if get_origin(arm) in (list, tuple, Sequence):
        members = [member for arg in get_args(arm) if arg is not ... for member in unwrapped(arg)]
        return any(_is_block(member) for member in members) and all(m is str or _is_block(m) for m in members)
    return _is_block(arm)


def _is_block(arm: Any) -> bool:
    if not isinstance(arm, type):
        return False
    kind = getattr(arm, "model_fields", {}).get("type")
    packages = {base.__module__.partition(".")[0] for base in arm.__mro__}
    return kind is not None and kind.default in _CONTENT_TYPES and "mcp_types" in packages


def _structured(annotation: Any, name: str) -> Output:
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        schema = _inlined(adapter.json_schema(mode="serialization", schema_generator=PlainSchema))
    except (PydanticUserError, SchemaError, NameError, TypeError, ValueError) as error:
        said = str(error).split("\n", 1)[0]
        raise RegistrationError(f"action {name!r}: no JSON Schema for the return type {annotation!r} ({said})") from error
    wrap = schema.get("type") != "object"
    if wrap:
        schema = _wrapped(schema)
    else:
        schema.pop("title", None)

    def encode(value: Any) -> ToolResult:
        if isinstance(value, ToolResult):
            return value
        try:
            checked = adapter.validate_python(value)
            data = adapter.dump_python(checked, mode="json", by_alias=True, warnings="error")
        except _UNFIT as error:
            raise ResultError(f"action {name!r}: the result does not fit {annotation!r}: {error}") from error
        return structured_result({"result": data} if wrap else data)

    return Output(schema, encode)


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Give a recursive type's schema, a bare reference, its object root, which clients up to 2025-11-25 demand."""
    ref = schema.get("$ref", "")
    if not ref.startswith(_REF):
        return schema
    return {**schema["$defs"][ref.removeprefix(_REF)], **{k: v for k, v in schema.items() if k != "$ref"}}


def _wrapped(schema: dict[str, Any]) -> dict[str, Any]:
    definitions = {"$defs": schema.pop("$defs")} if "$defs" in schema else {}
    return {"type": "object", "properties": {"result": schema}, "required": ["result"], **definitions}


def encode_content(value: Any) -> ToolResult:
    """Encode a value of a handler that promises text or content blocks."""
    if isinstance(value, str):
        return ToolResult([text(value)])
    if value is None:
        return ToolResult([])
    items = cast(Sequence[Any], value) if isinstance(value, list | tuple) else [value]
    blocks = [text(item) if isinstance(item, str) else as_block(item) for item in items]
    if None in blocks:
        raise ResultError(f"the handler promised text or content blocks and returned {type(value).__name__}")
    return ToolResult(cast(list[dict[str, Any]], blocks))


def encode_freely(value: Any) -> ToolResult:
    """Encode a value of a handler that promises nothing: by what it is."""
    if isinstance(value, ToolResult):
        return value
    if value is None or isinstance(value, str):
        return encode_content(value)
    if _is_result(type(value)):
        return _foreign_result(value)
    items: Sequence[Any] = cast(Sequence[Any], value) if isinstance(value, list | tuple) else [value]
    blocks = [text(item) if isinstance(item, str) else as_block(item) for item in items]
    if None not in blocks and not all(isinstance(item, str) for item in items):
        return ToolResult(cast(list[dict[str, Any]], blocks))
    if isinstance(value, bytes | bytearray | memoryview):
        raise ResultError(_BYTES)
    if inspect.isgenerator(value) or inspect.isasyncgen(value) or inspect.isawaitable(value):
        raise ResultError(f"a handler cannot return a {type(value).__name__}")
    try:
        data = to_jsonable_python(value)
    except _UNFIT as error:
        raise ResultError(f"the result is not JSON: {error}") from error
    return structured_result(data if isinstance(data, dict) else {"result": data})


def _foreign_result(value: Any) -> ToolResult:
    wire = value.model_dump(by_alias=True, mode="json", exclude_none=True)
    return ToolResult(
        wire["content"],
        value.structured_content,
        is_error=bool(value.is_error),
        meta=wire.get("_meta") or wire.get("meta"),
    )
