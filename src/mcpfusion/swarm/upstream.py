"""What a gateway needs of a connection to a specialist; the wire provides it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from anyio.abc import TaskStatus

from mcpfusion.swarm.registry import Specialist

SendProgress = Callable[[float, float | None, str | None], Awaitable[None]]
Ask = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Asks the person at the client: the parameters of `elicitation/create`, and its result."""

DELEGATION_HEADER = "x-mcpfusion-delegation"
"""The HTTP header, and over stdio and in process the key in `_meta`, that carries the token."""


class UpstreamError(Exception):
    """The specialist could not be reached, or did not answer as a server of the protocol does. For the log.

    Attributes:
        refused: The call did certainly not run there.
        answer: What the specialist itself said against it, or None when nothing was heard from it.
    """

    def __init__(self, message: str, *, refused: bool = False, answer: str | None = None) -> None:
        super().__init__(message)
        self.refused = refused
        self.answer = answer


@dataclass(frozen=True, slots=True)
class UpstreamRequest:
    """One request on its way to a specialist.

    Attributes:
        token: The delegation token for this request alone.
        traceparent: The trace that goes on there.
        meta: What the caller's `_meta` had, without what belongs to the gateway.
        progress: Takes the specialist's progress, or None.
        ask: Asks the person, for specialists of the handshake eras that ask in the middle of a call; or None.
        input_responses: Answers to what the specialist asked in an earlier round (2026-07-28).
        request_state: What it wants back with them.
        timeout: Seconds to wait for the answer.
    """

    token: str = field(repr=False)
    traceparent: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    progress: SendProgress | None = None
    ask: Ask | None = None
    input_responses: Mapping[str, Any] | None = field(default=None, repr=False)
    request_state: str | None = field(default=None, repr=False)
    timeout: float = 300.0


Renew = Callable[[], Awaitable[UpstreamRequest]]


class Upstream(Protocol):
    """One connection to a specialist.

    Every method may raise `UpstreamError`; what the specialist itself answers as a protocol error is raised as the
    wire's own exception and passes through unchanged.
    """

    async def list_tools(self, renew: Renew) -> list[dict[str, Any]]:
        """Return all the tools it lists, from every page, as they came over the wire.

        Args:
            renew: Gives a request with a fresh token for each page.
        """
        ...

    async def call_tool(self, name: str, arguments: Mapping[str, Any], request: UpstreamRequest) -> dict[str, Any]:
        """Call a tool and return its result as it came over the wire. Cancelling the await cancels the call there."""
        ...

    async def aclose(self) -> None:
        """End the connection, the session on the other side included. Calling it again does nothing."""
        ...


class Connector(Protocol):
    """Opens connections. What it opened, it owns until closed."""

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Own the connections until cancelled; `task_status.started()` says that it is ready."""
        ...

    async def connect(
        self,
        name: str,
        specialist: Specialist,
        renew: Renew,
        on_tools_changed: Callable[[], None],
    ) -> Upstream:
        """Connect to a specialist, within the caller's own time limit.

        Args:
            renew: Gives a request with a fresh token for seeing the list.
            on_tools_changed: Called when the specialist says that its list changed.

        Raises:
            UpstreamError: It cannot be reached.
        """
        ...
