"""Draws docs/menus.svg: the menu of examples/invoices.py in each state, as a real server answered it.

python docs/make_menus.py [FILE]
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

from mcp import Client

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent / "examples"))

import invoices  # noqa: E402

STEPS = ({"tool": "invoice.submit"}, {"tool": "invoice.approve"}, {"tool": "invoice.discharge"})
WIDTH, GAP, LEFT, TOP, ROW = 196, 44, 20, 74, 30

MIDDLE = 'text-anchor="middle"'
LABEL = f'{MIDDLE} font-size="12" fill="#57606a"'
ARROW = 'stroke="#57606a" stroke-width="1.5" marker-end="url(#tip)"'


async def ask() -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return all tools, and the menu in each state on the way from draft to discharged.

    The server is given no handle key: its one workflow is that of the process, whose menu its list is.
    """
    server = invoices.f.server(fsm=invoices.gate)
    tools = list(invoices.f.registry().tools)
    menus: list[tuple[str, list[str]]] = []
    state = invoices.gate.initial_state
    async with Client(server.lowlevel) as client:
        for step in (*STEPS, None):
            menus.append((state, [tool.name for tool in (await client.list_tools()).tools]))
            if step is not None:
                result = await client.call_tool(step["tool"], {"id": "INV-1"})
                state = (result.meta or {})["io.mcpfusion/workflow"]["state"]
    return tools, menus


def draw(tools: list[str], menus: list[tuple[str, list[str]]]) -> str:
    """Return the picture as SVG."""
    events = {(source, target): event for source, event, target in _transitions(invoices.gate.machine.config)}
    height = TOP + ROW * (len(tools) + 1) + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_left(len(menus)) - GAP + LEFT} {height}" '
        'role="img" font-family="system-ui, sans-serif" font-size="14">',
        "<title>The menu of the invoice server in each state</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#57606a"/></marker></defs>',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for at, (state, menu) in enumerate(menus):
        parts += _column(at, state, tools, menu)
        if at:
            parts += _arrow(at, events[menus[at - 1][0], state])
    back = next(((a, b) for a, (source, _) in enumerate(menus) for b in range(a) if (source, menus[b][0]) in events))
    parts += _way_back(*back, events[menus[back[0]][0], menus[back[1]][0]])
    return "\n".join([*parts, "</svg>"]) + "\n"


def _transitions(config: Any) -> list[tuple[str, str, str]]:
    return [
        (source, event, target)
        for source, state in config["states"].items()
        for event, target in state.get("on", {}).items()
    ]


def _left(column: int) -> int:
    return LEFT + column * (WIDTH + GAP)


def _column(at: int, state: str, tools: list[str], menu: list[str]) -> list[str]:
    x, height = _left(at), ROW * (len(tools) + 1) + 10
    parts = [
        f'<rect x="{x}" y="{TOP}" width="{WIDTH}" height="{height}" rx="8" fill="#f6f8fa" stroke="#d0d7de"/>',
        f'<path d="M{x} {TOP + ROW + 2}h{WIDTH}" stroke="#d0d7de"/>',
        f'<text x="{x + WIDTH / 2:g}" y="{TOP + 22}" font-weight="600" {MIDDLE} fill="#1f2328">{state}</text>',
    ]
    for row, tool in enumerate(tools):
        y = TOP + ROW * (row + 2) - 4
        shown = tool in menu
        mark = f'<circle cx="{x + 20}" cy="{y - 5}" r="4" fill="#1a7f37"/>' if shown else ""
        style = 'fill="#1f2328"' if shown else 'fill="#c4ccd4"'
        parts.append(f'{mark}<text x="{x + 34}" y="{y}" font-family="ui-monospace, monospace" {style}>{tool}</text>')
    return parts


def _arrow(at: int, event: str) -> list[str]:
    x, y = _left(at), TOP + 17
    return [
        f'<path d="M{x - GAP + 3} {y}h{GAP - 8}" {ARROW}/>',
        f'<text x="{x - GAP / 2:g}" y="{TOP - 10}" {LABEL}>{event}</text>',
    ]


def _way_back(source: int, target: int, event: str) -> list[str]:
    start, end, y = _left(source) + WIDTH / 2, _left(target) + WIDTH / 2, 26
    return [
        f'<path d="M{start:g} {TOP - 2}V{y}H{end:g}V{TOP - 3}" fill="none" {ARROW}/>',
        f'<text x="{(start + end) / 2:g}" y="{y - 8}" {LABEL}>{event}</text>',
    ]


def picture() -> str:
    """Ask the server and return the picture."""
    return draw(*asyncio.run(ask()))


if __name__ == "__main__":
    Path(sys.argv[1] if len(sys.argv) > 1 else DOCS / "menus.svg").write_text(picture())
