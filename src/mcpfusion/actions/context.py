"""What a handler is given besides its arguments."""

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, TypeVar, overload

from .elicitation import Answer, Question
from .errors import InputRequired, ToolError

T = TypeVar("T")

SendProgress = Callable[[float, float | None, str | None], Awaitable[None]]

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class WorkflowView:
    """Where the workflow of this call stands, as the handler sees it.

    Attributes:
        handle: Names the workflow.
        state: Its state in canonical text: the name, or compact JSON for a nested state value.
        idempotency_key: The same for every attempt at this step, to hand to a payment provider; empty when the
            call does not move the workflow, which has no step then.
        value: The machine's state value: a name or a nested dict.
    """

    handle: str
    state: str
    idempotency_key: str = ""
    value: Any = None


class HandoffView(Protocol):
    """What a gateway delegated with this call, verified.

    Attributes:
        issuer: The gateway.
        scope: The specialist that the call is meant for: this server.
        tid: The handoff's id, the same for all its calls.
        state: What the gateway carried over, a JSON object; None when it carried nothing.
        traceparent: The trace that the call belongs to (W3C Trace Context), or None.
    """

    @property
    def issuer(self) -> str: ...
    @property
    def scope(self) -> str: ...
    @property
    def tid(self) -> str: ...
    @property
    def state(self) -> Any: ...
    @property
    def traceparent(self) -> str | None: ...


class Context:
    """The surroundings of one run of a handler. Made by the server, not by users.

    Attributes:
        tool: The tool's name on the wire.
        request_id: The id of the request.
        headers: The HTTP headers of the request with lower-case names; empty over stdio.
        principal: Who is authenticated, or None.
        session_id: The session of a handshake-era client, or None.
        lifespan: What the server's lifespan gave.
        meta: The request's `_meta`.
    """

    __slots__ = (
        "_answers", "_asked", "_can_elicit", "_handoff", "_progress", "_send_progress", "_workflow", "headers",
        "lifespan", "meta", "principal", "request_id", "session_id", "tool",
    )  # fmt: skip

    def __init__(
        self,
        *,
        tool: str,
        request_id: str | int | None = None,
        workflow: WorkflowView | None = None,
        headers: Mapping[str, str] = _NOTHING,
        principal: str | None = None,
        session_id: str | None = None,
        lifespan: Any = None,
        meta: Mapping[str, Any] = _NOTHING,
        answers: Mapping[str, Mapping[str, Any]] = _NOTHING,
        can_elicit: bool = False,
        send_progress: SendProgress | None = None,
        handoff: HandoffView | None = None,
    ) -> None:
        self.tool = tool
        self.request_id = request_id
        self._workflow = workflow
        self.headers: Mapping[str, str] = {k.lower(): v for k, v in headers.items()} if headers else _NOTHING
        self.principal = principal
        self.session_id = session_id
        self.lifespan = lifespan
        self.meta = meta
        self._handoff = handoff
        self._answers = answers
        self._can_elicit = can_elicit
        self._send_progress = send_progress
        self._asked = 0
        self._progress = -math.inf

    def __repr__(self) -> str:
        return f"Context(tool={self.tool!r}, request_id={self.request_id!r})"

    def again(
        self,
        *,
        workflow: WorkflowView | None = None,
        answers: Mapping[str, Mapping[str, Any]] | None = None,
        handoff: HandoffView | None = None,
    ) -> "Context":
        """Return the context of another run of the same call: questions are counted from the start again.

        `workflow`, `answers` and `handoff` replace what was there; None keeps it.
        """
        return Context(
            tool=self.tool,
            request_id=self.request_id,
            workflow=self._workflow if workflow is None else workflow,
            headers=self.headers,
            principal=self.principal,
            session_id=self.session_id,
            lifespan=self.lifespan,
            meta=self.meta,
            answers=self._answers if answers is None else answers,
            can_elicit=self._can_elicit,
            send_progress=self._send_progress,
            handoff=self._handoff if handoff is None else handoff,
        )

    @property
    def workflow(self) -> WorkflowView:
        """Where the workflow of this call stands.

        Raises:
            RuntimeError: The tool is not bound to states; `has_workflow` tells.
        """
        if self._workflow is None:
            raise RuntimeError(f"{self.tool!r} is not bound to states, so there is no workflow: ask has_workflow")
        return self._workflow

    @property
    def has_workflow(self) -> bool:
        """Whether the tool is bound to states, so that there is a workflow."""
        return self._workflow is not None

    @property
    def handoff(self) -> HandoffView:
        """What the gateway that sent the call delegates.

        Raises:
            RuntimeError: The server demands no clearance (`require_gateway_clearance`); `has_handoff` tells.
        """
        if self._handoff is None:
            raise RuntimeError(f"the call of {self.tool!r} carries no verified delegation: ask has_handoff")
        return self._handoff

    @property
    def has_handoff(self) -> bool:
        """Whether a gateway sent the call, with a delegation that was verified."""
        return self._handoff is not None

    @property
    def logger(self) -> logging.Logger:
        """The logger `mcpfusion.action.<tool>`."""
        return logging.getLogger(f"mcpfusion.action.{self.tool}")

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Tell the client how far the call is, if it asked to be told (MCP: progress notifications).

        The specification demands that `progress` grows: a value that does not is not sent.

        Raises:
            ValueError: A number is not finite.
        """
        if not math.isfinite(progress) or (total is not None and not math.isfinite(total)):
            raise ValueError(f"progress must be finite numbers, not {progress!r} of {total!r}")
        if self._send_progress is None or progress <= self._progress:
            return
        self._progress = progress
        await self._send_progress(progress, total, message)

    @overload
    async def elicit(self, message: str, schema: type[T]) -> Answer[T]: ...
    @overload
    async def elicit(self, message: str, schema: Mapping[str, Any]) -> Answer[dict[str, Any]]: ...
    async def elicit(self, message: str, schema: Any) -> Answer[Any]:
        """Ask the person at the client a question, and return the answer (MCP: elicitation in form mode).

        When the answer is not there yet the call ends here, the question goes to the client, and the handler runs
        again from its top with the answer in hand, in both protocol eras. So everything above this line runs once
        more: ask before the effect, and ask the same questions in the same order on each run.

        Args:
            message: The question.
            schema: A pydantic model or dataclass whose fields are text, numbers, booleans, choices, or lists of
                choices; or a JSON Schema of that form.

        Raises:
            TypeError: A field of `schema` is of a kind that elicitation cannot ask for.
            ToolError: The client cannot be asked (`ELICITATION_UNSUPPORTED`), or what it answered does not fit
                the schema (`INVALID_ANSWER`).
        """
        question = Question.of(schema)
        self._asked += 1
        key = question.key(self._asked, message)
        answer = self._answers.get(key)
        if answer is not None:
            return question.answer(answer)
        if not self._can_elicit:
            raise ToolError(
                "This tool needs to ask the user a question, and this client does not support elicitation.",
                code="ELICITATION_UNSUPPORTED",
            )
        raise InputRequired(key, message, question.schema)
