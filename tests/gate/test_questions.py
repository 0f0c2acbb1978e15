"""Handlers that ask the person at the client: nothing is held while the person thinks, in both eras."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

import anyio
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_REQUEST, ElicitRequestParams, ElicitResult, ErrorData, InputRequiredResult

from mcpfusion import Context, Fusion, ToolError
from mcpfusion.stores.memory import MemoryStore
from tests.gate.payments import CONFIG
from tests.support.serving import ERAS, http_app

pytestmark = pytest.mark.anyio

Answerer = Callable[[Any, ElicitRequestParams], Awaitable[ElicitResult | ErrorData]]


@dataclass
class Sure:
    sure: bool
    how: Literal["card", "cash"] = "card"


class Shop:
    """A server whose `payment.capture` asks as many questions as it is told to, and then pays."""

    def __init__(self, questions: int = 1, **action: Any) -> None:
        self.store = MemoryStore()
        self.runs = 0
        self.paid: list[list[str]] = []
        self.keys: set[str] = set()
        f = Fusion("shop")

        async def ask(ctx: Context) -> list[str]:
            answers: list[str] = []
            for place in range(questions):
                answer = await ctx.elicit(f"Sure {place}?", Sure)
                if not answer.accepted or not answer.data.sure:
                    raise ToolError(f"not paid: {answer.action}", code="NOT_CONFIRMED")
                answers.append(answer.data.how)
            return answers

        def begin(ctx: Context) -> None:
            self.runs += 1
            self.keys.add(ctx.workflow.idempotency_key)

        @f.action("payment.capture", bind_state=("due", "PAY"), **action).handle
        async def capture(id: str, ctx: Context, note: str = "") -> dict:
            begin(ctx)
            self.paid.append(await ask(ctx))
            return {"paid": True}

        @f.action("payment.capture_in_group", bind_state=("due", "PAY")).handle
        async def capture_in_group(id: str, ctx: Context) -> dict:
            begin(ctx)
            async with anyio.create_task_group():
                self.paid.append(await ask(ctx))
            return {"paid": True}

        @f.action("payment.capture_in_thread", bind_state=("due", "PAY")).handle
        def capture_in_thread(id: str, ctx: Context) -> dict:
            begin(ctx)
            try:
                answers = anyio.from_thread.run(ask, ctx)
            except Exception as error:
                raise ToolError(f"caught {error!r}") from error
            self.paid.append(answers)
            return {"paid": True}

        @f.action("payment.void", bind_state=("due", "VOID")).handle
        async def void(id: str) -> dict:
            return {}

        self.server = f.server(fsm=f.fsm(CONFIG), state_handle_key="id", store=self.store, conflict_wait=0.05)

    async def call(self, mode: str, answer: Answerer | None, tool: str = "payment.capture", **arguments: Any) -> Any:
        async with Client(self.server.lowlevel, mode=mode, elicitation_callback=answer) as client:
            with anyio.fail_after(20):
                return await client.call_tool(tool, {"id": "p1", **arguments})

    async def standing(self) -> tuple[str, int, bool]:
        record = await self.store.read("", "p1")
        return record.state, len(await self.store.history("", "p1")), record.claim is not None


def answering(*results: ElicitResult | ErrorData) -> Answerer:
    """Answer the questions in their order; the last answer goes on being given."""
    given = 0

    async def answer(_: Any, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        nonlocal given
        assert params.message == f"Sure {given}?"
        given += 1
        return results[min(given, len(results)) - 1]

    return answer


YES = ElicitResult(action="accept", content={"sure": True, "how": "cash"})
TOOLS = ("payment.capture", "payment.capture_in_group", "payment.capture_in_thread")


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("questions", [1, 3])
async def test_the_step_is_carried_out_when_everything_is_answered(questions: int, tool: str, mode: str) -> None:
    shop = Shop(questions)
    result = await shop.call(mode, answering(YES), tool)
    assert result.structured_content == {"paid": True}
    assert shop.paid == [["cash"] * questions]
    assert shop.runs == questions + 1
    assert len(shop.keys) == 1
    assert await shop.standing() == ("paid", 1, False)


@pytest.mark.parametrize("mode", ERAS)
async def test_each_question_gets_its_own_answer(mode: str) -> None:
    shop = Shop(3)
    hows = ("card", "cash", "card")
    answers = [ElicitResult(action="accept", content={"sure": True, "how": how}) for how in hows]
    assert not (await shop.call(mode, answering(*answers))).is_error
    assert shop.paid == [list(hows)]


@pytest.mark.parametrize("mode", ERAS)
async def test_while_the_person_thinks_the_workflow_stands_unmoved_and_free(mode: str) -> None:
    shop = Shop()
    seen: list[Any] = []

    async def think(_: Any, params: ElicitRequestParams) -> ElicitResult:
        seen.append(await shop.standing())
        return YES

    assert not (await shop.call(mode, think)).is_error
    assert seen == [("due", 0, False)]


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("other", ["payment.void", "payment.capture"])
async def test_another_call_can_take_the_step_meanwhile(other: str, mode: str) -> None:
    shop = Shop()

    async def think(_: Any, params: ElicitRequestParams) -> ElicitResult:
        # With other arguments, so that ours is no repeat of it.
        arguments = {"note": "n"} if "capture" in other else {}
        assert not (await shop.call(mode, answering(YES), other, **arguments)).is_error
        return YES

    result = await shop.call(mode, think)
    assert result.structured_content["code"] == "FORBIDDEN"
    assert len(shop.paid) == (1 if "capture" in other else 0)
    assert (await shop.standing())[1:] == (1, False)


@pytest.mark.parametrize("mode", ERAS)
async def test_over_http_it_is_the_same(mode: str) -> None:
    shop = Shop(2)

    async def think(_: Any, params: ElicitRequestParams) -> ElicitResult:
        record = await shop.store.read("", "p1")
        assert (record.state, record.claim) == ("due", None)
        async with Client(url, mode=mode) as other:
            assert not (await other.call_tool("payment.void", {"id": f"p-{params.message}"})).is_error
        return YES

    async with http_app(shop.server.asgi(host="127.0.0.1")) as origin:
        url = f"{origin}/mcp"
        async with Client(url, mode=mode, elicitation_callback=think) as client:
            result = await client.call_tool("payment.capture", {"id": "p1"})
    assert result.structured_content == {"paid": True}
    assert shop.paid == [["cash", "cash"]]
    assert await shop.standing() == ("paid", 1, False)


REFUSALS = {
    "declined": (ElicitResult(action="decline"), "NOT_CONFIRMED"),
    "dismissed": (ElicitResult(action="cancel"), "NOT_CONFIRMED"),
    "no": (ElicitResult(action="accept", content={"sure": False}), "NOT_CONFIRMED"),
    "an answer of another type": (ElicitResult(action="accept", content={"sure": "perhaps"}), "INVALID_ANSWER"),
    "an answer out of the choices": (
        ElicitResult(action="accept", content={"sure": True, "how": "shells"}),
        "INVALID_ANSWER",
    ),
    "an empty answer": (ElicitResult(action="accept", content={}), "INVALID_ANSWER"),
    "no answer at all": (ElicitResult(action="accept"), "INVALID_ANSWER"),
}


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("case", REFUSALS.values(), ids=REFUSALS)
async def test_without_a_fitting_yes_nothing_moves_and_the_slot_is_free(case: Any, mode: str) -> None:
    answer, code = case
    shop = Shop(2)
    assert (await shop.call(mode, answering(YES, answer))).structured_content["code"] == code
    assert shop.paid == []
    assert await shop.standing() == ("due", 0, False)
    assert not (await shop.call(mode, answering(YES))).is_error


@pytest.mark.parametrize("mode", ERAS)
async def test_a_client_that_cannot_be_asked_is_told_so(mode: str) -> None:
    shop = Shop()
    assert (await shop.call(mode, None)).structured_content["code"] == "ELICITATION_UNSUPPORTED"
    assert await shop.standing() == ("due", 0, False)


@pytest.mark.parametrize("mode", ERAS)
async def test_a_client_that_fails_to_ask_leaves_the_slot_free(mode: str) -> None:
    shop = Shop()
    answer = answering(ErrorData(code=INVALID_REQUEST, message="no window"))
    async with Client(shop.server.lowlevel, mode=mode, elicitation_callback=answer) as client:
        with pytest.raises(MCPError, match="no window"):
            await client.call_tool("payment.capture", {"id": "p1"})
    assert await shop.standing() == ("due", 0, False)
    assert not (await shop.call(mode, answering(YES))).is_error


@pytest.mark.parametrize("mode", ERAS)
async def test_a_client_that_goes_away_instead_of_answering_leaves_the_slot_free(mode: str) -> None:
    shop = Shop()

    async def leave(_: Any, params: ElicitRequestParams) -> ElicitResult:
        gone.cancel()
        await anyio.sleep_forever()
        raise AssertionError

    with anyio.CancelScope() as gone:
        await shop.call(mode, leave)
    assert await shop.standing() == ("due", 0, False)
    assert not (await shop.call(mode, answering(YES))).is_error
    assert len(shop.paid) == 1


async def test_questions_have_an_end() -> None:
    shop = Shop(1000)
    result = await shop.call(ERAS[0], answering(YES))
    assert result.structured_content["code"] == "TOO_MANY_QUESTIONS"
    assert await shop.standing() == ("due", 0, False)


async def test_an_answer_that_is_sent_again_after_the_step_is_a_repeat() -> None:
    shop = Shop(keep_result=60)
    async with Client(shop.server.lowlevel, mode=ERAS[1], elicitation_callback=answering(YES)) as client:
        asked = await client.session.call_tool("payment.capture", {"id": "p1"}, allow_input_required=True)
        assert isinstance(asked, InputRequiredResult)
        again = {"input_responses": dict.fromkeys(asked.input_requests, YES), "request_state": asked.request_state}
        for _ in range(2):
            result = await client.call_tool("payment.capture", {"id": "p1"}, **again)
            assert result.structured_content == {"paid": True}
        # The answers belong to these arguments.
        with pytest.raises(MCPError):
            await client.call_tool("payment.capture", {"id": "p2"}, **again)
    assert len(shop.paid) == 1


async def test_answers_nobody_asked_for_are_not_answers() -> None:
    shop = Shop()
    async with Client(shop.server.lowlevel, mode=ERAS[1], elicitation_callback=answering(YES)) as client:
        for key in ("0", "1", "1:0000000000000000", "", "handle", "answers"):
            asked = await client.session.call_tool(
                "payment.capture", {"id": "p1"}, input_responses={key: YES}, allow_input_required=True
            )
            assert isinstance(asked, InputRequiredResult)
        for state in ("", "{}", "rubbish", '{"answers": {}}', "x" * 10_000):
            with pytest.raises(MCPError):
                await client.call_tool("payment.capture", {"id": "p1"}, request_state=state)
    assert shop.paid == []
