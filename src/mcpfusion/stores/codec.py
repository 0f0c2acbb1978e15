"""Workflows and steps as JSON text, the form in which every engine keeps them.

Strict in both directions: a record that does not have exactly the fields of its class, with values of their
types, is refused as a whole; only a field that came later may be missing, in a record written before. A gate that
acted on half a record would act on a workflow that does not exist.
"""

import json
import math
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from mcpfusion.telemetry import workflow_name

from .protocol import Claim, LastStep, Step, StoreError, Workflow

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


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_PLAIN: dict[Any, _Check] = {
    str: ("Unicode text", _is_text),
    int: ("a whole number from 0 up", _is_count),
    float: ("a finite number", _is_number),
    bool: ("true or false", lambda value: isinstance(value, bool)),
    Any: ("any JSON value", lambda value: True),
    Mapping: ("an object", lambda value: isinstance(value, Mapping)),
    Claim: ("a claim", lambda value: isinstance(value, Mapping | Claim)),
    LastStep: ("a step", lambda value: isinstance(value, Mapping | LastStep)),
}


def _check_for(hint: Any) -> _Check:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        expected, holds = _check_for(get_args(hint)[0])
        return f"{expected} or null", lambda value: value is None or holds(value)
    if origin is Literal:
        allowed = get_args(hint)
        return f"one of {', '.join(allowed)}", lambda value: isinstance(value, str) and value in allowed
    return _PLAIN[origin or hint]


def _checks_for(record: type) -> dict[str, _Check]:
    return {field: _check_for(hint) for field, hint in get_type_hints(record).items()}


_WORKFLOW = _checks_for(Workflow)
_CLAIM = _checks_for(Claim)
_LAST = _checks_for(LastStep)
_STEP = _checks_for(Step)

# Fields of a workflow that came after the first release, each with a default that means what it was before.
_LATER = frozenset({"expires_at"})


def check_key(scope: str, handle: str) -> None:
    """Refuse a scope or handle that is not Unicode text.

    Raises:
        StoreError: It holds a lone surrogate, which no engine can keep.
    """
    if not (_is_text(scope) and _is_text(handle)):
        raise StoreError(f"workflow {workflow_name(scope, handle)}: its name is no Unicode text")


def check_write(workflow: Workflow, expected_version: int, step: Step | None) -> None:
    """Refuse a write that contradicts itself or whose workflow cannot be named.

    Raises:
        StoreError: As `check_key` does.
        ValueError: The version is not `expected_version + 1`, or the step is another workflow's.
    """
    check_key(workflow.scope, workflow.handle)
    if expected_version < 0 or workflow.version != expected_version + 1:
        raise ValueError(f"version {workflow.version} does not follow version {expected_version}")
    if step is not None and (step.scope, step.handle) != (workflow.scope, workflow.handle):
        raise ValueError("the step belongs to another workflow than the record")


def encode_workflow(workflow: Workflow) -> str:
    """Return the record as compact ASCII JSON.

    Raises:
        StoreError: A field holds what JSON cannot, or what `decode_workflow` would refuse. Names the field.
    """
    where = f"workflow {workflow_name(workflow.scope, workflow.handle)}"
    record = _plain(workflow, _WORKFLOW)
    _check(record, _WORKFLOW, where, "")
    if workflow.claim is not None:
        record["claim"] = _plain(workflow.claim, _CLAIM)
        _check(record["claim"], _CLAIM, where, "claim.")
    if workflow.last is not None:
        record["last"] = _plain(workflow.last, _LAST)
        _check(record["last"], _LAST, where, "last.")
    return _dump(record, where)


def decode_workflow(text: str | bytes, scope: str, handle: str, version: int) -> Workflow:
    """Return the workflow that `encode_workflow` wrote for this scope, handle and version.

    Raises:
        StoreError: The text is not such a record. Names the field, and quotes no value.
    """
    where = f"workflow {workflow_name(scope, handle)}"
    record = _load(text, where)
    _check(record, _WORKFLOW, where, "", optional=_LATER)
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
    where = f"history of {workflow_name(step.scope, step.handle)}"
    record = _plain(step, _STEP)
    _check(record, _STEP, where, "")
    return _dump(record, where)


def decode_step(text: str | bytes, scope: str, handle: str) -> Step:
    """Return the step that `encode_step` wrote. Raises StoreError as `decode_workflow` does."""
    where = f"history of {workflow_name(scope, handle)}"
    record = _load(text, where)
    _check(record, _STEP, where, "")
    _check_place(record, where, scope=scope, handle=handle)
    return Step(**record)


def _plain(record: Workflow | Claim | LastStep | Step, checks: Mapping[str, _Check]) -> dict[str, Any]:
    return {field: getattr(record, field) for field in checks}


def _check(
    record: Any, checks: Mapping[str, _Check], where: str, prefix: str, *, optional: frozenset[str] = frozenset()
) -> None:
    for field, (expected, holds) in checks.items():
        if field not in record:
            if field in optional:
                continue
            raise StoreError(f"{where}: field {prefix}{field} is missing")
        if not holds(record[field]):
            found = type(record[field]).__name__
            raise StoreError(f"{where}: field {prefix}{field} must be {expected}, found {found}")
    extra = next((field for field in record if field not in checks), None)
    if extra is not None:
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
