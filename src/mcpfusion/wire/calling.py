"""`tools/call`: find the action, go through the middleware, through the gate, run it."""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, cast

import mcp_types as types
from anyio import get_cancelled_exc_class
from mcp.server.lowlevel.server import HandlerEntry
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from mcpfusion.actions.action import Action
from mcpfusion.actions.context import Context, WorkflowView
from mcpfusion.actions.errors import ArgumentsError, InputRequired, ToolError
from mcpfusion.actions.middleware import Call, CallNext, Middleware, compose
from mcpfusion.actions.registry import ActionRegistry
from mcpfusion.actions.results import ToolResult, error_result
from mcpfusion.gate.binding import BoundTool
from mcpfusion.gate.identity import (
    MINTED_PREFIX,
    Access,
    HandleError,
    Identity,
    ScopeError,
    handle_argument,
    own_handle,
    scope_of,
)
from mcpfusion.gate.menu import Menus
from mcpfusion.gate.observing import refused
from mcpfusion.gate.passage import Passages
from mcpfusion.gate.ticket import Outcome, Ticket
from mcpfusion.swarm.clearance import cleared
from mcpfusion.swarm.errors import HandoffError
from mcpfusion.swarm.handoffs import Handoff
from mcpfusion.telemetry import TOOL
from mcpfusion.wire.handover import Handover, failed
from mcpfusion.wire.request import (
    RequestContext,
    can_elicit,
    current_request,
    has_session,
    identity_of,
    modern,
    name_handle,
)
from mcpfusion.wire.rounds import MAX_ROUNDS, BaseInputRequired, Rounds

_log = logging.getLogger(__name__)

MINTED_BYTES = 16
"""Random bytes of a minted handle."""


@dataclass(frozen=True, slots=True)
class Gated:
    """What the calls of bound tools need of the gate."""

    tools: Mapping[str, BoundTool]
    passages: Passages
    menus: Menus
    access: Access
    handle_key: str | None
    named: Callable[[RequestContext, str], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Request:
    """One `tools/call` as it came, beside the `Call` that goes through the middleware."""

    ctx: RequestContext
    params: types.CallToolRequestParams
    identity: Identity
    rounds: Rounds


_current: ContextVar[_Request] = ContextVar("_current")


class Calling:
    """Answers `tools/call` for the registry's actions and, behind them, the server's own tools.

    Args:
        takes: Whether a tool that is not ours takes an argument of that name itself.
        handover: The gateway's part, or None without one.
    """

    def __init__(
        self,
        registry: ActionRegistry,
        gated: Gated | None,
        base: HandlerEntry[Any] | None,
        middleware: tuple[Middleware, ...],
        takes: Callable[[RequestContext, str, str], Awaitable[bool]],
        handover: Handover | None = None,
    ) -> None:
        self._handover = handover
        self._registry = registry
        self._gated = gated
        self._base = base
        self._takes = takes
        self._entry = compose(middleware, self._dispatch)
        self._own: dict[str, CallNext] = {
            name: compose(action.middleware, self._admit) for name, action in registry.tools.items()
        }

    async def __call__(self, ctx: RequestContext, params: types.CallToolRequestParams) -> BaseModel | dict[str, Any]:
        """Answer one call.

        Raises:
            MCPError: No such tool, or what a tool of the server raised as a protocol error.
        """
        action = self._registry.get(params.name)
        if self._handover is None:
            self._check_known(params.name)
        request = _Request(ctx, params, identity_of(ctx), Rounds.of(params))
        tokens = current_request.set(ctx), _current.set(request), cleared.set({})
        try:
            for _ in range(MAX_ROUNDS):
                try:
                    answer = await self._once(request, action)
                    if self._gated and request.rounds.named:
                        await self._gated.named(ctx, request.rounds.named)
                    return answer
                except InputRequired as need:
                    if modern(ctx):
                        return request.rounds.required(need)
                    await request.rounds.ask(ctx, need)
            return _complete(
                error_result("TOO_MANY_QUESTIONS", f"'{params.name}' asked more than {MAX_ROUNDS} questions")
            )
        except BaseInputRequired as need:
            return need.wire
        finally:
            current_request.reset(tokens[0])
            _current.reset(tokens[1])
            cleared.reset(tokens[2])

    async def _once(self, request: _Request, action: Action | None) -> dict[str, Any]:
        call = Call(request.params.name, request.params.arguments or {}, _context(request), action)
        try:
            result = await self._entry(call)
        except ToolError as error:
            result = _failed(error)
        except MCPError:
            raise
        except Exception:
            _log.exception("the call of %r failed outside its handler", request.params.name)
            result = _internal(request.params.name)
        return _complete(result)

    def _check_known(self, tool: str) -> None:
        if self._registry.get(tool) is None and self._base is None:
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {tool[:128]}")

    async def _dispatch(self, call: Call) -> ToolResult:
        if self._handover is not None:
            request = _current.get()
            taken = await self._handover.take(request.ctx, request.identity, request.params, call)
            if taken is not None:
                return taken
            self._check_known(call.tool)
        call = self._of_its_tool(call)
        return await (self._own[call.tool] if call.action else self._admit)(call)

    def _of_its_tool(self, call: Call) -> Call:
        """Return the call with the action of its tool: what is judged by a name must be what runs, also where
        middleware sent the call to another tool."""
        action = self._registry.get(call.tool)
        return call if action is call.action else replace(call, action=action)

    async def _admit(self, call: Call) -> ToolResult:
        call = self._of_its_tool(call)
        bound = self._gated.tools.get(call.tool) if self._gated else None
        if bound is None or self._gated is None:
            prepared = _prepare(call, None)
            return prepared if isinstance(prepared, ToolResult) else (await self._run(prepared)).result
        return await self._pass(self._gated, bound, call)

    async def _pass(self, gated: Gated, bound: BoundTool, call: Call) -> ToolResult:
        """Take the call of a bound tool through the gate."""
        request = _current.get()
        try:
            scope = scope_of(gated.access, request.identity)
            handle = self._handle(gated, bound, call, request)
        except HandleError as error:
            return refused(bound.name, "INVALID_HANDLE", str(error), {"allowedActions": []})
        except ScopeError:
            _log.exception("a caller has no scope")
            return refused(bound.name, "FORBIDDEN", "whose workflow this is cannot be told.", {"allowedActions": []})
        if request.params.task is not None:
            return refused(bound.name, "FORBIDDEN", f"'{bound.name}' moves a workflow and cannot run as a task.")
        minted = bound.policies.mints_handle
        if has_session(request.ctx) and not minted and name_handle(request.ctx, handle):
            request.rounds.named = handle
        ticket = Ticket(bound, scope, handle, request.identity.principal, call.arguments, opens=minted)
        prepared: list[Call] = []
        extra = gated.handle_key
        if extra is not None and (minted or await self._takes_itself(request.ctx, call, extra)):
            extra = None

        def prepare() -> ToolResult | None:
            ready = _prepare(call, extra)
            if isinstance(ready, ToolResult):
                return ready
            prepared.append(ready)
            return None

        async def work(view: WorkflowView) -> Outcome:
            ready = prepared[-1]
            outcome = await self._run(replace(ready, context=ready.context.again(workflow=view)))
            if minted and outcome.success:
                if has_session(request.ctx):
                    name_handle(request.ctx, handle)
                return replace(outcome, result=_with_handle(outcome.result, gated.handle_key or "handle", handle))
            return outcome

        return await gated.passages.run(ticket, prepare, work)

    def _handle(self, gated: Gated, bound: BoundTool, call: Call, request: _Request) -> str:
        if bound.policies.mints_handle:
            rounds = request.rounds
            rounds.handle = rounds.handle or f"{MINTED_PREFIX}{secrets.token_urlsafe(MINTED_BYTES)}"
            return rounds.handle
        if gated.handle_key is not None:
            handle = handle_argument(gated.handle_key, call.arguments)
            if handle is not None:
                return handle
            if gated.menus.stable_for(request.identity):
                raise HandleError(f"{gated.handle_key}: missing; it names the workflow this call belongs to")
        return own_handle(request.identity)

    async def _takes_itself(self, ctx: RequestContext, call: Call, name: str) -> bool:
        return call.action.signature.takes(name) if call.action else await self._takes(ctx, call.tool, name)

    async def _run(self, call: Call) -> Outcome:
        return await (self._run_action(call.action, call) if call.action else self._run_base(call))

    async def _run_action(self, action: Action, call: Call) -> Outcome:
        """Run a handler. What it raises reaches the client only where it is a `ToolError`."""
        try:
            value = await action.signature.call(dict(call.arguments), call.context)
        except BaseException as error:
            return _raised(call, error)
        if isinstance(value, Handoff):
            return await self._hand_over(value, call)
        try:
            result = action.signature.encode(value)
        except Exception:
            return _unshowable(call, value)
        return Outcome(result, not result.is_error, value)

    async def _hand_over(self, handoff: Handoff, call: Call) -> Outcome:
        if self._handover is None:
            message = f"'{call.tool}' hands the conversation over, but this server has no gateway."
            return Outcome(error_result("NO_GATEWAY", message), False)
        request = _current.get()
        try:
            result = await self._handover.activate(request.ctx, request.identity, call.context, handoff)
        except HandoffError as error:
            return Outcome(failed(error), False)
        return Outcome(result, True)

    async def _run_base(self, call: Call) -> Outcome:
        """Run a tool that the server had already, by the server's own handler."""
        assert self._base is not None
        request = _current.get()
        given = {"name": call.tool, "arguments": dict(call.arguments)}
        params = request.params.model_copy(update=given)
        ctx = replace(request.ctx, params={**(request.ctx.params or {}), **given})
        try:
            result: Any = await self._base.handler(ctx, params)
        except MCPError:
            raise
        except BaseException as error:
            return _raised(call, error)
        try:
            wire = _wire_of(result)
        except Exception:
            return _unshowable(call, result)
        if "content" not in wire or wire.get("resultType") == "input_required":
            # Questions, and answers of extensions, belong to the server; neither is a success of this step.
            raise BaseInputRequired(wire)
        answer = ToolResult.from_wire(wire)
        return Outcome(answer, not answer.is_error, wire)


def _prepare(call: Call, extra: str | None) -> Call | ToolResult:
    """Return the call as the handler gets it: without the gate's argument `extra`; validated if it is ours."""
    arguments = dict(call.arguments)
    if extra is not None:
        arguments.pop(extra, None)
    if call.action is not None:
        try:
            arguments = call.action.signature.validate(arguments)
        except ArgumentsError as error:
            return _failed(error)
    return replace(call, arguments=arguments)


def _wire_of(result: Any) -> dict[str, Any]:
    if isinstance(result, BaseModel):
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)
    return dict(result or {})


def _unshowable(call: Call, value: Any) -> Outcome:
    """The handler has done its work: the step counts, although its answer cannot be shown."""
    _log.exception("the result of %r is not what it promises, or no JSON", call.tool)
    said = f"'{call.tool}' was carried out, but its result cannot be shown."
    return Outcome(error_result("RESULT_INVALID", said), True, value)


def _raised(call: Call, error: BaseException) -> Outcome:
    """Return how a handler ended that raised `error`, or raise what is not the handler's to say.

    A task group in the handler wraps what was raised in it; here it counts as if it had been raised itself.
    """
    causes = _leaves(error)
    if all(isinstance(cause, InputRequired) for cause in causes):
        raise causes[0]
    if len(causes) == 1 and isinstance(cause := causes[0], ToolError):
        return Outcome(_failed(cause), False, in_doubt=cause.in_doubt)
    if isinstance(error, KeyboardInterrupt | GeneratorExit) or _is_own_cancellation(error):
        raise error
    _log.error("the handler of %r raised", call.tool, exc_info=error, extra={TOOL: call.tool})
    lost = isinstance(error, get_cancelled_exc_class())  # something that the handler waited for was cancelled
    doubt = lost or any(isinstance(cause, ToolError) and cause.in_doubt for cause in causes)
    return Outcome(_internal(call.tool), False, in_doubt=doubt)


def _leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    group = cast("BaseExceptionGroup[BaseException]", error)
    return [leaf for member in group.exceptions for leaf in _leaves(member)]


def _is_own_cancellation(error: BaseException) -> bool:
    """Return whether it is this call itself that is being cancelled."""
    if not isinstance(error, get_cancelled_exc_class()):
        return False
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _context(request: _Request) -> Context:
    ctx, identity = request.ctx, request.identity
    return Context(
        tool=request.params.name,
        request_id=ctx.request_id,
        headers=identity.headers,
        principal=identity.principal,
        session_id=identity.session_id,
        lifespan=ctx.lifespan_context,
        meta=dict(ctx.meta or {}),
        answers=request.rounds.answers,
        can_elicit=can_elicit(ctx),
        send_progress=ctx.session.report_progress,
    )


def unsendable(tool: str) -> dict[str, Any]:
    """Return the answer of a call whose own answer is no JSON, which middleware can make."""
    _log.exception("the answer of %r cannot be sent", tool)
    return _complete(error_result("RESULT_INVALID", f"'{tool}' was called, but its result cannot be shown."))


def _complete(result: ToolResult) -> dict[str, Any]:
    return {"resultType": "complete", **result.to_wire()}


def _failed(error: ToolError) -> ToolResult:
    return error_result(error.code, error.message, error.data)


def _internal(tool: str) -> ToolResult:
    return error_result("INTERNAL_ERROR", f"'{tool}' failed for an internal reason.")


def _with_handle(result: ToolResult, key: str, handle: str) -> ToolResult:
    """Return the result of a minting tool with the new handle where a model reads it."""
    note = {
        "type": "text",
        "text": f'The new workflow\'s handle is "{handle}": pass it as "{key}" from now on.',
    }
    structured = result.structured
    if isinstance(structured, dict) and key not in structured:
        structured = {**cast(dict[str, Any], structured), key: handle}
    return replace(result, content=[*result.content, note], structured=structured)
