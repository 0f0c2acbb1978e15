import dataclasses
from typing import Any

import pytest

from mcpfusion.actions import Call, CallNext, Context, Middleware, ResultError, ToolResult, compose

pytestmark = pytest.mark.anyio


def call(**arguments: Any) -> Call:
    return Call("a.b", arguments, Context(tool="a.b"))


def tracing(name: str, trace: list[str]) -> Middleware:
    async def layer(call: Call, call_next: CallNext) -> ToolResult:
        trace.append(f"{name} in")
        result = await call_next(call)
        trace.append(f"{name} out")
        return result

    return layer


async def test_the_first_is_outermost_and_the_chain_can_be_used_again() -> None:
    trace: list[str] = []

    async def inner(call: Call) -> ToolResult:
        trace.append("inner")
        return ToolResult([])

    run = compose([tracing("first", trace), tracing("second", trace)], inner)
    for _ in range(2):
        trace.clear()
        await run(call())
        assert trace == ["first in", "second in", "inner", "second out", "first out"]


async def test_without_middleware_nothing_stands_in_between() -> None:
    async def inner(call: Call) -> ToolResult:
        return ToolResult([])

    assert compose([], inner) is inner


async def test_middleware_may_change_the_call_answer_itself_and_change_the_result() -> None:
    seen: list[Any] = []

    async def inner(call: Call) -> ToolResult:
        seen.append(call.arguments)
        return ToolResult([], structured={"n": 1})

    async def double(call: Call, call_next: CallNext) -> ToolResult:
        changed = dataclasses.replace(call, arguments={**call.arguments, "n": 2})
        result = await call_next(changed)
        return dataclasses.replace(result, structured={"n": 2})

    async def deny(call: Call, call_next: CallNext) -> ToolResult:
        return ToolResult([], is_error=True)

    assert (await compose([double], inner)(call(n=1))).structured == {"n": 2}
    assert seen == [{"n": 2}]
    assert (await compose([deny, double], inner)(call(n=1))).is_error
    assert len(seen) == 1


async def test_what_the_handler_raises_passes_through() -> None:
    async def inner(call: Call) -> ToolResult:
        raise LookupError("x")

    async def rescue(call: Call, call_next: CallNext) -> ToolResult:
        try:
            return await call_next(call)
        except LookupError:
            return ToolResult([], is_error=True)

    with pytest.raises(LookupError):
        await compose([tracing("a", [])], inner)(call())
    assert (await compose([rescue, tracing("a", [])], inner)(call())).is_error


async def test_middleware_that_forgets_its_result_is_named() -> None:
    async def inner(call: Call) -> ToolResult:
        return ToolResult([])

    async def forgetful(call: Call, call_next: CallNext) -> Any:
        await call_next(call)

    def sync(call: Call, call_next: CallNext) -> Any:
        return "x"

    with pytest.raises(ResultError, match=r"middleware .*forgetful returned NoneType, not a ToolResult"):
        await compose([forgetful], inner)(call())
    with pytest.raises(ResultError, match=r"middleware .*sync returned str"):
        await compose([sync], inner)(call())


async def test_objects_and_lambdas_may_be_middleware() -> None:
    class Layer:
        async def __call__(self, call: Call, call_next: CallNext) -> ToolResult:
            return await call_next(call)

    async def inner(call: Call) -> ToolResult:
        return ToolResult([], structured=1)

    assert (await compose([Layer(), lambda c, n: n(c)], inner)(call())).structured == 1


async def test_a_call_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        call().tool = "x"  # pyright: ignore[reportAttributeAccessIssue]
