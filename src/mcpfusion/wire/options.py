"""How a server gates: what every way of attaching takes by name."""

from dataclasses import dataclass, field, replace
from typing import Any, cast

from mcp.server.request_state import RequestStateSecurity

from mcpfusion.gate.identity import Access, check_access
from mcpfusion.gate.options import Options
from mcpfusion.stores.protocol import FsmStateStore, VersionedFsmStateStore

Store = str | VersionedFsmStateStore | FsmStateStore
"""Where workflows are kept: a URL, or a store of one's own."""

PAGE_SIZE = 250


@dataclass(frozen=True, slots=True)
class GateOptions:
    """How a server gates. Every way of attaching takes these by name.

    Attributes:
        state_handle_key: The argument that names the workflow a call belongs to.
        access: Who shares workflows: `owner`, `shared`, or a callable from the caller's identity to a scope.
        single_tenant: Callers who do not say who they are are one and the same, also over HTTP.
        passage: Limits, the end of workflows, the clock and the redaction hook.
        page_size: Tools on a page of `tools/list`.
        request_state_security: Seals what a client carries between the rounds of a question; servers of more
            than one process need shared keys.
    """

    state_handle_key: str | None = None
    access: Access = "owner"
    single_tenant: bool = False
    passage: Options = field(default_factory=Options)
    page_size: int = PAGE_SIZE
    request_state_security: RequestStateSecurity | None = None

    def __post_init__(self) -> None:
        check_access(self.access)
        key = cast(object, self.state_handle_key)
        if key is not None and not (isinstance(key, str) and key):
            raise ValueError(f"state_handle_key: expected the name of an argument, got {key!r}")


def options_of(**given: Any) -> GateOptions:
    """Return options from keyword arguments, those of the passage among them.

    Raises:
        TypeError: An option that does not exist.
    """
    passage = {name: given.pop(name) for name in list(given) if name in Options.__slots__}
    return replace(GateOptions(**given), passage=Options(**passage))
