"""What a request of the SDK says about its caller."""

import secrets
from collections import OrderedDict
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from mcp.server import ServerRequestContext
from mcp.server.connection import Connection
from mcp.server.request_state import authenticated_principal
from mcp_types import ClientCapabilities, ElicitationCapability
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcpfusion.gate.identity import Identity

RequestContext = ServerRequestContext[Any, Any]

current_request: ContextVar[RequestContext | None] = ContextVar("current_request", default=None)
"""The call that is being served, so that its own session hears of a change on the stream it is reading."""

SESSION_HANDLES = 100
"""Handles that a session's menu takes into account: those it named most recently."""

_SESSION_KEY = "io.mcpfusion/session"
_HANDLES_KEY = "io.mcpfusion/handles"
_CAN_ELICIT = ClientCapabilities(elicitation=ElicitationCapability())


def connection_of(ctx: RequestContext) -> Connection:
    """Return the connection of the request, which the SDK's session object keeps to itself."""
    return ctx.session._connection  # pyright: ignore[reportPrivateUsage]


def modern(ctx: RequestContext) -> bool:
    """Return whether the request is of the era without sessions (2026-07-28 and later)."""
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


def has_session(ctx: RequestContext) -> bool:
    """Return whether the request belongs to a session: the handshake eras, where the server keeps one."""
    return not modern(ctx) and connection_of(ctx).has_standalone_channel


def headers_of(ctx: RequestContext) -> Mapping[str, str]:
    """Return the HTTP headers with lower-case names; empty over stdio."""
    headers = getattr(ctx.request, "headers", None)
    return dict(headers) if headers is not None else {}


def identity_of(ctx: RequestContext) -> Identity:
    """Return who sends the request. The session's id is the server's own, never what a header claims."""
    http = ctx.request is not None
    return Identity(
        principal=authenticated_principal(ctx),
        session_id=_session_id(ctx) if http and has_session(ctx) else None,
        headers=headers_of(ctx),
        http=http,
    )


def _session_id(ctx: RequestContext) -> str:
    connection = connection_of(ctx)
    # The old SSE transport has sessions without an id that the server knows.
    return connection.session_id or connection.state.setdefault(_SESSION_KEY, secrets.token_hex(16))


def session_handles(ctx: RequestContext) -> OrderedDict[str, None]:
    """Return the handles that the request's session has named so far, the most recent last."""
    return connection_of(ctx).state.setdefault(_HANDLES_KEY, OrderedDict())


def name_handle(ctx: RequestContext, handle: str) -> bool:
    """Note that the session named a handle: its menu covers that workflow from now on. True if that is new."""
    handles = session_handles(ctx)
    new = handle not in handles
    handles[handle] = None
    handles.move_to_end(handle)
    if len(handles) > SESSION_HANDLES:
        handles.popitem(last=False)
    return new


def can_elicit(ctx: RequestContext) -> bool:
    """Return whether the client behind the request can be asked a question."""
    if not ctx.session.check_client_capability(_CAN_ELICIT):
        return False
    return modern(ctx) or ctx.session.can_send_request
