"""One replica of the fleet: a server of orders, whose handlers keep a ledger."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from mcpfusion import Context, Fusion, ToolError
from mcpfusion.stores.urls import sqlite_path
from tests.fleet.ledger import Ledger
from tests.fleet.orders import CONFIG, CONFLICT_WAIT, LEASE, LOOK, TIME_LIMIT, TOOLS, Tool
from tests.fleet.sabotage import SABOTAGES

OVERRUN = TIME_LIMIT + 30


@dataclass(frozen=True, slots=True)
class Settings:
    """What the replicas of a fleet have in common.

    Attributes:
        store: The URL of the store that they share.
        folder: Where their ledgers are.
        sabotage: What is wrong with the store, for the test of the tests.
    """

    store: str
    folder: Path
    sabotage: str = ""


def serve(settings: Settings, port: int) -> None:
    """Be a replica."""
    logging.basicConfig(filename=settings.folder / "replicas.log", format="%(asctime)s %(process)d %(message)s")
    make_server(settings).run("http", port=port)


def make_server(settings: Settings) -> Any:
    """Return the server of a replica."""
    ledger = Ledger(settings.folder)
    f = Fusion("orders", version="1")
    for name, tool in TOOLS.items():
        bound = f.mutation(name).describe(f"{name} of an order")
        bound = bound.bind_state(tool.state, tool.events[0] if len(tool.events) == 1 else _decided)
        bound = bound.on_doubt("retry" if tool.retry else "hold")
        if tool.keep:
            bound = bound.keep_result(tool.keep)
        bound.handle(_threaded(tool, ledger) if tool.threaded else _handler(tool, ledger))

    @f.query(LOOK).describe("Where an order stands").bind_state("*").handle
    async def look(ctx: Context) -> dict[str, str]:
        return {"state": ctx.workflow.state}

    store = SABOTAGES[settings.sabotage](sqlite_path(settings.store)) if settings.sabotage else settings.store
    return f.server(
        fsm=f.fsm(CONFIG),
        store=store,
        state_handle_key="order",
        time_limit=TIME_LIMIT,
        lease_margin=LEASE - TIME_LIMIT,
        conflict_wait=CONFLICT_WAIT,
        redact=lambda tool, arguments, result: (arguments, result.structured),
    )


def _decided(arguments: dict[str, Any], result: dict[str, str]) -> str:
    return result["event"]


def _steps(tool: Tool, ledger: Ledger, ctx: Context, call: str) -> tuple[Callable[[Any], None], dict[str, str]]:
    """Return what writes into the ledger for one run of a handler, and the run's result."""
    event = tool.events[sum(call.encode()) % len(tool.events)]
    view = ctx.workflow
    of = {"key": view.idempotency_key, "call": call, "attempt": ctx.headers["x-attempt"], "event": event}

    def write(kind: Any) -> None:
        ledger.write(kind, order=view.handle, tool=ctx.tool, state=view.state, **of)

    return write, of


def _handler(tool: Tool, ledger: Ledger) -> Any:
    async def handler(ctx: Context, call: str, how: str, pause: float) -> dict[str, str]:
        write, result = _steps(tool, ledger, ctx, call)
        write("began")
        try:
            await anyio.sleep(pause)
            _fail_before(how)
            if how == "overruns":
                await anyio.sleep(OVERRUN)
            write("done")
            if how == "overruns_after":
                await anyio.sleep(OVERRUN)
            _fail_after(how)
            await anyio.sleep(pause / 4)
        finally:
            write("ended")
        return result

    return handler


def _threaded(tool: Tool, ledger: Ledger) -> Any:
    def handler(ctx: Context, call: str, how: str, pause: float) -> dict[str, str]:
        write, result = _steps(tool, ledger, ctx, call)
        write("began")
        try:
            time.sleep(pause)
            _fail_before(how)
            write("done")
            _fail_after(how)
        finally:
            write("ended")
        return result

    return handler


def _fail_before(how: str) -> None:
    if how == "fails":
        raise ToolError("It cannot be done.", code="NOT_NOW")
    if how == "unsure":
        raise ToolError("It may not have been done.", in_doubt=True)


def _fail_after(how: str) -> None:
    if how == "unsure_after":
        raise ToolError("It may have been done.", in_doubt=True)
