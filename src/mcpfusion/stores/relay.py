"""Telling the other processes of a store what changed here, and hearing what changed there."""

import json
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, cast

import anyio
import anyio.abc

from .protocol import Bus

_log = logging.getLogger(__name__)

MESSAGE_LIMIT = 7_000
"""Longest message in bytes; a longer subject is told as "anything"."""

PENDING_LIMIT = 10_000
"""Subjects that wait to be told; with more of them "anything" is told instead."""

TOGETHER = 0.1
"""Seconds for which what changes after something was told, or heard, waits to be told, or passed on, together."""

TRY_AGAIN_AFTER = 1.0

BEGIN_WITHIN = 2.0
"""Seconds that a process waits for the bus before it begins without."""

LAST_WORDS = 2.0
"""Seconds for what is still untold when the process ends."""

Subject = tuple[str, ...]


class Relay:
    """Tells and hears which subjects changed, by the bus of a store.

    What changes shortly after something else is told together with more, and each subject once. A bus that is away is
    tried again; meanwhile nothing waits for it, and when it is back anything may have changed.

    Args:
        topic: Keeps the subjects of one kind apart from those of others on the same bus.
        heard: Awaited with the subjects that changed elsewhere; None stands for anything.
    """

    def __init__(self, bus: Bus, topic: str, heard: Callable[[Sequence[Subject] | None], Awaitable[None]]) -> None:
        self._bus = bus
        self._topic = topic
        self._heard = heard
        self._origin = uuid.uuid4().hex
        self._untold: dict[Subject | None, None] = {}
        self._to_tell = anyio.Event()
        self._unheard: dict[Subject | None, None] = {}
        self._to_hear = anyio.Event()
        self._is_away = False
        self._listening = anyio.Event()
        self._may_have_missed = False

    def tell(self, *subject: str) -> None:
        """Tell the other processes soon that a subject changed. Never waits and never raises."""
        self._untold = _with(self._untold, subject)
        self._to_tell.set()

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Tell and hear until cancelled; what is still untold then is told within a bounded time.

        It has started when it hears, or when the bus was not there in time.
        """
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._tell_all)
                group.start_soon(self._hear_all)
                group.start_soon(self._pass_on)
                with anyio.move_on_after(BEGIN_WITHIN):
                    await self._listening.wait()
                self._may_have_missed = True
                task_status.started()
        finally:
            with anyio.move_on_after(LAST_WORDS, shield=True):
                await self._flush()

    async def _tell_all(self) -> None:
        while True:
            await self._to_tell.wait()
            self._to_tell = anyio.Event()
            is_told = await self._flush()
            await anyio.sleep(TOGETHER if is_told else TRY_AGAIN_AFTER)
            if not is_told:
                self._to_tell.set()

    async def _flush(self) -> bool:
        """Tell what waits; False when the bus did not take it, and then it waits again."""
        untold, self._untold = self._untold, {}
        if not untold:
            return True
        is_told = False
        try:
            await self._bus.publish([_message(self._origin, self._topic, subject) for subject in untold])
            is_told = True
        except Exception as error:
            if not self._is_away:
                _log.warning("what changed cannot be told to the other processes for now: %r", error)
        finally:
            self._is_away = not is_told
            if not is_told:  # cancelled, perhaps, and then there are the last words
                for subject in untold:
                    self._untold = _with(self._untold, subject)
        return is_told

    async def _hear_all(self) -> None:
        while True:
            try:
                async with aclosing(self._bus.listen()) as messages:
                    async for message in messages:
                        if message is None:
                            self._begin()
                        else:
                            self._note(message)
            except Exception:
                _log.warning("what other processes tell is not heard for now", exc_info=True)
            await anyio.sleep(TRY_AGAIN_AFTER)

    def _begin(self) -> None:
        """It hears from now on. What was told before, while it should have heard already, nobody knows."""
        if self._may_have_missed:
            self._unheard = {None: None}
            self._to_hear.set()
        self._may_have_missed = True
        self._listening.set()

    def _note(self, message: str) -> None:
        try:
            origin, topic, about = json.loads(message)
        except (ValueError, TypeError, RecursionError):
            return
        if origin == self._origin or topic != self._topic:
            return
        is_subject = isinstance(about, list) and all(isinstance(part, str) for part in cast("list[Any]", about))
        self._unheard = _with(self._unheard, tuple(cast("list[str]", about)) if is_subject else None)
        self._to_hear.set()

    async def _pass_on(self) -> None:
        while True:
            await self._to_hear.wait()
            self._to_hear = anyio.Event()
            unheard, self._unheard = self._unheard, {}
            try:
                await self._heard(
                    None if None in unheard else [subject for subject in unheard if subject is not None]
                )
            except Exception:
                _log.exception("what changed in another process cannot be passed on")
            await anyio.sleep(TOGETHER)


async def tell_now(bus: Bus, topic: str, *subject: str) -> None:
    """Tell all processes that a subject changed, once, for those who have no relay. Raises as `Bus.publish` does."""
    await bus.publish([_message("", topic, subject)])


def _message(origin: str, topic: str, subject: Subject | None) -> str:
    # In ASCII, so that any text of a client's goes through any engine.
    message = json.dumps([origin, topic, subject], separators=(",", ":"))
    return message if len(message) <= MESSAGE_LIMIT else json.dumps([origin, topic, None], separators=(",", ":"))


def _with(subjects: dict[Subject | None, None], subject: Subject | None) -> dict[Subject | None, None]:
    """Return the subjects with one more; None, anything, stands for them all."""
    if subject is None or None in subjects or len(subjects) >= PENDING_LIMIT:
        return {None: None}
    subjects[subject] = None
    return subjects
