"""What passes through a gateway unchanged, and what of the caller's never does."""

from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.server import Server

from mcpfusion import Context, Fusion
from tests.support.serving import ERAS, http_client
from tests.swarm.faults import KINDS, fronted, reached
from tests.swarm.parts import SECRET, Talk, gateway_to, specialist, talk, text_of, until

pytestmark = pytest.mark.anyio
both_eras = pytest.mark.parametrize("era", ERAS)
all_kinds = pytest.mark.parametrize("kind", KINDS)
both_upstreams = pytest.mark.parametrize("handshake", [False, True], ids=["stateless", "sessions"])

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

CONTENT: list[dict[str, Any]] = [
    {"type": "text", "text": "text ü \u2028 😀", "annotations": {"audience": ["user"], "priority": 0.5}},
    {"type": "image", "data": "aWNvbg==", "mimeType": "image/png", "_meta": {"k": [1]}},
    {"type": "audio", "data": "c291bmQ=", "mimeType": "audio/wav"},
    {"type": "resource_link", "uri": "file:///a%20b", "name": "link", "title": "Link", "mimeType": "text/plain"},
    {"type": "resource", "resource": {"uri": "test://x", "text": "inside", "mimeType": "text/plain"}},
    {"type": "resource", "resource": {"uri": "test://y", "blob": "Ymlu", "_meta": {"m": 1}}},
]
STRUCTURED = {"number": 1.5, "list": [None, True, {"deep": "ü"}], "empty": {}}


class Rich:
    """A specialist made with the SDK that answers with everything there is."""

    def __init__(self) -> None:
        self.server: Server[Any] = Server("finance", on_list_tools=self._list, on_call_tool=self._call)
        self.seen: list[types.CallToolRequestParams] = []
        self.running = anyio.Event()
        self.cancelled = anyio.Event()

    def asgi(self, host: str) -> Any:
        return self.server.streamable_http_app(host=host)

    async def _list(self, ctx: Any, params: Any) -> types.ListToolsResult:
        schema = {"type": "object", "properties": {"a": {"type": "string", "x-own": 1}}, "$defs": {}}
        return types.ListToolsResult.model_validate(
            {
                "tools": [
                    {
                        "name": name,
                        "inputSchema": schema,
                        "outputSchema": {"type": "object"},
                        "annotations": {"readOnlyHint": True, "title": "A"},
                        "icons": [{"src": "https://x/y.png"}],
                        "_meta": {"own": 1},
                    }
                    for name in ("rich", "fails", "raises", "hangs")
                ]
            }
        )

    async def _call(self, ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        self.seen.append(params)
        if params.name == "raises":
            raise types_error()
        if params.name == "hangs":
            self.running.set()
            try:
                await anyio.sleep_forever()
            except BaseException:
                self.cancelled.set()
                raise
        return types.CallToolResult.model_validate(
            {
                "content": CONTENT,
                "structuredContent": STRUCTURED,
                "isError": params.name == "fails",
                "_meta": {"own/key": {"a": [1]}},
            }
        )


def types_error() -> Exception:
    from mcp.shared.exceptions import MCPError

    return MCPError(-32042, "the specialist's own error", {"why": ["because"]})


@both_eras
@all_kinds
async def test_every_kind_of_content_comes_through_unchanged(era: str, kind: str) -> None:
    async with (
        reached(Rich(), kind) as entry,
        gateway_to({"finance": entry}) as (gate, _),
        talk(gate, era) as client,
    ):
        result = await client.route("finance")
        listed = result.structured_content["handoff"]["tools"][0]
        assert listed["annotations"] == {"readOnlyHint": True, "title": "A"}
        assert listed["icons"] == [{"src": "https://x/y.png"}]
        assert listed["_meta"] == {"own": 1}
        assert listed["outputSchema"] == {"type": "object"}
        assert listed["inputSchema"]["properties"]["a"]["x-own"] == 1
        for tool, failed in (("rich", False), ("fails", True)):
            answer = (await client.call(f"finance.{tool}")).model_dump(by_alias=True, mode="json", exclude_none=True)
            assert answer["content"] == CONTENT
            assert answer["structuredContent"] == STRUCTURED
            assert answer["isError"] is failed
            own = {key: value for key, value in answer["_meta"].items() if not key.startswith("io.model")}
            assert own == {"own/key": {"a": [1]}}
        with pytest.raises(Exception, match="own error") as caught:
            await client.call("finance.raises")
        assert caught.value.error.code == -32042  # type: ignore[attr-defined]
        assert caught.value.error.data == {"why": ["because"]}  # type: ignore[attr-defined]


@both_eras
@both_upstreams
async def test_the_callers_meta_and_trace_go_on_and_his_credentials_do_not(era: str, handshake: bool) -> None:
    headers = {
        "Authorization": "Bearer CALLERS-OWN",
        "Cookie": "a=CALLERS-OWN",
        "X-Mcpfusion-Delegation": "CALLERS-OWN",
        "X-Api-Key": "CALLERS-OWN",
        "Mcp-Session-Something": "CALLERS-OWN",
    }
    async with (
        fronted(specialist(), handshake=handshake) as (url, front),
        gateway_to({"finance": url}) as (gate, _),
        http_client(gate, era, headers=headers) as raw,
    ):
        client = Talk(raw)
        await client.route("finance")
        meta: Any = {
            "traceparent": TRACE,
            "own/key": {"a": 1},
            "x-mcpfusion-delegation": "CALLERS-OWN",
            "io.mcpfusion/x": "CALLERS-OWN",
        }
        answer = await client.call("finance.pay.look", meta=meta)
        seen = answer.structured_content
        assert seen["meta"]["own/key"] == {"a": 1}
        assert seen["traceparent"] == TRACE
        assert seen["meta"]["traceparent"] == TRACE
        assert seen["headers"]["traceparent"] == TRACE
        for name, sent, body in front.requests:
            assert "CALLERS-OWN" not in f"{name} {sent} {body}"
            assert "authorization" not in sent


@both_eras
async def test_the_trace_of_a_header_goes_on_and_rubbish_does_not(era: str) -> None:
    for sent, expected in ((TRACE, TRACE), ("rubbish", None)):
        async with (
            fronted(specialist()) as (url, _),
            gateway_to({"finance": url}) as (gate, _),
            http_client(gate, era, headers={"traceparent": sent}) as raw,
        ):
            client = Talk(raw)
            await client.route("finance")
            assert (await client.call("finance.pay.look")).structured_content["traceparent"] == expected
            bad: Any = {"traceparent": "00-x\r\nevil: 1"}
            answer = await client.call("finance.pay.look", meta=bad)
            assert not answer.is_error
            assert "evil" not in answer.structured_content["headers"]


@both_eras
@all_kinds
async def test_progress_of_two_callers_at_once_does_not_mix(era: str, kind: str) -> None:
    async with (
        reached(specialist(), kind) as entry,
        gateway_to({"finance": entry}) as (gate, _),
        talk(gate, era) as one,
        talk(gate, era) as other,
    ):
        heard: dict[str, list[Any]] = {}

        async def count(client: Talk, label: str) -> None:
            async def progress(done: float, total: float | None, message: str | None) -> None:
                heard.setdefault(label, []).append((done, total, message))

            arguments = {"label": label, "steps": 5}
            answer = await client.call("finance.pay.count", arguments, progress_callback=progress)
            assert text_of(answer) == label

        await one.route("finance")
        await other.route("finance")
        async with anyio.create_task_group() as group:
            for client, label in ((one, "a"), (one, "b"), (other, "c"), (other, "d")):
                group.start_soon(count, client, label)
        await until(lambda: all(len(heard.get(label, ())) == 5 for label in "abcd"))
        for label, steps in heard.items():
            assert steps == [(n, 5, f"{label} {n}") for n in range(1, 6)]


@both_eras
@all_kinds
async def test_cancelling_a_call_cancels_it_at_the_specialist(era: str, kind: str) -> None:
    rich = Rich()
    async with (
        reached(rich, kind) as entry,
        gateway_to({"finance": entry}) as (gate, gateway),
        talk(gate, era) as client,
    ):
        await client.route("finance")
        async with anyio.create_task_group() as group:
            group.start_soon(client.call, "finance.hangs")
            await until(rich.running.is_set)
            group.cancel_scope.cancel()
        await until(rich.cancelled.is_set)
        assert text_of(await client.call("finance.rich"))  # the connection is none the worse
        await client.back()
        assert gateway.session_count == 0


def asking() -> Any:
    """Return a specialist that asks the person at the client."""
    from pydantic import BaseModel

    class Sure(BaseModel):
        sure: bool

    from mcpfusion.swarm import require_gateway_clearance

    f = Fusion("finance")

    @f.action("pay.ask").describe("Ask first").handle
    async def ask(ctx: Context) -> str:
        answer = await ctx.elicit("Are you sure?", Sure)
        if answer.action != "accept":
            return f"not done: {answer.action}"
        second = await ctx.elicit("Really?", Sure)
        return f"{answer.data} {second.data}"

    return f.server(middleware=[require_gateway_clearance(SECRET, scope="finance")])


@both_eras
@all_kinds
async def test_a_question_of_the_specialist_is_answered_through_the_gateway(era: str, kind: str) -> None:
    asked: list[str] = []

    async def answer(context: Any, params: Any) -> types.ElicitResult:
        asked.append(params.message)
        return types.ElicitResult(action="accept", content={"sure": len(asked) == 1})

    async with (
        reached(asking(), kind) as entry,
        gateway_to({"finance": entry}) as (gate, _),
        talk(gate, era, elicitation_callback=answer) as client,
    ):
        await client.route("finance")
        result = await client.call("finance.pay.ask")
        if kind in ("sessions", "old sse") and era != "legacy":
            # It asks in the middle of a call, where a client without a session cannot be asked: nobody says yes.
            assert text_of(result) == "not done: cancel"
            return
        assert asked == ["Are you sure?", "Really?"]
        assert text_of(result) == "sure=True sure=False"


@both_eras
@all_kinds
async def test_a_client_that_cannot_be_asked_is_not(era: str, kind: str) -> None:
    async with (
        reached(asking(), kind) as entry,
        gateway_to({"finance": entry}) as (gate, _),
        talk(gate, era) as client,
    ):
        await client.route("finance")
        result = await client.call("finance.pay.ask")
        assert result.is_error or "not done" in text_of(result)
