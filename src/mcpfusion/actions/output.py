"""A handler's return annotation, read once: the schema of its structured content, and how to encode a value."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, Literal, cast, get_args, get_origin

from pydantic import BaseModel, PydanticUserError, RootModel, TypeAdapter
from pydantic_core import PydanticSerializationError, SchemaError, to_jsonable_python

from .annotations import PlainSchema, unwrapped
from .errors import RegistrationError, ResultError, gist
from .results import ToolResult, as_block, structured_result, text

_DEFS = "#/$defs/"
_BLOCK_TYPES = frozenset(("text", "image", "audio", "resource_link", "resource"))
_BYTES = "bytes are no result; return an image, audio or resource block with base64 data, or text"
# ValidationError is a ValueError; what a user's own validator or serializer raises may be any of these.
_UNFIT = (PydanticSerializationError, ValueError, TypeError, AttributeError, RecursionError)

_Arm = Literal["text", "none", "content", "bytes", "free", "data"]


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
        """Read the resolved return annotation of the action `name`.

        Raises:
            RegistrationError: No JSON Schema can be made of it.
        """
        arms = [_arm(member) for member in unwrapped(annotation)]
        if "bytes" in arms:
            raise RegistrationError(f"action {name!r}: return type: {_BYTES}")
        if "free" in arms or ("content" in arms and "data" in arms):
            return Output(None, _freely)
        if "data" not in arms:
            return Output(None, _as_content("text" in arms, "none" in arms, "content" in arms, name))
        return _structured(annotation, name)


def _arm(member: Any) -> _Arm:
    """Return what one member of a return annotation means for the wire."""
    if member in (inspect.Signature.empty, Any, object) or _is_result(member) or _is_handoff(member):
        return "free"
    if member is str:
        return "text"
    if member in (None, type(None)):
        return "none"
    if member in (bytes, bytearray, memoryview):
        return "bytes"
    return "content" if _is_content(member) else "data"


@functools.lru_cache(maxsize=1024)
def _is_result(member: Any) -> bool:
    """Whether `member` is the type of a whole result: ours, the SDK's or FastMCP's."""
    if not isinstance(member, type):
        return False
    fields: Mapping[str, Any] = getattr(member, "model_fields", {})
    return issubclass(member, ToolResult) or {"content", "structured_content", "is_error"} <= fields.keys()


def _is_handoff(member: Any) -> bool:
    """Whether `member` is what hands the conversation over: a gateway answers in its place, in a form of its own."""
    return getattr(member, "_MCPFUSION_handoff", False) is True


def _is_content(member: Any) -> bool:
    if get_origin(member) not in (list, tuple, Sequence):
        return _is_block(member)
    items = [arm for arg in get_args(member) if arg is not ... for arm in unwrapped(arg)]
    return any(map(_is_block, items)) and all(item is str or _is_block(item) for item in items)


def _is_block(member: Any) -> bool:
    """Whether `member` is a content block type of the MCP types, without importing them."""
    if not isinstance(member, type):
        return False
    kind = getattr(member, "model_fields", {}).get("type")
    from_mcp = any(base.__module__.partition(".")[0] == "mcp_types" for base in member.__mro__)
    return from_mcp and kind is not None and kind.default in _BLOCK_TYPES


def _structured(annotation: Any, name: str) -> Output:
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        schema = _inlined(adapter.json_schema(mode="serialization", schema_generator=PlainSchema))
    except (PydanticUserError, SchemaError, NameError, TypeError, ValueError) as error:
        raise RegistrationError(
            f"action {name!r}: no JSON Schema for the return type {annotation!r} ({gist(error)});"
            " return a pydantic model, a dataclass, a TypedDict or a dict, or leave the annotation out"
        ) from error
    is_object = schema.get("type") == "object"
    schema = {key: value for key, value in schema.items() if key != "title"} if is_object else _wrapped(schema)
    return Output(schema, _encoder(adapter, annotation, name, wrap=not is_object))


def _encoder(adapter: TypeAdapter[Any], annotation: Any, name: str, *, wrap: bool) -> Callable[[Any], ToolResult]:
    # Without the adapter in between, which costs more than the work itself.
    validate, dump = adapter.validator.validate_python, adapter.serializer.to_python

    def encode(value: Any) -> ToolResult:
        if _is_result(cast(Any, type(value))):
            return _checked(_whole(value), validate, name, wrap=wrap)
        try:
            data = dump(validate(value), mode="json", by_alias=True, warnings="error")
        except _UNFIT as error:
            raise ResultError(f"action {name!r}: the result does not fit {annotation!r}: {error}") from error
        return structured_result({"result": data} if wrap else data)

    return encode


def _checked(result: ToolResult, validate: Callable[[Any], Any], name: str, *, wrap: bool) -> ToolResult:
    """Return a result that the handler made itself, if its structured content is what the action promises."""
    if result.is_error:
        return result
    try:
        validate(result.structured["result"] if wrap else result.structured)
    except (*_UNFIT, LookupError) as error:
        raise ResultError(f"action {name!r}: the structured content is not as promised: {error}") from error
    return result


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Give the schema of a recursive type, a bare reference, the object root that clients up to 2025-11-25 need."""
    ref = schema.get("$ref", "")
    if not ref.startswith(_DEFS):
        return schema
    return {**schema["$defs"][ref.removeprefix(_DEFS)], **{k: v for k, v in schema.items() if k != "$ref"}}


def _wrapped(schema: dict[str, Any]) -> dict[str, Any]:
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    wrapped: dict[str, Any] = {"type": "object", "properties": {"result": inner}, "required": ["result"]}
    return {**wrapped, "$defs": schema["$defs"]} if "$defs" in schema else wrapped


def _as_content(has_text: bool, has_none: bool, has_blocks: bool, name: str) -> Callable[[Any], ToolResult]:
    """Return the encoder of a handler that promises text, None or content blocks, and nothing else."""

    def encode(value: Any) -> ToolResult:
        if has_text and isinstance(value, str):
            return ToolResult([text(value)])
        if has_none and value is None:
            return ToolResult([])
        blocks = _blocks(value) if has_blocks else None
        if blocks is None:
            promised = ", ".join(
                word for word, has in (("text", has_text), ("content blocks", has_blocks), ("None", has_none)) if has
            )
            raise ResultError(f"action {name!r}: promised {promised} and returned {type(value).__name__}")
        return ToolResult(blocks)

    return encode


def _blocks(value: Any) -> list[dict[str, Any]] | None:
    """Return `value` as content blocks, or None when it is something else."""
    items: Sequence[Any] = cast(Sequence[Any], value) if isinstance(value, list | tuple) else (value,)
    blocks: list[dict[str, Any]] = []
    for item in items:
        block = text(item) if isinstance(item, str) else as_block(item)
        if block is None:
            return None
        blocks.append(block)
    return blocks


def _freely(value: Any) -> ToolResult:
    """Encode a value of a handler that promises nothing, by what the value is."""
    if _is_plain_data(value):
        return _json(value)
    if isinstance(value, str):
        return ToolResult([text(value)])
    if value is None:
        return ToolResult([])
    if _is_result(cast(Any, type(value))):
        return _whole(value)
    if not _is_only_text(value) and (blocks := _blocks(value)) is not None:
        return ToolResult(blocks)
    if isinstance(value, bytes | bytearray | memoryview):
        raise ResultError(_BYTES)
    if inspect.isgenerator(value) or inspect.isasyncgen(value) or inspect.isawaitable(value):
        raise ResultError(f"a {type(value).__name__} is no result")
    return _json(value if _is_object(value) else {"result": value})


def _is_plain_data(value: Any) -> bool:
    """Whether `value` is the usual case, a dict that cannot be a content block."""
    return type(value) is dict and "type" not in cast(dict[Any, Any], value)


def _is_object(value: Any) -> bool:
    """Whether `value` is an object in JSON: a mapping, a model or a dataclass."""
    if isinstance(value, RootModel):
        return _is_object(cast("RootModel[Any]", value).root)
    return isinstance(value, (Mapping, BaseModel)) or is_dataclass(value)


def _is_only_text(value: Any) -> bool:
    """Whether `value` is a list of plain strings, which are data when nobody said that they are content."""
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in cast(Sequence[Any], value))


def _whole(value: Any) -> ToolResult:
    """Return a whole result, ours or another library's, with its content as wire blocks."""
    if not isinstance(value, ToolResult):
        value = ToolResult(list(value.content), value.structured_content, bool(value.is_error), value.meta)
    blocks = _blocks(list(value.content))
    if blocks is None:
        raise ResultError("the result's content holds something that is no content block")
    meta = _json(value.meta).structured if value.meta else None
    if value.structured is None:
        return replace(value, content=blocks, meta=meta)
    structured = _json(value.structured)
    return replace(value, content=blocks or structured.content, structured=structured.structured, meta=meta)


def _json(value: Any) -> ToolResult:
    """Encode data of which nothing is promised; NaN and infinity become null, as they do in JavaScript."""
    try:
        return structured_result(to_jsonable_python(value, inf_nan_mode="null"))
    except _UNFIT as error:
        raise ResultError(f"the result is not JSON: {error}") from error
