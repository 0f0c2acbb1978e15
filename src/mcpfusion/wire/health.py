"""`/healthz` and `/readyz`: whether the process is alive, and whether it can serve what it is there for."""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from mcpfusion.wire.attachment import Attachment

ANSWER_GOOD_FOR = 1.0
"""Seconds for which an answer is given again, so that no number of probes loads the store."""

_HEADERS = {"Cache-Control": "no-store"}


def health_routes(server: Any) -> list[Route]:
    """Return the routes `/healthz` and `/readyz` of a server, for an ASGI app of one's own.

    `/healthz` is answered with 200 by any process that serves. `/readyz` is answered with 200 while the store and
    the gateway of the server work, and with 503 otherwise; its JSON says which does. Neither asks who is asking.

    Args:
        server: Made by `Fusion.server`, or what `attach_to_server` or `gate_server` returned.
    """
    attachment: Attachment = getattr(server, "attachment", server)
    readiness = _Readiness(attachment.parts)

    async def alive(request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok"}, headers=_HEADERS)

    async def ready(request: Request) -> JSONResponse:
        checks = await readiness.look()
        good = all(checks.values())
        body = {"status": _word(good), "checks": {name: _word(works) for name, works in checks.items()}}
        return JSONResponse(body, 200 if good else 503, headers=_HEADERS)

    return [Route("/healthz", alive), Route("/readyz", ready)]


class _Readiness:
    """Asks the parts of a server whether they work, once for all who ask at about the same time."""

    def __init__(self, parts: Mapping[str, Callable[[], Awaitable[bool]]]) -> None:
        self._parts = parts
        self._lock = anyio.Lock()
        self._checks: dict[str, bool] = {}
        self._good_until = 0.0

    async def look(self) -> dict[str, bool]:
        async with self._lock:
            if time.monotonic() >= self._good_until:
                self._checks = dict.fromkeys(self._parts, False)
                async with anyio.create_task_group() as group:
                    for name in self._parts:
                        group.start_soon(self._ask, name)
                self._good_until = time.monotonic() + ANSWER_GOOD_FOR
            return self._checks

    async def _ask(self, name: str) -> None:
        self._checks[name] = await self._parts[name]()


def _word(works: bool) -> str:
    return "ok" if works else "unavailable"
