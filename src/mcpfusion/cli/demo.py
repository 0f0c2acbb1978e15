"""`mcpfusion demo`: a gated workflow from the first call to the last, on real servers, clients and processes.

It checks whatever it shows: when something is not as it says, it ends with an error.
"""

import logging
import os
import signal
import subprocess
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import anyio
import click
import mcp_types as types
from mcp import Client
from mcp.client.subscriptions import Subscription, ToolsListChanged

from mcpfusion.cli import demo_server
from mcpfusion.cli.demo_stage import SESSIONS, STATELESS, DemoError, Stage
from mcpfusion.cli.demo_swarm import play_swarm
from mcpfusion.cli.transcript import check, heading, say, write

LIMIT = 240.0
"""Seconds the whole demo may take."""

PATIENCE = 20.0
"""Seconds that something which has to happen may take to happen."""

SUBMIT, APPROVE, REJECT, DISCHARGE, VIEW = (
    f"invoice.{name}" for name in ("submit", "approve", "reject", "discharge", "view")
)
WORKFLOW = "io.mcpfusion/workflow"


def main() -> int:
    """Run the demo and return 0.

    Raises:
        click.ClickException: Something was not as it should be, or took too long.
    """
    logging.getLogger("client").setLevel(logging.ERROR)  # the SDK's client remarks on tools that it guessed
    logging.getLogger("mcp.client").setLevel(logging.CRITICAL)  # and on streams that end when it leaves
    anyio.run(_run)
    return 0


async def _run() -> None:
    # asyncio's own handler of Ctrl-C ends the demo from within, so that it cleans up; being ended does the same.
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    with Stage() as stage:
        try:
            with anyio.fail_after(LIMIT):
                await _play(stage)
        except Exception as error:
            if os.environ.get("MCPFUSION_TRACEBACK"):
                click.echo(stage.complaints(), err=True)
            raise click.ClickException(f"the demo failed: {_cause(error)}") from error
    click.echo()
    say("Everything was as it should be. The servers are stopped and their files removed.")


def _cause(error: Exception) -> str:
    while isinstance(error, ExceptionGroup):
        error = cast("ExceptionGroup[Exception]", error).exceptions[0]
    return f"it took longer than {LIMIT:g} s" if isinstance(error, TimeoutError) else str(error) or repr(error)


async def _play(stage: Stage) -> None:
    _prologue(stage)
    url, process = await stage.serve()
    await _session(stage, url)
    async with stage.spawn(STATELESS) as neighbour:
        await _stdio(neighbour)
        await _anonymous(stage, url)
        await _principals(stage)
        await _at_once(stage, url, neighbour)
        await _kill(stage, url, process, neighbour)
        await _resolve(stage, neighbour)
    await play_swarm(stage)


def _prologue(stage: Stage) -> None:
    say("An invoice is submitted, approved, and paid once. Its machine:")
    write("    draft --SUBMIT--> review --APPROVE--> approved --DISCHARGE--> discharged (final)")
    write("                      review --REJECT--> draft")
    say(f"Server: {demo_server.__file__}")
    say(f"Store:  {stage.store}")


# The scenes.


async def _session(stage: Stage, url: str) -> None:
    heading("1. HTTP, protocol 2025-11-25: a session, whose menu follows its workflows")
    changes: list[Any] = []

    def heard(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            changes.append(message)

    async def step(tool: str, *menu: str) -> None:
        await _succeed(client, tool, "INV-1")
        await _eventually(lambda: bool(changes), "list_changed did not arrive")
        changes.clear()
        write("  < notifications/tools/list_changed")
        await _menu(client, SUBMIT, *menu)

    async with stage.connect(url, SESSIONS, heard=heard) as client:
        advertised = client.server_capabilities.tools
        check(advertised is not None and advertised.list_changed is True, "listChanged is not advertised")
        await _menu(client, SUBMIT, VIEW)
        say("A guess at a tool that is not on the menu:")
        await _refused(client, DISCHARGE, "INV-1", "FORBIDDEN")
        await step(SUBMIT, APPROVE, REJECT, VIEW)
        say(f"({SUBMIT} stays: it begins another invoice.)")
        await step(REJECT, VIEW)
        await step(SUBMIT, APPROVE, REJECT, VIEW)
        await step(APPROVE, DISCHARGE, VIEW)
        await step(DISCHARGE, VIEW)
        say("The same call again, as a client sends it whose connection broke before the answer:")
        await _refused(client, DISCHARGE, "INV-1", "ALREADY_DONE")
    _paid(stage, "INV-1", times=1)


async def _stdio(client: Client) -> None:
    heading("2. stdio, protocol 2026-07-28: one user, the menu of all his workflows, subscriptions/listen")
    say("The client has started a server of its own, on the same SQLite file.")
    async with client.listen(tools_list_changed=True) as changes:
        await _menu(client, SUBMIT, VIEW)
        await _succeed(client, SUBMIT, "INV-2")
        await _hears(changes, client, SUBMIT, APPROVE, REJECT, VIEW)
        await _succeed(client, APPROVE, "INV-2")
        await _hears(changes, client, SUBMIT, DISCHARGE, VIEW)


async def _anonymous(stage: Stage, url: str) -> None:
    heading("3. HTTP, protocol 2026-07-28, nobody authenticated: one list for everybody")
    say(
        "There are no sessions, and a list must not vary by connection. So the list is whole and says where each "
        "tool works; the gate holds on the call path, and every answer says what comes next."
    )
    async with stage.connect(url, STATELESS) as client:
        tools = await _menu(client, SUBMIT, APPROVE, REJECT, DISCHARGE, VIEW)
        where = (tools[DISCHARGE].description or "").splitlines()[-1]
        write(f"    {DISCHARGE}: {where}")
        check(where == "Works in state: approved.", "the description does not say where the tool works")
        await _refused(client, DISCHARGE, "INV-3", "FORBIDDEN")
        await _succeed(client, SUBMIT, "INV-3")


async def _principals(stage: Stage) -> None:
    heading("4. HTTP, protocol 2026-07-28, callers authenticated: a menu for each, subscriptions/listen")
    url, _ = await stage.serve(tokens=True)
    async with (
        stage.connect(url, STATELESS, token="alice-token") as alice,  # noqa: S106 - a token of the demo's own server
        stage.connect(url, STATELESS, token="bob-token") as bob,  # noqa: S106
        alice.listen(tools_list_changed=True) as hers,
        bob.listen(tools_list_changed=True) as his,
    ):
        say("alice:")
        await _menu(alice, SUBMIT, VIEW)
        await _succeed(alice, SUBMIT, "INV-3")
        await _hears(hers, alice, SUBMIT, APPROVE, REJECT, VIEW)
        say("bob, who uses the same handle and meets a workflow of his own:")
        await _menu(bob, SUBMIT, VIEW)
        await _refused(bob, APPROVE, "INV-3", "FORBIDDEN")
        say("alice:")
        await _succeed(alice, APPROVE, "INV-3")
        await _hears(hers, alice, SUBMIT, DISCHARGE, VIEW)
        await _silent(his)
        say("bob's stream heard nothing: his menu did not change.")


async def _at_once(stage: Stage, url: str, neighbour: Client) -> None:
    heading("5. Two discharges at once, over HTTP and over stdio, at two processes")
    results: list[types.CallToolResult] = []

    async def discharge(client: Client) -> None:
        results.append(await client.call_tool(DISCHARGE, {"id": "INV-2"}))

    async with stage.connect(url, SESSIONS) as other, anyio.create_task_group() as group:
        group.start_soon(discharge, other)
        group.start_soon(discharge, neighbour)
    for result in results:
        _call(DISCHARGE, "INV-2", result)
    done = [result for result in results if not result.is_error]
    check(len(results) == 2 and len(done) == 1, f"{len(done)} of two calls ran, not one")
    _paid(stage, "INV-2", times=1)


async def _kill(stage: Stage, url: str, process: subprocess.Popen[bytes], neighbour: Client) -> None:
    heading("6. kill -9 in the middle of two payments")
    for invoice, where in (("INV-5", "after"), ("INV-6", "before")):
        stage.provider.stick(invoice, where)
        await _succeed(neighbour, SUBMIT, invoice, quiet=True)
        await _succeed(neighbour, APPROVE, invoice, quiet=True)
    async with anyio.create_task_group() as group:
        for invoice in ("INV-5", "INV-6"):
            group.start_soon(_discharge_in_vain, stage, url, invoice)
        await _eventually(partial(_underway, stage), "the payments did not begin")
        process.kill()
        process.wait()
    stage.provider.unstick()
    write(f"  > {DISCHARGE} INV-5 and INV-6 at the HTTP server")
    write("  x the server is killed before either answers")
    say("The other server, while the killed one's lease runs, and when it has run out:")
    for invoice in ("INV-5", "INV-6"):
        codes: list[str | None] = []
        while "IN_DOUBT" not in codes:
            result = await neighbour.call_tool(DISCHARGE, {"id": invoice})
            if _code(result) not in codes:
                _call(DISCHARGE, invoice, result)
            codes.append(_code(result))
            check(codes[-1] in ("CONFLICT", "IN_DOUBT"), f"{invoice} was answered {codes[-1] or 'with success'}")
    asked = [line for line in stage.provider.books if line.startswith(("asked INV-5", "asked INV-6"))]
    check(len(asked) == 2, "a payment ran again")


async def _resolve(stage: Stage, neighbour: Client) -> None:
    heading("7. An operator looks, and decides")
    say("What the gate knows:")
    for invoice in ("INV-5", "INV-6"):
        await _command(stage, "workflows", "show", invoice, only=("handle", "state", "call  ", "idempotency"))
    say("What the provider's books say of these keys:")
    for line in stage.provider.books:
        if "INV-5" in line or "INV-6" in line:
            write(f"    {line}")
    say("It has taken the payment of INV-5, and not that of INV-6:")
    await _command(stage, "workflows", "resolve", "INV-5", "--done")
    await _command(stage, "workflows", "resolve", "INV-6", "--not-done")
    say("The workflows go on. INV-6 is paid under the key of the first attempt:")
    await _refused(neighbour, DISCHARGE, "INV-5", "FORBIDDEN", "ALREADY_DONE")
    await _succeed(neighbour, DISCHARGE, "INV-6")
    _paid(stage, "INV-5", times=1)
    _paid(stage, "INV-6", times=1)
    keys = {line.split()[-1] for line in stage.provider.books if "INV-6" in line}
    check(len(keys) == 1, "the second attempt had another idempotency key")
    await _command(stage, "workflows", "list")


# What the scenes are made of.


async def _menu(client: Client, *expected: str) -> dict[str, types.Tool]:
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    write(f"    menu: {', '.join(tools)}")
    check(list(tools) == list(expected), f"the menu is {', '.join(tools)}, not {', '.join(expected)}")
    return tools


async def _succeed(client: Client, tool: str, invoice: str, *, quiet: bool = False) -> None:
    result = await client.call_tool(tool, {"id": invoice})
    if not quiet:
        _call(tool, invoice, result)
    check(not result.is_error, f"{tool} of {invoice} failed: {_text(result)}")


async def _refused(client: Client, tool: str, invoice: str, *codes: str) -> None:
    result = await client.call_tool(tool, {"id": invoice})
    _call(tool, invoice, result)
    code = _code(result)
    check(code in codes, f"{tool} of {invoice} was answered {code or 'with success'}, not {' or '.join(codes)}")


async def _hears(stream: Subscription, client: Client, *menu: str) -> None:
    with _within("subscriptions/listen said nothing"):
        event = await anext(stream)
    check(isinstance(event, ToolsListChanged), f"subscriptions/listen said {event!r}")
    write("  < subscriptions/listen: notifications/tools/list_changed")
    await _menu(client, *menu)


async def _silent(stream: Subscription) -> None:
    with anyio.move_on_after(0.3):
        check(False, f"a stream heard {await anext(stream)!r} although its menu did not change")


async def _discharge_in_vain(stage: Stage, url: str, invoice: str) -> None:
    try:
        async with stage.connect(url, STATELESS) as client:
            result = await client.call_tool(DISCHARGE, {"id": invoice})
    except Exception:  # the connection breaks, which is what is meant to happen
        return
    raise DemoError(f"a killed server answered: {_text(result)}")


def _underway(stage: Stage) -> bool:
    books = "\n".join(stage.provider.books)
    return "paid  INV-5" in books and "asked INV-6" in books


def _paid(stage: Stage, invoice: str, *, times: int) -> None:
    paid = [line for line in stage.provider.books if line.startswith(f"paid  {invoice} ")]
    check(len(paid) == times, f"{invoice} was paid {len(paid)} times")
    say(f"The provider's books have {len(paid)} payment of {invoice}.")


async def _command(stage: Stage, *arguments: str, only: Sequence[str] = ()) -> None:
    write(f"  $ mcpfusion {' '.join(arguments)} --store $STORE")
    for line in (await stage.command(*arguments)).splitlines():
        if not only or line.startswith(tuple(only)):
            write(f"    {line}")


async def _eventually(happened: Callable[[], object], otherwise: str) -> None:
    with _within(otherwise):
        while not happened():  # noqa: ASYNC110 - what happens, happens in other processes
            await anyio.sleep(0.02)


@contextmanager
def _within(otherwise: str) -> Generator[None]:
    try:
        with anyio.fail_after(PATIENCE):
            yield
    except TimeoutError:
        raise DemoError(otherwise) from None


def _call(tool: str, invoice: str, result: types.CallToolResult) -> None:
    write(f"  > {tool} {invoice}")
    write(f"    {_text(result)}")
    if not result.is_error:
        block = (result.meta or {})[WORKFLOW]
        allowed = ", ".join(block["allowedActions"]) or ("nothing, it is final" if block["final"] else "nothing")
        write(f"    {block['handle']} is in state {block['state']}; next: {allowed}")


def _code(result: types.CallToolResult) -> str | None:
    structured: Any = result.structured_content
    return structured["code"] if result.is_error else None


def _text(result: types.CallToolResult) -> str:
    return " ".join(block.text for block in result.content if isinstance(block, types.TextContent))
