"""What the commands share: options, opening the store, finding the workflow that is meant."""

import getpass
import json
import shlex
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import click

from mcpfusion.stores.protocol import EngineClock, StoreError, VersionedFsmStateStore, Workflow

T = TypeVar("T")

store_option = click.option(
    "--store",
    "url",
    metavar="URL",
    required=True,
    envvar="MCPFUSION_STORE",
    show_envvar=True,
    help="The store that the server uses.",
)
scope_option = click.option(
    "--scope",
    metavar="SCOPE",
    default=None,
    help="Whose workflow: a scope, or the subject of a principal; '' is the scope that everybody shares.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="JSON instead of a table.")


def with_store(url: str, work: Callable[[VersionedFsmStateStore], Awaitable[T]]) -> T:
    """Return what `work` returns, given the open store.

    Raises:
        click.ClickException: The URL names no store that is there, or the store or the operation failed.
    """
    from mcpfusion.gate.operator import OperatorError
    from mcpfusion.stores.open import open_store

    if url.startswith("memory:"):
        raise click.BadParameter("a store in memory ends with its server's process", param_hint="--store")
    try:
        store = open_store(url, create=False)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--store") from error

    async def opened() -> T:
        try:
            return await work(store)
        finally:
            await store.aclose()

    try:
        return anyio.run(opened)
    except (StoreError, OperatorError) as error:
        raise click.ClickException(str(error)) from error


async def find(store: VersionedFsmStateStore, handle: str, scope: str | None) -> Workflow:
    """Return the workflow that is meant.

    Raises:
        click.ClickException: There is none, or without a scope there are several.
    """
    if scope is not None:
        record = await store.read(scope, handle)
        found = [record] if record else [each for each in await store.find(handle) if _is_subject(scope, each.scope)]
    else:
        found = list(await store.find(handle))
    if not found:
        where = "" if scope is None else f" in scope {scope!r}" if scope else " in the scope that everybody shares"
        raise click.ClickException(f"no workflow {handle!r}{where}")
    if len(found) > 1:
        scopes = ", ".join(f"--scope {shlex.quote(record.scope)}" for record in found)
        raise click.ClickException(f"{len(found)} scopes have a workflow {handle!r}; say which one: {scopes}")
    return found[0]


def _is_subject(name: str, scope: str) -> bool:
    """Return whether a scope is the principal of this subject: the JSON text of client, issuer and subject."""
    try:
        principal: object = json.loads(scope)
    except ValueError:
        return False
    return isinstance(principal, list) and principal[2:] == [name]


async def now_of(store: VersionedFsmStateStore) -> float:
    """Return the time by which leases go, in seconds since the epoch: that of the engine, where it has a clock."""
    if not isinstance(store, EngineClock):
        return time.time()
    await store.read("", "")  # any answer brings it along
    return store.now()


def operator() -> str:
    """Return the name that the history keeps for an operator's step: the user's on this machine."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "operator"
