"""What processes tell each other over a bus, and what becomes of it when the bus, or whoever is on it, fails."""

import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from mcpfusion.stores import relay as relay_module
from mcpfusion.stores.protocol import Bus
from mcpfusion.stores.relay import MESSAGE_LIMIT, PENDING_LIMIT, Relay

pytestmark = pytest.mark.anyio


class Wire:
    """A bus in this process, with everything that can happen to one.

    Attributes:
        sent: What was published, a list a call.
        away: Publishing raises.
        stuck: Publishing waits for ever.
    """

    def __init__(self) -> None:
        self.sent: list[list[str]] = []
        self.away = False
        self.stuck = False
        self._ears: list[Any] = []

    async def publish(self, messages: Sequence[str]) -> None:
        if self.stuck:
            await anyio.sleep_forever()
        if self.away:
            raise ConnectionError("away")
        self.sent.append(list(messages))
        self.say(*messages)

    async def listen(self) -> AsyncGenerator[str | None]:
        send, receive = anyio.create_memory_object_stream[Any](float("inf"))
        self._ears.append(send)
        try:
            yield None
            async for message in receive:
                if isinstance(message, Exception):
                    raise message
                yield message
        finally:
            self._ears.remove(send)
            send.close()
            receive.close()

    def say(self, *messages: Any) -> None:
        """Let all who listen have messages, None, or an exception."""
        for ear in list(self._ears):
            for message in messages:
                ear.send_nowait(message)


class Ear:
    """What a relay passed on, a batch a call."""

    def __init__(self) -> None:
        self.batches: list[Sequence[tuple[str, ...]] | None] = []
        self.fails = False
        self.may_go_on = anyio.Event()
        self.may_go_on.set()

    async def __call__(self, subjects: Sequence[tuple[str, ...]] | None) -> None:
        self.batches.append(subjects)
        await self.may_go_on.wait()
        if self.fails:
            raise RuntimeError("cannot")

    async def wait(self, number: int) -> None:
        with anyio.fail_after(10):
            while len(self.batches) < number:  # noqa: ASYNC110 - there is no event
                await anyio.sleep(0.001)


@asynccontextmanager
async def on(wire: Bus, topic: str = "menus") -> AsyncIterator[tuple[Relay, Ear]]:
    ear = Ear()
    relay = Relay(wire, topic, ear)
    async with anyio.create_task_group() as group:
        await group.start(relay.run)
        yield relay, ear
        group.cancel_scope.cancel()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "TRY_AGAIN_AFTER", 0.02)
    monkeypatch.setattr(relay_module, "TOGETHER", 0.05)


async def test_others_hear_what_is_told_and_the_teller_does_not() -> None:
    wire = Wire()
    async with on(wire) as (here, own), on(wire) as (_, theirs), on(wire, "routes") as (_, strangers):
        here.tell("alice", "A-1")
        await theirs.wait(1)
        here.tell("alice", 'ü "\0" \ud800')
        await theirs.wait(2)
    assert theirs.batches == [[("alice", "A-1")], [("alice", 'ü "\0" \ud800')]]
    assert own.batches == strangers.batches == []


async def test_many_changes_are_told_together_and_each_subject_once() -> None:
    wire = Wire()
    async with on(wire) as (here, _), on(wire) as (_, theirs):
        for _ in range(50):
            for n in range(10):
                here.tell("alice", f"A-{n}")
            await anyio.sleep(0.004)
        told = {subject for batch in theirs.batches for subject in batch or ()}
    assert told == {("alice", f"A-{n}") for n in range(10)}
    assert len(wire.sent) <= 8
    assert all(len(messages) == len(set(messages)) <= 10 for messages in wire.sent)


async def test_what_comes_while_something_is_passed_on_is_passed_on_together() -> None:
    wire = Wire()
    async with on(wire) as (here, _), on(wire) as (_, theirs):
        theirs.may_go_on = anyio.Event()
        here.tell("a", "1")
        await theirs.wait(1)
        for n in range(100):
            wire.say(json.dumps(["other", "menus", ["a", str(n % 5)]]))
        theirs.may_go_on.set()
        await theirs.wait(2)
    assert theirs.batches == [[("a", "1")], [("a", str(n)) for n in range(5)]]


async def test_a_bus_that_is_away_is_tried_again_and_nothing_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    wire = Wire()
    async with on(wire) as (here, _), on(wire) as (_, theirs):
        wire.away = True
        with caplog.at_level(logging.WARNING):
            here.tell("a", "1")
            await anyio.sleep(0.07)
            here.tell("a", "2")
        wire.away = False
        with anyio.fail_after(10):
            while not wire.sent:  # noqa: ASYNC110 - there is no event
                await anyio.sleep(0.001)
        await anyio.sleep(0.1)
    assert [subject for batch in theirs.batches for subject in batch or ()] == [("a", "1"), ("a", "2")]
    assert caplog.text.count("cannot be told") == 1


async def test_when_too_much_waits_anything_is_told() -> None:
    wire = Wire()
    wire.away = True
    async with on(wire) as (here, _), on(wire) as (_, theirs):
        for n in range(PENDING_LIMIT + 1):
            here.tell("a", str(n))
        wire.away = False
        await theirs.wait(1)
    assert theirs.batches == [None]


async def test_a_subject_that_is_too_long_for_the_bus_is_told_as_anything() -> None:
    wire = Wire()
    async with on(wire) as (here, _), on(wire) as (_, theirs):
        here.tell("a", "ü" * MESSAGE_LIMIT)
        here.tell("a", "1")
        await theirs.wait(1)
    assert theirs.batches == [None]
    assert all(len(message) <= MESSAGE_LIMIT for messages in wire.sent for message in messages)


RUBBISH = ["", "[", "{}", "7", "null", '"abc"', "[1, 2]", '["o", "other", null]', "[" * 6000, "\0", '["o", "routes"]']


async def test_rubbish_is_passed_over() -> None:
    wire = Wire()
    async with on(wire) as (_, ear):
        wire.say(*RUBBISH)
        wire.say(json.dumps(["other", "menus", ["a", "1"]]))
        await ear.wait(1)
    assert ear.batches == [[("a", "1")]]


@pytest.mark.parametrize("subject", [None, 7, ["a", 1], {}])
async def test_what_is_told_of_something_that_is_no_subject_is_about_anything(subject: Any) -> None:
    wire = Wire()
    async with on(wire) as (_, ear):
        wire.say(json.dumps(["other", "menus", subject]))
        await ear.wait(1)
    assert ear.batches == [None]


async def test_a_connection_made_anew_is_passed_on_once_as_anything() -> None:
    wire = Wire()
    async with on(wire) as (_, ear):
        assert ear.batches == []
        wire.say(None)
        await ear.wait(1)
        await anyio.sleep(0.1)
        assert ear.batches == [None]
        wire.say(json.dumps(["other", "menus", ["a", "2"]]))
        await ear.wait(2)
    assert ear.batches == [None, [("a", "2")]]


async def test_a_bus_whose_listening_fails_is_listened_to_again(caplog: pytest.LogCaptureFixture) -> None:
    wire = Wire()
    async with on(wire) as (here, ear), on(wire) as (there, _):
        wire.say(RuntimeError("broke"))
        await ear.wait(1)
        there.tell("a", "1")
        await ear.wait(2)
        del here
    assert ear.batches == [None, [("a", "1")]]
    assert "not heard for now" in caplog.text


async def test_a_bus_that_comes_late_does_not_keep_a_process_from_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "BEGIN_WITHIN", 0.02)
    ready = anyio.Event()

    class Late(Wire):
        async def listen(self) -> AsyncGenerator[str | None]:
            await ready.wait()
            async for message in super().listen():
                yield message

    async with on(Late()) as (_, ear):
        assert ear.batches == []
        ready.set()
        await ear.wait(1)
        assert ear.batches == [None]  # what was told in between is not known


async def test_a_listener_that_fails_hears_the_next(caplog: pytest.LogCaptureFixture) -> None:
    wire = Wire()
    async with on(wire) as (here, _), on(wire) as (_, theirs):
        theirs.fails = True
        here.tell("a", "1")
        await theirs.wait(1)
        await anyio.sleep(0.01)
        theirs.fails = False
        here.tell("a", "2")
        await theirs.wait(2)
    assert theirs.batches[1] == [("a", "2")]
    assert "cannot be passed on" in caplog.text


async def test_what_is_untold_when_the_process_ends_is_told_last() -> None:
    wire = Wire()
    async with on(wire) as (_, theirs):
        async with on(wire) as (here, _):
            here.tell("a", "1")
            await theirs.wait(1)
            here.tell("a", "2")  # it would wait to be told together with more
        await theirs.wait(2)
    assert theirs.batches == [[("a", "1")], [("a", "2")]]


async def test_the_last_words_take_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "LAST_WORDS", 0.05)
    wire = Wire()
    with anyio.fail_after(5):
        async with on(wire) as (here, _):
            wire.stuck = True
            here.tell("a", "1")
            await anyio.sleep(0.01)
