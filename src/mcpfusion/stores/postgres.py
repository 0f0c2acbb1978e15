"""The store in PostgreSQL: workflows shared by any number of machines."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Literal

from . import postgres_schema
from .codec import check_key, check_write, decode_step, decode_workflow, encode_step, encode_workflow
from .postgres_bus import PostgresBus
from .postgres_server import PostgresServer
from .protocol import Step, StoreError, Workflow

NAME_LIMIT = 2500
"""Longest name of a workflow, scope and handle together, in bytes of UTF-8: what a row of an index holds."""

HISTORY_LIMIT = 10_000
"""Steps of one workflow that are kept at least; older ones go from time to time."""

_TRIM_EVERY = 1000
_PRUNED_AT_ONCE = 20

_INFINITY = float("inf")

_READ = """
SELECT {now}, found.version, found.record
FROM (VALUES (1)) AS one LEFT JOIN {s}.workflow AS found ON found.scope = $1 AND found.handle = $2
"""
# One statement each: the record if the version is the expected one, and the step with it. A time that is not there
# is sent as infinity, so that the values always have the same types and the statement is prepared once.
_INSERT = """
INSERT INTO {s}.workflow (scope, handle, version, state, steps, doubtful_from, due, expires, record)
VALUES ($1, $2, $3::bigint + 1, $4, $5::bigint,
    nullif($6::float8, 'infinity'), nullif($7::float8, 'infinity'), nullif($8::float8, 'infinity'), $9)
ON CONFLICT DO NOTHING RETURNING {now}
"""
_UPDATE = """
UPDATE {s}.workflow SET version = $3::bigint + 1, state = $4, steps = $5::bigint,
    doubtful_from = nullif($6::float8, 'infinity'), due = nullif($7::float8, 'infinity'),
    expires = nullif($8::float8, 'infinity'), record = $9
WHERE scope = $1 AND handle = $2 AND version = $3::bigint RETURNING {now}
"""
_STEP = """
WITH won AS ({change})
INSERT INTO {s}.step (scope, handle, version, record) SELECT $1, $2, version, $10 FROM won RETURNING {now}
"""
_STEP_AND_TRIM = """
WITH won AS ({change}), trimmed AS (
    DELETE FROM {s}.step WHERE scope = $1 AND handle = $2 AND EXISTS (SELECT FROM won) AND version <= (
        SELECT version FROM {s}.step WHERE scope = $1 AND handle = $2 ORDER BY version DESC OFFSET $11::bigint LIMIT 1
    )
)
INSERT INTO {s}.step (scope, handle, version, record) SELECT $1, $2, version, $10 FROM won RETURNING {now}
"""
# A skip-scan: one look-up in the index per distinct state. SELECT DISTINCT would read every workflow.
_STATES_IN_USE = """
WITH RECURSIVE used (state_key, state) AS (
    (SELECT state_key, state FROM {s}.workflow WHERE scope = $1 AND steps > 0 ORDER BY state_key LIMIT 1)
    UNION ALL
    SELECT next.state_key, next.state FROM used, LATERAL (
        SELECT state_key, state FROM {s}.workflow
        WHERE scope = $1 AND steps > 0 AND state_key > used.state_key ORDER BY state_key LIMIT 1
    ) AS next
)
SELECT state FROM used ORDER BY state
"""
_NEXT_DUE = """
SELECT due, scope, handle FROM {s}.workflow WHERE due IS NOT NULL ORDER BY due, scope, handle LIMIT $1::bigint
"""
_LIST = "SELECT record, scope, handle, version FROM {s}.workflow"
_FIND = f"{_LIST} WHERE handle = $1 ORDER BY scope LIMIT 100"
_HISTORY = """
SELECT record FROM {s}.step WHERE scope = $1 AND handle = $2 ORDER BY version DESC LIMIT $3::bigint
"""
# Locked first, so that whoever writes at the same moment is left alone, and the others wait for neither.
_PRUNE = """
WITH expired AS MATERIALIZED (
    SELECT scope, handle FROM {s}.workflow
    WHERE expires IS NOT NULL AND doubtful_from IS NULL AND expires < $1::float8
    ORDER BY expires, scope, handle LIMIT $2::bigint FOR UPDATE SKIP LOCKED
), steps AS (
    DELETE FROM {s}.step USING expired WHERE step.scope = expired.scope AND step.handle = expired.handle
), gone AS (
    DELETE FROM {s}.workflow USING expired
    WHERE workflow.scope = expired.scope AND workflow.handle = expired.handle RETURNING 1
)
SELECT count(*) FROM gone
"""


_Kind = Literal["plain", "step", "trim"]


def _writes(change: str) -> dict[_Kind, str]:
    """Return the statements that make the change alone, with a step, and with a step where old ones go."""
    inner = change.replace("RETURNING {now}", "RETURNING version")
    return {
        "plain": change,
        "step": _STEP.replace("{change}", inner),
        "trim": _STEP_AND_TRIM.replace("{change}", inner),
    }


class PostgresStore:
    """A `VersionedFsmStateStore`, `EngineClock` and `Bus` in a schema of a PostgreSQL database.

    The schema is made by `mcpfusion store init` beforehand. Claim and commit are one statement each, committed and
    on the server's disk when they return. Every failure is a StoreError within some five seconds, and the store goes
    on by itself when the server is back. It may be used in several event loops, and after a fork.

    Args:
        url: As libpq takes it; see `PostgresUrl` for the parameters besides, and for what it raises.
    """

    def __init__(self, url: str) -> None:
        self.server = PostgresServer(url)
        self._bus = PostgresBus(self.server)
        self._writes: dict[tuple[bool, _Kind], str] = {
            (follows, kind): self.server.sql(text)
            for follows, change in ((False, _INSERT), (True, _UPDATE))
            for kind, text in _writes(change).items()
        }

    def now(self) -> float:
        """See `EngineClock.now`."""
        return self.server.now()

    async def read(self, scope: str, handle: str) -> Workflow | None:
        """See `VersionedFsmStateStore.read`."""
        ((told, version, record),) = await self._select(_READ, *_key(scope, handle))
        self.server.tell_time(told)
        return None if record is None else decode_workflow(record, scope, handle, version)

    async def write(self, workflow: Workflow, *, expected_version: int, step: Step | None = None) -> bool:
        """See `VersionedFsmStateStore.write`. Raises ValueError for a write that contradicts itself.

        A write whose caller is cancelled happens whole or not at all, before the call returns.
        """
        check_write(workflow, expected_version, step)
        values = _values(workflow, expected_version)
        kind: _Kind = "plain"
        if step is not None:
            values.append(encode_step(step))
            kind = "step"
            if workflow.steps > HISTORY_LIMIT and workflow.steps % _TRIM_EVERY == 0:
                values.append(HISTORY_LIMIT)
                kind = "trim"
        rows = await self.server.run(self._writes[expected_version > 0, kind], *values)
        if rows:
            self.server.tell_time(rows[0][0])
        return bool(rows)

    async def states_in_use(self, scope: str) -> Sequence[str]:
        """See `VersionedFsmStateStore.states_in_use`."""
        return [row[0].decode() for row in await self._select(_STATES_IN_USE, _key(scope, "")[0])]

    async def next_due(self, *, limit: int = 100) -> Sequence[tuple[float, str, str]]:
        """See `VersionedFsmStateStore.next_due`."""
        rows = await self._select(_NEXT_DUE, max(limit, 0))
        return [(due, scope.decode(), handle.decode()) for due, scope, handle in rows]

    async def list_workflows(
        self,
        *,
        scope: str | None = None,
        state: str | None = None,
        in_doubt_at: float | None = None,
        after: tuple[str, str] | None = None,
        limit: int = 100,
    ) -> Sequence[Workflow]:
        """See `VersionedFsmStateStore.list_workflows`."""
        values: list[Any] = [max(limit, 0)]
        filters: list[str] = []

        def keep(condition: str, *bound: Any) -> None:
            numbers = range(len(values) + 1, len(values) + len(bound) + 1)
            values.extend(bound)
            filters.append(condition.format(*(f"${number}" for number in numbers)))

        # Only the constants here are put together; every value is bound.
        if scope is not None:
            keep("scope = {}", scope.encode())
        if state is not None:
            keep("state_key = substring(sha256({}) FROM 1 FOR 16)", state.encode())
        if in_doubt_at is not None:
            keep("doubtful_from < {}::float8", float(in_doubt_at))
        if after is not None:
            keep("(scope, handle) > ({}, {})", *(name.encode() for name in after))
        where = f" WHERE {' AND '.join(filters)}" if filters else ""
        return _decoded(await self._select(f"{_LIST}{where} ORDER BY scope, handle LIMIT $1::bigint", *values))

    async def find(self, handle: str) -> Sequence[Workflow]:
        """See `VersionedFsmStateStore.find`."""
        return _decoded(await self._select(_FIND, _key("", handle)[1]))

    async def history(self, scope: str, handle: str, *, limit: int = 1000) -> Sequence[Step]:
        """See `VersionedFsmStateStore.history`. Of a long one the newest ten thousand are kept."""
        rows = await self._select(_HISTORY, *_key(scope, handle), max(limit, 0))
        return [decode_step(row[0], scope, handle) for row in reversed(rows)]

    async def prune(self, *, before: float, limit: int = 1000) -> int:
        """See `VersionedFsmStateStore.prune`. One that is being written at the moment is passed over."""
        gone = 0
        while gone < limit:
            # Few at a time, as each may have a long history, and a statement has its time limit.
            asked = min(_PRUNED_AT_ONCE, limit - gone)
            ((removed,),) = await self.server.run(self.server.sql(_PRUNE), float(before), asked)
            gone += removed
            if removed < asked:
                break
        return gone

    async def publish(self, messages: Sequence[str]) -> None:
        """See `Bus.publish`."""
        await self._bus.publish(messages)

    def listen(self) -> AsyncGenerator[str | None]:
        """See `Bus.listen`. Needs a connection to the server itself, or through a pooler in session mode."""
        return self._bus.listen()

    async def initialise(self) -> Sequence[str]:
        """See `Maintained.initialise`: creates the schema, or brings it up to date."""
        before, now = await postgres_schema.initialise(self.server.url)
        lines = _described(now, self.server.url.schema)
        if before.version is None:
            return [*lines, "the schema was created"]
        return (
            lines if before == now else [*lines, f"the schema was brought up to date from version {before.version}"]
        )

    async def describe(self) -> Sequence[str]:
        """See `Maintained.describe`."""
        found = await postgres_schema.look(self.server.url)
        await self.server.run("SELECT")
        return _described(found, self.server.url.schema)

    async def aclose(self) -> None:
        """Close the connections. Calling it again does nothing; anything else raises StoreError from then on."""
        await self.server.aclose()

    async def _select(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        return await self.server.run(self.server.sql(query), *values, repeatable=True)


def _described(found: postgres_schema.SchemaState, schema: str) -> list[str]:
    return [f"PostgreSQL {found.server}", f"schema {schema!r}, version {found.version}"]


def _values(workflow: Workflow, expected_version: int) -> list[Any]:
    claim = workflow.claim
    doubtful_from = None if claim is None else -_INFINITY if claim.in_doubt else claim.lease_until
    times = (_INFINITY if at is None else float(at) for at in (doubtful_from, workflow.due, workflow.expires_at))
    record = encode_workflow(workflow)
    key = _key(workflow.scope, workflow.handle)
    return [*key, expected_version, workflow.state.encode(), workflow.steps, *times, record]


def _key(scope: str, handle: str) -> tuple[bytes, bytes]:
    check_key(scope, handle)
    key = scope.encode(), handle.encode()
    if len(key[0]) + len(key[1]) > NAME_LIMIT:
        raise StoreError(f"a workflow's scope and handle are longer than {NAME_LIMIT} bytes")
    return key


def _decoded(rows: Sequence[tuple[str, bytes, bytes, int]]) -> list[Workflow]:
    return [
        decode_workflow(record, scope.decode(), handle.decode(), version) for record, scope, handle, version in rows
    ]
