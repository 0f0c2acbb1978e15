"""An access callable that cannot say whose workflow it is: refused, logged, and nothing internal is told."""

import logging
from collections.abc import Callable
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from mcpfusion import Identity
from tests.gate_identity.users import APPROVAL, anonymous, approvals, as_user, authenticated, code
from tests.support.serving import ERAS, http_client

pytestmark = pytest.mark.anyio

SECRET = "s3cr3t-tenant-table"


def raises(identity: Identity) -> str:
    raise KeyError(SECRET)


def returns_none(identity: Identity) -> Any:
    return None


def returns_bytes(identity: Identity) -> Any:
    return SECRET.encode()


def returns_what_no_store_can_keep(identity: Identity) -> str:
    return SECRET + "\ud800"


FAULTS = [raises, returns_none, returns_bytes, returns_what_no_store_can_keep]


def messages(error: BaseException) -> str:
    return repr(error) + str(getattr(error, "error", ""))


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("access", FAULTS)
async def test_no_scope_no_call(
    mode: str, access: Callable[[Identity], str], caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []
    async with (
        authenticated(approvals(ran), state_handle_key="id", access=access) as url,
        as_user(url, mode, "alice") as alice,
    ):
        result = await alice.call_tool("approval.submit", {"id": "A-1"})
        assert code(result) == "FORBIDDEN"
        for word in (SECRET, "KeyError", "callable", "access", "Traceback", "NoneType", "bytes"):
            assert word not in result.model_dump_json()
        assert ran == []
        # What is not bound has nothing to do with it.
        request = types.CallToolRequest(params=types.CallToolRequestParams(name="approval.help"))
        assert not (await alice.session.send_request(request, types.CallToolResult)).is_error
    assert [r for r in caplog.records if r.levelno >= logging.ERROR and "scope" in r.getMessage()]


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("access", FAULTS)
async def test_no_scope_no_menu(
    mode: str, access: Callable[[Identity], str], caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        authenticated(approvals(), state_handle_key="id", access=access) as url,
        as_user(url, mode, "alice") as alice,
    ):
        with pytest.raises(MCPError) as refused:
            await alice.list_tools()
        assert refused.value.error.code == -32603
        for word in (SECRET, "KeyError", "callable", "access", "NoneType", "bytes"):
            assert word not in messages(refused.value)
    assert [r for r in caplog.records if r.name.startswith("mcpfusion") and r.levelno >= logging.ERROR]


@pytest.mark.parametrize("access", FAULTS)
async def test_no_scope_no_stream(access: Callable[[Identity], str], caplog: pytest.LogCaptureFixture) -> None:
    async with (
        authenticated(approvals(), state_handle_key="id", access=access) as url,
        as_user(url, "2026-07-28", "alice") as alice,
    ):
        with pytest.raises(MCPError) as refused, anyio.fail_after(20):
            async with alice.listen(tools_list_changed=True):
                pass
        for word in (SECRET, "KeyError", "callable", "access", "NoneType", "bytes"):
            assert word not in messages(refused.value)
    assert [r for r in caplog.records if r.name.startswith("mcpfusion") and r.levelno >= logging.ERROR]


def per_tenant(identity: Identity) -> str:
    return identity.headers["x-tenant"]


async def test_an_anonymous_caller_without_a_tenant_is_refused_where_the_tenant_says_whose_it_is() -> None:
    async with anonymous(approvals(), state_handle_key="id", access=per_tenant) as url:
        async with http_client(url, "2026-07-28") as nobody:
            assert code(await nobody.call_tool("approval.submit", {"id": "A-1"})) == "FORBIDDEN"
        async with http_client(url, "2026-07-28", headers={"X-Tenant": "acme"}) as somebody:
            assert not (await somebody.call_tool("approval.submit", {"id": "A-1"})).is_error


async def waits(identity: Identity) -> str:
    return "acme"


class Waits:
    async def __call__(self, identity: Identity) -> str:
        return "acme"


@pytest.mark.parametrize("access", ["Owner", "principal", "", None, 7, waits, Waits()])
def test_an_access_that_is_none_of_the_three_is_refused_before_anything_runs(access: Any) -> None:
    f = approvals()
    with pytest.raises((ValueError, TypeError), match="access"):
        f.server(fsm=f.fsm(APPROVAL), access=access)
