"""The result of a call, in the shape in which it goes over the wire."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from .errors import ResultError

_strict = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode

# What the MCP specification requires of each type of content block.
_REQUIRED: dict[str, tuple[tuple[str, type], ...]] = {
    "text": (("text", str),),
    "image": (("data", str), ("mimeType", str)),
    "audio": (("data", str), ("mimeType", str)),
    "resource_link": (("uri", str), ("name", str)),
    "resource": (("resource", Mapping),),
}


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call (MCP: `CallToolResult`).

    Attributes:
        content: Content blocks as they go over the wire.
        structured: The structured content, or None when there is none.
        is_error: True when the call failed; the content then says why.
        meta: The result's `_meta`, or None.
    """

    content: list[dict[str, Any]]
    structured: Any = None
    is_error: bool = False
    meta: dict[str, Any] | None = None

    def to_wire(self) -> dict[str, Any]:
        """Return the members of a `tools/call` result; what is not set is left out."""
        wire: dict[str, Any] = {"content": self.content}
        if self.structured is not None:
            wire["structuredContent"] = self.structured
        if self.is_error:
            wire["isError"] = True
        if self.meta:
            wire["_meta"] = self.meta
        return wire

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> "ToolResult":
        """Return the result that the members of a `tools/call` result describe."""
        return cls(
            content=list(wire.get("content") or ()),
            structured=wire.get("structuredContent"),
            is_error=bool(wire.get("isError")),
            meta=dict(wire["_meta"]) if wire.get("_meta") else None,
        )

    def with_meta(self, entries: Mapping[str, Any]) -> "ToolResult":
        """Return this result with `entries` added to its `_meta`."""
        return replace(self, meta={**(self.meta or {}), **entries})


def text(value: str) -> dict[str, Any]:
    """Return a text block. Lone surrogates, which no message can carry, become question marks."""
    return {"type": "text", "text": _sendable(value)}


def _sendable(value: str) -> str:
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def structured_result(data: Any) -> ToolResult:
    """Return `data` as structured content, with its JSON text as content for clients that read only that.

    The text is what the MCP specification asks of servers for backwards compatibility.

    Args:
        data: What pydantic's JSON mode gives: dicts, lists, strings, numbers, booleans and None.

    Raises:
        ResultError: `data` is not JSON after all: NaN, infinity, lone surrogates, or nested beyond reason.
    """
    try:
        encoded = to_json(data)
        if b"NaN" in encoded or b"Infinity" in encoded:
            # In a string they are fine; as numbers they are not JSON, and only this encoder says which it is.
            encoded = _strict(data).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ResultError(f"the result is not JSON: {error}") from error
    return ToolResult([{"type": "text", "text": encoded.decode()}], data)


def error_result(code: str | None, message: str, data: Mapping[str, Any] | None = None) -> ToolResult:
    """Return a failed result: `CODE: message` as text; code, message and `data` as structured content.

    `data` that is not JSON is left out: an answer that reports a failure must not fail itself.
    """
    message = _sendable(message)
    structured: dict[str, Any] = {"code": code, "message": message} if code else {"message": message}
    if data:
        try:
            details = cast(dict[str, Any], to_jsonable_python(dict(data)))
            structured = structured_result({**details, **structured}).structured
        except (ResultError, PydanticSerializationError, TypeError, ValueError, RecursionError):
            pass
    return ToolResult([text(f"{code}: {message}" if code else message)], structured, is_error=True)


def as_block(value: Any) -> dict[str, Any] | None:
    """Return `value` as a wire content block when it is one: a dict, or a model object of the MCP types.

    A `type` alone does not make a block. What the specification requires of that type must be there too, so that
    a user's own `{"type": "image", "id": 7}` stays data.

    Raises:
        ResultError: It is one, and holds something that is not JSON.
    """
    is_mapping = isinstance(value, Mapping)
    kind: Any = cast(Mapping[str, Any], value).get("type") if is_mapping else getattr(value, "type", None)
    required = _REQUIRED.get(kind) if isinstance(kind, str) else None
    if required is None or not (is_mapping or hasattr(value, "model_dump")):
        return None
    try:
        block = _plain_block(cast(Mapping[str, Any], value)) if is_mapping else _dumped_block(value)
    except (PydanticSerializationError, TypeError, ValueError, RecursionError) as error:
        raise ResultError(f"a content block is not JSON: {error}") from error
    if not all(isinstance(block.get(key), of) for key, of in required):
        return None
    if kind == "text":
        block["text"] = _sendable(block["text"])
    return block


def _plain_block(value: Mapping[str, Any]) -> dict[str, Any]:
    # The payload, which may be large, is text and can only be wrong in being no Unicode; the rest may be anything.
    rest: dict[str, Any] = {}
    for key, member in value.items():
        if not isinstance(member, str):
            rest[key] = member
        elif key != "text" and not member.isascii():
            member.encode()
    if not rest:
        return dict(value)
    return {**value, **structured_result(to_jsonable_python(rest, inf_nan_mode="null")).structured}


def _dumped_block(value: Any) -> dict[str, Any]:
    return value.model_dump(by_alias=True, mode="json", exclude_none=True)
