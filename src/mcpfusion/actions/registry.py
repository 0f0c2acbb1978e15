"""The actions of a server, by the names under which they are tools."""

import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from .action import Action
from .errors import RegistrationError

if TYPE_CHECKING:
    from mcpfusion.gate.gate import StateMachineGate
    from mcpfusion.swarm.gateway import SwarmGateway
    from mcpfusion.wire.attachment import Attachment
    from mcpfusion.wire.options import Store

    from .middleware import Middleware

SEPARATORS = (".", "_", "__", "-", "/")

_TOOL_NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")


class ActionRegistry:
    """The actions of a server, in the order in which they were added.

    Args:
        actions: Added one by one.
        separator: What stands in a tool's name for each dot of the action's: one of `.`, `_`, `__`, `-`, `/`.

    Raises:
        RegistrationError: An unknown separator, or whatever `add` raises.
    """

    def __init__(self, actions: Iterable[Action] = (), *, separator: str = ".") -> None:
        if separator not in SEPARATORS:
            raise RegistrationError(f"separator must be one of {' '.join(SEPARATORS)}, not {separator!r}")
        self._separator = separator
        self._tools: dict[str, Action] = {}
        self._names: set[str] = set()
        self._complete = False
        for action in actions:
            self.add(action)

    def __iter__(self) -> Iterator[Action]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    @property
    def separator(self) -> str:
        """What stands in a tool's name for each dot of the action's."""
        return self._separator

    @property
    def tools(self) -> Mapping[str, Action]:
        """The actions by tool name; a live view that cannot be written."""
        return MappingProxyType(self._tools)

    def add(self, action: Action) -> None:
        """Add an action.

        Raises:
            RegistrationError: Its name is taken, or another action became the same tool, or the MCP specification
                does not allow the tool's name, or a server has been made of the registry.
        """
        if self._complete:
            raise RegistrationError(
                f"action {action.name!r} comes after the server was made, which would neither list nor gate it;"
                " declare it before"
            )
        tool = self.tool_name(action)
        if action.name in self._names:
            raise RegistrationError(f"action {action.name!r} is declared twice; rename one of the two")
        if (other := self._tools.get(tool)) is not None:
            raise RegistrationError(
                f"actions {other.name!r} and {action.name!r} both become the tool {tool!r};"
                " rename one of the two or choose another separator"
            )
        if not _TOOL_NAME.fullmatch(tool):
            raise RegistrationError(
                f"action {action.name!r}: the tool name {tool!r} is not 1 to 128 of A-Z a-z 0-9 _ - . /"
            )
        self._tools[tool] = action
        self._names.add(action.name)

    def complete(self) -> None:
        """Take no more actions: a server is made of these."""
        self._complete = True

    def get(self, tool_name: str) -> Action | None:
        """Return the action that is this tool, or None."""
        return self._tools.get(tool_name)

    def tool_name(self, action: Action) -> str:
        """Return the name under which an action is a tool."""
        return action.name.replace(".", self._separator)

    def attach_to_server(
        self,
        server: Any,
        *,
        fsm: "StateMachineGate | None" = None,
        fsm_store: "Store" = "memory://",
        middleware: "Iterable[Middleware]" = (),
        swarm_gateway: "SwarmGateway | None" = None,
        **options: Any,
    ) -> "Attachment":
        """Add the actions to a server. The tools, resources and prompts it has already stay.

        Args:
            server: The SDK's `Server` or `MCPServer`, or `fastmcp.FastMCP`.
            fsm: The gate that the actions' states belong to.
            fsm_store: Where workflows are kept: a URL, or a store of one's own.
            middleware: Async callables around every call, the first one outermost.
            swarm_gateway: Takes the handoffs that actions return.
            options: How to gate, see `mcpfusion.wire.options.GateOptions`.

        Raises:
            BindingError: A binding does not fit the machine, or there are bindings and no `fsm`.
            TypeError: A server or an option that there is not.
        """
        from mcpfusion.wire.attachment import attach
        from mcpfusion.wire.options import options_of

        return attach(
            server,
            actions=self,
            gate=fsm,
            store=fsm_store,
            middleware=middleware,
            options=options_of(**options),
            gateway=swarm_gateway,
        )
