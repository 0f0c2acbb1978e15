"""A handler's signature, read once: its arguments as JSON Schema, how to check them, and how to call it."""

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired, cast, get_args, get_origin

import anyio.to_thread
from pydantic import ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import SchemaError, SchemaValidator, from_json, to_json
from typing_extensions import TypedDict

from .annotations import NamesOf, PlainSchema, unwrapped
from .arguments import explain, in_words
from .context import Context
from .errors import ArgumentsError, RegistrationError, gist
from .output import Output
from .results import ToolResult

_EMPTY: Any = inspect.Parameter.empty
# The default stands in the annotation, `Annotated[int, Field(default=3)]`, and pydantic supplies it.
_IN_ANNOTATION: Any = object()


@dataclass(frozen=True, slots=True)
class _Parameter:
    """One argument of the action: its names in Python and on the wire, its type, and what it is when left out."""

    name: str
    wire_name: str
    annotation: Any
    default: Any

    @property
    def required(self) -> bool:
        return self.default is _EMPTY


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """A handler's signature, read once at registration.

    Attributes:
        input_schema: JSON Schema (2020-12) of the arguments; unknown ones are refused.
        output_schema: JSON Schema of the structured content, or None when the return type promises none.
        cancellable: Whether the handler is stopped by a cancellation; a plain function in its thread is not.
    """

    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None
    cancellable: bool
    _validator: SchemaValidator = field(repr=False)
    _encode: Callable[[Any], ToolResult] = field(repr=False)
    _call: Callable[[dict[str, Any]], Awaitable[Any]] = field(repr=False)
    _context_names: tuple[str, ...] = field(repr=False)

    @staticmethod
    def of(fn: Callable[..., Any], *, name: str) -> "Signature":
        """Read the signature of `fn`, the handler of the action `name`.

        Raises:
            RegistrationError: A parameter cannot be an argument, or the return type has no schema; it is named.
        """
        parameters, context_names, returns = _read(fn, name)
        arguments = _arguments(parameters, name)
        output = Output.of(returns, name=name)
        return Signature(
            input_schema=_input_schema(arguments, parameters, name),
            output_schema=output.schema,
            cancellable=_is_async(fn),
            # The adapter around it costs as much again at each call.
            _validator=cast(SchemaValidator, arguments.validator),
            _encode=output.encode,
            _call=_caller(fn),
            _context_names=context_names,
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
            return self._reread(arguments, error)

    def _reread(self, arguments: Mapping[str, Any], error: ValidationError) -> dict[str, Any]:
        """Judge once more what failed, as the JSON that it was.

        A strict date or enum is read from JSON only, and some clients send arrays and objects as JSON text.
        """
        try:
            arguments = {**arguments, **_unquoted(arguments, error)}
            return self._validator.validate_json(to_json(arguments))
        except ValidationError as again:
            if again.errors(include_url=False, include_input=False)[0]["type"] != "json_invalid":
                error = again
        except (ValueError, RecursionError):
            # Not to be had as JSON after all (a lone surrogate, say): the first judgement stands.
            pass
        fields = explain(error, arguments, self.input_schema)
        raise ArgumentsError(in_words(fields), fields=fields) from None

    async def call(self, arguments: dict[str, Any], context: Context) -> Any:
        """Call the handler with validated `arguments`; a plain function runs in a worker thread.

        Whatever the handler raises is raised. When this is cancelled, an async handler is cancelled. A worker
        thread cannot be: it is left to run on, and its result is dropped.
        """
        if self._context_names:
            arguments = {**arguments, **dict.fromkeys(self._context_names, context)}
        return await self._call(arguments)

    def encode(self, value: Any) -> ToolResult:
        """Return what the handler returned as a result.

        Raises:
            ResultError: `value` does not fit the handler's return annotation, or is not JSON.
        """
        return self._encode(value)


def _unquoted(arguments: Mapping[str, Any], error: ValidationError) -> dict[str, Any]:
    """Return those bad arguments that are the JSON text of an array or an object, read."""
    found: dict[str, Any] = {}
    for detail in error.errors(include_url=False, include_context=False):
        key, value = detail["loc"][0] if detail["loc"] else "", detail["input"]
        if isinstance(value, str) and value[:1] in ("[", "{") and arguments.get(str(key)) is value:
            try:
                found[str(key)] = from_json(value)
            except ValueError:
                continue
    return found


def _refusal(name: str, problem: str) -> RegistrationError:
    return RegistrationError(f"action {name!r}: {problem}")


def _read(fn: Callable[..., Any], name: str) -> tuple[list[_Parameter], tuple[str, ...], Any]:
    """Return the arguments, the names of the parameters that get the context, and the return annotation."""
    names = NamesOf(_function(fn, name))
    try:
        signature = inspect.signature(fn)
    except (ValueError, TypeError) as error:
        raise _refusal(name, f"the handler has no readable signature ({error}); wrap it in a function") from None
    # What a partial has bound is not the caller's to give, and may be a secret: it is no argument.
    bound = cast("functools.partial[Any]", fn).keywords if isinstance(fn, functools.partial) else {}
    parameters: list[_Parameter] = []
    contexts: list[str] = []
    for at, parameter in enumerate(signature.parameters.values()):
        if parameter.name in bound:
            continue
        _check(parameter, name, first=at == 0)
        annotation = _resolved(names, parameter.annotation, name, f"parameter {parameter.name!r}")
        arms = [arm for arm in unwrapped(annotation) if isinstance(arm, type)]
        if any(map(_is_foreign_context, arms)):
            raise _refusal(name, f"parameter {parameter.name!r}: another library's Context; use mcpfusion.Context")
        if any(issubclass(arm, Context) for arm in arms):
            contexts.append(parameter.name)
        else:
            parameters.append(_parameter(parameter, annotation, name))
    returns = _resolved(names, signature.return_annotation, name, "the return type")
    if get_origin(returns) in (Awaitable, Coroutine):
        returns = get_args(returns)[-1]
    return parameters, tuple(contexts), returns


def _is_foreign_context(arm: type) -> bool:
    """Whether `arm` is the context of the SDK or of FastMCP, which pydantic would make an argument of."""
    return any(
        base.__name__ == "Context" and base.__module__.partition(".")[0] in ("mcp", "fastmcp") for base in arm.__mro__
    )


def _function(fn: Any, name: str) -> Callable[..., Any]:
    """Return the function behind a handler: behind partials, decorators and callable objects."""
    target: Any = fn
    while isinstance(target, functools.partial):
        target = cast("functools.partial[Any]", target).func
    if inspect.isclass(target) or not callable(target):
        raise _refusal(name, f"the handler must be a function, not {target!r}")
    if not inspect.isroutine(target):
        target = type(target).__call__
    plain: Any = inspect.unwrap(target)
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise _refusal(name, "the handler is a generator; return a list, and report with ctx.progress()")
    return plain


def _resolved(names: NamesOf, annotation: Any, name: str, place: str) -> Any:
    try:
        return names.resolve(annotation)
    except Exception as error:
        raise _refusal(
            name,
            f"{place}: the annotation {annotation!r} cannot be resolved ({error}); the type must be imported at run"
            " time, not only under TYPE_CHECKING, and be defined before the handler",
        ) from error


def _check(parameter: inspect.Parameter, name: str, *, first: bool) -> None:
    match parameter.kind:
        case inspect.Parameter.VAR_POSITIONAL:
            raise _refusal(name, f"parameter '*{parameter.name}' has no schema; name each argument")
        case inspect.Parameter.VAR_KEYWORD:
            raise _refusal(name, f"parameter '**{parameter.name}' has no schema; name each argument")
        case inspect.Parameter.POSITIONAL_ONLY:
            raise _refusal(name, f"parameter {parameter.name!r} is positional-only; arguments come by name")
        case _:
            pass
    if parameter.name.startswith("_"):
        raise _refusal(name, f"parameter {parameter.name!r} begins with an underscore; rename it")
    if first and parameter.name in ("self", "cls") and parameter.annotation is _EMPTY:
        raise _refusal(name, f"parameter {parameter.name!r}: register a method of an object, not of its class")


def _parameter(parameter: inspect.Parameter, annotation: Any, name: str) -> _Parameter:
    annotation = Any if annotation is _EMPTY else annotation
    default = parameter.default
    if isinstance(default, FieldInfo):
        # Pydantic's older spelling of Annotated: `amount: int = Field(gt=0)`.
        annotation, default = Annotated[annotation, default], _EMPTY
    wire_name = parameter.name
    for extra in get_args(annotation)[1:] if get_origin(annotation) is Annotated else ():
        if not isinstance(extra, FieldInfo):
            continue
        alias = extra.validation_alias or extra.alias or wire_name
        if not isinstance(alias, str):
            raise _refusal(name, f"parameter {parameter.name!r}: its alias must be one name")
        wire_name = alias
        if default is _EMPTY and not extra.is_required():
            default = _IN_ANNOTATION
    if default is not _EMPTY and default is not _IN_ANNOTATION:
        annotation = Annotated[annotation, Field(default=default)]
    return _Parameter(parameter.name, wire_name, annotation, default)


def _arguments(parameters: list[_Parameter], name: str) -> TypeAdapter[dict[str, Any]]:
    """Return what checks the arguments: a TypedDict, so that the outcome is the keyword arguments themselves.

    A parameter may then be called `schema` or `copy` too, which a model could not have as fields.
    """
    wire_names = [parameter.wire_name for parameter in parameters]
    if twice := next((wire_name for wire_name in wire_names if wire_names.count(wire_name) > 1), None):
        raise _refusal(name, f"two parameters are called {twice!r}; change the alias of one")
    items = {p.name: p.annotation if p.required else NotRequired[p.annotation] for p in parameters}
    named: Any = cast("Callable[[str, dict[str, Any]], Any]", TypedDict)("Arguments", items)
    named.__pydantic_config__ = ConfigDict(extra="forbid")
    try:
        return TypeAdapter(named)
    except (PydanticUserError, SchemaError, NameError, TypeError) as error:
        raise _culprit(parameters, name, error) from error


def _culprit(parameters: list[_Parameter], name: str, error: Exception) -> RegistrationError:
    for parameter in parameters:
        try:
            TypeAdapter(parameter.annotation).json_schema()
        except Exception as own:
            return _refusal(
                name,
                f"parameter {parameter.name!r} has a type without JSON Schema ({gist(own)});"
                " what the server itself provides comes with `ctx: mcpfusion.Context`",
            )
    return _refusal(name, f"the arguments have no JSON Schema ({gist(error)})")


def _input_schema(arguments: TypeAdapter[dict[str, Any]], parameters: list[_Parameter], name: str) -> dict[str, Any]:
    try:
        schema = arguments.json_schema(schema_generator=PlainSchema)
    except (PydanticUserError, ValueError, TypeError) as error:
        raise _culprit(parameters, name, error) from error
    return {
        "type": "object",
        "properties": schema.get("properties", {}),
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
        # A plain function may hand back a coroutine, as a decorator around an async function does.
        return await result if inspect.isawaitable(result) else result

    return call_in_thread


def _is_async(fn: Any) -> bool:
    while isinstance(fn, functools.partial):
        fn = cast("functools.partial[Any]", fn).func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)
