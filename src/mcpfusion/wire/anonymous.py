"""Callers over HTTP who do not say who they are, where nothing else tells their workflows apart."""

import ipaddress
import logging
from typing import Any

from mcpfusion.wire.attachment import Attachment

_log = logging.getLogger(__name__)


class AnonymousCallersError(ValueError):
    """Callers who do not say who they are would all share one workflow."""


def authenticates(server: Any) -> bool:
    """Return whether a server, FastMCP's or the SDK's, was given a way to tell its callers by."""
    return bool(getattr(server, "auth", None) or getattr(getattr(server, "settings", None), "auth", None))


def check_anonymous(attachment: Attachment, host: str | None, *, authenticated: bool) -> None:
    """Warn when callers over HTTP would all share one workflow.

    Args:
        host: The address the server will be reachable at, where that is known.
        authenticated: The server tells its callers apart.

    Raises:
        AnonymousCallersError: They would, and `host` is no loopback address.
    """
    single = attachment.options.single_tenant or attachment.carries_handles
    if attachment.bindings is None or single or authenticated:
        return
    said = (
        "callers over HTTP without a session and without authentication all share one workflow: "
        "set state_handle_key, authenticate them, or say single_tenant=True"
    )
    if host is not None and not is_loopback(host):
        raise AnonymousCallersError(f"{said} (refused on {host}, which is not a loopback address)")
    _log.warning("%s", said)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
