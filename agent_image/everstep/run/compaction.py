"""Deleting what no restart reads any more: records before a snapshot or segment, and blobs that nothing names any more.

Only the attempt in force does it, under its lease, and never beyond an anchor: whoever keeps the anchor (operator, supervisor)
must find its record. It knows the newest anchor at its start, and from a meta field (everstep.journal.told) while it runs; a lie
in there could only make the journal unusable, which whoever writes the store can do anyway.

    at the start     up to the newest snapshot or segment at or before the anchor. If that is the newest of all, every blob that
                     nothing names is swept with it, also those that a crash has left
    while it runs    the same whenever a newer anchor was told, and the blobs that only records before it named

A value names a blob if the blob's digest appears anywhere in it. Between the decision and the deletion no blob is stored, so one
that is about to be named again is never lost.
"""

import asyncio
import logging
import re
from typing import TYPE_CHECKING

from everstep import faults
from everstep.errors import BadStore, JournalUnavailable
from everstep.ids import Seq
from everstep.journal.records import canonical, encode
from everstep.journal.store import COMPACT_MAX_BLOBS, CompactAnswer, Head
from everstep.journal.told import ANCHOR_FIELD, read_anchor

if TYPE_CHECKING:
    from everstep.ids import Owner
    from everstep.run.engine import Engine

log = logging.getLogger("everstep.run")
LOOK_FIRST_S = 1.0
LOOK_MAX_S = 10.0
"""How often the told anchor is read while a snapshot waits for it; one small read each."""
_DIGEST = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


def digests_in(raw: bytes) -> set[str]:
    """All in a value's canonical bytes that may be the name of a blob."""
    return {found.decode() for found in _DIGEST.findall(raw)}


class Compaction:
    """Of one attempt."""

    def __init__(self, engine: "Engine", owner: "Owner", anchor: Head | None) -> None:
        self._engine = engine
        self._owner = owner
        self._anchor = anchor
        self._openings = list(engine.history.openings)
        """(epoch, seq) of the snapshots and segments at which the journal could be made to begin."""
        self._begins_at = engine.history.first_seq
        self._named: dict[str, int] = {}
        """Blobs that are known here, and the newest epoch that names each."""
        self._wake = asyncio.Event()
        self.lock = asyncio.Lock()
        """Held while blobs are deleted, and while one is stored."""

    @property
    def waits_for(self) -> int:
        """Seq of the newest snapshot or segment, if records before it are there to be deleted; else 0."""
        newest = self._openings[-1][1] if self._openings else 0
        return newest if newest > self._begins_at else 0

    # --- told -----------------------------------------------------------------------------------------------------

    def opened(self, epoch: int, seq: int) -> None:
        """A snapshot or segment was put."""
        self._openings.append((epoch, seq))
        self._wake.set()

    def stored(self, digest: str) -> None:
        """A blob is stored, for a record of the epoch in force."""
        self._named[digest] = self._engine.epochs.number

    def carried(self, raw: bytes) -> None:
        """A value goes over into the next epoch."""
        for digest in digests_in(raw) & self._named.keys():
            self._named[digest] = self._engine.epochs.number + 1

    # --- at the start ---------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Before agent code runs, while nothing of this attempt is on its way. What fails here is done by the next attempt."""
        history = self._engine.history
        tail, history.tail = history.tail, []
        if not self._openings:
            return
        try:
            blobs = set(await self._engine.store.blob_ids(self._engine.config.journal_id))
            if blobs:
                raws = [encode(record) for record in tail] + [canonical([history.state, history.inputs])]
                self._named = dict.fromkeys(blobs & set().union(*map(digests_in, raws)), self._engine.epochs.number)
            await self._compact(sweep=blobs - self._named.keys())
        except JournalUnavailable as e:
            log.debug("the journal was not compacted: %s", e)
        except BadStore as e:
            self._give_up(e)

    def _give_up(self, why: BadStore) -> None:
        """A right that compaction alone needs is missing. A journal that only grows is no reason to stop a run."""
        log.warning("the journal is not compacted, and only grows: %s", why)
        self._openings.clear()

    # --- while it runs --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until the process ends."""
        wait_s = LOOK_FIRST_S
        while True:
            await self._wake.wait()
            self._wake.clear()
            await asyncio.sleep(wait_s)
            compacted = False
            try:
                await self._look()
                compacted = await self._compact()
            except JournalUnavailable as e:
                log.debug("the journal was not compacted: %s", e)
            except BadStore as e:
                self._give_up(e)
                return
            wait_s = LOOK_FIRST_S if compacted else min(2 * wait_s, LOOK_MAX_S)
            if self.waits_for:
                self._wake.set()

    async def _look(self) -> None:
        meta = await self._engine.store.meta(self._engine.config.journal_id)
        told = read_anchor(meta.fields.get(ANCHOR_FIELD, "")) if meta else None
        if told is not None and (self._anchor is None or told.seq > self._anchor.seq):
            self._anchor = told

    # --- the act --------------------------------------------------------------------------------------------------

    async def _compact(self, sweep: set[str] | None = None) -> bool:
        """`sweep`: blobs that nothing names from the newest opening on. Raises JournalUnavailable."""
        anchor = self._anchor
        reached = [opening for opening in self._openings if anchor is not None and opening[1] <= anchor.seq]
        if not reached or anchor is None or self._engine.stop_reason is not None:
            return False
        epoch, seq = reached[-1]
        async with self.lock:
            drop = {digest for digest, named in self._named.items() if named < epoch}
            if reached == self._openings:
                drop |= sweep or set()
            if seq <= self._begins_at and not drop:
                return False
            faults.reach("before_compact")
            answer = await self._delete(seq, anchor, sorted(drop))
            faults.reach("after_compact")
            if answer is CompactAnswer.OK:
                for digest in drop:
                    self._named.pop(digest, None)
        if answer is not CompactAnswer.OK:
            log.debug("the journal was not compacted up to record %d: %s", seq, answer)
            return False
        self._begins_at = seq
        self._openings = [opening for opening in self._openings if opening[1] >= seq]
        return True

    async def _delete(self, seq: int, anchor: Head, drop: list[str]) -> CompactAnswer:
        engine = self._engine
        answer = CompactAnswer.OK
        for at in range(0, max(1, len(drop)), COMPACT_MAX_BLOBS):
            answer = await engine.store.compact(
                engine.config.journal_id,
                engine.config.attempt,
                self._owner,
                Seq(seq),
                anchor,
                drop[at : at + COMPACT_MAX_BLOBS],
            )
            if answer is not CompactAnswer.OK:
                break
        return answer
