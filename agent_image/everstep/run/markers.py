"""What a marker of `everstep.patched` looks like in the journal; its meaning is told in everstep.run.patches."""

from everstep.journal.records import Record, Value

PATCHED = "patched:"
"""Begins the name of a marker, and its key within the epoch."""
DEPRECATED = "deprecated"
"""Value of a marker that code without a call for it may pass over."""


def is_marker(record: Record) -> bool:
    """Whether a record is a marker of `patched` or `deprecate_patch`."""
    return isinstance(record, Value) and record.name.startswith(PATCHED)
