"""Federated handoff: a gateway hands a conversation to specialist servers, and takes it back."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcpfusion.swarm.clearance import require_gateway_clearance
    from mcpfusion.swarm.errors import HandoffAuthError, HandoffError
    from mcpfusion.swarm.gateway import SwarmGateway
    from mcpfusion.swarm.handoffs import Handoff, handoff
    from mcpfusion.swarm.namespace import NamespaceError, NamespaceRewriter
    from mcpfusion.swarm.registry import Specialist
    from mcpfusion.swarm.return_trip import format_safe_return, inject_return_trip_tool
    from mcpfusion.swarm.state import (
        HandoffStateStore,
        InMemoryHandoffStateStore,
        InMemoryReplayStore,
        ReplayStore,
    )
    from mcpfusion.swarm.tokens import Delegation, mint_delegation_token, verify_delegation_token

_HOMES = {
    "Delegation": "tokens",
    "Handoff": "handoffs",
    "HandoffAuthError": "errors",
    "HandoffError": "errors",
    "HandoffStateStore": "state",
    "InMemoryHandoffStateStore": "state",
    "InMemoryReplayStore": "state",
    "NamespaceError": "namespace",
    "NamespaceRewriter": "namespace",
    "ReplayStore": "state",
    "Specialist": "registry",
    "SwarmGateway": "gateway",
    "format_safe_return": "return_trip",
    "handoff": "handoffs",
    "inject_return_trip_tool": "return_trip",
    "mint_delegation_token": "tokens",
    "require_gateway_clearance": "clearance",
    "verify_delegation_token": "tokens",
}

__all__ = [
    "Delegation",
    "Handoff",
    "HandoffAuthError",
    "HandoffError",
    "HandoffStateStore",
    "InMemoryHandoffStateStore",
    "InMemoryReplayStore",
    "NamespaceError",
    "NamespaceRewriter",
    "ReplayStore",
    "Specialist",
    "SwarmGateway",
    "format_safe_return",
    "handoff",
    "inject_return_trip_tool",
    "mint_delegation_token",
    "require_gateway_clearance",
    "verify_delegation_token",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
