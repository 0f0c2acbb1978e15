"""A server under test: payments that leave their traces in a file, and a store that kills its process where told.

Run as `python payments.py` it serves stdio, with the settings as JSON in the environment variable PAYMENTS.
"""

import json
import os
import signal
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import anyio

from mcpfusion import Context, Fusion, ToolError
from mcpfusion.stores.sqlite import SqliteStore

CONFIG = {
    "id": "payment",
    "initial": "due",
    "states": {
        "due": {"on": {"PAY": "paid", "VOID": "void"}},
        "paid": {"on": {"REFUND": "refunded"}},
        "void": {"type": "final"},
        "refunded": {"type": "final"},
    },
}


@dataclass
class Settings:
    """What a test wants of its server.

    Attributes:
        folder: Where the SQLite file, the traces and the signals between test and handlers are.
        kill_at: The point of the passage at which the process kills itself.
        clock_offset: Seconds by which the gate's clock is off; a past clock makes leases that ended long ago.
        wait: Handlers wait until `go` says that they may pay.
        capture: Keywords of the action `payment.capture`.
        options: Options of the server.
        grace: Seconds that an HTTP server gives its requests when it is told to stop.
    """

    folder: str
    kill_at: str = ""
    clock_offset: float = 0.0
    wait: bool = False
    capture: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    grace: float = 5.0

    @property
    def store_url(self) -> str:
        """The SQLite file."""
        return f"sqlite:///{self.folder}/payments.db"

    @property
    def env(self) -> dict[str, str]:
        """The environment that hands these settings to a process."""
        return {"PAYMENTS": json.dumps(asdict(self))}

    def traces(self, kind: str | None = None, handle: str | None = None) -> list[dict[str, Any]]:
        """What the handlers of all processes have written: all of it, or that of one kind and of one workflow."""
        try:
            lines = Path(self.folder, "traces").read_text().splitlines()
        except FileNotFoundError:
            return []
        traces = map(json.loads, lines)
        return [each for each in traces if kind in (None, each["kind"]) and handle in (None, each["handle"])]

    def go(self, handle: str) -> None:
        """Let the waiting handlers of a workflow go on."""
        Path(self.folder, f"go-{handle}").touch()


class DyingStore(SqliteStore):
    """Kills its own process, with no chance to clean up, before or after the claim or the commit."""

    kill_at = ""

    async def write(self, workflow: Any, *, expected_version: int, step: Any = None) -> bool:
        point = "commit" if step is not None else "claim" if workflow.claim else "release"
        self.die(f"before_{point}")
        written = await super().write(workflow, expected_version=expected_version, step=step)
        if written:
            self.die(f"after_{point}")
        return written

    def die(self, point: str) -> None:
        """End the process as `kill -9` does, if this is the point."""
        if point == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def make_server(settings: Settings) -> Any:
    """Return the server that `settings` ask for."""
    store = DyingStore(Path(settings.folder, "payments.db"))
    store.kill_at = settings.kill_at
    f = Fusion("payments", version="1")

    def trace(kind: str, ctx: Context, note: str) -> None:
        line = {"kind": kind, "tool": ctx.tool, "note": note, "handle": ctx.workflow.handle,
                "key": ctx.workflow.idempotency_key, "process": os.getpid()}  # fmt: skip
        out = os.open(Path(settings.folder, "traces"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(out, (json.dumps(line) + "\n").encode())
        os.close(out)

    def may_go(handle: str) -> bool:
        return not settings.wait or Path(settings.folder, f"go-{handle}").exists()

    async def move(ctx: Context, note: str) -> dict[str, Any]:
        trace("started", ctx, note)
        store.die("handler_before_effect")
        try:
            while not may_go(ctx.workflow.handle):  # noqa: ASYNC110 - it is another process that says so
                await anyio.sleep(0.01)
            await anyio.sleep(0.05)
        except anyio.get_cancelled_exc_class():
            trace("cancelled", ctx, note)
            raise
        trace("done", ctx, note)
        store.die("handler_after_effect")
        return {"note": note, "key": ctx.workflow.idempotency_key}

    @f.action("payment.capture", bind_state=("due", "PAY"), **settings.capture).handle
    async def capture(id: str, ctx: Context, note: str = "") -> dict:
        return await move(ctx, note)

    @f.action("payment.capture_kept", bind_state=("due", "PAY"), keep_result=600).handle
    async def capture_kept(id: str, ctx: Context, note: str = "") -> dict:
        return await move(ctx, note)

    @f.action("payment.capture_released", bind_state=("due", "PAY"), on_cancel="release").handle
    async def capture_released(id: str, ctx: Context, note: str = "") -> dict:
        return await move(ctx, note)

    def move_in_thread(ctx: Context, note: str) -> dict[str, Any]:
        trace("started", ctx, note)
        while not may_go(ctx.workflow.handle):
            time.sleep(0.01)
        trace("done", ctx, note)
        return {"note": note, "key": ctx.workflow.idempotency_key}

    @f.action("payment.capture_in_thread", bind_state=("due", "PAY"), **settings.capture).handle
    def capture_in_thread(id: str, ctx: Context, note: str = "") -> dict:
        return move_in_thread(ctx, note)

    @f.action("payment.capture_released_in_thread", bind_state=("due", "PAY"), on_cancel="release").handle
    def capture_released_in_thread(id: str, ctx: Context, note: str = "") -> dict:
        return move_in_thread(ctx, note)

    @f.action("payment.void", bind_state=("due", "VOID")).handle
    async def void(id: str, ctx: Context, note: str = "") -> dict:
        return await move(ctx, note)

    @f.action("payment.refund", bind_state=("paid", "REFUND")).handle
    async def refund(id: str) -> dict:
        raise ToolError("nobody refunds", code="NO_REFUND")

    def clock() -> float:
        return time.time() + settings.clock_offset

    gate = f.fsm(CONFIG)
    return f.server(fsm=gate, state_handle_key="id", store=store, clock=clock, **settings.options)


if __name__ == "__main__":
    make_server(Settings(**json.loads(os.environ["PAYMENTS"]))).run("stdio")
