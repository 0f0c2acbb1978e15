"""A handler's signature, read once: its arguments as JSON Schema, how to check them, and how to call it."""

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, cast, get_args, get_origin

import anyio.to_thread
from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticSerializationError, SchemaError, to_jsonable_python
from typing_extensions import NotRequired, TypedDict

from .annotations import NamesOf, PlainSchema, portable, unwrapped
from .arguments import explain, in_words
from .context import Context
from .errors import ArgumentsError, RegistrationError
from .output import Output
from .results import ToolResult

_NO_DEFAULT: Any = inspect.Parameter.empty
# The default is in the annotation, `Annotated[int, Field(default=3)]`, and pydantic supplies it.
_IN_FIELD: Any = object()


@dataclass(frozen=True, slots=True)
class _Parameter:
    """One argument of the action: its name in Python and on the wire, its type, and whether it must be given."""

    name: str
    wire_name: str
    annotation: Any
    default: Any

    @property
    def required(self) -> bool:
        return self.default is _NO_DEFAULT


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """A handler's signature, read once at registration.

    Attributes:
        input_schema: JSON Schema (2020-12) of the arguments; unknown ones are refused.
        output_schema: JSON Schema of the structured content, or None when the return type promises none.
    """

    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None
    _validator: TypeAdapter[dict[str, Any]] = field(repr=False)
    _output: Output = field(repr=False)
    _call: Callable[[dict[str, Any]], Awaitable[Any]] = field(repr=False)
    _context_names: tuple[str, ...] = field(repr=False)

    @staticmethod
    def of(fn: Callable[..., Any], *, name: str) -> "Signature":
        """Read the signature of `fn`, the handler of the action `name`.

        Raises:
            RegistrationError: A parameter cannot be an argument; it is named.
        """
        target = _function(fn, name)
        parameters, context_names, returns = _read(fn, target, name)
        validator = _validator(parameters, name)
        output = Output.of(returns, name=name)
        return Signature(
            _input_schema(validator, parameters, name), output.schema, validator, output, _caller(fn), context_names
        )

    def takes(self, name: str) -> bool:
        """Whether `name` is an argument of the handler."""
        return name in self.input_schema["properties"]

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as the handler's parameters, converted to their types.

        Raises:
            ArgumentsError: They do not fit; each bad field is named.
        """
        try:
            return self._validator.validate_python(arguments)
        except ValidationError as error:
            fields = explain(error, arguments, self.input_schema["properties"])
        raise ArgumentsError(in_words(fields), fields=fields)

    async def call(self, arguments: dict[str, Any], context: Context) -> Any:
        """Call the handler with validated `arguments`; a plain function runs in a worker thread.

        Whatever the handler raises is raised. When this is cancelled, an async handler is cancelled; a worker
        thread cannot be, so it is left to run on and its result is dropped.
        """
        if self._context_names:
            arguments = {**arguments, **dict.fromkeys(self._context_names, context)}
        return await self._call(arguments)

    def encode(self, value: Any) -> ToolResult:
        """Return what the handler returned as a result.

        Raises:
            ResultError: `value` does not fit the handler's return annotation, or is not JSON.
        """
        return self._output.encode(value)


def _refusal(name: str, problem: str) -> RegistrationError:
    return RegistrationError(f"action {name!r}: {problem}")


def _function(fn: Any, name: str) -> Callable[..., Any]:
    """Return the function behind a handler: behind partials and callable objects."""
    target: Any = fn
    while isinstance(target, functools.partial):
        target = cast(functools.partial[Any], target).func
    if inspect.isclass(target) or not callable(target):
        raise _refusal(name, f"the handler must be a function, not {target!r}")
    if not inspect.isroutine(target):
        target = type(target).__call__
    plain: Any = inspect.unwrap(target)
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise _refusal(name, "the handler is a generator; return a list, or report with ctx.progress()")
    return plain


def _read(
    fn: Callable[..., Any], target: Callable[..., Any], name: str
) -> tuple[list[_Parameter], tuple[str, ...], Any]:
    try:
        signature = inspect.signature(fn)
    except (ValueError, TypeError) as error:
        raise _refusal(name, f"the handler has no signature to read ({error}); wrap it in a function") from None
    names = NamesOf(target)
    # What a partial has bound is not the caller's to give, and may be a secret: it is no argument.
    bound = cast(functools.partial[Any], fn).keywords if isinstance(fn, functools.partial) else {}
    parameters: list[_Parameter] = []
    contexts: list[str] = []
    for at, parameter in enumerate(signature.parameters.values()):
        if parameter.name in bound:
            continue
        _check_kind(parameter, name, first=at == 0)
        try:
            annotation = names.resolve(parameter.annotation)
        except Exception as error:
            raise _unresolved(name, f"parameter {parameter.name!r}", parameter.annotation, error) from error
        if _is_context(annotation):
            contexts.append(parameter.name)
        else:
            parameters.append(_parameter(parameter, annotation, name))
    try:
        returns = names.resolve(signature.return_annotation)
    except Exception as error:
        raise _unresolved(name, "the return type", signature.return_annotation, error) from error
    return parameters, tuple(contexts), returns


def _unresolved(name: str, place: str, annotation: Any, error: Exception) -> RegistrationError:
    return _refusal(
        name,
        f"the annotation of {place}, {annotation!r}, cannot be resolved ({error});"
        " define the type at module level, or before the handler in the same function",
    )


def _check_kind(parameter: inspect.Parameter, name: str, *, first: bool) -> None:
    match parameter.kind:
        case inspect.Parameter.VAR_POSITIONAL | inspect.Parameter.VAR_KEYWORD:
            stars = "*" if parameter.kind is inspect.Parameter.VAR_POSITIONAL else "**"
            raise _refusal(name, f"parameter '{stars}{parameter.name}' has no schema; name each argument")
        case inspect.Parameter.POSITIONAL_ONLY:
            raise _refusal(name, f"parameter {parameter.name!r} is positional-only; arguments are passed by name")
        case _:
            pass
    if parameter.name.startswith("_"):
        raise _refusal(name, f"parameter {parameter.name!r} begins with an underscore; rename it")
    if first and parameter.name in ("self", "cls") and parameter.annotation is inspect.Parameter.empty:
        raise _refusal(name, f"parameter {parameter.name!r}: register the bound method of an object instead")


def _is_context(annotation: Any) -> bool:
    return any(isinstance(arm, type) and issubclass(arm, Context) for arm in unwrapped(annotation))


def _parameter(parameter: inspect.Parameter, annotation: Any, name: str) -> _Parameter:
    annotation = Any if annotation is inspect.Parameter.empty else portable(annotation)
    default = parameter.default
    if isinstance(default, FieldInfo):
        # `amount: int = Field(gt=0)`, pydantic's older spelling of Annotated.
        annotation, default = Annotated[annotation, default], _NO_DEFAULT
    wire_name, has_default = parameter.name, False
    for extra in get_args(annotation)[1:] if get_origin(annotation) is Annotated else ():
        if isinstance(extra, FieldInfo):
            alias = extra.validation_alias or extra.alias
            if alias is not None and not isinstance(alias, str):
                raise _refusal(name, f"parameter {parameter.name!r}: an alias must be one name")
            wire_name = alias or wire_name
            has_default = has_default or not extra.is_required()
    if default is _NO_DEFAULT and has_default:
        default = _IN_FIELD
    return _Parameter(parameter.name, wire_name, annotation, default)


def _validator(parameters: list[_Parameter], name: str) -> TypeAdapter[dict[str, Any]]:
    """Return what checks the arguments: a TypedDict, so that parameters may be called `schema` or `copy`, what was
    not given stays absent for the function's own default to apply, and the outcome is the keyword arguments."""
    wire_names = [parameter.wire_name for parameter in parameters]
    for wire_name in wire_names:
        if wire_names.count(wire_name) > 1:
            raise _refusal(name, f"two parameters are called {wire_name!r}")
    items = {p.name: p.annotation if p.required else NotRequired[p.annotation] for p in parameters}
    arguments = cast("Callable[[str, dict[str, Any]], Any]", TypedDict)("Arguments", items)
    arguments.__pydantic_config__ = ConfigDict(extra="forbid", arbitrary_types_allowed=False)
    try:
        return TypeAdapter(arguments)
    except (PydanticUserError, SchemaError, NameError, TypeError) as error:
        raise _culprit(parameters, name, error) from error


def _culprit(parameters: list[_Parameter], name: str, error: Exception) -> RegistrationError:
    for parameter in parameters:
        try:
            TypeAdapter(parameter.annotation).json_schema()
        except Exception as own:
            said = str(own).split("\n", 1)[0]
            return _refusal(
                name, f"parameter {parameter.name!r}: no JSON Schema for {_type_name(parameter.annotation)} ({said})"
            )
    return _refusal(name, f"the arguments have no JSON Schema ({error})")


def _type_name(annotation: Any) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation)


def _input_schema(
    validator: TypeAdapter[dict[str, Any]], parameters: list[_Parameter], name: str
) -> dict[str, Any]:
    try:
        schema = validator.json_schema(schema_generator=PlainSchema)
    except (PydanticUserError, ValueError, TypeError) as error:
        raise _culprit(parameters, name, error) from error
    properties = schema.setdefault("properties", {})
    for parameter in parameters:
        if parameter.required or parameter.default is _IN_FIELD:
            continue
        try:
            properties[parameter.wire_name]["default"] = to_jsonable_python(parameter.default)
        except PydanticSerializationError:
            # A default that is no JSON, such as a sentinel, is the handler's own affair.
            pass
    return {
        "type": "object",
        "properties": properties,
        **{key: schema[key] for key in ("required", "$defs") if key in schema},
        "additionalProperties": False,
    }


def _caller(fn: Callable[..., Any]) -> Callable[[dict[str, Any]], Awaitable[Any]]:
    if _is_async(fn):

        async def call(arguments: dict[str, Any]) -> Any:
            return await fn(**arguments)

        return call

    async def call_in_thread(arguments: dict[str, Any]) -> Any:
        result = await anyio.to_thread.run_sync(functools.partial(fn, **arguments), abandon_on_cancel=True)
        # A plain function may still hand back a coroutine, as a decorator around an async one does.
        return await result if inspect.isawaitable(result) else result

    return call_in_thread


def _is_async(fn: Any) -> bool:
    while isinstance(fn, functools.partial):
        fn = cast(functools.partial[Any], fn).func
    return inspect.iscoroutinefunction(fn) or (
        not inspect.isroutine(fn) and inspect.iscoroutinefunction(type(fn).__call__)
    )
