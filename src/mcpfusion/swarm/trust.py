"""How far a specialist is trusted: what it may expose, in what size, and unchanged where that is asked for."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

from mcpfusion.swarm.pins import PinStore, definition_digest
from mcpfusion.swarm.registry import Specialist
from mcpfusion.swarm.return_trip import visible_text

_log = logging.getLogger(__name__)

DESCRIPTION_LIMIT = 4000
"""Longest description of a tool, in characters."""

TOOLS_LIMIT = 5000
"""Most tools of one specialist."""

_VALUES = frozenset({"const", "default", "enum", "examples"})


async def trusted_tools(
    domain: str, specialist: Specialist, tools: Sequence[Mapping[str, Any]], pins: PinStore
) -> list[dict[str, Any]]:
    """Return the tools that a specialist may expose, with descriptions that are bounded and visible, also those of
    their arguments.

    What is left out is logged: names outside `allow`, definitions that changed against their pin, what is no tool.
    """
    trusted: list[dict[str, Any]] = []
    seen: set[str] = set()
    for tool in tools[:TOOLS_LIMIT]:
        name = tool.get("name")
        if not isinstance(name, str) or not _is_name(name) or name in seen:
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


def _is_name(name: str) -> bool:
    """Return whether a name is one that a person sees as it is."""
    return 0 < len(name) <= 128 and visible_text(name, 128) == name and not set(name) & {"\n", "\t"}


def _bounded(tool: Mapping[str, Any]) -> dict[str, Any]:
    bounded = _texts_bounded(tool)
    for key in ("inputSchema", "outputSchema", "annotations"):
        if key in bounded:
            bounded[key] = _deep(bounded[key])
    return bounded


def _deep(value: Any) -> Any:
    """Return a schema with every description and title in it bounded. Values that it names stay as they are."""
    if isinstance(value, list):
        return [_deep(item) for item in cast(list[Any], value)]
    if not isinstance(value, Mapping):
        return value
    schema = _texts_bounded(cast(Mapping[str, Any], value))
    return {key: item if key in _VALUES else _deep(item) for key, item in schema.items()}


def _texts_bounded(owner: Mapping[str, Any]) -> dict[str, Any]:
    bounded = dict(owner)
    for key in ("description", "title"):
        if isinstance(bounded.get(key), str):
            bounded[key] = visible_text(bounded[key], DESCRIPTION_LIMIT)
    return bounded
