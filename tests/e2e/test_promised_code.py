# ruff: noqa: E501 - what is quoted is quoted as it is
"""The code that users are promised: it runs as it is written, over stdio and HTTP, in both eras."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.server import Server
from mcp.server.mcpserver import MCPServer

from mcpfusion import Fusion, StateMachineGate, gate_server
from tests.support.serving import ERAS, http_process, sdk_client, stdio_server

pytestmark = pytest.mark.anyio

PAYMENTS = """
from pydantic import BaseModel


class Receipt(BaseModel):
    id: str
    key: str


async def pay(id: str, *, key: str) -> Receipt:
    return Receipt(id=id, key=key)
"""

# From here to the end of the string: word for word.
INVOICES = '''
from mcpfusion import Context, Fusion

f = Fusion("invoices", version="1.0.0")

gate = f.fsm({
    "id": "invoice",
    "initial": "draft",
    "states": {
        "draft": {"on": {"SUBMIT": "review"}},
        "review": {"on": {"APPROVE": "approved", "REJECT": "draft"}},
        "approved": {"on": {"DISCHARGE": "discharged"}},
        "discharged": {"type": "final"},
    },
})

@f.mutation("invoice.submit").describe("Submit a draft invoice for review").bind_state("draft", "SUBMIT").handle
async def submit(id: str) -> dict:
    return {"id": id, "status": "in review"}

@f.action("invoice.discharge").describe("Discharge an approved invoice").bind_state("approved", "DISCHARGE").handle
async def discharge(id: str, ctx: Context) -> Receipt:   # pydantic model, dataclass, TypedDict, dict, str, content blocks
    return await pay(id, key=ctx.workflow.idempotency_key)

@f.query("invoice.view").handle          # no describe(): the docstring is the description
def view(id: str) -> dict:
    """Show an invoice."""

server = f.server(fsm=gate, state_handle_key="id", store="sqlite:///invoices.db")

if __name__ == "__main__":
    server.run()                          # stdio; server.run("http", host="127.0.0.1", port=8000)
'''

HTTP = """
import sys

from invoices import server

server.run("http", host="127.0.0.1", port=int(sys.argv[2]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "payments.py").write_text(PAYMENTS)
    (tmp_path / "invoices.py").write_text(f"from payments import Receipt, pay\n{INVOICES}")
    (tmp_path / "over_http.py").write_text(HTTP)
    return tmp_path


async def approve(folder: Path, id: str) -> None:
    """Approve at another desk: a server of its own on the same file and machine."""
    f = Fusion("desk")
    f.action("desk.approve").bind_state("review", "APPROVE").handle(lambda: "approved")
    server = f.server(fsm=invoice_gate(), state_handle_key="id", store=f"sqlite:///{folder / 'invoices.db'}")
    async with Client(server.lowlevel) as client:
        result = await client.call_tool("desk.approve", {"id": id})
        assert not result.is_error, result.content


def invoice_gate() -> StateMachineGate:
    """Return a gate of the machine in the text."""
    found: dict[str, Any] = {}
    exec(INVOICES[: INVOICES.index("@f.mutation")], found)
    return StateMachineGate(found["gate"].machine)


async def lives(client: Client, folder: Path, id: str) -> None:
    """Take one invoice from its first call to its last."""
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert tools["invoice.submit"].description.startswith("Submit a draft invoice for review")
    assert tools["invoice.view"].description == "Show an invoice."
    assert tools["invoice.view"].annotations.read_only_hint is True
    assert tools["invoice.submit"].annotations.destructive_hint is True

    early = await client.call_tool("invoice.discharge", {"id": id})
    assert early.structured_content["code"] == "FORBIDDEN"
    submitted = await client.call_tool("invoice.submit", {"id": id})
    assert submitted.structured_content == {"id": id, "status": "in review"}
    block = submitted.meta["io.mcpfusion/workflow"]
    assert block == {"handle": id, "state": "review", "allowedActions": [], "final": False}

    await approve(folder, id)
    listed = await client.list_tools()
    assert "invoice.discharge" in {tool.name for tool in listed.tools}
    paid = await client.call_tool("invoice.discharge", {"id": id})
    assert paid.structured_content["id"] == id
    assert len(paid.structured_content["key"]) == 32
    assert paid.meta["io.mcpfusion/workflow"]["final"] is True
    again = await client.call_tool("invoice.discharge", {"id": id})
    assert again.structured_content["code"] == "ALREADY_DONE"


@pytest.mark.parametrize("mode", ERAS)
async def test_the_invoice_server_runs_over_stdio(mode: str, folder: Path) -> None:
    async with sdk_client(stdio_server(folder / "invoices.py", cwd=folder), mode) as client:
        await lives(client, folder, "inv-1")


async def test_the_invoice_server_runs_over_http_in_both_eras(folder: Path) -> None:
    with http_process(folder / "over_http.py", cwd=folder) as (url, _):
        async with sdk_client(url, "2026-07-28") as client:
            tools = (await client.list_tools()).tools
            assert {tool.name for tool in tools} == {"invoice.submit", "invoice.discharge", "invoice.view"}
            await lives(client, folder, "inv-1")
        async with sdk_client(url, "legacy") as client:
            await client.call_tool("invoice.submit", {"id": "inv-2"})
            await approve(folder, "inv-2")
            assert not (await client.call_tool("invoice.discharge", {"id": "inv-2"})).is_error
            assert (await client.call_tool("invoice.submit", {"id": "inv-1"})).structured_content[
                "code"
            ] == "FORBIDDEN"


async def test_the_last_link_of_a_chain_and_all_at_once_declare_the_same() -> None:
    f = Fusion("forms")

    async def fn(id: str) -> dict[str, str]:
        return {"id": id}

    x = f.action("a.b").describe("…").handle(fn)
    y = f.action("c.d", describe="…", bind_state=("approved", "DISCHARGE")).handle(fn)
    assert (x.description, y.description) == ("…", "…")
    assert await x("1") == await y("1") == {"id": "1"}
    gate = f.fsm(
        {"id": "m", "initial": "approved", "states": {"approved": {"on": {"DISCHARGE": "done"}}, "done": {}}}
    )
    async with Client(f.server(fsm=gate).lowlevel) as client:
        assert (await client.call_tool("c.d", {"id": "7"})).meta["io.mcpfusion/workflow"]["state"] == "done"


SHOP = {
    "id": "shop",
    "initial": "cart",
    "states": {"cart": {"on": {"CHECKOUT": "bought"}}, "bought": {"type": "final"}},
}


@pytest.mark.parametrize("kind", ["FastMCP", "MCPServer"])
async def test_a_server_that_is_there_is_gated_in_three_lines(kind: str, tmp_path: Path) -> None:
    if kind == "FastMCP":
        from fastmcp import FastMCP

        mcp: Any = FastMCP("shop")
    else:
        mcp = MCPServer("shop")

    @mcp.tool()
    def checkout() -> str:
        return "bought"

    config = SHOP
    gate = StateMachineGate(config)
    gate.bind_tool("checkout", ["cart"], "CHECKOUT")
    gate_server(mcp, gate, store=f"sqlite:///{tmp_path}/shop.db")

    lowlevel = mcp._mcp_server if kind == "FastMCP" else mcp
    async with Client(lowlevel) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["checkout"]
        assert not (await client.call_tool("checkout")).is_error
        assert (await client.call_tool("checkout")).structured_content["code"] == "ALREADY_DONE"
        assert [tool.name for tool in (await client.list_tools()).tools] == []


@pytest.mark.parametrize("kind", [Server, MCPServer])
async def test_a_registry_attaches_to_a_server_of_ones_own(kind: Any) -> None:
    f = Fusion("shop")
    f.action("shop.checkout").bind_state("cart", "CHECKOUT").handle(lambda: "bought")
    seen: list[str] = []

    async def note(call: Any, call_next: Any) -> Any:
        seen.append(call.tool)
        return await call_next(call)

    server = kind("shop")
    gate = StateMachineGate(SHOP)
    f.registry().attach_to_server(server, fsm=gate, fsm_store="memory://", state_handle_key="id", middleware=[note])
    async with Client(server) as client:
        assert not (await client.call_tool("shop.checkout", {"id": "1"})).is_error
    assert seen == ["shop.checkout"]


def test_the_gate_stands_alone() -> None:
    gate = StateMachineGate(SHOP)
    gate.bind_tool("checkout", ["cart"], "CHECKOUT")
    seen: list[Any] = []
    unsubscribe = gate.on_transition(seen.append)
    copy, before = gate.clone(), gate.snapshot()
    assert (gate.initial_state, gate.current_state) == ("cart", "cart")
    assert gate.is_tool_allowed("checkout")
    assert gate.visible_tool_names(["other", "checkout"]) == ["other", "checkout"]
    result = gate.transition("CHECKOUT")
    assert (result.changed, result.previous_state, result.current_state) == (True, "cart", "bought")
    assert not gate.transition("CHECKOUT").changed
    assert not gate.is_tool_allowed("checkout")
    assert (copy.current_state, seen) == ("cart", [result])
    unsubscribe()
    gate.restore(before)
    assert gate.transition("CHECKOUT").changed
    assert len(seen) == 1


def test_importing_the_library_does_not_import_the_sdk() -> None:
    code = "import sys, mcpfusion; print('mcp' in sys.modules, 'pydantic' in sys.modules, 'fastmcp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"] * 3
