"""Arguments as they come over the wire: the schema a client sees, and the words for each bad field."""

from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, Field

from mcpfusion import Fusion
from tests.e2e.serving import over_http
from tests.support.serving import ERAS, http_app, post

pytestmark = pytest.mark.anyio


class Line(BaseModel):
    sku: str
    count: int = Field(gt=0)


class Speed(Enum):
    SLOW = "slow"
    FAST = "fast"


def orders(got: list[Any]) -> Fusion:
    f = Fusion("orders")

    @f.action("order.create").describe("Create an order").handle
    async def create(
        customer: Annotated[str, Field(description="Who orders", min_length=2)],
        lines: list[Line],
        due: date,
        speed: Speed = Speed.SLOW,
        kind: Literal["gift", "own"] = "own",
        note: str | None = None,
        schema: dict[str, int] | None = None,
    ) -> str:
        got.append((customer, lines, due, speed, kind, note, schema))
        return "created"

    @f.action("order.free").handle
    def free(anything, more=7):  # type: ignore[no-untyped-def]
        got.append((anything, more))
        return "ok"

    @f.action("order.none").handle
    def none() -> str:
        return "none"

    return f


GOOD: dict[str, Any] = {"customer": "Ann", "lines": [{"sku": "a", "count": 2}], "due": "2026-03-01"}


@pytest.mark.parametrize("mode", ERAS)
async def test_a_client_sees_the_schema_and_the_handler_gets_python_values(mode: str) -> None:
    got: list[Any] = []
    async with over_http(orders(got), mode) as client:
        tools = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}
        schema = tools["order.create"]
        assert schema["properties"]["customer"] == {"description": "Who orders", "minLength": 2, "type": "string"}
        assert schema["required"] == ["customer", "lines", "due"]
        assert schema["additionalProperties"] is False
        assert tools["order.none"] == {"type": "object", "properties": {}, "additionalProperties": False}
        await client.call_tool("order.create", {**GOOD, "speed": "fast", "schema": {"a": 1}})
        assert got.pop() == ("Ann", [Line(sku="a", count=2)], date(2026, 3, 1), Speed.FAST, "own", None, {"a": 1})
        await client.call_tool("order.free", {"anything": [None, {"x": 1.5}]})
        assert got.pop() == ([None, {"x": 1.5}], 7)
        assert not (await client.call_tool("order.none")).is_error
        assert not (await client.call_tool("order.none", {})).is_error


BAD: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "missing": ({}, {"customer": "a string", "lines": "an array", "due": "a value|a date|a string"}),
    "type": ({**GOOD, "lines": 7}, {"lines": "an array"}),
    "nested": ({**GOOD, "lines": [{"sku": "a", "count": "many"}]}, {"lines.0.count": "an integer"}),
    "limit": ({**GOOD, "lines": [{"sku": "a", "count": 0}]}, {"lines.0.count": "greater than 0"}),
    "choice": ({**GOOD, "kind": "loan"}, {"kind": "gift"}),
    "enum": ({**GOOD, "speed": "warp"}, {"speed": "slow"}),
    "date": ({**GOOD, "due": "soon"}, {"due": "a date"}),
    "unknown": ({**GOOD, "custmer": "x"}, {"custmer": "one of"}),
    "several": ({**GOOD, "kind": 1, "note": [], "extra": 0}, {"kind": "gift", "note": "a string", "extra": "one of"}),
    "null": ({**GOOD, "customer": None}, {"customer": "a string"}),
}


@pytest.mark.parametrize("mode", ERAS)
async def test_each_bad_field_is_named_with_what_was_expected(mode: str) -> None:
    got: list[Any] = []
    async with over_http(orders(got), mode) as client:
        for name, (arguments, expected) in BAD.items():
            result = await client.call_tool("order.create", arguments)
            assert result.is_error, name
            assert result.structured_content["code"] == "INVALID_ARGUMENTS", name
            fields = {field["field"]: field["expected"] for field in result.structured_content["fields"]}
            assert fields.keys() == expected.keys(), name
            text = result.content[0].text
            for field, words in expected.items():
                assert any(word in fields[field] for word in words.split("|")), (name, fields)
                assert f"{field}: expected" in text, (name, text)
        near = await client.call_tool("order.create", {**GOOD, "custmer": "x"})
        assert "did you mean 'customer'?" in near.content[0].text
    assert got == []


@pytest.mark.parametrize("mode", ERAS)
async def test_a_huge_bad_value_is_not_sent_back(mode: str) -> None:
    huge = "z" * 200_000
    async with over_http(orders([]), mode) as client:
        for arguments in (
            {**GOOD, "lines": huge},
            {**GOOD, "due": huge},
            {**GOOD, huge: 1},
            {**GOOD, "kind": huge},
            {**GOOD, "lines": [{"sku": "a", "count": huge[:2000]}] * 500},
        ):
            result = await client.call_tool("order.create", arguments)
            assert result.structured_content["code"] == "INVALID_ARGUMENTS"
            assert len(result.content[0].text) < 20_000
            assert "z" * 200 not in result.model_dump_json()


@pytest.mark.parametrize("arguments", [[], "x", 7, None, True])
async def test_arguments_that_are_no_object_are_refused_by_the_protocol(arguments: Any) -> None:
    f = orders([])
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": "order.none", "arguments": arguments, "_meta": meta}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "order.none"}
    async with http_app(f.server().asgi(host="127.0.0.1")) as origin:
        response = await post(f"{origin}/mcp", body, headers)
    answer = response.json()
    assert ("error" in answer) == (arguments is not None), answer
    assert "Traceback" not in response.text


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("name", ["order.nothing", "", "order.create ", "order_create", "x" * 10_000, "órder.create"])
async def test_an_unknown_tool_is_a_protocol_error(mode: str, name: str) -> None:
    async with over_http(orders([]), mode) as client:
        with pytest.raises(MCPError) as refused:
            await client.call_tool(name, {})
        assert refused.value.error.code == -32602
        assert len(refused.value.error.message) < 300
        assert not (await client.call_tool("order.none")).is_error
