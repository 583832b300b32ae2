"""Canonical bytes of JSON values: what digests, idempotency keys and record hashes are made from. Frozen by test vectors.

Keys sorted by code point, no spaces, UTF-8 without escapes that JSON does not demand, no NaN or infinities. Whole numbers have
any size; fractions are written as Python's shortest repr. RFC 8785 was not taken: it refuses whole numbers above 2^53.
"""

import json
from typing import Any

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical(value: Any) -> bytes:  # Any: any JSON value
    """Bytes of a JSON value. Raises ValueError on NaN, infinities and lone surrogates, TypeError on what is not JSON."""
    return _ENCODER.encode(value).encode()
