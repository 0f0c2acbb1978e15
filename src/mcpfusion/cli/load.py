"""FILE[:OBJECT]: execute a Python file or import a module, and find the object in it."""

import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import click

T = TypeVar("T")

_OBJECT = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


class LoadError(click.ClickException):
    """The file cannot be loaded, or what is wanted is not in it."""


def split(target: str) -> tuple[str, str | None]:
    """Split FILE[:OBJECT] into its parts; a drive letter's colon belongs to the file.

    Raises:
        click.BadParameter: There is a colon with nothing that names an object behind it.
    """
    head, colon, tail = target.rpartition(":")
    if not colon or "/" in tail or "\\" in tail or os.path.exists(target):
        return target, None
    if not head or not _OBJECT.fullmatch(tail):
        raise click.BadParameter(f"{target!r}: expected FILE or FILE:OBJECT")
    return head, tail


def source(name: str) -> Path | None:
    """Return the path of a file, or None when `name` is a module's.

    Raises:
        click.BadParameter: It names neither.
    """
    path = Path(name)
    if path.is_file():
        return path.resolve()
    if path.is_dir() or path.suffix in {".py", ".json", ".yaml", ".yml"} or not _OBJECT.fullmatch(name):
        raise click.BadParameter(f"no file {name!r}")
    return None


def load(name: str) -> ModuleType:
    """Execute the file, or import the module, that `name` says. Its `__name__` is never `__main__`.

    Raises:
        LoadError: It raised, or there is no such module.
    """
    path = source(name)
    folder = os.getcwd() if path is None else str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name) if path is None else _execute(path)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and path is None and _is_or_is_in(name, error.name):
            raise LoadError(f"no file or module {name!r}") from error
        raise LoadError(f"cannot load {name}: {_describe(error, path)}") from error


def find(
    module: ModuleType,
    name: str | None,
    pick: Callable[[Any], T | None],
    *,
    what: str,
    usual: tuple[str, ...],
) -> T:
    """Return what is looked for: in the object called `name`, or without a name in the only one that has it.

    Args:
        module: Where to look.
        name: A name, or a dotted path of attributes.
        pick: Returns what is looked for, given an object, or None when it is not there.
        what: What is looked for, for messages.
        usual: Names that decide when there are several, best first.

    Raises:
        LoadError: There is none, there are several, or the object named does not have it.
    """
    if name is not None:
        return _named(module, name, pick, what)
    found = {key: picked for key, value in _public(module) if (picked := pick(value)) is not None}
    if not found:
        raise LoadError(f"{_label(module)} has no {what}")
    if len({id(picked) for picked in found.values()}) == 1:
        return next(iter(found.values()))
    for key in usual:
        if key in found:
            return found[key]
    raise LoadError(f"{_label(module)} has several {what}s; say which one: {_choice(found)}")


def _named(module: ModuleType, name: str, pick: Callable[[Any], T | None], what: str) -> T:
    value: Any = module
    for part in name.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            raise LoadError(f"{_label(module)} has no {name!r}") from None
    picked = pick(value)
    if picked is None:
        raise LoadError(f"{name!r} in {_label(module)} is no {what}")
    return picked


def _choice(found: Mapping[str, Any]) -> str:
    return " or ".join(f":{key}" for key in sorted(found))


def _execute(path: Path) -> ModuleType:
    # Under its own name when that is free, so that its neighbours can import it without running it twice.
    name = path.stem
    if not name.isidentifier() or name in sys.modules or name in sys.stdlib_module_names:
        name = f"_mcpfusion_run_{abs(hash(path))}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise click.BadParameter(f"{str(path)!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    return ((key, value) for key, value in vars(module).items() if not key.startswith("_"))


def _is_or_is_in(module: str, missing: str | None) -> bool:
    return missing is not None and (module == missing or module.startswith(missing + "."))


def _describe(error: BaseException, path: Path | None) -> str:
    if isinstance(error, SystemExit):
        return f"it ended with exit code {error.code}"
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    line = next((f.lineno for f in reversed(frames) if path and f.filename == str(path)), None)
    return f"line {line}: {said}" if line and not isinstance(error, SyntaxError) else said


def _label(module: ModuleType) -> str:
    return os.path.relpath(module.__file__) if module.__file__ else module.__name__
