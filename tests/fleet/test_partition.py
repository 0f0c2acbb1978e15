"""A replica is cut off from the engine while it holds claims: when their leases end, exactly one side goes on."""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from mcpfusion import Context, Fusion
from mcpfusion.stores import open_store
from mcpfusion.stores.protocol import Step, Workflow
from tests.gate.processes import PATIENCE, channel, end, start
from tests.support import postgres_servers, redis_servers
from tests.support.hosts import MIDDLE, Hosts, enter, hosts, needs_hosts, on

pytestmark = [pytest.mark.anyio, needs_hosts]

LEASE = 3.0
PAYMENT = {
    "initial": "due",
    "states": {"due": {"on": {"PAY": "paid"}}, "paid": {"on": {"CLOSE": "closed"}}, "closed": {}},
}
HELD, SENT, OVERRUN = "held", "sent", "overrun"
TOOLS = {HELD: "payment.hold", SENT: "payment.send", OVERRUN: "payment.overrun"}


def make_server(store: str, folder: str, name: str) -> Any:
    """Return the server of a replica. Its handlers wait until they may go on."""
    f = Fusion("payments")

    def note(what: str, ctx: Context) -> None:
        line = {"what": what, "by": name, "handle": ctx.workflow.handle, "key": ctx.workflow.idempotency_key}
        out = os.open(Path(folder, "ledger"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(out, (json.dumps(line) + "\n").encode())
        os.close(out)

    def may_go(ctx: Context) -> bool:
        return Path(folder, f"{name}-{ctx.workflow.handle}").exists()

    async def pay(ctx: Context) -> dict[str, str]:
        note("began", ctx)
        while not may_go(ctx):  # noqa: ASYNC110 - it is another process that says so
            await anyio.sleep(0.01)
        note("done", ctx)
        return {"by": name}

    def pay_slowly(ctx: Context) -> dict[str, str]:  # a thread cannot be stopped at its time limit
        note("began", ctx)
        while not may_go(ctx):
            time.sleep(0.01)
        note("done", ctx)
        return {"by": name}

    f.action("payment.hold").bind_state("due", "PAY").on_doubt("hold").handle(pay)
    f.action("payment.send").bind_state("due", "PAY").on_doubt("retry").handle(pay)
    f.action("payment.overrun").bind_state("due", "PAY").on_doubt("retry").handle(pay_slowly)

    @f.action("payment.close").bind_state("paid", "CLOSE").handle
    async def close() -> dict[str, str]:
        return {"by": name}

    return f.server(
        fsm=f.fsm(PAYMENT),
        store=store,
        state_handle_key="id",
        time_limit=LEASE - 1,
        lease_margin=1,
        conflict_wait=0.1,
    )


def be_replica(host: str, store: str, folder: str, name: str, calls: Any, answers: Any) -> None:
    """Be a process on a host, with a replica and its client: make the calls that come, all at once, until None."""
    enter(host)

    async def main() -> None:
        server = make_server(store, folder, name)
        async with Client(server.lowlevel, mode="2026-07-28", read_timeout_seconds=PATIENCE) as client:

            async def call(tool: str, handle: str) -> None:
                result = await client.call_tool(tool, {"id": handle})
                answers.put((name, tool, handle, result.structured_content))

            await client.list_tools()
            async with anyio.create_task_group() as group:
                while (wanted := await anyio.to_thread.run_sync(calls.get)) is not None:
                    group.start_soon(call, *wanted)

    anyio.run(main)


class Replica:
    """A replica's process as the test sees it."""

    def __init__(self, host: str, store: str, folder: Path, name: str) -> None:
        self._calls, self._answers = channel(), channel()
        self._folder, self._name = folder, name
        self._process = start(be_replica, host, store, str(folder), name, self._calls, self._answers)

    def call(self, tool: str, handle: str) -> None:
        self._calls.put((tool, handle))

    def may_go(self, handle: str) -> None:
        """Let the handler of a workflow go on."""
        (self._folder / f"{self._name}-{handle}").touch()

    async def answer(self) -> tuple[str, Any]:
        """Return the workflow and the content of the next answer."""
        until = time.monotonic() + PATIENCE
        while self._answers.empty():
            assert self._process.is_alive()
            assert time.monotonic() < until, f"{self._name} did not answer"
            await anyio.sleep(0.01)
        _, _, handle, content = self._answers.get()
        return handle, content

    async def insist(self, handle: str) -> Any:
        """Make a workflow's call again for as long as another is in progress; returns the answer."""
        with anyio.fail_after(PATIENCE):
            while True:
                self.call(TOOLS[handle], handle)
                _, content = await self.answer()
                if content.get("code") != "CONFLICT":
                    return content
                await anyio.sleep(0.05)

    def end(self) -> None:
        end(self._process)


@contextmanager
def redis(folder: Path, network: Hosts) -> Iterator[str]:
    server = redis_servers.Server(folder / "redis", "--bind", "0.0.0.0", "--protected-mode", "no")
    try:
        on(network.middle, server.start)
        yield server.url().replace("127.0.0.1", MIDDLE)
    finally:
        server.kill()


@contextmanager
def postgresql(folder: Path, network: Hosts) -> Iterator[str]:
    server = postgres_servers.PostgresProcess(listen_addresses="*")
    with (server.data / "pg_hba.conf").open("a") as allowed:
        allowed.write("host all all 10.251.0.0/16 trust\n")
    try:
        on(network.middle, server.start)
        yield on(network.middle, server.schema_url).replace("127.0.0.1", MIDDLE)
    finally:
        server.end()


def ledger(folder: Path, what: str, handle: str) -> list[dict[str, str]]:
    """Return what the handlers of a workflow wrote."""
    file = folder / "ledger"
    lines = map(json.loads, file.read_text().splitlines() if file.exists() else [])
    return [line for line in lines if (line["what"], line["handle"]) == (what, handle)]


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(PATIENCE):
        while not condition():  # noqa: ASYNC110 - what other processes write
            await anyio.sleep(0.01)


def stored(url: str, handle: str) -> tuple[Workflow, list[Step]]:
    """Return a workflow and its history as the engine has them."""

    async def read() -> tuple[Workflow, list[Step]]:
        store = open_store(url)
        try:
            record = await store.read("", handle)
            assert record is not None
            return record, list(await store.history("", handle))
        finally:
            await store.aclose()

    return anyio.run(read)


@pytest.mark.parametrize("engine", [redis, postgresql])
async def test_when_the_lease_is_over_exactly_one_side_goes_on(tmp_path: Path, engine: Any) -> None:
    with ExitStack() as stack:
        network = stack.enter_context(hosts(2))
        url = stack.enter_context(engine(tmp_path, network))
        here, there = (
            Replica(host, url, tmp_path, name) for host, name in zip(network.around, ("here", "there"), strict=True)
        )
        stack.callback(here.end)
        stack.callback(there.end)

        for handle, tool in TOOLS.items():
            here.call(tool, handle)
        for handle in TOOLS:
            await until(partial(ledger, tmp_path, "began", handle))
        network.cut(0)
        for handle in (HELD, SENT):  # their commits are sent while nothing arrives
            here.may_go(handle)
            await until(partial(ledger, tmp_path, "done", handle))

        for handle in (SENT, OVERRUN):
            there.may_go(handle)
        assert (await there.insist(HELD))["code"] == "IN_DOUBT"
        for handle in (SENT, OVERRUN):
            assert await there.insist(handle) == {"by": "there"}

        network.mend(0)
        here.may_go(OVERRUN)
        answers = dict([await here.answer() for _ in TOOLS])
        assert answers[HELD] == {"by": "here"}  # the commit came through, and nobody had taken the claim
        assert [answers[handle]["code"] for handle in (SENT, OVERRUN)] == ["IN_DOUBT"] * 2
        await until(lambda: len(ledger(tmp_path, "done", OVERRUN)) == 2)

        for handle in TOOLS:
            record, history = on(network.middle, partial(stored, url, handle))
            assert (record.state, record.claim, len(history)) == ("paid", None, 1)
            began, done = ledger(tmp_path, "began", handle), ledger(tmp_path, "done", handle)
            assert [line["by"] for line in began] == (["here"] if handle == HELD else ["here", "there"])
            assert len(done) == len(began)
            assert len({line["key"] for line in began + done}) == 1  # so that the effect can be told to be the same

        for handle in TOOLS:  # and the side that was cut off is whole again
            here.call("payment.close", handle)
            assert await here.answer() == (handle, {"by": "here"})
