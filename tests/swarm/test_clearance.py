"""Clearance: nobody sees or calls a specialist's tools without a gateway's delegation."""

import sys
from typing import Any

import mcp_types as types
import pytest

from mcpfusion.swarm import mint_delegation_token, require_gateway_clearance
from mcpfusion.swarm.tokens import Act
from tests.support.serving import ERAS, call, http_client, post, sdk_client
from tests.swarm.parts import PARTS, ROOT, SECRET, code_of, served, specialist, text_of

pytestmark = pytest.mark.anyio
both_eras = pytest.mark.parametrize("era", ERAS)

HEADER = "x-mcpfusion-delegation"
LIST = Act.of("tools/list", {})


async def token(scope: str = "finance", **options: Any) -> str:
    return await mint_delegation_token(scope, 60, SECRET, "triage", {"intent": "x"}, single_use=True, **options)


@both_eras
async def test_direct_access_without_a_gateway_is_forbidden_before_anything_else(era: str) -> None:
    server = specialist()
    async with served(server) as (url,), sdk_client(url, era) as client:
        with pytest.raises(Exception, match="FORBIDDEN"):
            await client.list_tools()
        # Arguments that do not fit, and a tool that there is not, are answered alike: nothing is given away.
        for tool, arguments in (
            ("pay.refund", {"amount": 1}),
            ("pay.refund", {"amount": "rubbish"}),
            ("pay.refund", {}),
        ):
            result = await client.call_tool(tool, arguments)
            assert code_of(result) == "FORBIDDEN"
            assert "amount" not in str(result)
            assert "MISSING" not in str(result)
        assert server.ran == []


ONE = ("pay.count", {"label": "done", "steps": 0})


async def send(client: Any, meta: Any = None) -> types.CallToolResult:
    """Call `ONE` and nothing else: the SDK's own method looks at the list afterwards, with the same token."""
    params = types.CallToolRequestParams(name=ONE[0], arguments=ONE[1], _meta=meta)
    return await client.session.send_request(types.CallToolRequest(params=params), types.CallToolResult)


@both_eras
@pytest.mark.parametrize("name", [HEADER, HEADER.upper(), "X-McpFusion-Delegation"])
async def test_the_header_is_taken_in_any_case(era: str, name: str) -> None:
    async with served(specialist()) as (url,):
        async with http_client(url, era, headers={name: await token(act=Act.of(*ONE))}) as client:
            assert text_of(await send(client)) == "done"
            # The same token again: replayed. The caller is told nothing of why.
            again = await send(client)
            assert code_of(again) == "FORBIDDEN"
            assert "REPLAYED" not in str(again)
        async with http_client(url, era, headers={name: await token(act=LIST)}) as client:
            assert len((await client.list_tools()).tools) == 4


@both_eras
async def test_a_token_for_one_call_opens_no_other(era: str) -> None:
    server = specialist()
    async with served(server) as (url,):
        for act in (LIST, Act.of("pay.look", {}), Act.of("pay.refund", {"amount": 2})):
            async with http_client(url, era, headers={HEADER: await token(act=act)}) as client:
                assert code_of(await client.call_tool("pay.refund", {"amount": 1})) == "FORBIDDEN"
        refund = await token(act=Act.of("pay.refund", {"amount": 1}))
        async with http_client(url, era, headers={HEADER: refund}) as client:
            with pytest.raises(Exception, match="FORBIDDEN"):
                await client.list_tools()
    assert server.ran == []


@both_eras
async def test_tokens_for_another_specialist_or_of_another_secret_open_nothing(era: str) -> None:
    server = specialist()
    forged = await mint_delegation_token("finance", 60, "another-secret-0000000000000000000000")
    async with served(server) as (url,):
        for wrong in (await token("legal"), forged, "rubbish", "a.b", "." * 100, ""):
            async with http_client(url, era, headers={HEADER: wrong}) as client:
                assert code_of(await client.call_tool("pay.refund", {"amount": 1})) == "FORBIDDEN"
                with pytest.raises(Exception, match="FORBIDDEN"):
                    await client.list_tools()
    assert server.ran == []


async def test_a_raw_request_without_the_handshake_is_no_way_round() -> None:
    server = specialist()
    async with served(server) as (url,):
        answer = await post(url, call("pay.refund", {"amount": 1}), {"mcp-protocol-version": "2026-07-28"})
        assert "amount" not in answer.text.replace('"code"', "")
    assert server.ran == []


@both_eras
async def test_over_stdio_the_token_is_in_meta(era: str) -> None:
    from mcp import StdioServerParameters

    command = ["env", f"PYTHONPATH={ROOT}", sys.executable, str(PARTS), "stdio", "finance"]
    async with sdk_client(StdioServerParameters(command=command[0], args=command[1:]), era) as client:
        assert code_of(await client.call_tool("pay.refund", {"amount": 1})) == "FORBIDDEN"
        with pytest.raises(Exception, match="FORBIDDEN"):
            await client.list_tools()
        meta: Any = {HEADER: await token(act=Act.of(*ONE))}
        assert text_of(await send(client, meta)) == "done"
        assert code_of(await send(client, meta)) == "FORBIDDEN"


@both_eras
async def test_the_list_can_be_left_open(era: str) -> None:
    from mcpfusion import Fusion

    f = Fusion("finance")

    @f.action("pay.refund").describe("Refund").handle
    async def refund() -> str:
        return "done"

    server = f.server(middleware=[require_gateway_clearance(SECRET, scope="finance", covers_list=False)])
    async with served(server) as (url,), sdk_client(url, era) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["pay.refund"]
        assert code_of(await client.call_tool("pay.refund", {})) == "FORBIDDEN"


async def test_a_store_that_fails_lets_nobody_in_and_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        async def add(self, jti: str, expires_at: float) -> bool:
            raise OSError("/secret/path of the store")

    from mcpfusion import Fusion

    f = Fusion("finance")

    @f.action("pay.refund").describe("Refund").handle
    async def refund() -> str:
        return "done"

    server = f.server(middleware=[require_gateway_clearance(SECRET, scope="finance", replays=Broken())])
    async with served(server) as (url,), http_client(url, "legacy", headers={HEADER: await token()}) as client:
        result = await client.call_tool("pay.refund", {})
        assert code_of(result) == "FORBIDDEN"
        assert "/secret" not in str(result)
        assert "/secret" in caplog.text
