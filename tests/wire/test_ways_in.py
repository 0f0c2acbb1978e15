"""One scenario over each way in which a gate gets in front of tools, in both eras and over each transport."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import pytest
from mcp import Client

from tests.support.hearing import Heard, hearing_client
from tests.support.serving import ERAS, http_app, stdio_server
from tests.wire.conftest import WAYS_FILE
from tests.wire.ways import BOUND, PROMPT, RESOURCE, WAYS, make

pytestmark = pytest.mark.anyio

RUN = ("own", "gate-lowlevel", "gate-mcpserver", "gate-fastmcp")
"""The ways whose servers are run as their users run them, by their own means."""

WORKFLOW = "io.mcpfusion/workflow"


@dataclass
class Story:
    """The life of one invoice as one client sees it."""

    client: Client
    heard: Heard
    own: bool
    keyed: bool
    stable: bool
    id: str

    def arguments(self, tool: str) -> dict[str, str]:
        takes_id = tool in ("submit", "discharge", "view") or self.keyed
        return {"id": self.id} if takes_id else {}

    async def call(self, tool: str) -> Any:
        return await self.client.call_tool(f"invoice.{tool}", self.arguments(tool))

    async def menu(self) -> set[str]:
        tools = (await self.client.list_tools()).tools
        assert len({tool.name for tool in tools}) == len(tools), "a tool is listed twice"
        return {tool.name for tool in tools} & set(BOUND)

    async def sees(self, *due: str) -> None:
        """Check the menu: what is due, and with handles in arguments what opens another workflow besides."""
        expected = {f"invoice.{name}" for name in due}
        if self.keyed:
            expected |= {"invoice.submit", "invoice.flaky"}
        assert await self.menu() == (set(BOUND) if self.stable else expected)

    async def done(self, tool: str, state: str, *allowed: str, final: bool = False) -> Any:
        """Call, and check that the answer carries the workflow and that the change of menu is heard."""
        before = self.heard.count()
        result = await self.call(tool)
        assert not result.is_error, result.content
        self.carries_block(result, state, *allowed, final=final)
        if not self.stable:
            await self.heard.wait(before + 1)
        assert self.heard.count() == before + (not self.stable)
        return result.structured_content

    async def refused(self, tool: str, code: str, state: str, *allowed: str, final: bool = False) -> None:
        before = self.heard.count()
        result = await self.call(tool)
        assert result.is_error
        text, data = result.content[0].text, result.structured_content
        assert text.startswith(f"{code}: ")
        assert state in text
        assert data["code"] == code
        assert data["state"] == state
        assert data["allowedActions"] == [f"invoice.{name}" for name in allowed]
        assert all(name in text for name in data["allowedActions"])
        self.carries_block(result, state, *allowed, final=final)
        assert self.heard.count() == before, "a call that moved nothing was told to the client"

    def carries_block(self, result: Any, state: str, *allowed: str, final: bool) -> None:
        block = result.meta[WORKFLOW]
        assert block["state"] == state
        assert block["allowedActions"] == [f"invoice.{name}" for name in allowed]
        assert block["final"] is final
        assert not self.keyed or block["handle"] == self.id

    async def schemas(self) -> None:
        """The gate asks for the handle where the tool does not, and leaves the tool's own argument alone."""
        tools = {tool.name: tool for tool in (await self.client.list_tools()).tools}
        view, submit, flaky = (tools[f"invoice.{name}"].input_schema for name in ("view", "submit", "flaky"))
        assert set(view["properties"]) == set(submit["properties"]) == {"id"}
        assert submit["properties"]["id"] == view["properties"]["id"]
        assert set(flaky["properties"]) == ({"how", "id"} if self.keyed else {"how"})
        assert set(flaky["required"]) == set(flaky["properties"])
        assert ("Works in state: draft" in (tools["invoice.submit"].description or "")) is self.stable

    async def rest_works(self) -> None:
        """What is not bound works as ever: an unbound tool, and what the user's own server had."""
        seen = await self.call("view")
        assert not seen.is_error
        assert WORKFLOW not in (seen.meta or {})
        listed = {tool.name for tool in (await self.client.list_tools()).tools}
        assert "invoice.view" in listed
        if self.own:
            return
        assert "own.echo" in listed
        echoed = await self.client.call_tool("own.echo", {"text": "x"})
        assert echoed.structured_content == {"echo": "x"}
        assert [str(one.uri) for one in (await self.client.list_resources()).resources] == [RESOURCE]
        assert (await self.client.read_resource(RESOURCE)).contents[0].text == "30 days"
        assert [one.name for one in (await self.client.list_prompts()).prompts] == [PROMPT]
        assert (await self.client.get_prompt(PROMPT)).messages[0].content.text == "Please pay."

    async def live(self) -> None:
        await self.sees("submit", "flaky")
        await self.schemas()
        await self.refused("discharge", "FORBIDDEN", "draft", *self.order("submit", "flaky"))
        await self.done("submit", "review", "approve")
        await self.sees("approve")
        await self.refused("discharge", "FORBIDDEN", "review", "approve")
        approved = await self.done("approve", "approved", "discharge")
        assert approved["given"] == [], "the handler was given the gate's argument"
        await self.sees("discharge")
        assert (await self.call("view")).structured_content["paid"] == 0
        assert (await self.done("discharge", "discharged", final=True))["paid"] == 1
        await self.sees()
        await self.refused("discharge", "ALREADY_DONE", "discharged", final=True)
        await self.refused("approve", "FORBIDDEN", "discharged", final=True)
        assert (await self.call("view")).structured_content["paid"] == 1
        await self.rest_works()

    def order(self, *names: str) -> list[str]:
        """Return names in the order in which they were bound."""
        gate_order = [name.removeprefix("invoice.") for name in BOUND]
        return sorted(names, key=gate_order.index)


async def live(server: Any, mode: str, way: str, *, keyed: bool, stable: bool = False) -> None:
    async with hearing_client(server, mode) as (client, heard):
        await Story(client, heard, way == "own", keyed, stable, f"inv-{uuid.uuid4()}").live()


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("keyed", [False, True], ids=["plain", "keyed"])
@pytest.mark.parametrize("way", WAYS)
async def test_in_process(way: str, keyed: bool, mode: str) -> None:
    await live(make(way, keyed=keyed).lowlevel, mode, way, keyed=keyed)


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("way", WAYS)
async def test_over_http(way: str, mode: str) -> None:
    async with http_app(make(way, keyed=True).asgi()) as origin:
        await live(f"{origin}/mcp", mode, way, keyed=True, stable=mode != "legacy")


@pytest.mark.parametrize("way", RUN)
async def test_over_http_as_a_process_of_its_own(way: str, process_url: Callable[..., str]) -> None:
    url = process_url(way)
    async with anyio.create_task_group() as group:
        for mode in (*ERAS, "legacy"):  # each session has an invoice of its own, and the process has one
            group.start_soon(partial(live, url, mode, way, keyed=False))


@pytest.mark.parametrize("way", RUN)
async def test_over_stdio(way: str) -> None:
    async with anyio.create_task_group() as group:
        for mode, keyed in zip(ERAS, (True, False), strict=True):
            server = stdio_server(WAYS_FILE, args=(way, "keyed") if keyed else (way,))
            group.start_soon(partial(live, server, mode, way, keyed=keyed))
