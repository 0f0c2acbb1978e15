"""Results over the wire: structured content that the client validates, content blocks, and what does not fit."""

import base64
import logging
from dataclasses import dataclass
from typing import Any, TypedDict

import mcp_types as types
import pytest
from pydantic import BaseModel

from mcpfusion import Context, Fusion, ToolResult
from tests.e2e.serving import over_http
from tests.support.serving import ERAS, sdk_client

pytestmark = pytest.mark.anyio

PIXEL = base64.b64encode(b"\x89PNG\r\n").decode()


class Model(BaseModel):
    id: str
    parts: list["Model"] = []


@dataclass
class Data:
    id: str
    size: int = 3


class Typed(TypedDict):
    id: str


def structured() -> dict[str, tuple[Any, Any, Any]]:
    """Return handlers by name, with what each must give as structured content."""

    async def model() -> Model:
        return Model(id="m", parts=[Model(id="n")])

    async def data() -> Data:
        return Data("d")

    async def typed() -> Typed:
        return {"id": "t"}

    async def mapping() -> dict[str, int]:
        return {"a": 1}

    async def plain() -> dict:  # type: ignore[type-arg]
        return {"b": [1, None]}

    async def items() -> list[Data]:
        return [Data("x"), Data("y", 4)]

    def number() -> int:
        return 42

    def flag() -> bool:
        return False

    def maybe() -> Model | None:
        return None

    return {
        "model": (model, {"id": "m", "parts": [{"id": "n", "parts": []}]}, True),
        "data": (data, {"id": "d", "size": 3}, True),
        "typed": (typed, {"id": "t"}, True),
        "mapping": (mapping, {"a": 1}, True),
        "plain": (plain, {"b": [1, None]}, True),
        "items": (items, {"result": [{"id": "x", "size": 3}, {"id": "y", "size": 4}]}, True),
        "number": (number, {"result": 42}, True),
        "flag": (flag, {"result": False}, True),
        "maybe": (maybe, {"result": None}, True),
    }


@pytest.mark.parametrize("mode", ERAS)
async def test_structured_content_fits_the_schema_that_the_client_has(mode: str) -> None:
    f = Fusion("results")
    for name, (handler, _, _) in structured().items():
        f.query(f"give.{name}").handle(handler)
    async with over_http(f, mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        for name, (_, expected, _) in structured().items():
            # The client raises where the content does not fit the schema that it was listed with.
            result = await client.call_tool(f"give.{name}")
            assert not result.is_error, name
            assert result.structured_content == expected, name
            assert tools[f"give.{name}"].output_schema["type"] == "object", name
            assert types.TextContent.model_validate(result.content[0].model_dump()).text, name


def blocks() -> list[Any]:
    contents = types.TextResourceContents(uri="memo://1", text="hello", mime_type="text/plain")
    return [
        types.TextContent(text="text"),
        types.ImageContent(data=PIXEL, mime_type="image/png"),
        types.AudioContent(data=PIXEL, mime_type="audio/wav", annotations=types.Annotations(priority=0.5)),
        types.ResourceLink(uri="https://example.com/x", name="x", title="X"),
        types.EmbeddedResource(resource=contents),
    ]


@pytest.mark.parametrize("mode", ERAS)
async def test_content_blocks_arrive_as_they_were_made(mode: str) -> None:
    f = Fusion("blocks")

    @f.query("give.all").handle
    async def all_() -> list[types.ContentBlock]:
        return blocks()

    @f.query("give.dicts").handle
    async def dicts() -> Any:
        return [{"type": "image", "data": PIXEL, "mimeType": "image/png"}, "and text"]

    @f.query("give.one").handle
    def one() -> types.ImageContent:
        return types.ImageContent(data=PIXEL, mime_type="image/png")

    @f.query("give.text").handle
    def text() -> str:
        return "une ligne\n\u2028 🧾"

    @f.query("give.nothing").handle
    def nothing() -> None:
        return None

    @f.query("give.whole").handle
    def whole() -> ToolResult:
        return ToolResult(
            [{"type": "text", "text": "half"}], {"half": True}, is_error=True, meta={"example.com/x": 1}
        )

    async with over_http(f, mode) as client:
        assert (await client.call_tool("give.all")).content == blocks()
        kinds = [block.type for block in (await client.call_tool("give.dicts")).content]
        assert kinds == ["image", "text"]
        assert (await client.call_tool("give.one")).content == [blocks()[1]]
        text_result = await client.call_tool("give.text")
        assert (text_result.content[0].text, text_result.structured_content) == ("une ligne\n\u2028 🧾", None)
        assert (await client.call_tool("give.nothing")).content == []
        result = await client.call_tool("give.whole")
        assert (result.is_error, result.structured_content) == (True, {"half": True})
        assert result.meta["example.com/x"] == 1


@pytest.mark.parametrize("mode", ERAS)
async def test_hints_titles_icons_meta_and_tags_are_on_the_wire(mode: str) -> None:
    f = Fusion("shown", version="3.2.1", title="A title", instructions="Read me")
    icon = {"src": "https://example.com/i.png", "mimeType": "image/png", "sizes": ["48x48"]}
    f.query("show.query").handle(lambda: "q")
    f.mutation("show.mutation").annotations(idempotent=True, destructive=False).handle(lambda: "m")
    f.action("show.action").handle(lambda: "a")
    f.action(
        "show.all", title="Show all", icons=[icon], meta={"example.com/k": {"v": 1}}, tags=("b", "a"), describe="All"
    ).handle(lambda: "all")
    async with over_http(f, mode if mode == "legacy" else "auto") as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools["show.query"].annotations.model_dump(exclude_none=True) == {"read_only_hint": True}
        assert tools["show.mutation"].annotations.model_dump(exclude_none=True) == {
            "read_only_hint": False,
            "destructive_hint": False,
            "idempotent_hint": True,
        }
        assert tools["show.action"].annotations is None
        shown = tools["show.all"]
        assert (shown.title, shown.description) == ("Show all", "All")
        assert shown.icons[0].model_dump(by_alias=True, exclude_none=True) == icon
        assert shown.meta == {"io.mcpfusion/tags": ["a", "b"], "example.com/k": {"v": 1}}
        assert client.server_info is not None
        assert (client.server_info.name, client.server_info.version) == ("shown", "3.2.1")
        assert client.instructions == "Read me"


MACHINE = {"id": "m", "initial": "a", "states": {"a": {"on": {"GO": "b"}}, "b": {}}}


def unfit() -> dict[str, Any]:
    async def as_int() -> int:
        return "not a number"  # type: ignore[return-value]

    async def as_model() -> Model:
        return {"id": 7}  # type: ignore[return-value]

    async def as_text() -> str:
        return {"a": 1}  # type: ignore[return-value]

    async def as_block() -> types.ImageContent:
        return {"type": "image"}  # type: ignore[return-value]

    async def nan() -> float:
        return float("nan")

    async def opaque() -> Any:
        return object()

    async def raw() -> Any:
        return b"bytes"

    def stream() -> Any:
        return (n for n in range(3))

    async def deep() -> Any:
        value: Any = 0
        for _ in range(5000):
            value = [value]
        return value

    return {
        "int": as_int,
        "model": as_model,
        "text": as_text,
        "block": as_block,
        "nan": nan,
        "opaque": opaque,
        "raw": raw,
        "stream": stream,
        "deep": deep,
    }


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("name", unfit())
async def test_a_result_that_does_not_fit_is_not_shown_and_the_step_counts(
    mode: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    f = Fusion("unfit")
    f.mutation("step.go").bind_state("a", "GO").handle(unfit()[name])
    server = f.server(fsm=f.fsm(MACHINE))
    async with sdk_client(server.lowlevel, mode) as client:
        result = await client.call_tool("step.go")
        assert result.is_error
        assert result.structured_content["code"] == "RESULT_INVALID"
        assert "carried out" in result.content[0].text
        for secret in ("not a number", "bytes", "object at", "Traceback", "NaN", "nan"):
            assert secret not in result.model_dump_json(), secret
        assert result.meta["io.mcpfusion/workflow"]["state"] == "b"
        assert (await client.call_tool("step.go")).structured_content["code"] == "ALREADY_DONE"
    logged = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.exc_info is not None and "step.go" in record.getMessage() for record in logged] == [True]


@pytest.mark.parametrize("mode", ERAS)
async def test_a_result_too_large_to_keep_arrives_and_counts(mode: str) -> None:
    f = Fusion("large")

    @f.mutation("step.go").bind_state("a", "GO").keep_result(60).handle
    async def go(ctx: Context) -> list[str]:
        return ["x" * 1000] * 400

    async with over_http(f, mode, fsm=f.fsm(MACHINE), single_tenant=True) as client:
        result = await client.call_tool("step.go")
        assert len(result.structured_content["result"]) == 400
        again = await client.call_tool("step.go")
        assert again.structured_content["code"] == "ALREADY_DONE"
