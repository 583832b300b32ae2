"""Canonical bytes of JSON values: what digests, idempotency keys and record hashes are made from. Frozen by test vectors.

Keys sorted by code point, no spaces, UTF-8 without escapes that JSON does not demand, no NaN or infinities. Whole numbers have
any size; fractions are written as Python's shortest repr. RFC 8785 was not taken: it refuses whole numbers above 2^53.
"""

import json
from json.encoder import encode_basestring
from typing import Any, Final, TypeAlias

Json: TypeAlias = Any  # any JSON value; a recursive type would cost a walk per value, checked at the edges instead
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_LONG: Final = 64
"""From here on the detour to a faster writer of strings pays; below, the call costs more than it saves."""


def canonical(value: Any) -> bytes:  # Any: any JSON value
    """Bytes of a JSON value. Raises ValueError on NaN, infinities and lone surrogates, TypeError on what is not JSON."""
    kind = type(value)
    if kind is str:
        return _text(value)
    if kind is int:
        return b"%d" % value
    return _ENCODER.encode(value).encode()


def exactly(value: object) -> str | int:
    """For msgspec, which wants to be told how to write subclasses of str and int. Raises TypeError for anything else."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _text(value: str) -> bytes:
    if len(value) >= _LONG:
        from msgspec.json import encode

        # It escapes as json does, five times as fast; a test compares them for every character.
        try:
            return encode(value)
        except ValueError:
            pass  # lone surrogates: the plain way says what is wrong with them
    return encode_basestring(value).encode()
