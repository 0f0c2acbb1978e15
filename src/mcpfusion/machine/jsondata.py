"""JSON data: checked, and copied so that nobody else can change it."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, cast

from .errors import MachineConfigError, MachineError, at

_SCALARS = frozenset((str, bool, int))


def json_of(value: Any, where: str, error: type[MachineError] = MachineConfigError) -> Any:
    """Return a deep copy of JSON data in which tuples are lists.

    Raises:
        MachineError: Something in it is no JSON data; of the class `error`, with the path of the fault.
    """
    kind = cast("type[Any]", type(value))
    if value is None or kind in _SCALARS:
        return value
    if kind is dict and all(type(key) is str for key in value):
        return {
            key: each if type(each) in _SCALARS else json_of(each, at(where, key), error)
            for key, each in value.items()
        }
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        raise error(f"{where}: {value} is not JSON")
    if isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        mapping = cast("Mapping[Any, Any]", value)
        for key in mapping:
            if not isinstance(key, str):
                raise error(f"{where}: the key {key!r} must be a string")
        return {key: json_of(item, at(where, key), error) for key, item in mapping.items()}
    if isinstance(value, list | tuple):
        members = enumerate(cast("Iterable[Any]", value))
        return [json_of(item, f"{where}[{index}]", error) for index, item in members]
    raise error(f"{where}: must be JSON data, not {type_name(value)}")


def object_of(value: Any, where: str, what: str) -> Mapping[str, Any]:
    """Return `value` if it is an object whose keys are strings; None is an empty one."""
    if value is None:
        return {}
    if type(value) is not dict and not isinstance(value, Mapping):
        raise MachineConfigError(f"{where or 'machine'}: {what} must be an object, not {type_name(value)}")
    mapping = cast("Mapping[Any, Any]", value)
    for key in mapping:
        if not isinstance(key, str):
            raise MachineConfigError(f"{where or 'machine'}: the key {key!r} must be a string")
    return mapping


def items_of(value: Any) -> tuple[Any, ...]:
    """Return the members of a list, or the one thing that stands where a list may stand; None is none."""
    if value is None:
        return ()
    return tuple(cast("Iterable[Any]", value)) if isinstance(value, list | tuple) else (value,)


def type_name(value: Any) -> str:
    """Return what a value is, in JSON's words where it has some."""
    name = type(value).__name__
    known = {"dict": "an object", "list": "a list", "str": "a string", "bool": "a boolean", "int": "a number"}
    return known.get(name, f"a Python {name}")
