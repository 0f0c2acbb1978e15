"""Many calls of one step at once, from four client processes, through four server processes on one SQLite file."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.gate.payments import Settings
from tests.gate.processes import barrier, call_all, channel, end, http_servers, record_of, start
from tests.support.serving import ERAS

pytestmark = pytest.mark.anyio

PROCESSES, CALLS_EACH = 4, 50
LOST = {"FORBIDDEN", "CONFLICT", "ALREADY_DONE"}

Call = tuple[str, dict[str, Any]]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Settings, list[str]]]:
    settings = Settings(str(tmp_path_factory.mktemp("races")), options={"conflict_wait": 30})
    with http_servers(settings, PROCESSES) as running:
        yield settings, [url for url, _ in running]


def call_all_at_once(urls: list[str], calls: list[list[Call]]) -> Counter[str]:
    """Let one client process for each server make its calls, all starting together; count the answers by code."""
    together, answers = barrier(len(urls)), channel()
    clients = [
        start(call_all, url, ERAS[place % 2], own, together, answers)
        for place, (url, own) in enumerate(zip(urls, calls, strict=True))
    ]
    try:
        return Counter(code for _ in clients for code in answers.get())
    finally:
        for client in clients:
            end(client)


async def test_of_200_calls_from_4_processes_one_runs(servers: tuple[Settings, list[str]]) -> None:
    settings, urls = servers
    # Half of the calls are the same call, so that all three ways of losing are open to them.
    calls: list[list[Call]] = [
        [
            ("payment.capture", {"id": "one", "note": "same" if place % 2 else f"{client}.{place}"})
            for place in range(CALLS_EACH)
        ]
        for client in range(PROCESSES)
    ]

    answers = call_all_at_once(urls, calls)

    assert answers.total() == PROCESSES * CALLS_EACH
    assert answers["OK"] == 1
    assert set(answers) - {"OK"} <= LOST
    assert answers["FORBIDDEN"] > 0
    [run] = settings.traces("started", "one")
    record, history = await record_of(settings, "one")
    assert (record.state, record.steps, record.claim) == ("paid", 1, None)
    assert [(step.event, step.tool) for step in history] == [("PAY", "payment.capture")]
    assert [trace["key"] for trace in settings.traces("done", "one")] == [run["key"]]


async def test_of_two_different_events_out_of_one_state_one_wins(servers: tuple[Settings, list[str]]) -> None:
    settings, urls = servers
    tools = ("payment.capture", "payment.void")
    handles = [f"both-{place}" for place in range(10)]
    calls: list[list[Call]] = [
        [(tools[client // 2], {"id": handle}) for handle in handles] for client in range(PROCESSES)
    ]

    answers = call_all_at_once(urls, calls)

    assert answers["OK"] == len(handles)
    assert set(answers) - {"OK"} <= LOST
    for handle in handles:
        [run] = settings.traces("started", handle)
        record, history = await record_of(settings, handle)
        assert [step.tool for step in history] == [run["tool"]]
        assert record.state == {"payment.capture": "paid", "payment.void": "void"}[run["tool"]]
