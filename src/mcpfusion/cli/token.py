"""`mcpfusion token`: make, check and look at delegation tokens."""

import base64
import json
import sys
from typing import Any

import anyio
import click

from mcpfusion.cli.secret import read_secrets, secret_option


@click.group(short_help="Make, check and look at delegation tokens.")
def token() -> None:
    """Make, check and look at delegation tokens.

    The secret comes from the environment or a file, never from the command line. A token that is given as - is read
    from the standard input.
    """


@token.command(short_help="Mint a token.")
@click.option("--scope", required=True, help="The specialist it is for.")
@click.option("--ttl", type=click.FloatRange(min=0, min_open=True), default=60, show_default=True, help="Seconds.")
@click.option("--issuer", default="mcpfusion-gateway", show_default=True, help="The gateway's name.")
@click.option("--state", metavar="JSON", default=None, help="State to carry over, a JSON object.")
@click.option("--store", metavar="URL", default=None, help="Where state that is too large for the token goes.")
@click.option("--traceparent", default=None, help="The trace to go on with.")
@secret_option
def mint(
    scope: str,
    ttl: float,
    issuer: str,
    state: str | None,
    store: str | None,
    traceparent: str | None,
    secret_env: str,
    secret_file: str | None,
) -> None:
    """Mint a token for one specialist and print it.

    \b
    Example:
      mcpfusion token mint --scope finance --ttl 60 --state '{"intent": "refund"}'

    \b
    Exit codes: 0 it is minted, 1 it could not be, 2 wrong usage.
    """
    from mcpfusion.swarm.open import open_swarm_stores
    from mcpfusion.swarm.tokens import mint_delegation_token

    secrets = read_secrets(secret_env, secret_file)

    async def work() -> str:
        kept = open_swarm_stores(store).states if store else None
        return await mint_delegation_token(scope, ttl, secrets, issuer, _object(state), kept, traceparent)

    try:
        click.echo(anyio.run(work))
    except ValueError as error:
        raise click.ClickException(str(error)) from error


@token.command(short_help="Verify a token and print what it says.")
@click.argument("value", metavar="TOKEN")
@click.option("--scope", default=None, help="What its scope must be.")
@click.option("--issuer", "issuers", multiple=True, help="Who may have minted it; may be given several times.")
@click.option("--store", metavar="URL", default=None, help="Where state that is too large for the token is.")
@secret_option
def verify(
    value: str,
    scope: str | None,
    issuers: tuple[str, ...],
    store: str | None,
    secret_env: str,
    secret_file: str | None,
) -> None:
    """Verify a token and print what it delegates, as JSON.

    \b
    Example:
      mcpfusion token verify eyJpc3Mi….c2ln --scope finance

    \b
    Exit codes: 0 it is valid, 1 it is not, 2 wrong usage.
    """
    from mcpfusion.swarm.errors import HandoffAuthError
    from mcpfusion.swarm.open import open_swarm_stores
    from mcpfusion.swarm.tokens import verify_delegation_token

    secrets = read_secrets(secret_env, secret_file)
    text = _given(value)

    async def work() -> Any:
        kept = open_swarm_stores(store).states if store else None
        return await verify_delegation_token(text, secrets, scope=scope, issuers=issuers or None, store=kept)

    try:
        found = anyio.run(work)
    except HandoffAuthError as error:
        raise click.ClickException(str(error)) from error
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    names = ("issuer", "scope", "tid", "issued_at", "expires_at", "traceparent", "audience", "depth", "state")
    click.echo(json.dumps({name: getattr(found, name) for name in names}, ensure_ascii=False, indent=2))


@token.command(short_help="Print the claims of a token without verifying it.")
@click.argument("value", metavar="TOKEN")
def inspect(value: str) -> None:
    """Print the claims of a token as they stand, without verifying it: anybody can have written them.

    \b
    Example:
      mcpfusion token inspect eyJpc3Mi….c2ln

    \b
    Exit codes: 0 it can be read, 1 it cannot, 2 wrong usage.
    """
    payload = _given(value).partition(".")[0]
    try:
        claims: object = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except ValueError:
        raise click.ClickException("it is no token: its first part is no base64url of JSON") from None
    click.echo("not verified", err=True)
    click.echo(json.dumps(claims, ensure_ascii=False, indent=2))


def _given(value: str) -> str:
    return sys.stdin.read().strip() if value == "-" else value


def _object(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value: object = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"--state: no JSON: {error}") from None
    if not isinstance(value, dict):
        raise click.BadParameter("--state: expected a JSON object")
    return value  # pyright: ignore[reportUnknownVariableType]
