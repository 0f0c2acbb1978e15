"""Reading a configuration: a mapping, a JSON or YAML file, or JSON text."""

import copy
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, cast

from .errors import MachineConfigError

_SUFFIXES = (".json", ".yaml", ".yml")


def read_config(source: Mapping[str, Any] | str | os.PathLike[str]) -> dict[str, Any]:
    """Return the configuration that `source` holds, as a dict of the caller's own.

    `source` is a mapping, the path of a `.json`, `.yaml` or `.yml` file, or JSON text (it starts with `{`).
    A key that occurs twice in one object is refused, because one of the two would silently be lost. In
    YAML every key is a string as it is written, and `on`, `yes` and their like are no booleans (YAML 1.2).

    Raises:
        MachineConfigError: It cannot be read, or what it holds is not an object.
    """
    if isinstance(source, Mapping):
        return copy.deepcopy(dict(source))
    if isinstance(source, str) and source.lstrip().startswith("{"):
        return _object(_parse_json(source, "config"), "config")
    path = Path(source)
    if path.suffix.lower() not in _SUFFIXES:
        raise MachineConfigError(f"{path}: neither JSON text nor a file named {', '.join(_SUFFIXES)}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise MachineConfigError(f"{path}: cannot be read: {error}") from error
    parse = _parse_json if path.suffix.lower() == ".json" else _parse_yaml
    return _object(parse(text, str(path)), str(path))


def freeze(data: Any) -> Any:
    """Return a deep, read-only copy of JSON-like data: mappings are read-only views, lists are tuples."""
    if isinstance(data, Mapping):
        mapping = cast("Mapping[str, Any]", data)
        return MappingProxyType({key: freeze(value) for key, value in mapping.items()})
    if isinstance(data, list | tuple):
        return tuple(freeze(item) for item in cast("Iterable[Any]", data))
    return data


def _object(data: Any, where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise MachineConfigError(f"{where}: a configuration is an object, not {type(data).__name__}")
    return cast("dict[str, Any]", data)


def _parse_json(text: str, where: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise MachineConfigError(f"{where}: the key {twice!r} occurs twice in one object")
        return found

    def refuse(constant: str) -> NoReturn:
        raise MachineConfigError(f"{where}: {constant} is not JSON")

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise MachineConfigError(
            f"{where}: line {error.lineno}, column {error.colno}: not JSON: {error.msg}"
        ) from error
    except RecursionError as error:
        raise MachineConfigError(f"{where}: nested too deeply") from error


def _parse_yaml(text: str, where: str) -> Any:
    from .yaml12 import YAMLError, load  # most machines are no YAML: its import would cost them 10 ms

    try:
        return load(text)
    except (YAMLError, RecursionError) as error:
        problem = " ".join(str(error).split()) or "nested too deeply"
        raise MachineConfigError(f"{where}: not YAML: {problem}") from error
