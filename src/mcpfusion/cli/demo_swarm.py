"""The second half of `mcpfusion demo`: a conversation is handed over, handed on, and comes back."""

import json
import secrets
import subprocess
from typing import Any

import mcp_types as types
from mcp import Client
from mcp.shared.exceptions import MCPError

from mcpfusion.cli.demo_stage import SESSIONS, STATELESS, DemoError, Stage, free_port
from mcpfusion.cli.demo_swarm_server import PORTS, SECRET
from mcpfusion.cli.transcript import check, heading, say, write
from mcpfusion.swarm.tokens import mint_delegation_token

MODULE = "mcpfusion.cli.demo_swarm_server"
ROLES = ("audit", "finance", "triage")
BACK = "triage.return_to_triage"
HEADER = "x-mcpfusion-delegation"


async def play_swarm(stage: Stage) -> None:
    """Show the handoff, and check what it shows.

    Raises:
        DemoError: Something is not as it says.
    """
    ports = {role: free_port() for role in ROLES}
    environment = {
        SECRET: secrets.token_hex(32),
        PORTS: ",".join(f"{role}={port}" for role, port in ports.items()),
    }
    servers: dict[str, tuple[str, subprocess.Popen[bytes]]] = {}
    for role in ROLES:
        servers[role] = await stage.start(MODULE, role, port=ports[role], environment=environment)
    triage = servers["triage"][0]
    await _there_and_back(stage, triage)
    await _by_id(stage, triage)
    await _restart(stage, triage, servers["finance"][1], ports["finance"], environment)
    await _forged(stage, servers["finance"][0])


async def _there_and_back(stage: Stage, url: str) -> None:
    heading("8. Handoff: triage -> finance -> audit, and back twice (protocol 2025-11-25)")
    async with stage.connect(url, SESSIONS) as client:
        await _menu(client, "triage.route")
        await _call(client, "triage.route", {"domain": "finance", "context": "refund INV-7"})
        await _menu(client, "finance.invoice.refund", "finance.invoice.audit", BACK)
        refund = await _call(client, "finance.invoice.refund", {"id": "INV-7"})
        check(_data(refund)["intent"] == "refund INV-7", "the carried state did not arrive")
        say("finance is a gateway itself, and hands on:")
        await _call(client, "finance.invoice.audit", {"id": "INV-7"})
        await _menu(client, "finance.audit.ledger.check", "finance.finance.return_to_finance", BACK)
        checked = await _call(client, "finance.audit.ledger.check", {})
        check(_data(checked)["invoice"] == "INV-7", "the state carried on did not arrive")
        await _call(client, "finance.finance.return_to_finance", {"summary": "the ledger is balanced"})
        await _menu(client, "finance.invoice.refund", "finance.invoice.audit", BACK)
        await _call(client, BACK, {"summary": "refunded <and audited>"})
        await _menu(client, "triage.route")


async def _by_id(stage: Stage, url: str) -> None:
    heading("9. Handoff without sessions (protocol 2026-07-28): the answer's handoff_id names the conversation")
    async with stage.connect(url, STATELESS) as client:
        answer = await _call(client, "triage.route", {"domain": "finance", "context": "refund INV-8"})
        known = {"handoff_id": _data(answer)["handoff"]["handoff_id"]}
        await _call(client, "finance.invoice.refund", {"id": "INV-8", **known})
        await _refused(client, "finance.invoice.refund", {"id": "INV-8", "handoff_id": "a guess"}, "NO_HANDOFF")
        await _call(client, BACK, {"summary": "done", **known})
        await _refused(client, "finance.invoice.refund", {"id": "INV-8", **known}, "NO_HANDOFF")


async def _restart(
    stage: Stage, url: str, process: subprocess.Popen[bytes], port: int, environment: dict[str, str]
) -> None:
    heading("10. The specialist is killed, and started again")
    async with stage.connect(url, SESSIONS) as client:
        await _call(client, "triage.route", {"domain": "finance", "context": "refund INV-9"})
        process.kill()
        process.wait()
        write("  x finance is killed, and started again")
        await stage.start(MODULE, "finance", port=port, environment=environment)
        await _call(client, "finance.invoice.refund", {"id": "INV-9"})
        await _call(client, BACK, {"summary": "done"})


async def _forged(stage: Stage, url: str) -> None:
    heading("11. Past the gateway: without a token, and with a forged one")
    forged = await mint_delegation_token("finance", 60, secrets.token_hex(32), "triage")
    for what, headers in (("no token", {}), ("a token under another secret", {HEADER: forged})):
        say(f"With {what}:")
        async with stage.connect(url, STATELESS, headers=headers) as client:
            await _refused(client, "invoice.refund", {"id": "INV-10"}, "FORBIDDEN")
            try:
                await client.list_tools()
            except MCPError as error:
                write(f"    tools/list: {error.message}")
            else:
                raise DemoError("a specialist showed its tools without clearance")


async def _menu(client: Client, *expected: str) -> None:
    names = [tool.name for tool in (await client.list_tools()).tools]
    write(f"    menu: {', '.join(names)}")
    check(names == list(expected), f"the menu is {', '.join(names)}, not {', '.join(expected)}")


async def _call(client: Client, tool: str, arguments: dict[str, Any]) -> types.CallToolResult:
    result = await client.call_tool(tool, arguments)
    _show(tool, arguments, result)
    check(not result.is_error, f"{tool} failed: {_text(result)}")
    return result


async def _refused(client: Client, tool: str, arguments: dict[str, Any], code: str) -> None:
    result = await client.call_tool(tool, arguments)
    _show(tool, arguments, result)
    found = _data(result).get("code") if result.is_error else "success"
    check(found == code, f"{tool} was answered {found}, not {code}")


def _show(tool: str, arguments: dict[str, Any], result: types.CallToolResult) -> None:
    write(f"  > {tool} {json.dumps(arguments)}")
    for text in _text(result).splitlines():
        write(f"    {text}")


def _data(result: types.CallToolResult) -> dict[str, Any]:
    return result.structured_content or {}


def _text(result: types.CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, types.TextContent))
