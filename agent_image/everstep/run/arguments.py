"""The arguments of one step call as JSON, and the checksums by which a divergence can name the one that changed.

The journal holds no arguments, only the digest of the whole (`Intent.input`). With two or more of them an intent also holds the
CRC-32 of each one's canonical bytes as 8 hex digits (`Intent.args`): 14 bytes and the name per argument, some 3 µs for 4 KB. It
decides nothing; a lone argument needs none.
"""

import hashlib
import zlib
from collections.abc import Mapping, Sequence

from everstep.journal.canonical import Json, canonical

ARGS_MAX = 32
"""With more arguments than this their checksums are left out."""


class Arguments(dict[str, Json]):
    """JSON by name, with the canonical bytes it was made from."""

    __slots__ = ("parts",)

    def __init__(self, data: Mapping[str, Json], parts: Sequence[tuple[str, bytes]]) -> None:
        super().__init__(data)
        self.parts = parts


def checksums(args: Mapping[str, Json]) -> dict[str, str] | None:
    """For an intent; None where there is nothing to tell apart."""
    if not 1 < len(args) <= ARGS_MAX:
        return None
    if isinstance(args, Arguments):
        return {name: f"{zlib.crc32(raw):08x}" for name, raw in args.parts}
    return {name: checksum(value) for name, value in args.items()}


def checksum(value: Json) -> str:
    """Of one argument."""
    return f"{zlib.crc32(canonical(value)):08x}"


def digest(value: Json) -> str:
    """SHA-256 of the canonical form, as `Intent.input` is made."""
    return hashlib.sha256(canonical(value)).hexdigest()
