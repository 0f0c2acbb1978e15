"""The registry: which specialists a gateway knows, and how a handoff's target finds one."""

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal, cast, get_args
from urllib.parse import urlsplit, urlunsplit

from mcpfusion.swarm.errors import HandoffError
from mcpfusion.swarm.handoffs import Handoff
from mcpfusion.swarm.keyring import Secrets

Transport = Literal["auto", "http", "sse"]

_SCHEMES = {"mcp": "http", "mcps": "https", "http": "http", "https": "https"}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class Specialist:
    """One entry of the registry.

    Attributes:
        at: A URL (`http`, `https`, `mcp`, `mcps`), a command with its arguments for stdio, or a server object.
        secret: Its own delegation secret; None is the gateway's.
        allow: Globs of the tools it may expose; None is all of them.
        pin: A tool's definition, once seen, may not change until an operator accepts the change.
        max_sessions: Handoffs to it at once; None is the gateway's limit.
        transport: `auto`, `http` or `sse`; None is the gateway's.
        description: What it is for; an automatic triage tool tells the model.
    """

    at: Any = field(repr=False)
    secret: "str | Sequence[str] | None" = field(default=None, repr=False)
    allow: tuple[str, ...] | None = None
    pin: bool = False
    max_sessions: int | None = None
    transport: Transport | None = None
    description: str | None = None

    @property
    def url(self) -> str | None:
        """The URL to connect to: `mcp` is `http`, and a URL without a path means `/mcp`. None for others."""
        if not isinstance(self.at, str):
            return None
        parts = urlsplit(self.at)
        path = parts.path if parts.path not in ("", "/") else "/mcp"
        return urlunsplit((_SCHEMES[parts.scheme], parts.netloc, path, parts.query, ""))

    @property
    def command(self) -> list[str] | None:
        """The command to start, or None."""
        at: object = self.at
        return list(cast(Sequence[str], at)) if isinstance(at, list | tuple) else None

    @property
    def in_process(self) -> bool:
        """Whether it is a server object of this process."""
        return not isinstance(self.at, str | list | tuple)

    def allows(self, tool: str) -> bool:
        """Return whether the specialist may expose a tool of that name (its own name for it)."""
        return self.allow is None or any(fnmatch.fnmatchcase(tool, pattern) for pattern in self.allow)


class Registry:
    """The specialists by name.

    Args:
        entries: Names with a `Specialist`, its fields as a mapping, or just where it is.

    Raises:
        ValueError: A name or an entry that cannot be right; the message names it.
    """

    def __init__(self, entries: Mapping[str, Any]) -> None:
        self.specialists: dict[str, Specialist] = {name: _entry(name, entry) for name, entry in entries.items()}

    def find(self, handoff: Handoff) -> tuple[str, Specialist]:
        """Return the specialist that a handoff means.

        Raises:
            HandoffError: There is none of that name.
        """
        for name in handoff.candidates:
            if name in self.specialists:
                return name, self.specialists[name]
        near = get_close_matches(handoff.candidates[-1], self.specialists, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        known = ", ".join(self.specialists) or "none"
        raise HandoffError(
            "UNKNOWN_TARGET", f"no specialist answers to {handoff.target[:128]!r}{hint}; there are: {known}"
        )


def check_transport(what: str, transport: object) -> None:
    """Raise ValueError when `transport` is none; the message begins with `what`."""
    if transport not in get_args(Transport):
        raise ValueError(f"{what} must be one of {', '.join(get_args(Transport))}, not {transport!r}")


def _entry(name: str, entry: Any) -> Specialist:
    if not _NAME.fullmatch(name):
        raise ValueError(f"registry: {name[:64]!r} is no name (letters, digits, _ . -, at most 64 characters)")
    where = f"registry.{name}"
    if isinstance(entry, Mapping):
        specialist = _from_mapping(where, cast(Mapping[str, Any], entry))
    else:
        specialist = entry if isinstance(entry, Specialist) else Specialist(at=entry)
    _check_place(where, specialist)
    if specialist.transport is not None:
        check_transport(f"{where}: transport", specialist.transport)
    if specialist.max_sessions is not None and not specialist.max_sessions > 0:
        raise ValueError(f"{where}: max_sessions must be positive, not {specialist.max_sessions!r}")
    if specialist.secret is not None:
        Secrets(specialist.secret)
    return specialist


def _check_place(where: str, specialist: Specialist) -> None:
    if isinstance(specialist.at, str):
        parts = urlsplit(specialist.at)
        if parts.scheme not in _SCHEMES or not parts.hostname:
            raise ValueError(f"{where}: expected an http, https, mcp or mcps URL, not one of scheme {parts.scheme!r}")
        try:
            _ = parts.port
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
    command = specialist.command
    if command is not None and (not command or not all(isinstance(part, str) for part in command)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"{where}: a command is a list of strings, the program first")
    at: object = specialist.at
    if at is None or isinstance(at, int | float | bytes | Mapping):
        kind = type(cast(object, at)).__name__
        raise ValueError(f"{where}: expected a URL, a command or a server object, not {kind}")


def _from_mapping(where: str, entry: Mapping[str, Any]) -> Specialist:
    places = [entry[key] for key in ("url", "command", "server") if entry.get(key) is not None]
    if len(places) != 1:
        raise ValueError(f"{where}: expected exactly one of url, command and server")
    rest = {key: value for key, value in entry.items() if key not in ("url", "command", "server")}
    known = {"secret", "allow", "pin", "max_sessions", "transport", "description"}
    for key in rest:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            raise ValueError(f"{where}: no option {key!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
    if rest.get("allow") is not None:
        rest["allow"] = (rest["allow"],) if isinstance(rest["allow"], str) else tuple(rest["allow"])
    return Specialist(at=places[0], **rest)
