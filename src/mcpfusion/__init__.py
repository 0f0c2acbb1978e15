"""MCP Fusion: state-gated tools for MCP servers."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mcpfusion._version import __version__

if TYPE_CHECKING:
    from mcpfusion.actions.action import Action
    from mcpfusion.actions.context import Context, WorkflowView
    from mcpfusion.actions.elicitation import Answer
    from mcpfusion.actions.errors import RegistrationError, ToolError
    from mcpfusion.actions.middleware import Call, CallNext, Middleware
    from mcpfusion.actions.registry import ActionRegistry
    from mcpfusion.actions.results import ToolResult
    from mcpfusion.engines.engine import Engine
    from mcpfusion.fusion import Fusion
    from mcpfusion.gate.binding import BindingError, Policies
    from mcpfusion.gate.gate import StateMachineGate, TransitionResult
    from mcpfusion.gate.identity import Identity
    from mcpfusion.machine import Machine, MachineConfigError, UnknownStateError
    from mcpfusion.stores.protocol import FsmSnapshot, FsmStateStore, VersionedFsmStateStore
    from mcpfusion.swarm.handoffs import handoff
    from mcpfusion.wire.gating import gate_server
    from mcpfusion.wire.health import health_routes

_HOMES = {
    "Action": "actions.action",
    "ActionRegistry": "actions.registry",
    "Answer": "actions.elicitation",
    "BindingError": "gate.binding",
    "Call": "actions.middleware",
    "CallNext": "actions.middleware",
    "Context": "actions.context",
    "Engine": "engines.engine",
    "FsmSnapshot": "stores.protocol",
    "FsmStateStore": "stores.protocol",
    "Fusion": "fusion",
    "Identity": "gate.identity",
    "Machine": "machine",
    "MachineConfigError": "machine",
    "Middleware": "actions.middleware",
    "Policies": "gate.binding",
    "RegistrationError": "actions.errors",
    "StateMachineGate": "gate.gate",
    "ToolError": "actions.errors",
    "ToolResult": "actions.results",
    "TransitionResult": "gate.gate",
    "UnknownStateError": "machine",
    "VersionedFsmStateStore": "stores.protocol",
    "WorkflowView": "actions.context",
    "gate_server": "wire.gating",
    "handoff": "swarm.handoffs",
    "health_routes": "wire.health",
}

__all__ = [
    "Action",
    "ActionRegistry",
    "Answer",
    "BindingError",
    "Call",
    "CallNext",
    "Context",
    "Engine",
    "FsmSnapshot",
    "FsmStateStore",
    "Fusion",
    "Identity",
    "Machine",
    "MachineConfigError",
    "Middleware",
    "Policies",
    "RegistrationError",
    "StateMachineGate",
    "ToolError",
    "ToolResult",
    "TransitionResult",
    "UnknownStateError",
    "VersionedFsmStateStore",
    "WorkflowView",
    "__version__",
    "gate_server",
    "handoff",
    "health_routes",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
