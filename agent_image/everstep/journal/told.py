"""The newest anchor, told to the attempt that runs by whoever keeps it: a meta field.

Records before a snapshot are deleted only up to an anchor that was told; nothing else rests on it."""

import re

from everstep.ids import RecordHash, Seq
from everstep.journal.store import Head

ANCHOR_FIELD = "anchor"
"""Meta field `<seq> <hash>`; written once a snapshot or segment lies at or before the anchor."""
_HASH = re.compile(r"[0-9a-f]{64}")


def anchor_field(anchor: Head) -> dict[str, str]:
    """The field, for `Store.set_fields`."""
    return {ANCHOR_FIELD: f"{anchor.seq} {anchor.hash}"}


def read_anchor(text: str) -> Head | None:
    """The anchor that was told; None if none was, or nothing that reads as one."""
    seq, _, digest = text.partition(" ")
    return Head(Seq(int(seq)), RecordHash(digest)) if seq.isdecimal() and _HASH.fullmatch(digest) else None
