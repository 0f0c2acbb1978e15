"""Namespaces: a specialist's tools under its own name, so that none of them can pass for another's."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

SEPARATORS = (".", "__", "_", "-", "/")

LONGEST_PORTABLE_NAME = 64
"""Longest tool name that clients of the large model APIs accept."""

_PORTABLE = re.compile(r"[^A-Za-z0-9_-]")

Tool = dict[str, Any]


def wire_name(prefix: str, separator: str, name: str) -> str:
    """Return the name on the wire of `name` under `prefix`. With a separator that is itself portable every character
    that is not becomes `_`."""
    full = f"{prefix}{separator}{name}"
    return _PORTABLE.sub("_", full) if _PORTABLE.search(separator) is None else full


class NamespaceError(Exception):
    """A tool name that does not belong to the namespace.

    Attributes:
        tool_name: The name.
        expected_prefix: The namespace it should have been in.
    """

    def __init__(self, tool_name: str, expected_prefix: str) -> None:
        super().__init__(f"tool {tool_name[:128]!r} is not in the namespace {expected_prefix!r}")
        self.tool_name = tool_name
        self.expected_prefix = expected_prefix


class NamespaceRewriter:
    """Puts the tools of one specialist under its prefix, and finds them again.

    Args:
        prefix: The specialist's name.
        separator: What stands between prefix and tool. With `__`, `_` or `-` every character that is not a letter,
            digit, `_` or `-` becomes `_`, for clients that accept only those.

    Raises:
        ValueError: Another separator.
    """

    def __init__(self, prefix: str, *, separator: str = ".") -> None:
        if separator not in SEPARATORS:
            raise ValueError(f"separator must be one of {' '.join(SEPARATORS)}, not {separator!r}")
        self.prefix = prefix
        self.separator = separator
        self._originals: dict[str, str] = {}

    @property
    def names(self) -> Mapping[str, str]:
        """The tools of the last `rewrite_tools`: from the name on the wire to the specialist's own."""
        return dict(self._originals)

    def wire_name(self, name: str) -> str:
        """Return the name under which a tool of the specialist goes over the wire."""
        return wire_name(self.prefix, self.separator, name)

    def rewrite_tools(self, tools: Iterable[Mapping[str, Any]]) -> list[Tool]:
        """Return the tools under the namespace; descriptions and titles say whose they are.

        Raises:
            ValueError: Two tools become one name; the message names both.
        """
        rewritten: list[Tool] = []
        originals: dict[str, str] = {}
        for tool in tools:
            original = str(tool["name"])
            name = self.wire_name(original)
            if name in originals:
                raise ValueError(
                    f"tools {originals[name]!r} and {original!r} of {self.prefix!r} both become {name!r}"
                )
            originals[name] = original
            rewritten.append(self._labelled({**tool, "name": name}))
        self._originals = originals
        return rewritten

    def _labelled(self, tool: Tool) -> Tool:
        label = f"[{self.prefix}]"
        tool["description"] = f"{label} {tool.get('description') or ''}".strip()
        if isinstance(tool.get("title"), str):
            tool["title"] = f"{label} {tool['title']}"
        return tool

    def original(self, wire_name: str) -> str:
        """Return the specialist's own name of a tool that it listed.

        Raises:
            NamespaceError: It listed no such tool.
        """
        try:
            return self._originals[wire_name]
        except KeyError:
            raise NamespaceError(wire_name, self.prefix) from None

    def strip(self, wire_name: str) -> str:
        """Return what follows the prefix, whether or not such a tool was listed.

        Raises:
            NamespaceError: The name does not begin with the prefix.
        """
        head = self.wire_name("")
        if not wire_name.startswith(head):
            raise NamespaceError(wire_name, self.prefix)
        return wire_name[len(head) :]

    def too_long(self, limit: int = LONGEST_PORTABLE_NAME) -> list[str]:
        """Return the names on the wire that are longer than `limit`."""
        return [name for name in self._originals if len(name) > limit]
