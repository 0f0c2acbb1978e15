"""An HTTP server that is told to stop in the middle of a step: the step is finished or in doubt, never lost."""

import os
import signal
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from tests.gate.payments import Settings, make_server
from tests.gate.processes import PATIENCE, http_servers, record_of, until
from tests.support.serving import ERAS

pytestmark = pytest.mark.anyio

CALL = ("payment.capture", {"id": "p1", "note": "n"})


async def call_quietly(url: str, mode: str, answers: list[Any] | None = None) -> None:
    try:
        async with Client(url, mode=mode, read_timeout_seconds=PATIENCE) as client:
            await client.list_tools()  # else it asks for the list when it has the answer
            answer = await client.call_tool(*CALL)
            if answers is not None:
                answers.append(answer.structured_content)
    except BaseException as error:
        if isinstance(error, anyio.get_cancelled_exc_class()):
            raise
        # The connection broke: that is what the server's end looks like from here.


async def again(settings: Settings, **changes: Any) -> Any:
    async with Client(make_server(Settings(settings.folder, **changes)).lowlevel, mode=ERAS[1]) as client:
        return (await client.call_tool(*CALL)).structured_content


@pytest.mark.parametrize("mode", ERAS)
async def test_a_step_that_ends_in_time_is_finished_and_answered(tmp_path: Path, mode: str) -> None:
    settings = Settings(str(tmp_path), wait=True, grace=20)
    answers: list[Any] = []
    with http_servers(settings) as [(url, process)]:
        async with anyio.create_task_group() as group:
            group.start_soon(call_quietly, url, mode, answers)
            await until(lambda: settings.traces("started"))
            os.kill(process.pid, signal.SIGTERM)
            await anyio.sleep(1)  # whatever would end now what is under way, has
            settings.go("p1")
            await until(lambda: not process.is_alive())
            group.cancel_scope.cancel()
    assert [answer["note"] for answer in answers] == ["n"]
    record, history = await record_of(settings, "p1")
    assert (record.state, record.claim, len(history)) == ("paid", None, 1)
    assert (await again(settings))["code"] == "ALREADY_DONE"
    assert len(settings.traces("done")) == 1


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize("on_doubt", ["hold", "retry"])
async def test_a_step_that_does_not_end_is_in_doubt(tmp_path: Path, mode: str, on_doubt: str) -> None:
    settings = Settings(
        str(tmp_path),
        wait=True,
        grace=0.3,
        capture={"on_doubt": on_doubt, "time_limit": 2},
        options={"lease_margin": 1},
    )
    with http_servers(settings) as [(url, process)]:
        async with anyio.create_task_group() as group:
            group.start_soon(call_quietly, url, mode)
            await until(lambda: settings.traces("started"))
            os.kill(process.pid, signal.SIGTERM)
            await until(lambda: not process.is_alive())
            group.cancel_scope.cancel()
    record, history = await record_of(settings, "p1")
    assert (record.state, history) == ("due", [])
    assert record.claim is not None
    assert settings.traces("done") == []
    answer = await again(settings, clock_offset=10, capture={"on_doubt": on_doubt})
    if on_doubt == "hold":
        assert answer["code"] == "IN_DOUBT"
    else:
        assert answer == {"note": "n", "key": settings.traces("started")[0]["key"]}
