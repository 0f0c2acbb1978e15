"""The tables in PostgreSQL, and how a schema of an earlier version becomes one of today's.

Names, states and routes are UTF-8 in `bytea`: PostgreSQL's text holds no NUL, and bytes have the order that the
stores promise, that of code points. Records are ASCII JSON in `text`, for people to read; `jsonb` takes no NUL.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import anyio

from .postgres_errors import explain, failure
from .postgres_link import Link
from .postgres_url import PostgresUrl

MIGRATION_LIMIT = 600.0
"""Seconds that `initialise` may take; it waits for another that is at work."""

CHECK_LIMIT = 5.0

# The state's digest stands for it in the indexes: a state of nested regions has a text of any length, an index row
# has not. A page keeps some room free, so that a new version of a row can stay on it.
_FIRST = """
CREATE TABLE {s}.workflow (
    scope bytea NOT NULL,
    handle bytea NOT NULL,
    version bigint NOT NULL,
    state bytea NOT NULL,
    state_key bytea NOT NULL GENERATED ALWAYS AS (substring(sha256(state) FROM 1 FOR 16)) STORED,
    steps bigint NOT NULL,
    doubtful_from double precision,
    due double precision,
    expires double precision,
    record text NOT NULL,
    PRIMARY KEY (scope, handle)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX workflow_handle ON {s}.workflow (handle, scope);
CREATE INDEX workflow_state ON {s}.workflow (state_key, scope, handle);
CREATE INDEX workflow_in_use ON {s}.workflow (scope, state_key) WHERE steps > 0;
CREATE INDEX workflow_doubt ON {s}.workflow (scope, handle) WHERE doubtful_from IS NOT NULL;
CREATE INDEX workflow_due ON {s}.workflow (due) WHERE due IS NOT NULL;
CREATE INDEX workflow_expires ON {s}.workflow (expires) WHERE expires IS NOT NULL AND doubtful_from IS NULL;

CREATE TABLE {s}.step (
    scope bytea NOT NULL,
    handle bytea NOT NULL,
    version bigint NOT NULL,
    record text NOT NULL,
    PRIMARY KEY (scope, handle, version)
);

CREATE TABLE {s}.handoff_state (key bytea PRIMARY KEY, state text NOT NULL, expires timestamptz NOT NULL);
CREATE INDEX handoff_state_expires ON {s}.handoff_state (expires);
CREATE TABLE {s}.used_token (key bytea PRIMARY KEY, expires timestamptz NOT NULL);
CREATE INDEX used_token_expires ON {s}.used_token (expires);
CREATE TABLE {s}.pin (
    specialist bytea NOT NULL,
    tool bytea NOT NULL,
    digest text NOT NULL,
    refused text,
    PRIMARY KEY (specialist, tool)
);
CREATE TABLE {s}.route (
    key bytea PRIMARY KEY,
    version bigint NOT NULL,
    record bytea NOT NULL,
    expires timestamptz NOT NULL
) WITH (fillfactor = 80);
CREATE INDEX route_expires ON {s}.route (expires);
CREATE TABLE {s}.place (
    gateway bytea NOT NULL,
    domain bytea NOT NULL,
    handoff bytea NOT NULL,
    expires timestamptz NOT NULL,
    PRIMARY KEY (gateway, domain, handoff)
) WITH (fillfactor = 80);
CREATE INDEX place_expires ON {s}.place (expires);

-- The lock is taken by a statement of its own, so that the next one sees what its last holder did.
CREATE FUNCTION {s}.take_place(
    for_gateway bytea, for_domain bytea, for_handoff bytea,
    place_limit bigint, domain_limit bigint, ttl double precision
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    at timestamptz;
    taken bigint;
    to_domain bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(encode(for_gateway, 'hex'), 7235411));
    at := clock_timestamp();
    SELECT count(*), count(*) FILTER (WHERE domain = for_domain) INTO taken, to_domain
        FROM {s}.place WHERE gateway = for_gateway AND expires > at;
    IF taken >= place_limit OR to_domain >= domain_limit THEN
        RETURN false;
    END IF;
    INSERT INTO {s}.place VALUES (for_gateway, for_domain, for_handoff, at + make_interval(secs => ttl))
        ON CONFLICT (gateway, domain, handoff) DO UPDATE SET expires = excluded.expires;
    RETURN true;
END
$$;
"""

_MIGRATIONS = (_FIRST,)
"""What makes a schema of each version one of the next, from version 0, which has nothing. Append; never alter."""

SCHEMA_VERSION = len(_MIGRATIONS)


@dataclass(frozen=True, slots=True)
class SchemaState:
    """What is found in a database.

    Attributes:
        server: The server's version in words, "16.4".
        version: Of the schema; None when there is none.
    """

    server: str
    version: int | None


async def look(url: PostgresUrl) -> SchemaState:
    """Return what is there, changing nothing.

    Raises:
        StoreError: The server cannot be reached, or refuses.
    """
    with _explained(CHECK_LIMIT):
        link = await Link.connect(url.parameters)
        try:
            return await _look(link, url, CHECK_LIMIT)
        finally:
            link.close()


async def initialise(url: PostgresUrl) -> tuple[SchemaState, SchemaState]:
    """Create the schema, or bring it up to date, in one transaction; return what was there and what is now.

    Several may do so at once: one does it, and the others find it done. Only what is missing is created: a role that
    may not create schemas can fill one that was made for it.

    Raises:
        StoreError: It cannot be done, or the schema is a newer version's. Nothing is changed then.
    """
    with _explained(MIGRATION_LIMIT):
        link = await Link.connect(url.parameters)
        try:
            return await _initialise(link, url)
        finally:
            link.close()


async def _initialise(link: Link, url: PostgresUrl) -> tuple[SchemaState, SchemaState]:
    async def do(statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return await link.execute(statement.replace("{s}", url.quoted_schema), values, MIGRATION_LIMIT)

    ((encoding,),) = await do("SELECT current_setting('server_encoding')")
    if encoding != "UTF8":
        raise failure(f"the database's encoding is {encoding}", "create one with ENCODING 'UTF8'")
    await do("BEGIN")
    await do("SELECT pg_advisory_xact_lock(hashtextextended($1, 7235412))", url.schema)
    before = await _look(link, url, MIGRATION_LIMIT)
    if before.version is not None and before.version > SCHEMA_VERSION:
        raise failure(f"its schema has version {before.version}", "upgrade mcpfusion")
    if not (await do("SELECT FROM pg_namespace WHERE nspname = $1", url.schema)):
        await do("CREATE SCHEMA {s}")
    if before.version is None:
        await do("CREATE TABLE {s}.mcpfusion (version integer NOT NULL)")
        await do("INSERT INTO {s}.mcpfusion VALUES (0)")
    for migration in _MIGRATIONS[before.version or 0 :]:
        await link.run_script(migration.replace("{s}", url.quoted_schema), MIGRATION_LIMIT)
    await do("UPDATE {s}.mcpfusion SET version = $1::int4 WHERE version <> $1::int4", SCHEMA_VERSION)
    after = await _look(link, url, MIGRATION_LIMIT)
    await do("COMMIT")
    return before, after


async def _look(link: Link, url: PostgresUrl, limit: float) -> SchemaState:
    number = link.server_version
    server = f"{number // 10_000}.{number % 10_000}"
    there = "SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE nspname = $1 AND relname = $2"
    if not await link.execute(there, (url.schema, "mcpfusion"), limit):
        return SchemaState(server, None)
    ((version,),) = await link.execute(f"SELECT version FROM {url.quoted_schema}.mcpfusion", (), limit)  # noqa: S608 - quoted
    return SchemaState(server, version)


@contextmanager
def _explained(limit: float) -> Generator[None]:
    try:
        with anyio.fail_after(limit):
            yield
    except TimeoutError:
        raise failure("no answer in time") from None
    except Exception as error:
        raise explain(error) from None
