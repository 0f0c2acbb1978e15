"""Workflows and steps as JSON text, the form in which every engine keeps them.

Strict in both directions: a record that does not have exactly the fields of its class, with values of their
types, is refused as a whole; only a field that came later may be missing, in a record written before. A gate that
acted on half a record would act on a workflow that does not exist.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, contains
from sys import float_info
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, cast, get_args, get_origin, get_type_hints

from mcpfusion.telemetry import workflow_name

from .protocol import Claim, LastStep, Step, StoreError, Workflow

_MOST = float_info.max


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
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _MOST


class _Check(NamedTuple):
    """What is demanded of a field.

    Attributes:
        expected: It in words.
        holds: Whether a value is that.
        types: Those of nearly all values that are.
        least: Of those values, when they are numbers.
        among: Those values, when there are a few texts.
    """

    expected: str
    holds: Callable[[Any], bool]
    types: frozenset[type]
    least: float | None = None
    among: Sequence[str] = ()


def _is(*kinds: type) -> Callable[[Any], bool]:
    def holds(value: Any) -> bool:
        return isinstance(value, kinds)

    return holds


def _anything(value: Any) -> bool:
    return True


_JSON = frozenset[type]({NoneType, str, int, float, bool, list, dict})
_PLAIN: dict[Any, _Check] = {
    # Of a text, what the types leave open is looked for in the JSON of the whole record.
    str: _Check("Unicode text", _is_text, frozenset({str})),
    int: _Check("a whole number from 0 up", _is_count, frozenset({int}), 0),
    float: _Check("a finite number", _is_number, frozenset({int, float}), -_MOST),
    bool: _Check("true or false", _is(bool), frozenset({bool})),
    Any: _Check("any JSON value", _anything, _JSON),
    Mapping: _Check("an object", _is(Mapping), frozenset({dict})),
    Claim: _Check("a claim", _is(Mapping, Claim), frozenset({dict, Claim})),
    LastStep: _Check("a step", _is(Mapping, LastStep), frozenset({dict, LastStep})),
}


def _check_for(hint: Any) -> _Check:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        check = _check_for(get_args(hint)[0])

        def holds(value: Any) -> bool:
            return value is None or check.holds(value)

        return _Check(f"{check.expected} or null", holds, check.types | {NoneType}, check.least)
    if origin is Literal:
        allowed = get_args(hint)

        def is_allowed(value: Any) -> bool:
            return isinstance(value, str) and value in allowed

        return _Check(f"one of {', '.join(allowed)}", is_allowed, frozenset({str}), among=allowed)
    return _PLAIN[origin or hint]


class _Shape:
    """The fields of a class, and what is demanded of them.

    Attributes:
        checks: For each field.
        fields: Their names, in the order of the class.
        values_of: Returns a record's values in that order.
    """

    def __init__(self, record: type) -> None:
        self.checks = {field: _check_for(hint) for field, hint in get_type_hints(record).items()}
        self.fields = tuple(self.checks)
        self.values_of: Callable[[Any], tuple[Any, ...]] = attrgetter(*self.fields)
        numbered = list(enumerate(self.checks.values()))
        self._types = [check.types for _, check in numbered]
        self._numbers = [(at, check.least) for at, check in numbered if check.least is not None]
        self._among = [(at, check.among) for at, check in numbered if check.among]

    def surely_holds(self, values: Sequence[Any]) -> bool:
        """Whether values are what is demanded, texts aside. A quick look: False means to look closely."""
        if not all(map(contains, self._types, map(type, values))):
            return False
        for at, least in self._numbers:
            value = values[at]
            if value is not None and not least <= value <= _MOST:
                return False
        return all(values[at] in among for at, among in self._among)


_WORKFLOW = _Shape(Workflow)
_CLAIM = _Shape(Claim)
_LAST = _Shape(LastStep)
_STEP = _Shape(Step)

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
    try:
        text = _dump(_plain_workflow(workflow, closely=False))
        if _SURROGATE in text:
            _plain_workflow(workflow, closely=True)
        return text
    except _Refused as refused:
        raise _error("workflow", workflow.scope, workflow.handle, refused) from refused.__cause__


def decode_workflow(text: str | bytes, scope: str, handle: str, version: int) -> Workflow:
    """Return the workflow that `encode_workflow` wrote for this scope, handle and version.

    Raises:
        StoreError: The text is not such a record. Names the field, and quotes no value.
    """
    try:
        record, closely = _load(text)
        _check(record, _WORKFLOW, closely, optional=_LATER)
        _check_place(record, scope=scope, handle=handle, version=version)
        if record["claim"] is not None:
            _check(record["claim"], _CLAIM, closely, "claim.")
            record["claim"] = Claim(**record["claim"])
        if record["last"] is not None:
            _check(record["last"], _LAST, closely, "last.")
            record["last"] = LastStep(**record["last"])
        return Workflow(**record)
    except _Refused as refused:
        raise _error("workflow", scope, handle, refused) from refused.__cause__


def encode_step(step: Step) -> str:
    """Return the step as compact ASCII JSON. Raises StoreError as `encode_workflow` does."""
    try:
        text = _dump(_plain(step, _STEP, closely=False))
        if _SURROGATE in text:
            _plain(step, _STEP, closely=True)
        return text
    except _Refused as refused:
        raise _error("history of", step.scope, step.handle, refused) from refused.__cause__


def decode_step(text: str | bytes, scope: str, handle: str) -> Step:
    """Return the step that `encode_step` wrote. Raises StoreError as `decode_workflow` does."""
    try:
        record, closely = _load(text)
        _check(record, _STEP, closely)
        _check_place(record, scope=scope, handle=handle)
        return Step(**record)
    except _Refused as refused:
        raise _error("history of", scope, handle, refused) from refused.__cause__


class _Refused(Exception):
    """Why a record is refused, without its name, which costs too much to be made for each."""


def _error(what: str, scope: str, handle: str, refused: _Refused) -> StoreError:
    return StoreError(f"{what} {workflow_name(scope, handle)}: {refused}")


def _plain_workflow(workflow: Workflow, closely: bool) -> dict[str, Any]:
    record = _plain(workflow, _WORKFLOW, closely)
    if workflow.claim is not None:
        record["claim"] = _plain(workflow.claim, _CLAIM, closely, "claim.")
    if workflow.last is not None:
        record["last"] = _plain(workflow.last, _LAST, closely, "last.")
    return record


def _plain(
    record: Workflow | Claim | LastStep | Step, shape: _Shape, closely: bool, prefix: str = ""
) -> dict[str, Any]:
    values = shape.values_of(record)
    plain = dict(zip(shape.fields, values, strict=True))
    if closely or not shape.surely_holds(values):
        _check_closely(plain, shape, prefix)
    return plain


def _check(
    record: Any, shape: _Shape, closely: bool, prefix: str = "", *, optional: frozenset[str] = frozenset()
) -> None:
    """Refuse a record that has not exactly the fields of its class.

    Args:
        closely: Its texts may be no Unicode.
    """
    if closely or tuple(record) != shape.fields or not shape.surely_holds(tuple(record.values())):
        _check_closely(record, shape, prefix, optional)


def _check_closely(
    record: Mapping[str, Any], shape: _Shape, prefix: str, optional: frozenset[str] = frozenset()
) -> None:
    for field, check in shape.checks.items():
        if field not in record:
            if field in optional:
                continue
            raise _Refused(f"field {prefix}{field} is missing")
        if not check.holds(record[field]):
            found = type(record[field]).__name__
            raise _Refused(f"field {prefix}{field} must be {check.expected}, found {found}")
    extra = next((field for field in record if field not in shape.checks), None)
    if extra is not None:
        raise _Refused(f"unknown field {prefix}{extra} (written by a newer version?)")


def _check_place(record: Mapping[str, Any], **place: str | int) -> None:
    for field, value in place.items():
        if record[field] != value:
            raise _Refused(f"field {field} is not that of the place where the record is kept")


def _mapping(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    raise TypeError(f"{type(value).__name__} is no JSON value")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


# What holds itself is found by the depth of the recursion.
_to_json = json.JSONEncoder(check_circular=False, default=_mapping, allow_nan=False, separators=(",", ":")).encode
_from_json = json.JSONDecoder(parse_constant=_no_constant).decode

_SURROGATE = "\\ud"
"""How a surrogate begins in the JSON that is written. It is a lone one, half of a pair, or no surrogate at all."""


def _dump(record: Mapping[str, Any]) -> str:
    try:
        return _to_json(record)
    except (TypeError, ValueError, RecursionError):
        for field, value in record.items():
            try:
                _to_json(value)
            except (TypeError, ValueError, RecursionError) as error:
                raise _Refused(f"field {field} cannot be kept as JSON: {error}") from error
        raise


def _load(text: str | bytes) -> tuple[dict[str, Any], bool]:
    """Return the record, and whether its texts may be no Unicode."""
    try:
        if not isinstance(text, str):
            text = str(text, "utf-8")
        record = _from_json(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise _Refused(f"the record is no JSON: {error}") from error
    if not isinstance(record, dict):
        raise _Refused("the record is no JSON object")
    return cast("dict[str, Any]", record), not text.isascii() or _SURROGATE in text or _SURROGATE.upper() in text
