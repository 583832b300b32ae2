"""Removing a run with all that is kept of it."""

import shutil

from everstep.contract import StopReason
from everstep.journal.store import Store
from everstep.local import child
from everstep.local.anchors import AnchorFile
from everstep.local.files import LocalDir
from everstep.local.spec import RunSpec

_BEFORE_THE_FIRST_RECORD = (StopReason.BAD_ENTRYPOINT, StopReason.BAD_INPUTS, StopReason.BAD_CONFIG)


async def remove(directory: LocalDir, spec: RunSpec, store: Store) -> None:
    """Remove a run that nobody supervises. Raises JournalUnavailable, BadStore, OSError."""
    await store.sweep(spec.journal)
    shutil.rmtree(directory.attempt_dir(spec.run), ignore_errors=True)
    # the spec goes last: as long as it is there, the command can be given again
    for path in (directory.anchor_path(spec.run), directory.spec_path(spec.run)):
        path.unlink(missing_ok=True)


async def never_began(directory: LocalDir, spec: RunSpec, store: Store) -> bool:
    """True if the run was refused for its entrypoint, inputs or a setting before its first record: nothing of it happened, so
    its name is free. An empty journal alone does not prove that, since a journal may have been lost."""
    said = child.termination(directory, spec)
    anchor = AnchorFile(directory.anchor_path(spec.run), spec.journal).read()
    if said is None or said.reason not in _BEFORE_THE_FIRST_RECORD or anchor is None or anchor.head.seq > 0:
        return False
    meta = await store.meta(spec.journal)
    return meta is not None and meta.head.seq == 0 and await store.last(spec.journal) is None
