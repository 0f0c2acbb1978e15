"""The gate on its own: a machine, the tools bound to its states, and where it stands."""

import copy
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mcpfusion.engines.choice import Definition, engine_of
from mcpfusion.gate.binding import (
    Binding,
    BindingError,
    Bindings,
    BoundTool,
    Migrate,
    Policies,
    Transition,
    bind,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TransitionResult:
    """What an event did.

    Attributes:
        changed: False when nothing accepted the event; the states are then equal.
        previous_state: Canonical text of the state before.
        current_state: Canonical text of the state now.
    """

    changed: bool
    previous_state: str
    current_state: str


class StateMachineGate:
    """A workflow's machine with tools bound to its states.

    Given to a server it is only a definition: the server keeps one snapshot for each workflow. On its own it
    also stands somewhere itself, which is enough to gate anything that is not an MCP server.

    Args:
        config: An XState v5 config: a mapping, JSON text, the path of a JSON or YAML file, a `Machine`, a
            python-statemachine class, or an `Engine` of one's own.
        guards: The guards that the config names: `(context, event, params) -> bool`. The event of a call carries
            its `arguments` and, once the handler has returned, its `result`.
        actions: The actions that the config names: `(context, event, params) -> dict of changed keys | None`.
        delays: The delays that the config names: milliseconds, or a callable that returns them.
        migrate: For workflows that began under an older machine and do not fit this one.

    Raises:
        MachineConfigError: The config is refused; the message gives the path of the fault.
    """

    def __init__(
        self,
        config: Definition,
        *,
        guards: Mapping[str, Any] | None = None,
        actions: Mapping[str, Any] | None = None,
        delays: Mapping[str, Any] | None = None,
        migrate: Migrate | None = None,
    ) -> None:
        self.machine = engine_of(config, guards=guards, actions=actions, delays=delays)
        self.migrate = migrate
        self._tools: dict[str, BoundTool] = {}
        self._snapshot = self.machine.initial()
        self._listeners: dict[object, Callable[[TransitionResult], object]] = {}

    def bind_tool(
        self,
        name: str,
        states: str | Iterable[str],
        transition: Transition | None = None,
        *,
        policies: Policies | None = None,
    ) -> None:
        """Bind a tool to states. Binding the same tool again adds states, each with its own event.

        Args:
            name: The tool's name on the wire.
            states: State names, `*` globs over dotted paths, or `tag:NAME`.
            transition: The event a successful call sends.
            policies: What applies to the tool's passage; the last ones given count.

        Raises:
            BindingError: A state or an event that the machine does not have.
        """
        if not name:
            raise BindingError("a bound tool needs a name")
        binding = bind(self.machine, name, states, transition)
        known = self._tools.get(name, BoundTool(name, ()))
        self._tools[name] = replace(known, bindings=(*known.bindings, binding), policies=policies or known.policies)

    @property
    def tools(self) -> Mapping[str, BoundTool]:
        """The bound tools by name, in the order they were bound."""
        return dict(self._tools)

    def bindings_of(self, name: str) -> tuple[Binding, ...]:
        """Return the tool's bindings; empty when it is not bound."""
        tool = self._tools.get(name)
        return tool.bindings if tool else ()

    def compile(self, more: Iterable[BoundTool] = ()) -> Bindings:
        """Return all bindings for a server: this gate's and `more`.

        Raises:
            BindingError: A tool is bound in both places.
        """
        tools = dict(self._tools)
        for tool in more:
            if tool.name in tools:
                raise BindingError(f"tool {tool.name!r} is bound twice: by its action and by bind_tool")
            tools[tool.name] = tool
        return Bindings(self.machine, tools.values(), self.migrate)

    @property
    def initial_state(self) -> str:
        """Canonical text of the machine's initial state."""
        return self.machine.initial().state

    @property
    def current_state(self) -> str:
        """Canonical text of the state the gate stands in."""
        return self._snapshot.state

    def is_tool_allowed(self, name: str) -> bool:
        """Return whether the tool may be called now. A tool that is not bound always may."""
        tool = self._tools.get(name)
        return tool is None or tool.binding_in(self._snapshot) is not None

    def visible_tool_names(self, names: Iterable[str] | None = None) -> list[str]:
        """Return those of `names` that may be called now, in their order; without `names`, of the bound tools."""
        return [name for name in (self._tools if names is None else names) if self.is_tool_allowed(name)]

    def transition(self, event: str | Mapping[str, Any], *, now: float = 0.0) -> TransitionResult:
        """Send an event. One that nothing accepts changes nothing and is no error."""
        before = self._snapshot
        self._snapshot = self.machine.transition(before, event, now=now)
        result = TransitionResult(self._snapshot is not before, before.state, self._snapshot.state)
        if result.changed:
            for listener in list(self._listeners.values()):
                try:
                    listener(result)
                except Exception:  # one listener's fault must not hide the transition from the others
                    _log.exception("a transition listener raised")
        return result

    def on_transition(self, listener: Callable[[TransitionResult], object]) -> Callable[[], None]:
        """Call `listener` after each transition that changed something. Returns what ends that."""
        key = object()
        self._listeners[key] = listener
        return lambda: self._listeners.pop(key, None) and None

    def snapshot(self) -> dict[str, Any]:
        """Return where the gate stands as JSON data, for `restore`."""
        return self._snapshot.to_json()

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Stand where `snapshot` says.

        Raises:
            UnknownStateError: It does not fit the machine; the gate stays where it was.
        """
        self._snapshot = self.machine.restore(snapshot)

    def clone(self) -> "StateMachineGate":
        """Return a gate of the same machine, tools and snapshot that moves on its own, without listeners."""
        other = copy.copy(self)
        other._tools = dict(self._tools)
        other._listeners = {}
        return other
