"""The clients of the fleet: they call at random, several at once on one order, and note what they were told."""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fleet.lean import LEGACY, META, MODERN, Broken, Connection, Refused
from tests.fleet.orders import LOOK, TOOLS, menu

PATIENCE = 45.0
"""Seconds after which a call that was not answered counts as hanging: longer than any time limit inside."""

_WAYS = [("ok", 0.94), ("fails", 0.04), ("unsure", 0.004), ("unsure_after", 0.004), ("overruns", 0.002)]
_WAYS.append(("overruns_after", 1 - sum(share for _, share in _WAYS)))

_ENDING = {"order.discard": "order.submit", "order.archive": "order.reopen"}


@dataclass(slots=True)
class Answer:
    """One request and what came of it.

    Attributes:
        how: How the handler was told to end.
        sent: When, on the clock of the ledger; `got` as well.
        code: `OK`, the code of a refusal or failure, or `LOST`: nothing came, so that nobody knows; `UNSENT`: it
            was not sent at all.
        state: Where the workflow stood, as the answer says.
        allowed: Its menu, as the answer says.
        data: The structured part of the answer.
    """

    order: str
    tool: str
    call: str
    attempt: str
    how: str
    sent: float = 0.0
    got: float = 0.0
    code: str = "LOST"
    state: str | None = None
    allowed: set[str] | None = None
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Call:
    """What a client wants, whatever the number of attempts."""

    order: str
    tool: str
    name: str
    how: str = "ok"
    pause: float = 0.0


class Driver:
    """All clients.

    Args:
        ports: Where the replicas listen.
        orders: How many workflows there are.
        seed: Makes the clients choose alike again.

    Attributes:
        answers: What all clients were told.
    """

    def __init__(self, ports: Sequence[int], orders: int, seed: int) -> None:
        self.ports = ports
        self.random = random.Random(seed)
        self.answers: list[Answer] = []
        self._orders = [f"order-{number}" for number in range(orders)]
        self._hot = self._orders[:1]
        self._seen: dict[str, str] = {}
        self._begun = 0
        self._until = 0.0

    async def run(self, seconds: float, *, modern: int = 26, legacy: int = 6) -> None:
        """Let so many clients of each era call for so long, and wait for the last answer."""
        self.go_on(seconds)
        clients = [*(Stateless(self) for _ in range(modern)), *(Session(self) for _ in range(legacy))]
        async with asyncio.TaskGroup() as group:
            group.create_task(self._change_hot())
            for client in clients:
                group.create_task(self._drive(client))

    def go_on(self, seconds: float) -> None:
        """Let the clients go on for so many seconds from now at least."""
        self._until = max(self._until, time.monotonic() + seconds)

    async def look_around(self, count: int) -> None:
        """Look at so many orders once more."""
        clients = [Stateless(self) for _ in range(8)]
        orders = self.random.sample(self._orders, count)

        async def look(client: "Stateless", orders: Sequence[str]) -> None:
            for order in orders:
                await client.attempt(Call(order, LOOK, self._name()))
            client.close()

        async with asyncio.TaskGroup() as group:
            for number, client in enumerate(clients):
                group.create_task(look(client, orders[number :: len(clients)]))

    def begin(self, call: Call) -> Answer:
        """Return the note of an attempt that is about to be made."""
        self._begun += 1
        answer = Answer(call.order, call.tool, call.name, f"{call.name}.{self._begun}", call.how, time.monotonic())
        self.answers.append(answer)
        return answer

    def end(self, answer: Answer, message: Any) -> None:
        """Note what came back."""
        answer.got = time.monotonic()
        result = message.get("result")
        if result is None:
            answer.code, answer.data = "RPC_ERROR", message
            return
        answer.data = result.get("structuredContent") or {}
        answer.code = answer.data.get("code", "NO_CODE") if result.get("isError") else "OK"
        block = result.get("_meta", {}).get("io.mcpfusion/workflow") or {}
        standing = block or answer.data
        if isinstance(standing.get("state"), str):
            answer.state = self._seen[answer.order] = standing["state"]
            answer.allowed = set(standing.get("allowedActions", ()))

    async def _drive(self, client: "Stateless") -> None:
        while time.monotonic() < self._until:
            call = self._choose()
            if self.random.random() < 0.03:
                await self._all_at_once(call)
            else:
                await self._see_through(client, call)
        client.close()

    async def _see_through(self, client: "Stateless", call: Call) -> None:
        """Make a call. When it got lost, or just so, send it again; sometimes leave before the answer is there."""
        leave = self.random.random() < 0.02
        answer = await client.attempt(call, leave_after=self.random.uniform(0, 0.03) if leave else None)
        again = 2 if answer.code == "LOST" else self.random.random() < 0.05
        while again and time.monotonic() < self._until:
            again -= 1
            if (await client.attempt(call)).code != "LOST":
                return

    async def _all_at_once(self, call: Call) -> None:
        """Send calls that exclude each other, on one order, through all replicas."""
        tools = list(menu(self._seen.get(call.order, "draft")))
        clients = [Stateless(self) for _ in range(4)]
        async with asyncio.TaskGroup() as group:
            for client in clients:
                other = Call(call.order, self.random.choice(tools), self._name(), call.how, call.pause)
                group.create_task(client.attempt(self.random.choice([other, call])))
        for client in clients:
            client.close()

    def _choose(self) -> Call:
        order = self.random.choice(self._hot if self.random.random() < 0.3 else self._orders)
        likely = sorted(menu(self._seen.get(order, "draft")) - {LOOK})
        guess = self.random.random()
        tool = LOOK if guess < 0.08 else self.random.choice(sorted(TOOLS) if guess < 0.2 or not likely else likely)
        if tool in _ENDING and self.random.random() < 0.8:
            tool = _ENDING[tool]  # or most would end early
        (how,) = self.random.choices([way for way, _ in _WAYS], [share for _, share in _WAYS])
        if tool in TOOLS and TOOLS[tool].threaded and how.startswith("overruns"):
            how = "ok"  # a thread cannot be stopped
        pause = self.random.uniform(0.1, 0.4) if self.random.random() < 0.05 else self.random.uniform(0, 0.008)
        return Call(order, tool, self._name(), how, pause)

    def _name(self) -> str:
        return f"{self.random.getrandbits(48):012x}"

    async def _change_hot(self) -> None:
        while time.monotonic() < self._until:
            self._hot = self.random.sample(self._orders, min(6, len(self._orders)))
            await asyncio.sleep(0.4)


class Stateless:
    """A client of 2026-07-28: each request goes to any replica."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._connections = {port: Connection(port) for port in driver.ports}

    async def attempt(self, call: Call, leave_after: float | None = None) -> Answer:
        """Make a call once; `leave_after` so many seconds break the connection off."""
        answer = self._driver.begin(call)
        try:
            async with asyncio.timeout(PATIENCE if leave_after is None else leave_after):
                message = await self._send(call, answer)
            if message is None:
                raise Broken
        except TimeoutError:
            answer.code = "LOST" if leave_after is not None else "HUNG"
        except Broken:
            pass
        except Refused as refused:
            answer.code, answer.data = "HTTP_ERROR", {"error": str(refused)}
        except ConnectionRefusedError:
            answer.code = "UNSENT"
            await asyncio.sleep(0.02)
        else:
            self._driver.end(answer, message)
        answer.got = answer.got or time.monotonic()
        return answer

    def close(self) -> None:
        """Leave."""
        for connection in self._connections.values():
            connection.close()

    async def _send(self, call: Call, answer: Answer) -> Any:
        port = self._driver.random.choice(self._driver.ports)
        headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": call.tool}
        body = _body(call, answer)
        body["params"]["_meta"] = META
        return (await self._connections[port].post(body, {**headers, "x-attempt": answer.attempt}))[1]


class Session(Stateless):
    """A client of 2025-11-25: it stays with the replica that has its session, and opens another when that is gone."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self._session: tuple[int, dict[str, str]] | None = None

    async def _send(self, call: Call, answer: Answer) -> Any:
        if self._session is None:
            self._session = await self._open()
        port, headers = self._session
        answer.sent = time.monotonic()
        try:
            return (
                await self._connections[port].post(_body(call, answer), {**headers, "x-attempt": answer.attempt})
            )[1]
        except Refused as refused:
            if refused.status != 404:
                raise
            # The replica has forgotten the session: it was started anew.
            self._session = None
            raise ConnectionRefusedError from refused
        except (Broken, ConnectionRefusedError):
            self._session = None
            raise

    async def _open(self) -> tuple[int, dict[str, str]]:
        port = self._driver.random.choice(self._driver.ports)
        client = {"name": "fleet", "version": "1"}
        params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": client}
        try:
            body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
            got, _ = await self._connections[port].post(body, {})
            headers = {"Mcp-Session-Id": got["mcp-session-id"], "MCP-Protocol-Version": LEGACY}
            note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            await self._connections[port].post(note, headers)
        except Broken as broken:
            raise ConnectionRefusedError from broken  # of the call nothing was sent
        return port, headers


def _body(call: Call, answer: Answer) -> dict[str, Any]:
    arguments: dict[str, Any] = {"order": call.order}
    if call.tool != LOOK:
        arguments |= {"call": call.name, "how": call.how, "pause": call.pause}
    params = {"name": call.tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": answer.attempt, "method": "tools/call", "params": params}
