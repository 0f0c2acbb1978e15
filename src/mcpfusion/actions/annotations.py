"""Reading annotations: the names in them, what is behind aliases and `Annotated`, and their JSON Schema."""

import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, NewType, Union, cast, get_args, get_origin, get_type_hints

import typing_extensions as te
from pydantic.json_schema import GenerateJsonSchema

_QUALIFIERS = (te.Required, te.NotRequired, te.ReadOnly)


class PlainSchema(GenerateJsonSchema):
    """JSON Schema without titles that only repeat a field's name; a title that somebody wrote stays."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def emit_warning(self, kind: Any, detail: str) -> None:
        """Say nothing: a default that JSON cannot express is left out of the schema, and that is all."""


class NamesOf:
    """The names that a function's annotations may use.

    These are the names of its module, of its closure, and of the function or class body that is running to define
    it, where the types of an example or of a test live.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._globals: dict[str, Any] = getattr(fn, "__globals__", {})
        self._locals: dict[str, Any] = {}
        code: Any = getattr(fn, "__code__", None)
        if code is None:
            return
        frame = inspect.currentframe()
        while frame is not None and code not in frame.f_code.co_consts:
            frame = frame.f_back
        self._locals = {**(frame.f_locals if frame else {}), **_closure(fn)}

    def resolve(self, annotation: Any) -> Any:
        """Return the annotation with every name in it looked up, made `portable`; raises what looking up raises."""
        if annotation is inspect.Parameter.empty:
            return annotation
        holder: Any = types.SimpleNamespace(__annotations__={"it": annotation})
        found = get_type_hints(holder, self._globals, self._locals, include_extras=True)["it"]
        return portable(found, self._locals)


def _closure(fn: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            # The variable has not been assigned yet.
            continue
    return found


def unwrapped(annotation: Any) -> Iterator[Any]:
    """Yield the plain types of an annotation: members of unions, without `Annotated`, aliases and NewTypes."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif isinstance(annotation, te.TypeAliasType):
            annotation = annotation.__value__
        elif isinstance(annotation, NewType):
            annotation = annotation.__supertype__
        else:
            break
    if get_origin(annotation) in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from unwrapped(member)
    else:
        yield annotation


def portable(annotation: Any, names: Mapping[str, Any]) -> Any:
    """Return the annotation with each `typing.TypedDict` replaced by its twin from `typing_extensions`.

    Before Python 3.12 pydantic reads only those. `names` are those that a TypedDict may use beside its module's.
    """
    return annotation if sys.version_info >= (3, 12) else _portable(annotation, names, ())


def _portable(annotation: Any, names: Mapping[str, Any], inside: tuple[Any, ...]) -> Any:
    if te.is_typeddict(annotation):
        if type(annotation).__module__ != "typing" or annotation in inside:
            return annotation
        return _twin(annotation, names, (*inside, annotation))
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is None or origin is te.Literal or origin is Callable:
        return annotation
    if origin is Annotated:
        return Annotated[(_portable(args[0], names, inside), *args[1:])]
    changed = tuple(_portable(arg, names, inside) for arg in args)
    if changed == args:
        return annotation
    return Union[changed] if origin in (Union, types.UnionType) else origin[changed]  # noqa: UP007


def _twin(annotation: Any, names: Mapping[str, Any], inside: tuple[Any, ...]) -> Any:
    items: dict[str, Any] = {}
    for name, hint in get_type_hints(annotation, localns=dict(names), include_extras=True).items():
        required = name in annotation.__required_keys__
        while get_origin(hint) in _QUALIFIERS:
            required = {te.Required: True, te.NotRequired: False}.get(get_origin(hint), required)
            hint = get_args(hint)[0]
        hint = _portable(hint, names, inside)
        items[name] = te.Required[hint] if required else te.NotRequired[hint]
    twin = cast("Callable[[str, dict[str, Any]], Any]", te.TypedDict)(annotation.__name__, items)
    for attribute in ("__doc__", "__module__", "__qualname__", "__pydantic_config__"):
        if hasattr(annotation, attribute):
            setattr(twin, attribute, getattr(annotation, attribute))
    return twin
