"""The entry: declare actions and a machine, and make a server of them."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from typing_extensions import Unpack

from mcpfusion.actions.action import Action, Kind
from mcpfusion.actions.builder import ActionBuilder, ActionKeywords
from mcpfusion.actions.middleware import Middleware
from mcpfusion.actions.registry import ActionRegistry
from mcpfusion.engines.choice import Definition
from mcpfusion.gate.binding import Migrate
from mcpfusion.gate.gate import StateMachineGate

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from mcpfusion.swarm.gateway import SwarmGateway
    from mcpfusion.wire.options import Store
    from mcpfusion.wire.server import FusionServer

    Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


class Fusion:
    """Declares the actions of one server.

    Args:
        name: The server's name, as clients see it.
        version: The server's version, as clients see it.
        title: A name for people.
        instructions: What a model should know before it uses the tools.
        separator: What stands between the parts of an action's name in its tool's name; `_` or `__` for clients
            that accept only letters, digits, `_` and `-`.
        lifespan: An async context manager around the server's life; what it yields is `ctx.lifespan`.
    """

    def __init__(
        self,
        name: str,
        *,
        version: str = "",
        title: str | None = None,
        instructions: str | None = None,
        separator: str = ".",
        lifespan: "Lifespan | None" = None,
    ) -> None:
        self.name = name
        self.version = version
        self.title = title
        self.instructions = instructions
        self.lifespan = lifespan
        self._registry = ActionRegistry(separator=separator)

    def __repr__(self) -> str:
        return f"Fusion({self.name!r}, {len(self._registry.tools)} actions)"

    def action(self, name: str, **keywords: Unpack[ActionKeywords]) -> ActionBuilder:
        """Begin an action of which nothing is said: clients take it for one that changes things.

        Args:
            name: `namespace.name`.
            keywords: The methods of `ActionBuilder` by name, instead of a chain.

        Raises:
            RegistrationError: The name or a keyword is wrong.
        """
        return self._begin("action", name, keywords)

    def query(self, name: str, **keywords: Unpack[ActionKeywords]) -> ActionBuilder:
        """Begin an action that only reads. See `action`."""
        return self._begin("query", name, keywords)

    def mutation(self, name: str, **keywords: Unpack[ActionKeywords]) -> ActionBuilder:
        """Begin an action that changes what cannot be changed back. See `action`."""
        return self._begin("mutation", name, keywords)

    def _begin(self, kind: Kind, name: str, keywords: Mapping[str, Any]) -> ActionBuilder:
        return ActionBuilder(kind, name, register=self._register).keywords(**keywords)

    def _register(self, action: Action) -> None:
        self._registry.add(action)

    def fsm(
        self,
        config: Definition,
        *,
        guards: Mapping[str, Any] | None = None,
        actions: Mapping[str, Any] | None = None,
        delays: Mapping[str, Any] | None = None,
        migrate: Migrate | None = None,
    ) -> StateMachineGate:
        """Return the gate of a machine.

        Args:
            config: An XState v5 config: a mapping, JSON text, the path of a JSON or YAML file, a `Machine`, a
                python-statemachine class, or an `Engine` of one's own.
            guards: The guards that the config names: `(context, event, params) -> bool`.
            actions: The actions that the config names: `(context, event, params) -> dict of changed keys | None`.
            delays: The delays that the config names: milliseconds, or a callable that returns them.
            migrate: For workflows that began under an older machine and do not fit this one: a map from old states
                to new, or a callable from the old snapshot's JSON data to a state value or a snapshot.

        Raises:
            MachineConfigError: The config is refused; the message gives the path of the fault.
        """
        return StateMachineGate(config, guards=guards, actions=actions, delays=delays, migrate=migrate)

    def registry(self) -> ActionRegistry:
        """Return the actions declared so far, to be attached to a server of one's own."""
        return self._registry

    def server(
        self,
        *,
        fsm: StateMachineGate | None = None,
        store: "Store" = "memory://",
        base: Any = None,
        middleware: Iterable[Middleware] = (),
        auth: Any = None,
        token_verifier: Any = None,
        swarm_gateway: "SwarmGateway | None" = None,
        **options: Any,
    ) -> "FusionServer":
        """Make a server of the actions.

        Args:
            fsm: The gate that the actions' states belong to.
            store: Where workflows are kept: a URL, or a store of one's own.
            base: A server whose tools, resources and prompts come along: `MCPServer`, `fastmcp.FastMCP` or the
                SDK's `Server`. Without it a new one is made.
            middleware: Async callables around every call, the first one outermost.
            auth: The SDK's `AuthSettings`, for a new server over HTTP.
            token_verifier: The SDK's `TokenVerifier` that goes with it.
            swarm_gateway: Takes the handoffs that actions return.
            options: How to gate: `state_handle_key`, `access`, `single_tenant`, `time_limit`, `conflict_wait`, ...,
                see `mcpfusion.wire.options.GateOptions`.

        Raises:
            BindingError: A binding does not fit the machine.
            TypeError: An option that does not exist.
        """
        from mcpfusion.wire.server import FusionServer

        return FusionServer(
            self,
            gate=fsm,
            store=store,
            base=base,
            middleware=list(middleware),
            auth=auth,
            token_verifier=token_verifier,
            gateway=swarm_gateway,
            options=options,
        )
