"""Questions to the person at the client, in both eras: the call ends, the answer comes, the call runs again."""

import json
from collections.abc import Mapping
from typing import Any, cast

import mcp_types as types
from mcp.shared.message import ServerMessageMetadata

from mcpfusion.actions.errors import InputRequired
from mcpfusion.wire.request import RequestContext

ANSWER_TIMEOUT = 600.0
"""Seconds a handshake-era client has to answer a question."""

MAX_ROUNDS = 16
"""Questions one call may ask."""


class BaseInputRequired(BaseException):
    """A tool that the server had already asks for input in the way of 2026-07-28; its answer goes out as it is."""

    def __init__(self, wire: dict[str, Any]) -> None:
        super().__init__()
        self.wire = wire


class Rounds:
    """What is carried from one run of a call to the next.

    Attributes:
        answers: The answers so far, by the question's key.
        handle: The handle minted for this call, so that every run of it means the same workflow.
        named: The handle that this call named and its session had not named before.
    """

    def __init__(self, answers: dict[str, Any], handle: str | None) -> None:
        self.answers = answers
        self.handle = handle
        self.named: str | None = None

    @classmethod
    def of(cls, params: types.CallToolRequestParams) -> "Rounds":
        """Read what the client sent back: the state of the earlier rounds, and the new answers.

        The state was sealed on its way out and verified on its way in (SEP-2322), so it is ours; the answers
        are the client's and are checked where they are used.
        """
        answers: dict[str, Any] = {}
        handle = None
        if params.request_state is not None:
            state = _loads(params.request_state)
            carried = state.get("answers")
            answers.update(cast(Mapping[str, Any], carried) if isinstance(carried, dict) else {})
            handle = state.get("handle")
        for key, response in (params.input_responses or {}).items():
            if isinstance(response, types.ElicitResult):
                answers[key] = _plain(response)
        return cls(answers, handle if isinstance(handle, str) else None)

    def required(self, need: InputRequired) -> types.InputRequiredResult:
        """Return the answer of 2026-07-28 that asks the question."""
        return types.InputRequiredResult(
            input_requests={need.key: types.ElicitRequest(params=_form(need))},
            request_state=json.dumps({"answers": self.answers, "handle": self.handle}),
        )

    async def ask(self, ctx: RequestContext, need: InputRequired) -> None:
        """Ask a handshake-era client, and keep the answer. Nothing is claimed meanwhile."""
        result = await ctx.session.send_request(
            types.ElicitRequest(params=_form(need)),
            types.ElicitResult,
            request_read_timeout_seconds=ANSWER_TIMEOUT,
            metadata=ServerMessageMetadata(related_request_id=ctx.request_id),
        )
        self.answers[need.key] = _plain(result)


def _form(need: InputRequired) -> types.ElicitRequestFormParams:
    return types.ElicitRequestFormParams(message=need.message, requested_schema=need.schema)


def _plain(result: types.ElicitResult) -> dict[str, Any]:
    return {"action": result.action, "content": result.content}


def _loads(state: str) -> Mapping[str, Any]:
    """Read our own state; what a specialist or a tool of the server asked for is theirs to read, and {} here."""
    try:
        value: object = json.loads(state)
    except ValueError:
        return {}
    return cast(Mapping[str, Any], value) if isinstance(value, dict) else {}
