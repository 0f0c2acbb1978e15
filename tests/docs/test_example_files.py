"""Each file in examples/ is started as a server and called by a real client."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters

from tests.support.serving import free_port, http_client, sdk_client, stop, wait_until_it_answers

from .pages import ROOT

EXAMPLES = ROOT / "examples"
pytestmark = pytest.mark.anyio


@asynccontextmanager
async def over_stdio(name: str, folder: Path, mode: str = "2026-07-28") -> AsyncIterator[Client]:
    server = StdioServerParameters(
        command=sys.executable, args=[str(EXAMPLES / name)], env=dict(os.environ), cwd=folder
    )
    async with sdk_client(server, mode) as client:
        yield client


@contextmanager
def over_http(name: str, folder: Path, *words: str) -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen([sys.executable, str(EXAMPLES / name), *words, str(port)], cwd=folder)
    try:
        wait_until_it_answers(port, process)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        stop(process)


async def menu(client: Client) -> list[str]:
    return [tool.name for tool in (await client.list_tools()).tools]


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    """Call a tool; return its structured content, with the refusal's code when it is refused."""
    result = await client.call_tool(tool, arguments)
    return result.structured_content or "".join(block.text for block in result.content)  # type: ignore[union-attr]


def test_no_example_is_forgotten() -> None:
    source = Path(__file__).read_text()
    assert all(f'"{path.name}"' in source for path in EXAMPLES.glob("*.py"))


async def test_invoices(tmp_path: Path) -> None:
    async with over_stdio("invoices.py", tmp_path) as client:
        assert await menu(client) == ["invoice.submit", "invoice.view"]
        assert (await call(client, "invoice.discharge", id="A"))["code"] == "FORBIDDEN"
        await call(client, "invoice.submit", id="A")
        await call(client, "invoice.approve", id="A")
        receipt = await call(client, "invoice.discharge", id="A")
        assert receipt["paid"] is True
        assert len(receipt["key"]) == 32
    assert (tmp_path / "invoices.db").exists()


async def test_invoices_over_http(tmp_path: Path) -> None:
    with over_http("invoices.py", tmp_path, "http") as url:
        async with sdk_client(url, "2026-07-28") as client:
            assert "invoice.submit" in await menu(client)
            await call(client, "invoice.submit", id="A")
            assert (await call(client, "invoice.discharge", id="A"))["state"] == "review"


async def test_a_fastmcp_server_gated_as_it_stands(tmp_path: Path) -> None:
    async with over_stdio("existing_fastmcp.py", tmp_path) as client:
        assert sorted(await menu(client)) == ["add_item", "search"]
        assert (await call(client, "checkout"))["code"] == "FORBIDDEN"
        await call(client, "add_item", item="tea")
        await call(client, "add_item", item="milk")
        assert sorted(await menu(client)) == ["add_item", "checkout", "search"]
        assert await call(client, "checkout") == {"result": "ordered"}
        assert sorted(await menu(client)) == ["cancel_order", "search"]
        await call(client, "cancel_order")
        assert sorted(await menu(client)) == ["add_item", "search"]


async def test_actions_attached_to_an_mcpserver(tmp_path: Path) -> None:
    async with over_stdio("existing_mcpserver.py", tmp_path) as client:
        assert [str(resource.uri) for resource in (await client.list_resources()).resources] == ["releases://policy"]
        assert (await call(client, "changelog", release="2.0")) == {"result": "2.0: everything is faster"}
        await call(client, "release.build", release="2.0-rc1")
        await call(client, "release.test", release="2.0-rc1")
        assert (await call(client, "release.publish", release="2.0-rc1"))["state"] == "planned"
        await call(client, "release.build", release="2.0")
        await call(client, "release.test", release="2.0")
        assert await call(client, "release.publish", release="2.0") == "2.0 is published"


async def test_the_same_over_http(tmp_path: Path) -> None:
    with over_http("existing_mcpserver.py", tmp_path) as url:
        async with sdk_client(url, "legacy") as client:
            assert sorted(await menu(client)) == ["changelog", "release.build"]
            await call(client, "release.build", release="3.0")
            assert sorted(await menu(client)) == ["changelog", "release.build", "release.test"]


async def test_approvals_of_several_people(tmp_path: Path) -> None:
    with over_http("approvals_shared.py", tmp_path) as url:
        with pytest.raises(httpx2.HTTPStatusError, match="401"):
            httpx2.post(url, json={}).raise_for_status()
        async with (
            http_client(url, "2026-07-28", token="alice-token") as alice,
            http_client(url, "2026-07-28", token="bob-token") as bob,
        ):
            asked = await call(alice, "budget.ask", amount=100)
            request = asked["request"]
            assert (await call(alice, "budget.approve", request=request))["code"] == "OWN_REQUEST"
            assert (await call(bob, "budget.release", request=request))["code"] == "FORBIDDEN"
            assert await call(bob, "budget.approve", request=request) == "approved"
            paid = await call(alice, "budget.release", request=request)
            assert paid["paid"] is True
