"""What a server that is alive does by itself: timers go off on time, and workflows that expired are removed.

No call depends on it: whoever loads a workflow applies what is overdue first, and sees that it has expired.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio

from mcpfusion.gate.options import Options
from mcpfusion.gate.workflows import StoreUnavailable, Workflows

LOOK_EVERY = 1.0
"""Longest time in seconds between two looks at the timers, which other processes may have set."""

LOOK_AGAIN_AFTER_FAILURE = 5.0

EXPIRED_KEPT = 24 * 3600.0
"""Seconds for which a workflow that expired is kept, so that a call on it is told so."""

PRUNE_EVERY = 60.0
"""Seconds between two looks for what is to be removed."""

PRUNED_AT_ONCE = 500


@asynccontextmanager
async def upkeep(workflows: Workflows, options: Options, *, timers: bool) -> AsyncGenerator[None]:
    """Let timers go off and remove what expired, where there can be such, for as long as the context lasts."""
    async with anyio.create_task_group() as group:
        if timers:
            group.start_soon(run_timers, workflows, options.clock)
        if options.expires_after is not None:
            group.start_soon(run_pruning, workflows, options.clock)
        yield
        group.cancel_scope.cancel()


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


async def run_pruning(workflows: Workflows, clock: Callable[[], float]) -> None:
    """Remove what expired longer ago than it is kept, until cancelled."""
    wait = PRUNE_EVERY
    while True:
        await anyio.sleep(wait)
        wait = PRUNE_EVERY
        try:
            if await workflows.prune(clock() - EXPIRED_KEPT, PRUNED_AT_ONCE) == PRUNED_AT_ONCE:
                wait = LOOK_EVERY  # there is more, but calls come first
        except StoreUnavailable:
            continue  # logged where it happened
