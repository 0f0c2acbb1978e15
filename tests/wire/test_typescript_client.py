"""The official TypeScript client on gated servers: list, call, list_changed and refusal, in both eras."""

import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.support.node import drive, install
from tests.support.serving import http_app
from tests.wire.conftest import WAYS_FILE
from tests.wire.ways import make

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]  # the first one installs the client

MODES: dict[str, Any] = {"2025-11-25": "legacy", "2026-07-28": {"pin": "2026-07-28"}, "auto": "auto"}
WORKFLOW = "io.mcpfusion/workflow"
A1 = {"id": "A-1"}


@pytest.fixture(scope="session")
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the client outside of what git keeps, once for as long as its lock file stays the same."""
    cache = getattr(request.config, "cache", None)
    return install(cache.mkdir("typescript-client") if cache else tmp_path_factory.mktemp("typescript-client"))


def menu(tools: list[Any]) -> set[str]:
    return {tool if isinstance(tool, str) else tool["name"] for tool in tools} - {"own.echo"}


async def pays_once(folder: Path, server: dict[str, Any], mode: str) -> None:
    connected, first, guess, submitted, heard, approved, _, paid, last, again, viewed, unknown = await drive(
        folder,
        server,
        MODES[mode],
        [
            ["list"],
            ["call", "invoice.discharge", A1],
            ["call", "invoice.submit", A1],
            ["heard", 1],
            ["call", "invoice.approve", {}],
            ["heard", 2],
            ["call", "invoice.discharge", A1],
            ["heard", 3],
            ["call", "invoice.discharge", A1],
            ["call", "invoice.view", A1],
            ["call", "invoice.nothing", {}],
        ],
    )
    assert connected["version"] == ("2025-11-25" if mode == "2025-11-25" else "2026-07-28")
    assert connected["capabilities"]["tools"] == {"listChanged": True}
    assert connected["listening"] == (None if mode == "2025-11-25" else {"toolsListChanged": True})
    assert menu(first) == {"invoice.submit", "invoice.flaky", "invoice.view"}

    assert guess["isError"] is True
    assert guess["content"][0]["text"].startswith("FORBIDDEN: ")
    assert "invoice.submit" in guess["content"][0]["text"]
    assert guess["structuredContent"]["code"] == "FORBIDDEN"
    assert "invoice.submit" in guess["structuredContent"]["allowedActions"]
    assert guess["_meta"][WORKFLOW]["state"] == "draft"

    assert submitted["structuredContent"] == {"id": "A-1", "status": "in review"}
    assert submitted["_meta"][WORKFLOW]["allowedActions"] == ["invoice.approve"]
    assert heard["count"] == 1
    assert menu(heard["tools"]) == {"invoice.approve", "invoice.view"}
    assert approved["structuredContent"]["status"] == "approved"

    assert paid["structuredContent"] == {"id": "A-1", "paid": 1}
    assert paid["_meta"][WORKFLOW]["final"] is True
    assert last["count"] == 3
    assert menu(last["tools"]) == {"invoice.view"}
    assert again["isError"] is True
    assert again["structuredContent"]["code"] == "ALREADY_DONE"
    assert viewed["structuredContent"] == {"id": "A-1", "paid": 1}
    assert unknown.get("isError") or unknown["thrown"]["code"] == -32602


@pytest.mark.parametrize("way", ["own", "gate-lowlevel", "gate-mcpserver", "gate-fastmcp"])
async def test_over_http(way: str, client: Path) -> None:
    async def one(mode: str) -> None:
        async with http_app(make(way, keyed=False).asgi()) as origin:
            await pays_once(client, {"url": f"{origin}/mcp"}, mode)

    async with anyio.create_task_group() as group:
        for mode in MODES:
            group.start_soon(one, mode)


@pytest.mark.parametrize("way", ["own", "gate-mcpserver"])
async def test_over_stdio(way: str, client: Path) -> None:
    server = {"command": sys.executable, "args": [str(WAYS_FILE), "stdio", way]}
    async with anyio.create_task_group() as group:
        for mode in ("2025-11-25", "2026-07-28"):
            group.start_soon(pays_once, client, server, mode)


async def test_several_pages_are_one_list(client: Path) -> None:
    made = make("own", keyed=False, page_size=2)
    async with http_app(made.asgi()) as origin:
        for mode in MODES.values():
            _, tools = await drive(client, {"url": f"{origin}/mcp"}, mode, [["list"]])
            assert [tool["name"] for tool in tools] == ["invoice.submit", "invoice.flaky", "invoice.view"]
