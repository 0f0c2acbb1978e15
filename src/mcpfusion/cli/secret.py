"""Where the commands take the delegation secret from: the environment or a file, never the command line."""

from pathlib import Path
from typing import Any

import click

VARIABLE = "MCPFUSION_DELEGATION_SECRET"


def secret_option(command: Any) -> Any:
    """Add the options that say where the secret is."""
    command = click.option(
        "--secret-file", type=click.Path(dir_okay=False), default=None, help="A file with the secret, one on a line."
    )(command)
    return click.option(
        "--secret-env", metavar="NAME", default=VARIABLE, show_default=True, help="The variable with the secret."
    )(command)


def read_secrets(secret_env: str, secret_file: str | None) -> Any:
    """Return the secrets, the newest first.

    Raises:
        click.ClickException: There is none, or one is too short.
    """
    from mcpfusion.proxy.gateway import ConfigError, secret_of
    from mcpfusion.swarm.keyring import Secrets

    given = {"secret_file": secret_file} if secret_file is not None else {"secret_env": secret_env}
    try:
        return Secrets(secret_of(given, Path()))
    except (ConfigError, ValueError) as error:
        raise click.ClickException(str(error)) from error
