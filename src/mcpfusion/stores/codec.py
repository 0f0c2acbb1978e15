"""Workflows and steps as JSON text, the form in which every engine keeps them.

Strict in both directions: a record that does not have exactly the fields of its class, with values of their
types, is refused as a whole. A gate that acted on half a record would act on a workflow that does not exist.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, cast, get_args

from .protocol import Claim, DoubtPolicy, LastStep, Outcome, Step, StoreError, Workflow

_Check = tuple[str, Callable[[Any], bool]]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and (value.isascii() or _is_unicode(value))


def _is_unicode(value: str) -> bool:
    # A lone surrogate, which JSON can spell ("\ud800"), is a str that no engine's text column takes.
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_text_or_none(value: Any) -> bool:
    return value is None or _is_text(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_record_or_none(value: Any) -> bool:
    return value is None or isinstance(value, Mapping | Claim | LastStep)


def _one_of(literal: Any) -> _Check:
    allowed = get_args(literal)
    return f"one of {', '.join(allowed)}", lambda value: isinstance(value, str) and value in allowed


_TEXT: _Check = ("Unicode text", _is_text)
_TEXT_OR_NONE: _Check = ("Unicode text or null", _is_text_or_none)
_COUNT: _Check = ("a whole number from 0 up", _is_count)
_NUMBER: _Check = ("a finite number", _is_number)
_FLAG: _Check = ("true or false", lambda value: isinstance(value, bool))
_OBJECT: _Check = ("an object", lambda value: isinstance(value, Mapping))
_OBJECT_OR_NONE: _Check = ("an object or null", lambda value: value is None or isinstance(value, Mapping))
_RECORD_OR_NONE: _Check = ("an object or null", _is_record_or_none)
_ANYTHING: _Check = ("any JSON value", lambda value: True)

_WORKFLOW: dict[str, _Check] = {
    "scope": _TEXT,
    "handle": _TEXT,
    "id": _TEXT,
    "version": _COUNT,
    "steps": _COUNT,
    "state": _TEXT,
    "snapshot": _OBJECT,
    "updated_at": _NUMBER,
    "claim": _RECORD_OR_NONE,
    "last": _RECORD_OR_NONE,
}
_CLAIM: dict[str, _Check] = {
    "call_id": _TEXT,
    "idempotency_key": _TEXT,
    "tool": _TEXT,
    "event": _TEXT_OR_NONE,
    "principal": _TEXT_OR_NONE,
    "digest": _TEXT,
    "claimed_at": _NUMBER,
    "lease_until": _NUMBER,
    "on_doubt": _one_of(DoubtPolicy),
    "in_doubt": _FLAG,
    "opens": _FLAG,
}
_LAST: dict[str, _Check] = {
    "call_id": _TEXT,
    "tool": _TEXT,
    "digest": _TEXT,
    "principal": _TEXT_OR_NONE,
    "committed_at": _NUMBER,
    "result": _OBJECT_OR_NONE,
    "keep_until": _NUMBER,
}
_STEP: dict[str, _Check] = {
    "scope": _TEXT,
    "handle": _TEXT,
    "from_state": _TEXT,
    "to_state": _TEXT,
    "event": _TEXT_OR_NONE,
    "tool": _TEXT,
    "principal": _TEXT_OR_NONE,
    "call_id": _TEXT,
    "at": _NUMBER,
    "outcome": _one_of(Outcome),
    "arguments": _ANYTHING,
    "result": _ANYTHING,
}


def check_key(scope: str, handle: str) -> None:
    """Refuse a scope or handle that is not Unicode text.

    Raises:
        StoreError: It holds a lone surrogate, which no engine can keep.
    """
    if not (_is_text(scope) and _is_text(handle)):
        raise StoreError(f"workflow {_name(scope, handle)}: its name is no Unicode text")


def check_write(workflow: Workflow, expected_version: int, step: Step | None) -> None:
    """Refuse a write that contradicts itself.

    Raises:
        ValueError: The version is not `expected_version + 1`, or the step is another workflow's.
    """
    if expected_version < 0 or workflow.version != expected_version + 1:
        raise ValueError(f"version {workflow.version} does not follow version {expected_version}")
    if step is not None and (step.scope, step.handle) != (workflow.scope, workflow.handle):
        raise ValueError("the step belongs to another workflow than the record")


def encode_workflow(workflow: Workflow) -> str:
    """Return the record as compact ASCII JSON.

    Raises:
        StoreError: A field holds what JSON cannot, or what `decode_workflow` would refuse. Names the field.
    """
    where = f"workflow {_name(workflow.scope, workflow.handle)}"
    record = _plain(workflow)
    _check(record, _WORKFLOW, where, "")
    if workflow.claim is not None:
        record["claim"] = _plain(workflow.claim)
        _check(record["claim"], _CLAIM, where, "claim.")
    if workflow.last is not None:
        record["last"] = _plain(workflow.last)
        _check(record["last"], _LAST, where, "last.")
    return _dump(record, where)


def decode_workflow(text: str | bytes, scope: str, handle: str, version: int) -> Workflow:
    """Return the workflow that `encode_workflow` wrote for this scope, handle and version.

    Raises:
        StoreError: The text is not such a record. Names scope, handle and field, and quotes no value.
    """
    where = f"workflow {_name(scope, handle)}"
    record = _load(text, where)
    _check(record, _WORKFLOW, where, "")
    _check_place(record, where, scope=scope, handle=handle, version=version)
    if record["claim"] is not None:
        _check(record["claim"], _CLAIM, where, "claim.")
        record["claim"] = Claim(**record["claim"])
    if record["last"] is not None:
        _check(record["last"], _LAST, where, "last.")
        record["last"] = LastStep(**record["last"])
    return Workflow(**record)


def encode_step(step: Step) -> str:
    """Return the step as compact ASCII JSON. Raises StoreError as `encode_workflow` does."""
    where = f"history of {_name(step.scope, step.handle)}"
    record = _plain(step)
    _check(record, _STEP, where, "")
    return _dump(record, where)


def decode_step(text: str | bytes, scope: str, handle: str) -> Step:
    """Return the step that `encode_step` wrote. Raises StoreError as `decode_workflow` does."""
    where = f"history of {_name(scope, handle)}"
    record = _load(text, where)
    _check(record, _STEP, where, "")
    _check_place(record, where, scope=scope, handle=handle)
    return Step(**record)


def _name(scope: str, handle: str) -> str:
    # A handle comes from the caller and may be long; ascii() keeps control characters out of the log's lines.
    short = [ascii(text if len(text) <= 120 else text[:120] + "…") for text in (scope, handle)]
    return f"scope {short[0]}, handle {short[1]}"


def _plain(record: Workflow | Claim | LastStep | Step) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _check(record: Any, checks: Mapping[str, _Check], where: str, prefix: str) -> None:
    for field, (expected, holds) in checks.items():
        if field not in record:
            raise StoreError(f"{where}: field {prefix}{field} is missing")
        if not holds(record[field]):
            found = type(record[field]).__name__
            raise StoreError(f"{where}: field {prefix}{field} must be {expected}, found {found}")
    if len(record) > len(checks):
        extra = next(field for field in record if field not in checks)
        raise StoreError(f"{where}: unknown field {prefix}{extra} (written by a newer version?)")


def _check_place(record: Mapping[str, Any], where: str, **place: str | int) -> None:
    for field, value in place.items():
        if record[field] != value:
            raise StoreError(f"{where}: field {field} is not that of the place where the record is kept")


def _mapping(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    raise TypeError(f"{type(value).__name__} is no JSON value")


def _dump(record: Mapping[str, Any], where: str) -> str:
    try:
        return _to_json(record)
    except (TypeError, ValueError, RecursionError):
        for field, value in record.items():
            try:
                _to_json(value)
            except (TypeError, ValueError, RecursionError) as error:
                raise StoreError(f"{where}: field {field} cannot be kept as JSON: {error}") from error
        raise


def _to_json(value: Any) -> str:
    return json.dumps(value, default=_mapping, allow_nan=False, separators=(",", ":"))


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _load(text: str | bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(text, parse_constant=_no_constant)
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"{where}: the record is no JSON: {error}") from error
    if not isinstance(record, dict):
        raise StoreError(f"{where}: the record is no JSON object")
    return cast("dict[str, Any]", record)
