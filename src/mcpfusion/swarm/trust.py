"""How far a specialist is trusted: what it may expose, in what size, and unchanged where that is asked for."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from mcpfusion.swarm.pins import PinStore, definition_digest
from mcpfusion.swarm.registry import Specialist
from mcpfusion.swarm.return_trip import visible_text

_log = logging.getLogger(__name__)

DESCRIPTION_LIMIT = 4000
"""Longest description of a tool, in characters."""

TOOLS_LIMIT = 5000
"""Most tools of one specialist."""


async def trusted_tools(
    domain: str, specialist: Specialist, tools: Sequence[Mapping[str, Any]], pins: PinStore
) -> list[dict[str, Any]]:
    """Return the tools that a specialist may expose, with descriptions that are bounded and visible.

    What is left out is logged: names outside `allow`, definitions that changed against their pin, what is no tool.
    """
    trusted: list[dict[str, Any]] = []
    seen: set[str] = set()
    for tool in tools[:TOOLS_LIMIT]:
        name = tool.get("name")
        if not isinstance(name, str) or not 0 < len(name) <= 128 or name in seen:
            _log.warning("specialist %r lists something that is no tool, or one twice", domain)
            continue
        if not isinstance(tool.get("inputSchema"), Mapping) or not specialist.allows(name):
            continue
        if specialist.pin and not await pins.check(domain, name, definition_digest(tool)):
            _log.warning("tool %r of specialist %r has changed and waits to be accepted", name, domain)
            continue
        seen.add(name)
        trusted.append(_bounded(tool))
    return trusted


def _bounded(tool: Mapping[str, Any]) -> dict[str, Any]:
    bounded = dict(tool)
    for key in ("description", "title"):
        if isinstance(bounded.get(key), str):
            bounded[key] = visible_text(bounded[key], DESCRIPTION_LIMIT)
    return bounded
