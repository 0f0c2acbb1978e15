"""Names for the cases of a test."""

import re


def case_name(value: object) -> str:
    """Return a value's text as the name of a case, the same in every process: without addresses, and in order."""
    text = f"{{{', '.join(sorted(map(str, value)))}}}" if isinstance(value, set | frozenset) else str(value)
    return re.sub(r" at 0x[0-9a-f]+", "", text)
