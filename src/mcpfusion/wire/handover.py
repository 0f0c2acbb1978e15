"""A gateway's part in a server: what a conversation that was handed over sees, and where its calls go."""

import base64
import json
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from typing import Any, cast

import anyio
import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata

from mcpfusion.actions.context import Context
from mcpfusion.actions.middleware import Call
from mcpfusion.actions.results import ToolResult, error_result
from mcpfusion.gate.identity import Identity
from mcpfusion.gate.refusal import RETRY_AFTER
from mcpfusion.swarm.connections import Passing
from mcpfusion.swarm.errors import HandoffError
from mcpfusion.swarm.gateway import SwarmGateway
from mcpfusion.swarm.handoffs import Handoff
from mcpfusion.swarm.namespace import wire_name
from mcpfusion.swarm.return_trip import inject_return_trip_tool
from mcpfusion.swarm.tokens import Delegation
from mcpfusion.swarm.upstream import DELEGATION_HEADER
from mcpfusion.wire.request import RequestContext, can_elicit, connection_of, has_session, modern
from mcpfusion.wire.rounds import ANSWER_TIMEOUT, MAX_ROUNDS, BaseInputRequired

_log = logging.getLogger(__name__)

HANDOFF_KEY = "handoff_id"
"""The argument by which callers without a session and an identity name their handoff."""

SEND_TIMEOUT = 5.0

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]{1,128})?")
"""W3C Trace Context §3.2, of this version or a later one."""

_CONVERSATION_KEY = "io.mcpfusion/conversation"

Send = Callable[[], Awaitable[None]]
Tool = dict[str, Any]


class Handover:
    """Serves a gateway's conversations on one server.

    Args:
        page_size: Tools on a page of a specialist's list.
        own: Names of the gateway's own tools, which no specialist's may stand for.
    """

    def __init__(self, gateway: SwarmGateway, page_size: int, own: Container[str] = ()) -> None:
        if gateway.on_changed is not None:
            raise ValueError(f"{gateway!r} is attached to a server already")
        self.gateway = gateway
        self._page_size = page_size
        self._own = own
        self._dispatcher = gateway.dispatcher_tool
        self._heads = tuple(wire_name(name, gateway.separator, "") for name in gateway.registry.specialists)
        self._listeners: dict[str, set[Send]] = {}
        gateway.on_changed = self._tell

    def conversation(self, ctx: RequestContext, identity: Identity, delegation: Delegation | None) -> str | None:
        """Return whose conversation a request belongs to, or None for callers that nothing tells apart."""
        if delegation is not None:
            key = f"delegation:{delegation.tid}"
            return self._ends_with(ctx, key) if has_session(ctx) else key
        if identity.session_id is not None:
            return self._ends_with(ctx, f"session:{identity.session_id}")
        if identity.principal is not None:
            return f"principal:{identity.principal}"
        if identity.http:
            return None
        return self._ends_with(ctx, f"connection:{id(connection_of(ctx))}") if has_session(ctx) else "process"

    def _ends_with(self, ctx: RequestContext, key: str) -> str:
        """Free the conversation's slots when its session ends."""
        connection = connection_of(ctx)
        if _CONVERSATION_KEY not in connection.state:
            connection.state[_CONVERSATION_KEY] = key
            connection.exit_stack.push_async_callback(self.gateway.forget, key)
        return key

    # The list.

    async def page(self, conversation: str, cursor: str) -> dict[str, Any] | None:
        """Return a page of the specialist's tools, or None when the conversation is with none."""
        try:
            tools = await self.gateway.proxy_tools_list(conversation)
        except HandoffError as error:
            if not self.gateway.has_active_handoff(conversation):
                return None
            raise MCPError(types.INTERNAL_ERROR, _said(error)) from None
        return self._paged([*tools, *self._dispatchers(by_id=False)], cursor)

    def _paged(self, tools: Sequence[Tool], cursor: str) -> dict[str, Any]:
        start = 0
        if cursor:
            after = _decoded(cursor)
            start = next((place + 1 for place, tool in enumerate(tools) if tool["name"] == after), 0)
        page = tools[start : start + self._page_size]
        result: dict[str, Any] = {"resultType": "complete", "tools": page, "ttlMs": 0, "cacheScope": "private"}
        if start + self._page_size < len(tools):
            result["nextCursor"] = base64.urlsafe_b64encode(json.dumps(page[-1]["name"]).encode()).decode()
        return result

    async def beside(self, conversation: str | None) -> list[Tool]:
        """Return what stands beside the gateway's own tools: for callers that nothing tells apart every specialist's
        tools, which then need a handoff's id; and the dispatcher where it is switched on."""
        if conversation is not None:
            return self._dispatchers(by_id=False)
        tools = inject_return_trip_tool(
            await self.gateway.catalogue(), self.gateway.name, separator=self.gateway.separator
        )
        return [*(_by_id(tool) for tool in tools if self._apart(tool["name"])), *self._dispatchers(by_id=True)]

    def _apart(self, tool: str) -> bool:
        if tool not in self._own:
            return True
        _log.warning("a specialist's tool is left out: %r is the name of the gateway's own", tool)
        return False

    def _dispatchers(self, *, by_id: bool) -> list[Tool]:
        if not self.gateway.dispatcher:
            return []
        tool: Tool = {
            "name": self._dispatcher,
            "title": "Call a specialist",
            "description": "Call a tool of the specialist that the conversation was handed over to, by the name that "
            "the handoff's answer gave.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "tool": {"type": "string", "description": "The tool's name."},
                    "arguments": {"type": "object", "description": "Its arguments."},
                },
                "required": ["tool"],
            },
        }
        return [_by_id(tool) if by_id else tool]

    # The call.

    async def take(
        self, ctx: RequestContext, identity: Identity, params: types.CallToolRequestParams, call: Call
    ) -> ToolResult | None:
        """Answer a call that belongs to a specialist; None when it is the gateway's own.

        Raises:
            BaseInputRequired: The specialist asks for input in the way of 2026-07-28.
            MCPError: What the specialist answered as a protocol error.
        """
        arguments = dict(call.arguments)
        conversation = self.conversation(ctx, identity, delegation_of(call.context))
        if conversation is None:
            known = self._is_handoffs(call.tool)
            handoff_id = arguments.pop(HANDOFF_KEY, None) if known else None
            if not known:
                return None
            conversation = f"handoff:{handoff_id}" if isinstance(handoff_id, str) else ""
        elif not self._is_handoffs(call.tool) and not await self.gateway.is_handed_over(conversation):
            return None
        tool = call.tool
        if tool == self._dispatcher and self.gateway.dispatcher:
            name, inner = arguments.get("tool"), cast(object, arguments.get("arguments") or {})
            if not isinstance(name, str) or not isinstance(inner, dict):
                return error_result("INVALID_ARGUMENTS", "tool: expected a name; arguments: expected an object")
            tool, arguments = name, cast(dict[str, Any], inner)
        try:
            if tool == self.gateway.return_tool:
                return await self._return(conversation, arguments)
            return await self._proxied(ctx, params, call.context, conversation, tool, arguments)
        except HandoffError as error:
            return failed(error)

    def _is_handoffs(self, tool: str) -> bool:
        if tool in (self.gateway.return_tool, self._dispatcher):
            return True
        return tool.startswith(self._heads) and tool not in self._own

    async def _return(self, conversation: str, arguments: Mapping[str, Any]) -> ToolResult:
        summary = arguments.get("summary", "")
        if not isinstance(summary, str):
            return error_result("INVALID_ARGUMENTS", "summary: expected text")
        return await self.gateway.return_to_gateway(conversation, summary)

    async def _proxied(
        self,
        ctx: RequestContext,
        params: types.CallToolRequestParams,
        context: Context,
        conversation: str,
        tool: str,
        arguments: Mapping[str, Any],
    ) -> ToolResult:
        raw = ctx.params or {}
        passing = Passing(
            meta=_passed(context.meta),
            traceparent=traceparent_of(context),
            progress=ctx.session.report_progress,
            ask=_asker(ctx) if can_elicit(ctx) else None,
            input_responses=raw.get("inputResponses"),
            request_state=params.request_state,
        )
        for _ in range(MAX_ROUNDS):
            result = await self.gateway.proxy_tools_call(conversation, tool, arguments, passing)
            if result.get("resultType", "complete") == "complete" and "content" in result:
                return ToolResult.from_wire(_cleaned(result))
            if result.get("resultType") != "input_required" or modern(ctx) or passing.ask is None:
                raise BaseInputRequired(_cleaned(result))
            passing = await _answered(passing, result)
        return error_result("TOO_MANY_QUESTIONS", f"'{tool}' asked more than {MAX_ROUNDS} questions")

    async def activate(
        self, ctx: RequestContext, identity: Identity, context: Context, handoff: Handoff
    ) -> ToolResult:
        """Hand the conversation over, and answer with what it finds there.

        Raises:
            HandoffError: It could not be done, and why.
        """
        delegation = delegation_of(context)
        conversation = self.conversation(ctx, identity, delegation)
        handoff_id = None
        if conversation is None:
            handoff_id = secrets.token_urlsafe(16)
            conversation = f"handoff:{handoff_id}"
        activation = await self.gateway.activate_handoff(
            conversation,
            handoff,
            traceparent=traceparent_of(context),
            depth=delegation.depth if delegation else 0,
        )
        names = [tool["name"] for tool in activation.tools]
        lines = [f"The conversation is handed over to {activation.domain}."]
        if handoff.reason:
            lines.append(f"Reason: {handoff.reason}")
        lines.append(f"Its tools: {', '.join(names) or 'none'}.")
        lines.append(f"'{activation.return_tool}' leads back.")
        if handoff_id:
            lines.append(f'Pass "{HANDOFF_KEY}": "{handoff_id}" with each of them.')
        data = {
            "domain": activation.domain,
            "tools": activation.tools,
            "returnTool": activation.return_tool,
            "reason": handoff.reason,
            "modelHint": handoff.model_hint,
            HANDOFF_KEY: handoff_id,
        }
        structured = {"handoff": {key: value for key, value in data.items() if value is not None}}
        return ToolResult([{"type": "text", "text": "\n".join(lines)}], structured)

    # Who is told.

    def listen(self, conversation: str, send: Send) -> Callable[[], None]:
        """Call `send` when the conversation's list changed; returns what ends that."""
        self._listeners.setdefault(conversation, set()).add(send)

        def leave() -> None:
            senders = self._listeners.get(conversation, set())
            senders.discard(send)
            if not senders:
                self._listeners.pop(conversation, None)

        return leave

    async def _tell(self, conversation: str | None) -> None:
        """Tell who listens to a conversation; None: to any."""
        heard = self._listeners.values() if conversation is None else [self._listeners.get(conversation, set())]
        async with anyio.create_task_group() as group:
            for send in [send for senders in heard for send in senders]:
                group.start_soon(_bounded, send)


async def _bounded(send: Send) -> None:
    try:
        with anyio.move_on_after(SEND_TIMEOUT):
            await send()
    except Exception:  # a stream that broke is its transport's business
        _log.debug("a listener could not be told that its list changed", exc_info=True)


def failed(error: HandoffError) -> ToolResult:
    """Return what a caller is answered whose handoff, or whose call through one, could not be done."""
    data = {"retryAfter": RETRY_AFTER} if error.code == "STORE_UNAVAILABLE" else {}
    return error_result(error.code, _said(error), data)


def _said(error: HandoffError) -> str:
    return f"{error.message} Retry after {RETRY_AFTER} s." if error.code == "STORE_UNAVAILABLE" else error.message


def delegation_of(context: Context) -> Delegation | None:
    """Return the verified delegation of a call."""
    handoff = context.handoff if context.has_handoff else None
    return handoff if isinstance(handoff, Delegation) else None


def traceparent_of(context: Context) -> str | None:
    """Return the trace that a call belongs to, from its `_meta` or its headers (W3C Trace Context)."""
    value = context.meta.get("traceparent") or context.headers.get("traceparent")
    return value if isinstance(value, str) and _TRACEPARENT.fullmatch(value) else None


def _passed(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return of the caller's `_meta` what is meant for the one who answers, and nothing of this hop."""
    own = {"progressToken", "traceparent", DELEGATION_HEADER}
    return {
        key: value
        for key, value in meta.items()
        if key not in own and not key.startswith(("io.modelcontextprotocol/", "io.mcpfusion/"))
    }


def _cleaned(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a specialist's result without its name, which the gateway's own takes the place of."""
    wire = dict(result)
    if isinstance(wire.get("_meta"), dict):
        wire["_meta"] = {key: value for key, value in wire["_meta"].items() if key != types.SERVER_INFO_META_KEY}
    return wire


def _asker(ctx: RequestContext) -> Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]:
    async def ask(params: Mapping[str, Any]) -> Mapping[str, Any]:
        if modern(ctx):
            return {"action": "cancel"}  # there is no asking in the middle of a call there
        request = types.ElicitRequest(params=types.ElicitRequestFormParams.model_validate(params, by_name=False))
        result = await ctx.session.send_request(
            request,
            types.ElicitResult,
            request_read_timeout_seconds=ANSWER_TIMEOUT,
            metadata=ServerMessageMetadata(related_request_id=ctx.request_id),
        )
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)

    return ask


async def _answered(passing: Passing, result: Mapping[str, Any]) -> Passing:
    """Ask a handshake-era client what a specialist of 2026-07-28 asked, for the next round."""
    assert passing.ask is not None
    answers: dict[str, Any] = {}
    for key, request in cast(dict[str, Any], result.get("inputRequests") or {}).items():
        if isinstance(request, dict) and cast(dict[str, Any], request).get("method") == "elicitation/create":
            answers[key] = dict(await passing.ask(cast(dict[str, Any], request).get("params") or {}))
    return Passing(
        meta=passing.meta,
        traceparent=passing.traceparent,
        progress=passing.progress,
        ask=passing.ask,
        input_responses=answers,
        request_state=result.get("requestState"),
    )


def _by_id(tool: Tool) -> Tool:
    schema = dict(tool["inputSchema"])
    about = {"type": "string", "description": "The handoff's id, as the handoff's answer gave it."}
    schema["properties"] = {**schema.get("properties", {}), HANDOFF_KEY: about}
    schema["required"] = [*schema.get("required", ()), HANDOFF_KEY]
    return {**tool, "inputSchema": schema}


def _decoded(cursor: str) -> str:
    try:
        return str(json.loads(base64.urlsafe_b64decode(cursor.encode())))
    except ValueError:
        raise MCPError(types.INVALID_PARAMS, "Invalid cursor") from None
