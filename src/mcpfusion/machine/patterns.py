"""Binding patterns: which states `review`, `approved.*` or `tag:payable` stand for."""

import re
from collections.abc import Iterable, Mapping

from .errors import MachineConfigError, near_miss

_TAG = "tag:"


def expand(pattern: str, tags_by_path: Mapping[str, Iterable[str]], machine_id: str) -> frozenset[str]:
    """Return the dotted paths that a pattern stands for.

    A state whose path is the pattern itself comes first. Then `tag:NAME` stands for the states that carry the
    tag, and each `*` stands for any text, dots included.

    Raises:
        MachineConfigError: It stands for no state at all; the message names the nearest state or tag.
    """
    if pattern in tags_by_path:
        return frozenset((pattern,))
    if pattern.startswith(_TAG):
        wanted = pattern.removeprefix(_TAG)
        found = frozenset(path for path, tags in tags_by_path.items() if wanted in tags)
        known = {tag for tags in tags_by_path.values() for tag in tags}
        problem = f"no state has the tag {wanted!r}{near_miss(wanted, sorted(known))}"
    elif "*" in pattern:
        glob = re.compile(".*".join(re.escape(part) for part in pattern.split("*")), re.DOTALL)
        found = frozenset(path for path in tags_by_path if glob.fullmatch(path))
        problem = f"no state matches {pattern!r}{near_miss(pattern.replace('*', ''), tags_by_path)}"
    else:
        found = frozenset[str]()
        problem = f"no state {pattern!r}{near_miss(pattern, tags_by_path)}"
    if not found:
        raise MachineConfigError(f"machine {machine_id!r}: {problem}")
    return found
