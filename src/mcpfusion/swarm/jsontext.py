"""JSON text as ECMAScript's `JSON.stringify` writes it, byte for byte, so that both languages sign the same."""

import json
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, cast

_DEEPEST = 200


def stringify(value: Any) -> str:
    """Return the compact JSON text of `value`, keys in their order.

    Raises:
        ValueError: It holds what JSON cannot: NaN, infinity, other types, keys that are no strings, or it is nested
            more than 200 levels deep.
    """
    return _write(value, 0)


def _write(value: Any, depth: int) -> str:
    if depth > _DEEPEST:
        raise ValueError(f"nested more than {_DEEPEST} levels deep")
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return _string(value)
        case int():
            return str(value)
        case float():
            return _number(value)
        case Mapping():
            pairs = cast(Mapping[Any, Any], value).items()
            return "{" + ",".join(f"{_key(key)}:{_write(item, depth + 1)}" for key, item in pairs) + "}"
        case list() | tuple():
            return "[" + ",".join(_write(item, depth + 1) for item in cast(Sequence[Any], value)) + "]"
        case _:
            raise ValueError(f"{type(value).__name__} is no JSON value")


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise ValueError(f"a key must be a string, not {type(key).__name__}")
    return _string(key)


def _string(text: str) -> str:
    written = json.dumps(text, ensure_ascii=False)
    if written.isascii():
        return written
    # Well-formed JSON.stringify (ES2019) escapes lone surrogates, which UTF-8 cannot carry.
    return "".join(f"\\u{ord(char):04x}" if 0xD800 <= ord(char) <= 0xDFFF else char for char in written)


def _number(value: float) -> str:
    """Write a number as ECMA-262 Number::toString does."""
    if not math.isfinite(value):
        raise ValueError("NaN and infinity are no JSON values")
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    _, digit_tuple, exponent = Decimal(repr(abs(value))).normalize().as_tuple()
    digits = "".join(map(str, digit_tuple))
    point = len(digits) + cast(int, exponent)
    if 0 < point <= 21:
        whole = digits[:point].ljust(point, "0")
        rest = digits[point:]
        return f"{sign}{whole}.{rest}" if rest else f"{sign}{whole}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    power = point - 1
    mantissa = digits if len(digits) == 1 else f"{digits[0]}.{digits[1:]}"
    return f"{sign}{mantissa}e{'+' if power > 0 else '-'}{abs(power)}"
