"""The menu on the wire: `tools/list`, built once for each menu and never per request."""

import base64
import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import mcp_types as types
from mcp.server.lowlevel.server import HandlerEntry
from mcp.shared.exceptions import MCPError
from mcp_types import methods
from pydantic import BaseModel

from mcpfusion.actions.action import Action
from mcpfusion.actions.errors import did_you_mean
from mcpfusion.actions.registry import ActionRegistry
from mcpfusion.gate.binding import Bindings, BoundTool
from mcpfusion.gate.menu import Menu
from mcpfusion.wire.request import RequestContext, modern

_log = logging.getLogger(__name__)

_CACHED_PAGES = 512
_BASE_PAGES = 100

Definition = dict[str, Any]


def definition_of(action: Action, name: str) -> Definition:
    """Return the tool's definition as it goes over the wire, before the gate adds to it."""
    optional = {
        "title": action.title,
        "description": action.description or None,
        "outputSchema": action.signature.output_schema,
        "annotations": dict(action.annotations) or None,
        "icons": [dict(icon) for icon in action.icons] or None,
        "_meta": _meta_of(action) or None,
    }
    wire = {"name": name, "inputSchema": action.signature.input_schema}
    return wire | {key: value for key, value in optional.items() if value is not None}


def _meta_of(action: Action) -> dict[str, Any]:
    tags = {"io.mcpfusion/tags": sorted(action.tags)} if action.tags else {}
    return {**tags, **(action.meta or {})}


def with_handle(definition: Definition, key: str, *, minted: bool) -> Definition:
    """Return the definition of a bound tool with the handle's argument, or with the minted handle in its output."""
    schema_key = "outputSchema" if minted else "inputSchema"
    schema = definition.get(schema_key)
    if schema is None or key in schema.get("properties", {}) or schema.get("type") != "object":
        return definition
    about = "The new workflow's handle." if minted else "The handle of the workflow, as an earlier answer gave it."
    properties = {**schema.get("properties", {}), key: {"type": "string", "description": about}}
    if minted:
        return definition | {schema_key: {**schema, "properties": properties}}
    required = [*schema.get("required", ()), key]
    return definition | {schema_key: {**schema, "properties": properties, "required": required}}


class Listing:
    """Answers `tools/list` for the tools of a registry, in front of those that the server had already.

    Args:
        bindings: The compiled gate, or None without one.
        handle_key: The argument that carries the handle, or None.
        base: The server's own handler for `tools/list`, or None.
        page_size: Tools on a page.
        expected: The bound tools that have to be on the server's own list; what is missing there is logged.
    """

    def __init__(
        self,
        registry: ActionRegistry,
        bindings: Bindings | None,
        handle_key: str | None,
        base: HandlerEntry[Any] | None,
        page_size: int,
        expected: frozenset[str] = frozenset(),
    ) -> None:
        self._bindings = bindings
        self._handle_key = handle_key
        self._base = base
        self._page_size = page_size
        self._expected: frozenset[str] = expected
        self._pages: OrderedDict[tuple[Menu | None, str, str], dict[str, Any]] = OrderedDict()
        self._own: list[tuple[Definition, str | None]] = []
        self._base_schemas: dict[str, dict[str, Any]] = {}
        for name, action in registry.tools.items():
            definition = self._gated(definition_of(action, name))
            self._own.append((definition, action.compact_description))
        self._order = {definition["name"]: place for place, (definition, _) in enumerate(self._own)}
        self._cursors = {_cursor_after(name): place for name, place in self._order.items()}

    @property
    def own_only(self) -> bool:
        """Whether every tool is ours, so that a page is the same for every request with the same menu."""
        return self._base is None

    def schema(self, name: str) -> dict[str, Any] | None:
        """Return one of our tools' input schema, None for others."""
        place = self._order.get(name)
        return None if place is None else self._own[place][0]["inputSchema"]

    async def base_schema(self, ctx: RequestContext, name: str) -> Mapping[str, Any]:
        """Return the input schema of a tool that the server had already, {} when it lists no such tool."""
        cursor: str | None = None
        for _ in range(_BASE_PAGES if name not in self._base_schemas and self._base else 0):
            page = await self._base_page(ctx, None, cursor)
            cursor = page.get("nextCursor", "").removeprefix(_BASE) or None
            if cursor is None:
                break
        return self._base_schemas.get(name, {})

    def _bound(self, name: str) -> BoundTool | None:
        return self._bindings.tools.get(name) if self._bindings else None

    def _gated(self, definition: Definition) -> Definition:
        bound = self._bound(definition["name"])
        if bound is None or self._handle_key is None:
            return definition
        return with_handle(definition, self._handle_key, minted=bound.policies.mints_handle)

    def page(self, menu: Menu | None, version: str, cursor: str) -> dict[str, Any]:
        """Return a page of a list that is all ours, ready for the wire of `version`.

        Raises:
            MCPError: The cursor is not one of ours.
        """
        key = (menu, version, cursor)
        page = self._pages.get(key)
        if page is None:
            result = self._own_page(menu, cursor)
            page = methods.serialize_server_result("tools/list", version, result)
            self._pages[key] = page
            if len(self._pages) > _CACHED_PAGES:
                self._pages.popitem(last=False)
        return page

    async def list(self, ctx: RequestContext, menu: Menu | None, cursor: str) -> dict[str, Any]:
        """Return a page of our tools, and after them the pages of the server's own, gated alike."""
        if not cursor.startswith(_BASE):
            result = self._own_page(menu, cursor)
            if self._base is None or "nextCursor" in result:
                return result
            first = await self._base_page(ctx, menu, None)
            return {**first, "tools": [*result["tools"], *first["tools"]]}
        return await self._base_page(ctx, menu, cursor[len(_BASE) :])

    def _own_page(self, menu: Menu | None, cursor: str) -> dict[str, Any]:
        tools = [self._shown(definition, compact, menu) for definition, compact in self._own]
        tools = [tool for tool in tools if tool is not None]
        start = self._start(tools, cursor)
        page = tools[start : start + self._page_size]
        result: dict[str, Any] = {
            "resultType": "complete",
            "tools": page,
            "ttlMs": 0,
            "cacheScope": "private",
        }
        if start + self._page_size < len(tools):
            result["nextCursor"] = _cursor_after(page[-1]["name"])
        return result

    def _start(self, tools: Sequence[Definition], cursor: str) -> int:
        if not cursor:
            return 0
        # The tool may have left the menu since; its place in the whole list still says where to go on.
        after = self._cursors.get(cursor)
        if after is None:
            raise MCPError(types.INVALID_PARAMS, "Invalid cursor")
        return sum(self._order[tool["name"]] <= after for tool in tools)

    def _shown(self, definition: Definition, compact: str | None, menu: Menu | None) -> Definition | None:
        bound = self._bound(definition["name"])
        if bound is None or menu is None:
            return definition
        if bound.name not in menu.names:
            return None
        if menu.stable and bound.bindings:
            text = definition.get("description", "")
            return definition | {"description": f"{text}\n\nWorks in state: {bound.where}.".strip()}
        return definition | {"description": compact} if compact and menu.compact else definition

    async def _base_page(self, ctx: RequestContext, menu: Menu | None, cursor: str | None) -> dict[str, Any]:
        assert self._base is not None
        params = types.PaginatedRequestParams(cursor=cursor, _meta=ctx.meta)
        result = _dumped(await self._base.handler(ctx, params))
        self._base_schemas |= {tool["name"]: tool["inputSchema"] for tool in result["tools"]}
        if result.get("nextCursor") is None:
            self._say_what_is_missing()
        found = cast(Iterable[Definition], result["tools"])
        # A call by the name of one of our tools reaches ours, so that only ours is shown.
        tools = [self._gated(tool) for tool in found if tool["name"] not in self._order]
        shown = [self._shown(tool, None, menu) for tool in tools]
        gated = {"tools": [tool for tool in shown if tool is not None], "ttlMs": 0, "cacheScope": "private"}
        more = {"nextCursor": _BASE + result["nextCursor"]} if result.get("nextCursor") is not None else {}
        # Without a gate nothing of the server's own answer changes but what stands in front of it.
        return {**result, **(gated if self._bindings else {"tools": gated["tools"]}), **more}

    def _say_what_is_missing(self) -> None:
        """At the end of the server's own list: a tool that comes later, or a slip that leaves another one open."""
        for name in sorted(self._expected - self._base_schemas.keys()):
            _log.warning("%s", no_such_tool(name, self._base_schemas))
        self._expected = frozenset[str]()


_BASE = "base:"


def no_such_tool(name: str, known: Iterable[str]) -> str:
    """Return what to say of a binding to a tool that is not there."""
    return f"tool {name!r} is bound to states, but the server has no such tool{did_you_mean(name, known)}"


def _dumped(result: Any) -> dict[str, Any]:
    return (
        result.model_dump(by_alias=True, mode="json", exclude_none=True)
        if isinstance(result, BaseModel)
        else dict(result)
    )


def _cursor_after(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def cursor_of(ctx: RequestContext) -> str | None:
    """Return the cursor of a raw `tools/list` request, "" for the first page, None when it is malformed."""
    cursor = (ctx.params or {}).get("cursor")
    if cursor is None:
        return ""
    return cursor if isinstance(cursor, str) else None


def ready(ctx: RequestContext) -> bool:
    """Return whether the request may be answered without the SDK's own checks: its handshake is behind it."""
    return modern(ctx) or ctx.session.client_params is not None
