"""What gateways and specialists share, in a schema of a PostgreSQL database."""

import hashlib
import json
import logging
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from mcpfusion.stores.postgres_bus import PostgresBus
from mcpfusion.stores.postgres_server import PostgresServer
from mcpfusion.stores.protocol import StoreError
from mcpfusion.swarm.pins import Pin
from mcpfusion.swarm.route_store import KeptRoutes

_log = logging.getLogger(__name__)

SWEEP_EVERY = 10.0
"""Seconds between two sweeps of one process, unless the last one left something over."""

SWEEP_LIMIT = 1000
"""Expired rows that one sweep removes at most, of each kind."""

_SET_STATE = """
INSERT INTO {s}.handoff_state VALUES ($1, $2, clock_timestamp() + make_interval(secs => $3::float8))
ON CONFLICT (key) DO UPDATE SET state = excluded.state, expires = excluded.expires
"""
_GET_STATE = "SELECT state FROM {s}.handoff_state WHERE key = $1 AND expires > clock_timestamp()"
_DELETE_STATE = "DELETE FROM {s}.handoff_state WHERE key = $1"
# A mark that is over, and not yet swept, is as good as none.
_MARK_USED = """
INSERT INTO {s}.used_token VALUES ($1, to_timestamp($2::float8))
ON CONFLICT (key) DO UPDATE SET expires = excluded.expires WHERE used_token.expires <= clock_timestamp() RETURNING 1
"""
_CHECK_PIN = """
INSERT INTO {s}.pin AS known VALUES ($1, $2, $3, NULL) ON CONFLICT (specialist, tool) DO UPDATE
SET refused = CASE WHEN known.digest = $3 THEN known.refused ELSE $3 END RETURNING digest = $3
"""
_KNOWN_PIN = "SELECT digest = $3 FROM {s}.pin WHERE specialist = $1 AND tool = $2 AND digest = $3"
_PINS = "SELECT specialist, tool, digest, refused FROM {s}.pin ORDER BY specialist, tool"
_ACCEPT_PIN = """
UPDATE {s}.pin SET digest = refused, refused = NULL
WHERE specialist = $1 AND tool = $2 AND refused IS NOT NULL RETURNING 1
"""
_READ_ROUTES = "SELECT version, record FROM {s}.route WHERE key = $1 AND expires > clock_timestamp()"
_FIRST_ROUTES = """
INSERT INTO {s}.route VALUES ($1, 1, $2, clock_timestamp() + make_interval(secs => $3::float8))
ON CONFLICT (key) DO UPDATE SET version = 1, record = excluded.record, expires = excluded.expires
WHERE route.expires <= clock_timestamp() RETURNING 1
"""
_NEXT_ROUTES = """
UPDATE {s}.route
SET version = version + 1, record = $2, expires = clock_timestamp() + make_interval(secs => $3::float8)
WHERE key = $1 AND version = $4::bigint AND expires > clock_timestamp() RETURNING 1
"""
_NO_ROUTES = "SELECT WHERE NOT EXISTS (SELECT FROM {s}.route WHERE key = $1 AND expires > clock_timestamp())"
_REMOVE_ROUTES = """
DELETE FROM {s}.route WHERE key = $1 AND version = $2::bigint AND expires > clock_timestamp() RETURNING 1
"""
_KEEP_ROUTES = """
UPDATE {s}.route SET expires = clock_timestamp() + make_interval(secs => $2::float8)
WHERE key = $1 AND expires > clock_timestamp()
"""
_TAKE_PLACE = "SELECT {s}.take_place($1, $2, $3, $4::bigint, $5::bigint, $6::float8)"
_KEEP_PLACE = """
INSERT INTO {s}.place VALUES ($1, $2, $3, clock_timestamp() + make_interval(secs => $4::float8))
ON CONFLICT (gateway, domain, handoff) DO UPDATE SET expires = excluded.expires
"""
_FREE_PLACE = "DELETE FROM {s}.place WHERE gateway = $1 AND domain = $2 AND handoff = $3"
_PLACES = "SELECT count(*) FROM {s}.place WHERE gateway = $1 AND expires > clock_timestamp()"
_PLACES_TO = f"{_PLACES} AND domain = $2"
# What another process is at is passed over: nobody waits for a sweep.
_SWEEP = """
DELETE FROM {s}.{table} WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {s}.{table} WHERE expires <= clock_timestamp()
    ORDER BY expires LIMIT $1::bigint FOR UPDATE SKIP LOCKED
)) AND expires <= clock_timestamp() RETURNING 1
"""


class PostgresSwarmStore:
    """A `HandoffStateStore`, `ReplayStore`, `PinStore`, `RouteStore` and `Bus` in a schema of a PostgreSQL database.

    It may be the schema of a `PostgresStore`, and is made by `mcpfusion store init` as well. Times to live count by
    the server's clock. Every operation is one statement; every method raises StoreError when it fails.

    Args:
        url: See `mcpfusion.stores.postgres_url.PostgresUrl`, which says what it raises.
    """

    shared = True

    def __init__(self, url: str) -> None:
        self.server = PostgresServer(url)
        self._bus = PostgresBus(self.server)
        self._sweep_at = 0.0

    async def set(self, key: str, state: Mapping[str, Any], ttl_seconds: float) -> None:
        """See `HandoffStateStore.set`."""
        await self._do(_SET_STATE, _digest(key), json.dumps(state), float(ttl_seconds))
        await self._sweep()

    async def get(self, key: str) -> Mapping[str, Any] | None:
        """See `HandoffStateStore.get`."""
        rows = await self._look(_GET_STATE, _digest(key))
        return json.loads(rows[0][0]) if rows else None

    async def delete(self, key: str) -> None:
        """See `HandoffStateStore.delete`."""
        await self._do(_DELETE_STATE, _digest(key))

    async def add(self, jti: str, expires_at: float) -> bool:
        """See `ReplayStore.add`."""
        fresh = await self._do(_MARK_USED, _digest(jti), float(expires_at))
        await self._sweep()
        return fresh

    async def check(self, specialist: str, tool: str, digest: str) -> bool:
        """See `PinStore.check`."""
        values = (specialist.encode(), tool.encode(), digest)
        if await self._look(_KNOWN_PIN, *values):
            return True
        ((accepted,),) = await self.server.run(self.server.sql(_CHECK_PIN), *values)
        return accepted

    async def pins(self) -> Sequence[Pin]:
        """See `PinStore.pins`."""
        rows = await self._look(_PINS)
        return [Pin(specialist.decode(), tool.decode(), *digests) for specialist, tool, *digests in rows]

    async def accept(self, specialist: str, tool: str) -> bool:
        """See `PinStore.accept`."""
        return await self._do(_ACCEPT_PIN, specialist.encode(), tool.encode())

    async def read_routes(self, gateway: str, conversation: str) -> KeptRoutes | None:
        """See `RouteStore.read_routes`."""
        rows = await self._look(_READ_ROUTES, _digest(gateway, conversation))
        return KeptRoutes(rows[0][0], rows[0][1].decode()) if rows else None

    async def write_routes(
        self, gateway: str, conversation: str, record: str | None, *, expected_version: int, ttl_seconds: float
    ) -> bool:
        """See `RouteStore.write_routes`."""
        key = _digest(gateway, conversation)
        if record is None and not expected_version:
            return bool(await self._look(_NO_ROUTES, key))
        if record is None:
            return await self._do(_REMOVE_ROUTES, key, expected_version)
        values = (key, record.encode(), float(ttl_seconds))
        if expected_version:
            written = await self._do(_NEXT_ROUTES, *values, expected_version)
        else:
            written = await self._do(_FIRST_ROUTES, *values)
        await self._sweep()
        return written

    async def keep_routes(self, gateway: str, conversation: str, ttl_seconds: float) -> None:
        """See `RouteStore.keep_routes`."""
        await self._do(_KEEP_ROUTES, _digest(gateway, conversation), float(ttl_seconds))

    async def take_place(
        self, gateway: str, domain: str, handoff_id: str, *, limit: int, domain_limit: int | None, ttl_seconds: float
    ) -> bool:
        """See `RouteStore.take_place`. One gateway's places are taken one after the other."""
        place = (_digest(gateway), _digest(domain), _digest(handoff_id))
        rows = await self.server.run(self.server.sql(_TAKE_PLACE), *place, limit, domain_limit, float(ttl_seconds))
        await self._sweep()
        return rows[0][0]

    async def keep_place(self, gateway: str, domain: str, handoff_id: str, ttl_seconds: float) -> None:
        """See `RouteStore.keep_place`."""
        await self._do(_KEEP_PLACE, _digest(gateway), _digest(domain), _digest(handoff_id), float(ttl_seconds))

    async def free_place(self, gateway: str, domain: str, handoff_id: str) -> None:
        """See `RouteStore.free_place`."""
        await self._do(_FREE_PLACE, _digest(gateway), _digest(domain), _digest(handoff_id))

    async def places_taken(self, gateway: str, domain: str | None = None) -> int:
        """See `RouteStore.places_taken`."""
        if domain is None:
            rows = await self._look(_PLACES, _digest(gateway))
        else:
            rows = await self._look(_PLACES_TO, _digest(gateway), _digest(domain))
        return rows[0][0]

    async def publish(self, messages: Sequence[str]) -> None:
        """See `Bus.publish`."""
        await self._bus.publish(messages)

    def listen(self) -> AsyncGenerator[str | None]:
        """See `Bus.listen`."""
        return self._bus.listen()

    async def aclose(self) -> None:
        """Close the connections. Calling it again does nothing; anything else raises StoreError from then on."""
        await self.server.aclose()

    async def _look(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        return await self.server.run(self.server.sql(query), *values, repeatable=True)

    async def _do(self, statement: str, *values: Any) -> bool:
        """Whether the statement returned a row."""
        return bool(await self.server.run(self.server.sql(statement), *values))

    async def _sweep(self) -> None:
        """Remove what expired, now and then, some of it; what cannot be removed now will be later."""
        if time.monotonic() < self._sweep_at:
            return
        self._sweep_at = time.monotonic() + SWEEP_EVERY
        for table in ("handoff_state", "used_token", "route", "place"):
            statement = self.server.sql(_SWEEP).replace("{table}", table)
            try:
                gone = await self.server.run(statement, SWEEP_LIMIT)
            except StoreError as error:
                _log.info("what expired cannot be removed now: %s", error)
                return
            if len(gone) == SWEEP_LIMIT:
                self._sweep_at = 0.0


def _digest(*names: str) -> bytes:
    """What stands for names in the tables: of one length whatever theirs, and no text that users said."""
    return hashlib.sha256(json.dumps(names).encode()).digest()
