"""A store that raises or hangs: nothing runs unadmitted, nothing runs twice, and the cause is for the log alone."""

import logging
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from mcpfusion import Fusion, StateMachineGate
from mcpfusion.gate import operator, passage, workflows
from mcpfusion.stores.protocol import Workflow
from tests.gate.faults import FOREVER, HOWS, SECRET, FaultyStore, How
from tests.gate.payments import CONFIG
from tests.support.serving import ERAS

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflows, "STORE_TIMEOUT", 0.1)
    monkeypatch.setattr(workflows, "PATIENCE", 0.2)


class Shop:
    """A server on a faulty store, its clock, and how often its handler ran."""

    def __init__(self, handle_key: str | None = "id", margin: float = 5, **capture: Any) -> None:
        self.store = FaultyStore()
        self.runs: list[str] = []
        self.fails = False
        self.now = 1000.0
        f = Fusion("shop")

        @f.action("payment.capture", bind_state=("due", "PAY"), **capture).handle
        async def payment_capture(note: str = "") -> dict:
            if self.fails:
                raise ValueError
            self.runs.append(note)
            return {"note": note}

        self.server = f.server(
            fsm=f.fsm(CONFIG), state_handle_key=handle_key, store=self.store,
            clock=lambda: self.now, conflict_wait=0.05, time_limit=30, lease_margin=margin,
        )  # fmt: skip

    async def call(self, mode: str) -> Any:
        async with Client(self.server.lowlevel, mode=mode) as client:
            return (await client.call_tool("payment.capture", {"id": "p1", "note": "n"})).structured_content

    async def standing(self) -> tuple[str, int]:
        self.store.recover()
        record = await self.store.read("", "p1")
        return record.state if record else "due", len(await self.store.history("", "p1"))


def check_said(answer: Any, code: str, caplog: pytest.LogCaptureFixture, how: How) -> None:
    """The client is told a code and nothing of the cause; the log has the cause."""
    assert answer["code"] == code
    assert "hunter2" not in str(answer)
    assert "TimeoutError" not in str(answer)
    logged = "\n".join(record.exc_text or "" for record in caplog.records if record.levelno >= logging.ERROR)
    assert (SECRET if how.startswith("raise") else "TimeoutError") in logged


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("how", HOWS)
async def test_a_state_that_cannot_be_read_admits_nothing(
    mode: str, how: How, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop()
    shop.store.fail("read", how, FOREVER)
    check_said(await shop.call(mode), "STORE_UNAVAILABLE", caplog, how)
    assert shop.runs == []
    shop.store.recover()
    assert await shop.call(mode) == {"note": "n"}
    assert shop.runs == ["n"]


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("how", HOWS)
async def test_a_claim_that_fails_runs_nothing_and_is_taken_back_where_it_was_written(
    mode: str, how: How, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop()
    shop.store.fail("claim", how)
    check_said(await shop.call(mode), "STORE_UNAVAILABLE", caplog, how)
    assert shop.runs == []
    assert await shop.call(mode) == {"note": "n"}
    assert shop.runs == ["n"]
    assert await shop.standing() == ("paid", 1)


@pytest.mark.parametrize("on_doubt", ["hold", "retry"])
@pytest.mark.parametrize("how", ["raise after", "hang after"])
async def test_a_claim_that_was_written_and_cannot_be_taken_back_ends_with_its_lease(
    how: How, on_doubt: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop(on_doubt=on_doubt)
    shop.store.fail("claim", how)
    shop.store.fail("release", "raise before", FOREVER)
    check_said(await shop.call(ERAS[1]), "STORE_UNAVAILABLE", caplog, how)
    shop.store.recover()
    assert (await shop.call(ERAS[1]))["code"] == "CONFLICT"
    shop.now += 36
    answer = await shop.call(ERAS[1])
    assert answer.get("code") == ("IN_DOUBT" if on_doubt == "hold" else None)
    assert shop.runs == ([] if on_doubt == "hold" else ["n"])


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("how", HOWS)
async def test_a_commit_that_fails_for_a_while_is_written_once(how: How, times: int, mode: str) -> None:
    shop = Shop()
    shop.store.fail("commit", how, times)
    assert await shop.call(mode) == {"note": "n"}
    assert (await shop.call(mode))["code"] == "ALREADY_DONE"
    assert shop.runs == ["n"]
    assert await shop.standing() == ("paid", 1)


@pytest.mark.parametrize("fails", [False, True], ids=["commit", "release"])
async def test_the_end_of_a_step_is_written_when_the_store_is_back_soon(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workflows, "PATIENCE", 5)
    shop = Shop()
    point = "release" if fails else "commit"
    shop.store.fail(point, "raise before", workflows.ATTEMPTS + 1)
    shop.fails = fails
    answer = await shop.call(ERAS[1])
    assert shop.store.asked.count(point) == workflows.ATTEMPTS + 2
    assert answer.get("code") == ("INTERNAL_ERROR" if fails else None)
    shop.fails = False
    assert (await shop.call(ERAS[1])).get("code") == (None if fails else "ALREADY_DONE")
    assert await shop.standing() == ("paid", 1)


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("how", ["raise before", "hang before"])
async def test_a_commit_that_cannot_be_written_keeps_the_claim_and_says_so(
    how: How, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop()
    shop.store.fail("commit", how, FOREVER)
    answer = await shop.call(mode)
    check_said(answer, "IN_DOUBT", caplog, how)
    assert "could not be recorded" in answer["message"]
    shop.store.recover()
    assert (await shop.call(mode))["code"] == "CONFLICT"
    shop.now += 36
    assert (await shop.call(mode))["code"] == "IN_DOUBT"
    assert shop.runs == ["n"]
    assert await shop.standing() == ("due", 0)


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("how", ["raise after", "hang after"])
async def test_a_commit_that_was_written_although_every_write_failed_counts(how: How, mode: str) -> None:
    shop = Shop()
    shop.store.fail("commit", how, FOREVER)
    assert await shop.call(mode) == {"note": "n"}
    assert (await shop.call(mode))["code"] == "ALREADY_DONE"
    assert shop.runs == ["n"]
    assert await shop.standing() == ("paid", 1)


@pytest.mark.parametrize("how", ["raise after", "hang after"])
async def test_a_commit_that_was_written_while_nothing_could_be_read_is_not_repeated(how: How) -> None:
    shop = Shop()

    read = shop.store.read

    async def read_until_the_commit(scope: str, handle: str) -> Any:
        if "commit" in shop.store.asked:
            raise RuntimeError(SECRET)
        return await read(scope, handle)

    shop.store.fail("commit", how, FOREVER)
    shop.store.read = read_until_the_commit
    assert (await shop.call(ERAS[1]))["code"] == "IN_DOUBT"
    shop.store.read = read
    shop.store.recover()
    assert (await shop.call(ERAS[1]))["code"] == "ALREADY_DONE"
    assert shop.runs == ["n"]


async def test_a_commit_counts_that_others_went_on_from_before_it_was_looked_for() -> None:
    shop = Shop()
    read = shop.store.read

    async def read_late(scope: str, handle: str) -> Any:
        record = await read(scope, handle)
        if "commit" not in shop.store.asked or record.claim:
            return record
        shop.store.read = read
        initial = StateMachineGate(CONFIG).machine.initial().to_json()
        return await operator.reset(shop.store, record, snapshot=initial, operator="ann", now=shop.now)

    shop.store.fail("commit", "raise after")
    shop.store.read = read_late
    assert await shop.call(ERAS[1]) == {"note": "n"}
    assert [step.outcome for step in await shop.store.history("", "p1")] == ["committed", "reset"]


async def test_a_claim_that_was_slow_to_write_is_given_back_because_its_lease_would_end_too_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(passage, "_SLOW_CLAIM", 0.05)
    shop = Shop(margin=0.1)
    write = shop.store.write

    async def write_slowly(workflow: Workflow, **of: Any) -> bool:
        written = await write(workflow, **of)
        if workflow.claim is not None:
            await anyio.sleep(0.08)
        return written

    shop.store.write = write_slowly
    assert (await shop.call(ERAS[1]))["code"] == "STORE_UNAVAILABLE"
    assert shop.runs == []
    assert (await shop.store.read("", "p1")).claim is None
    shop.store.write = write
    assert await shop.call(ERAS[1]) == {"note": "n"}


@pytest.mark.parametrize("how", HOWS)
async def test_a_release_that_fails_leaves_the_handlers_answer_as_it_is(how: How) -> None:
    shop = Shop()
    f = Fusion("refusing")

    @f.action("payment.capture", bind_state=("due", "PAY")).handle
    async def payment_capture(note: str) -> dict:
        raise ValueError(note)

    shop.server = f.server(
        fsm=f.fsm(CONFIG), state_handle_key="id", store=shop.store, clock=lambda: shop.now, conflict_wait=0.05
    )
    shop.store.fail("release", how, FOREVER)
    assert (await shop.call(ERAS[0]))["code"] == "INTERNAL_ERROR"
    shop.store.recover()
    free = how.endswith("after")
    assert (await shop.call(ERAS[0]))["code"] == ("INTERNAL_ERROR" if free else "CONFLICT")


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("handle_key", ["id", None])
async def test_a_menu_that_cannot_be_worked_out_shows_what_is_not_bound(
    handle_key: str | None, how: How, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop(handle_key)
    shop.store.fail("read", how, FOREVER)
    shop.store.fail("states_in_use", how, FOREVER)
    async with Client(shop.server.lowlevel, mode=mode) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == []
        logged = "\n".join(record.exc_text or "" for record in caplog.records if record.levelno >= logging.ERROR)
        assert logged
        shop.store.recover()
        assert [tool.name for tool in (await client.list_tools()).tools] == ["payment.capture"]


@pytest.mark.parametrize("how", HOWS)
async def test_a_stream_that_cannot_be_opened_is_an_error_without_a_cause(
    how: How, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop()
    shop.store.fail("states_in_use", how, FOREVER)
    async with Client(shop.server.lowlevel, mode=ERAS[1]) as client:
        with pytest.raises(MCPError) as raised:
            async with client.listen(tools_list_changed=True):
                raise AssertionError("the stream was opened")
        check_said({"code": "", "said": str(raised.value)}, "", caplog, how)
