"""Tokens and headers stay where they came in: not in answers, not in our logs, not in what objects print."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from mcpfusion import Call, Context, Identity
from tests.gate_identity.users import (
    APPROVAL,
    AUTH,
    TOKENS,
    Verifier,
    approvals,
    as_user,
    code,
)
from tests.support.serving import ERAS, http_app

pytestmark = pytest.mark.anyio

COOKIE = "session=c00kie-jar-9917"
SECRETS = (TOKENS["alice"], COOKIE, "Bearer ")


class Everything(logging.Handler):
    """Keeps what our own loggers say, formatted with tracebacks, and the arguments of each record."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record) + repr(record.args) + repr(record.__dict__))


@pytest.fixture
def logged() -> Iterator[Everything]:
    handler, ours = Everything(), logging.getLogger("mcpfusion")
    before = ours.level
    ours.addHandler(handler)
    ours.setLevel(logging.DEBUG)
    yield handler
    ours.removeHandler(handler)
    ours.setLevel(before)


@pytest.mark.parametrize("mode", ERAS)
async def test_no_token_and_no_header_gets_out(mode: str, logged: Everything) -> None:
    printed: list[str] = []

    async def look(call: Call, call_next: Any) -> Any:
        printed.extend((repr(call), str(call), repr(call.context), str(call.context), f"{call.context.headers!r:.0}"))
        return await call_next(call)

    def access(identity: Identity) -> str:
        printed.extend((repr(identity), str(identity)))
        if identity.headers.get("x-fail"):
            raise LookupError("no tenant")
        return "acme"

    f = approvals()

    @f.action("approval.break").handle
    async def break_(ctx: Context) -> str:
        printed.append(repr(ctx))
        raise RuntimeError("broken")

    @f.action("approval.unfit").handle
    async def unfit(ctx: Context) -> int:
        return "x"  # type: ignore[return-value]

    answers: list[str] = []
    server = f.server(
        fsm=f.fsm(APPROVAL),
        auth=AUTH,
        token_verifier=Verifier(),
        state_handle_key="id",
        access=access,
        middleware=[look],
    )
    printed.extend((repr(server), repr(server.attachment), repr(f), repr(f.registry()), repr(server.store)))
    async with http_app(server.asgi(host="127.0.0.1")) as origin:
        for fail in ({}, {"X-Fail": "1"}):
            async with as_user(f"{origin}/mcp", mode, "alice", headers={"Cookie": COOKIE, **fail}) as alice:
                for tool, arguments in (
                    ("approval.submit", {"id": "A-1"}),
                    ("approval.pay", {"id": "A-1"}),
                    ("approval.submit", {"id": "A-1", "x": 1}),
                    ("approval.submit", {"id": ""}),
                    ("approval.break", {}),
                    ("approval.unfit", {}),
                ):
                    result = await alice.call_tool(tool, arguments)
                    answers.append(result.model_dump_json())
                    assert fail == {} or code(result) is not None
                if not fail:
                    answers.append((await alice.list_tools()).model_dump_json())
    assert server.store is not None
    kept = [repr(each) for each in await server.store.list_workflows()]
    kept += [repr(each) for each in await server.store.history("acme", "A-1")]
    assert kept
    assert printed
    assert any("raised" in line for line in logged.lines)
    assert any("scope" in line for line in logged.lines)
    for secret in SECRETS:
        for where, lines in (("answers", answers), ("log", logged.lines), ("repr", printed), ("store", kept)):
            assert [line for line in lines if secret in line] == [], where


def test_an_identity_and_a_context_print_no_headers() -> None:
    headers = {"authorization": "Bearer tok-alice-1f6c9d", "cookie": COOKIE}
    identity = Identity(principal="alice", headers=headers, http=True)
    context = Context(tool="a.b", headers=headers, principal="alice")
    call = Call("a.b", {"x": 1}, context)
    for thing in (identity, context, call):
        for text in (repr(thing), str(thing), f"{thing}", repr([thing]), repr({"k": thing})):
            assert "authorization" not in text
            assert "c00kie" not in text
