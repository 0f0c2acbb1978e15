"""Timers of a server that is alive: they go off on time, and the menus they change are told.

Nothing depends on it: whoever loads a workflow applies what is overdue first.
"""

from collections.abc import Callable

import anyio

from mcpfusion.gate.workflows import StoreUnavailable, Workflows

LOOK_EVERY = 1.0
"""Longest time in seconds between two looks at the timers, which other processes may have set."""

LOOK_AGAIN_AFTER_FAILURE = 5.0


async def run_timers(workflows: Workflows, clock: Callable[[], float]) -> None:
    """Let timers go off until cancelled."""
    while True:
        try:
            due = await workflows.catch_up(clock())
        except StoreUnavailable:
            await anyio.sleep(LOOK_AGAIN_AFTER_FAILURE)
            continue
        wait = LOOK_EVERY if due is None else min(max(due - clock(), 0), LOOK_EVERY)
        await anyio.sleep(wait)
