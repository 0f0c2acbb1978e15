"""What gateways and specialists share, in Redis or Valkey."""

import json
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from hashlib import sha256
from typing import Any

from mcpfusion.stores.redis_bus import RedisBus
from mcpfusion.stores.redis_keys import name_of, texts_of
from mcpfusion.stores.redis_scripts import (
    PIN_ACCEPT,
    PIN_CHECK,
    PINS,
    PLACES_COUNT,
    PLACES_FREE,
    PLACES_TAKE,
    ROUTES_WRITE,
)
from mcpfusion.stores.redis_server import Call, RedisServer
from mcpfusion.swarm.pins import Pin
from mcpfusion.swarm.route_store import KeptRoutes

_MARK_LONGER = 60.0
"""Seconds that the mark of a used token outlasts it: clocks differ, and a verifier allows for that."""


class RedisSwarmStore:
    """A `HandoffStateStore`, `ReplayStore`, `PinStore`, `RouteStore` and `Bus` in Redis 6.2 or newer, or Valkey.

    It may be the database of a `RedisStore`. Times to live count by the server's clock, and what is over is removed
    by the server. Opened by the first use. Every method raises StoreError when the server cannot be used.

    Args:
        url: See `mcpfusion.stores.redis_url.RedisUrl`, which says what it raises.
    """

    shared = True

    def __init__(self, url: str) -> None:
        self._server = RedisServer(url)
        self._bus = RedisBus(self._server)
        tag = self._server.prefix + b"{pins}"
        self._pin_keys = [tag + b"accepted", tag + b"refused"]

    async def set(self, key: str, state: Mapping[str, Any], ttl_seconds: float) -> None:
        """See `HandoffStateStore.set`."""
        where = self._key(b"state:", key)
        text = json.dumps(state, separators=(",", ":")).encode()
        await self._server.run(Call([where], ("SET", where, text, "PX", _milliseconds(ttl_seconds))), durable=True)

    async def get(self, key: str) -> Mapping[str, Any] | None:
        """See `HandoffStateStore.get`."""
        where = self._key(b"state:", key)
        text = await self._server.run(Call([where], ("GET", where)), repeatable=True)
        return None if text is None else json.loads(text)

    async def delete(self, key: str) -> None:
        """See `HandoffStateStore.delete`."""
        where = self._key(b"state:", key)
        await self._server.run(Call([where], ("UNLINK", where)), repeatable=True)

    async def add(self, jti: str, expires_at: float) -> bool:
        """See `ReplayStore.add`."""
        where = self._key(b"used:", jti)
        # Counted from here: the server's clock need not agree with that of whoever made the token.
        remaining = _milliseconds(max(expires_at - time.time(), 0) + _MARK_LONGER)
        command = ("SET", where, b"1", "NX", "PX", remaining)
        return await self._server.run(Call([where], command), durable=True) is not None

    async def check(self, specialist: str, tool: str, digest: str) -> bool:
        """See `PinStore.check`."""
        call = Call(self._pin_keys, (name_of(specialist, tool), digest), PIN_CHECK)
        return (await self._server.run(call, durable=True))[0] == 1

    async def pins(self) -> Sequence[Pin]:
        """See `PinStore.pins`."""
        accepted, refused = await self._server.run(Call(self._pin_keys, (), PINS), repeatable=True)
        waiting = dict(zip(refused[::2], refused[1::2], strict=True))
        found = sorted(zip(accepted[::2], accepted[1::2], strict=True))
        return [
            Pin(*texts_of(name), str(digest, "utf-8"), str(waiting[name], "utf-8") if name in waiting else None)
            for name, digest in found
        ]

    async def accept(self, specialist: str, tool: str) -> bool:
        """See `PinStore.accept`."""
        call = Call(self._pin_keys, (name_of(specialist, tool),), PIN_ACCEPT)
        return (await self._server.run(call, durable=True))[0] == 1

    async def read_routes(self, gateway: str, conversation: str) -> KeptRoutes | None:
        """See `RouteStore.read_routes`."""
        where = self._key(b"route:", gateway, conversation)
        version, record = await self._server.run(Call([where], ("HMGET", where, "v", "r")), repeatable=True)
        return None if version is None else KeptRoutes(int(version), str(record, "utf-8"))

    async def write_routes(
        self, gateway: str, conversation: str, record: str | None, *, expected_version: int, ttl_seconds: float
    ) -> bool:
        """See `RouteStore.write_routes`."""
        where = self._key(b"route:", gateway, conversation)
        args = (expected_version, (record or "").encode(), _milliseconds(ttl_seconds))
        return (await self._server.run(Call([where], args, ROUTES_WRITE), durable=True))[0] == 1

    async def keep_routes(self, gateway: str, conversation: str, ttl_seconds: float) -> None:
        """See `RouteStore.keep_routes`."""
        where = self._key(b"route:", gateway, conversation)
        command = ("PEXPIRE", where, _milliseconds(ttl_seconds))
        await self._server.run(Call([where], command), repeatable=True)

    async def take_place(
        self, gateway: str, domain: str, handoff_id: str, *, limit: int, domain_limit: int | None, ttl_seconds: float
    ) -> bool:
        """See `RouteStore.take_place`."""
        return await self._take(
            gateway, domain, handoff_id, limit, "" if domain_limit is None else domain_limit, ttl_seconds
        )

    async def keep_place(self, gateway: str, domain: str, handoff_id: str, ttl_seconds: float) -> None:
        """See `RouteStore.keep_place`."""
        await self._take(gateway, domain, handoff_id, "", "", ttl_seconds)

    async def free_place(self, gateway: str, domain: str, handoff_id: str) -> None:
        """See `RouteStore.free_place`."""
        args = (handoff_id.encode(), name_of(domain, handoff_id))
        await self._server.run(Call(self._places(gateway, domain), args, PLACES_FREE), repeatable=True)

    async def places_taken(self, gateway: str, domain: str | None = None) -> int:
        """See `RouteStore.places_taken`."""
        key = self._places(gateway, domain or "")[0 if domain is None else 1]
        return (await self._server.run(Call([key], (), PLACES_COUNT), repeatable=True))[0]

    async def publish(self, messages: Sequence[str]) -> None:
        """See `Bus.publish`."""
        await self._bus.publish(messages)

    def listen(self) -> AsyncGenerator[str | None]:
        """See `Bus.listen`."""
        return self._bus.listen()

    async def aclose(self) -> None:
        """Close the connections. Calling it again does nothing; anything else raises StoreError from then on."""
        await self._server.aclose()

    async def _take(
        self,
        gateway: str,
        domain: str,
        handoff_id: str,
        limit: int | str,
        domain_limit: int | str,
        ttl_seconds: float,
    ) -> bool:
        names = (handoff_id.encode(), name_of(domain, handoff_id))
        args = (*names, limit, domain_limit, _milliseconds(ttl_seconds))
        return (await self._server.run(Call(self._places(gateway, domain), args, PLACES_TAKE)))[0] == 1

    def _key(self, kind: bytes, *names: str) -> bytes:
        return self._server.prefix + kind + (name_of(*names) if len(names) == 2 else names[0].encode())

    def _places(self, gateway: str, domain: str) -> list[bytes]:
        """Return the keys of all places of a gateway and of those to one specialist, which are in one slot."""
        # A gateway's name may hold braces, so that it is no tag itself.
        tag = self._server.prefix + b"{places:" + sha256(gateway.encode()).hexdigest()[:32].encode() + b"}"
        return [tag + b"all", tag + b"to:" + domain.encode()]


def _milliseconds(seconds: float) -> int:
    return max(int(seconds * 1000), 1)
