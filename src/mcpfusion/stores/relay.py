"""Telling the other processes of a store what changed here, and hearing what changed there."""

import json
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, cast

import anyio

from .protocol import Bus

_log = logging.getLogger(__name__)

MESSAGE_LIMIT = 7_000
"""Longest message in bytes of UTF-8; a longer subject is told as "anything"."""

PENDING_LIMIT = 10_000
"""Subjects that wait to be told; with more of them "anything" is told instead."""

TELL_AGAIN_AFTER = 1.0
LAST_WORDS = 2.0
"""Seconds for what is still untold when the process ends."""

Subject = tuple[str, ...]


class Relay:
    """Tells and hears which subjects changed, by the bus of a store.

    What changes while something is being told is told together, and each subject once. A bus that is away is tried
    again; meanwhile nothing waits for it.

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

    def tell(self, *subject: str) -> None:
        """Tell the other processes soon that a subject changed. Never waits and never raises."""
        self._untold = _with(self._untold, subject)
        self._to_tell.set()

    async def run(self) -> None:
        """Tell and hear until cancelled; what is still untold then is told within a bounded time."""
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._tell_all)
                group.start_soon(self._hear_all)
                group.start_soon(self._pass_on)
        finally:
            with anyio.move_on_after(LAST_WORDS, shield=True):
                await self._flush()

    async def _tell_all(self) -> None:
        while True:
            await self._to_tell.wait()
            self._to_tell = anyio.Event()
            if not await self._flush():
                await anyio.sleep(TELL_AGAIN_AFTER)
                self._to_tell.set()

    async def _flush(self) -> bool:
        """Tell what waits; False when the bus did not take it, and then it waits again."""
        untold, self._untold = self._untold, {}
        if not untold:
            return True
        try:
            await self._bus.publish([self._message(subject) for subject in untold])
        except Exception:
            _log.warning("what changed cannot be told to the other processes now", exc_info=True)
            for subject in untold:
                self._untold = _with(self._untold, subject)
            return False
        return True

    def _message(self, subject: Subject | None) -> str:
        def text(about: Subject | None) -> str:
            return json.dumps([self._origin, self._topic, about], ensure_ascii=False, separators=(",", ":"))

        message = text(subject)
        return message if len(message.encode()) <= MESSAGE_LIMIT else text(None)

    async def _hear_all(self) -> None:
        async with aclosing(self._bus.listen()) as messages:
            listening = False
            async for message in messages:
                if message is not None:
                    self._note(message)
                elif listening:  # the connection was lost in between, and nobody knows what was told meanwhile
                    self._unheard = {None: None}
                    self._to_hear.set()
                else:
                    listening = True

    def _note(self, message: str) -> None:
        try:
            origin, topic, about = json.loads(message)
        except (ValueError, TypeError):
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


def _with(subjects: dict[Subject | None, None], subject: Subject | None) -> dict[Subject | None, None]:
    """Return the subjects with one more; None, anything, stands for them all."""
    if subject is None or None in subjects or len(subjects) >= PENDING_LIMIT:
        return {None: None}
    subjects[subject] = None
    return subjects
