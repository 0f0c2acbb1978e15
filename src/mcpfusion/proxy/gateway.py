"""A gateway from a config file: its registry, and a triage tool made of the registry's descriptions."""

import os
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import yaml

from mcpfusion.fusion import Fusion
from mcpfusion.swarm.gateway import SwarmGateway
from mcpfusion.swarm.handoffs import Handoff, handoff

if TYPE_CHECKING:
    from mcpfusion.wire.server import FusionServer

SECRET_VARIABLE = "MCPFUSION_DELEGATION_SECRET"  # noqa: S105 - the name of a variable

_OPTIONS = {
    "token_ttl_seconds", "connect_timeout_ms", "idle_timeout_ms", "max_sessions", "upstream_transport", "store",
    "separator", "dispatcher", "max_depth", "max_handoffs",
}  # fmt: skip
_OWN = {"name", "version", "instructions", "registry", "secret_env", "secret_file"}


class ConfigError(ValueError):
    """The config cannot be right. The message names the place and the remedy, on one line."""


def read_gateway(path: str | Path) -> "FusionServer":
    """Return the server that a YAML or JSON file describes.

    Raises:
        ConfigError: The file cannot be read, or something in it cannot be right.
    """
    try:
        loaded: object = yaml.safe_load(Path(path).read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {str(path)!r}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{str(path)!r} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(loaded, dict):
        raise ConfigError(f"{str(path)!r}: expected a mapping with a registry")
    return gateway_server(cast(dict[str, Any], loaded), folder=Path(path).parent)


def gateway_server(config: Mapping[str, Any], *, folder: Path | None = None) -> "FusionServer":
    """Return the server of a gateway's config.

    Args:
        config: `registry` (names with a URL, or `url`, `command`, `description`, `allow`, `pin`, ...), `name`,
            `secret_env` or `secret_file`, and options of `SwarmGateway`.
        folder: Where a relative `secret_file` counts from.

    Raises:
        ConfigError: Something in it cannot be right.
    """
    for key in config:
        if key not in _OPTIONS | _OWN:
            near = get_close_matches(str(key), _OPTIONS | _OWN, n=1)
            raise ConfigError(f"{key}: no such option" + (f" (did you mean {near[0]!r}?)" if near else ""))
    registry = config.get("registry")
    if not isinstance(registry, dict) or not registry:
        raise ConfigError("registry: expected at least one specialist")
    name = str(config.get("name", "gateway"))
    options = {key: value for key, value in config.items() if key in _OPTIONS}
    try:
        specialists = cast(dict[str, Any], registry)
        gateway = SwarmGateway(specialists, secret_of(config, folder or Path()), name, **options)
        fusion = Fusion(name, version=str(config.get("version", "")), instructions=config.get("instructions"))
        _add_triage(fusion, gateway)
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from None
    return fusion.server(swarm_gateway=gateway)


def secret_of(config: Mapping[str, Any], folder: Path) -> list[str]:
    """Return the delegation secrets, the newest first: one on each line of the file, or one in the variable.

    Raises:
        ConfigError: There is none. Secrets do not belong into the config itself.
    """
    if "secret_file" in config:
        path = folder / str(config["secret_file"])
        try:
            lines = path.read_text().split()
        except OSError as error:
            raise ConfigError(f"secret_file: cannot read {str(path)!r}: {error.strerror}") from None
        if not lines:
            raise ConfigError(f"secret_file: {str(path)!r} is empty")
        return lines
    variable = str(config.get("secret_env", SECRET_VARIABLE))
    value = os.environ.get(variable, "").split()
    if not value:
        raise ConfigError(f"no delegation secret: set the variable {variable}, or name a secret_file")
    return value


def _add_triage(fusion: Fusion, gateway: SwarmGateway) -> None:
    specialists = gateway.registry.specialists
    lines = [f"- {name}: {each.description or 'no description'}" for name, each in specialists.items()]
    description = "Route the request to the right specialist:\n" + "\n".join(lines)

    async def route(domain: str, context: str) -> Handoff:
        return handoff(domain, carry_over_state={"intent": context}, reason=f"Triage to {domain}")

    # The names are known now and not before, so that the choice is put into the signature here.
    route.__annotations__["domain"] = Literal[tuple(specialists)]
    fusion.action(f"{gateway.name}.route", describe=description, title="Route to a specialist").handle(route)
