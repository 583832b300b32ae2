"""Canonical bytes of JSON values: what digests, idempotency keys and record hashes are made from. Frozen by test vectors.

Keys sorted by code point, no spaces, UTF-8 without escapes that JSON does not demand, no NaN or infinities. Whole numbers have
any size; fractions are written as Python's shortest repr. RFC 8785 was not taken: it refuses whole numbers above 2^53.
"""

import json
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring
from typing import Any, Final, TypeAlias

Json: TypeAlias = Any  # any JSON value; a recursive type would cost a walk per value, checked at the edges instead
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_LONG: Final = 64
"""From here on the detour to a faster writer of strings pays; below, the call costs more than it saves."""
Layout = Sequence[tuple[str, bytes]]
"""Names of an object in canonical order, each with its bytes as they stand before the value."""


def canonical(value: Any) -> bytes:  # Any: any JSON value
    """Bytes of a JSON value. Raises ValueError on NaN, infinities and lone surrogates, TypeError on what is not JSON."""
    kind = type(value)
    if kind is str:
        return _text(value)
    if kind is int:
        return b"%d" % value
    return _ENCODER.encode(value).encode()


def layout(names: Sequence[str]) -> Layout:
    """What `canonical_fields` needs to know of objects that always have these names."""
    return [(name, encode_basestring(name).encode() + b":") for name in sorted(names)]


def canonical_fields(fields: Layout, values: Mapping[str, Any], keep_none: bool) -> bytes:  # Any: any JSON values
    """The bytes `canonical` gives for the object with these fields of `values`, without sorting and naming them each time.
    Fields that are None are left out unless `keep_none`. Raises as `canonical`."""
    parts: list[bytes] = []
    for name, before in fields:
        value = values[name]
        if type(value) is str:
            parts.append(before + _text(value))
        elif value is not None or keep_none:
            parts.append(before + canonical(value))
    return b"{" + b",".join(parts) + b"}"


def _text(value: str) -> bytes:
    if len(value) >= _LONG:
        from pydantic_core import to_json

        # It escapes as json does, five times as fast; a test compares them for every character.
        try:
            return to_json(value)
        except ValueError:
            pass  # lone surrogates: the plain way says what is wrong with them
    return encode_basestring(value).encode()
