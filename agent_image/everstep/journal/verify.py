"""Is a journal whole? Computed from raw stored bytes; nothing is decoded before its link of the chain was proved.

A journal may begin at a snapshot or segment, if what was before it was compacted. Where the chain is keyed, the link of that
record proves that the run wrote it at this place; where it is not, the anchor behind it does.

What can be proved: every record from the first to the newest anchor, and that the chain up to the journal's head fits together.
What cannot: that nothing followed the head. A tail newer than the anchor may be cut together with the meta hash and leaves no
trace; only its own writer, while it lives, notices.
"""

import enum
import json
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple, Protocol

import msgspec

from everstep.errors import JournalLost, JournalTampered
from everstep.ids import JournalId, Seq
from everstep.journal.answers import opens_epoch
from everstep.journal.chain import Chain
from everstep.journal.store import Head, Meta, Stored


class Verdict(enum.StrEnum):
    """What verification found first."""

    WHOLE = "whole"
    ALTERED = "altered"
    """The record's bytes or hashes were changed after it was written."""
    SWAPPED = "swapped"
    """A record of another place of this journal sits here."""
    DROPPED = "dropped"
    """The record is missing, later ones are there."""
    FOREIGN = "foreign"
    """The record belongs to another chain: another run, another history, or another key."""
    RECOMPUTED = "recomputed"
    """The hashes were made without the run's key."""
    META = "meta"
    """Meta tells of another head than the records do."""
    TAIL_CUT = "tail-cut"
    """Meta tells of records after the anchor that are not there."""
    LOST = "lost"
    """The journal ends before the anchor."""
    ANCHOR = "anchor"
    """The chain fits together, but another hash sits at the anchor."""


_LOST = (Verdict.LOST, Verdict.TAIL_CUT)


class VerifyReport(NamedTuple):
    """The outcome. `head` is the last record that was proved; `records` holds the proved ones only if asked for."""

    journal_id: JournalId
    verdict: Verdict
    message: str
    """One sentence for people."""
    head: Head
    bad_seq: Seq | None = None
    """The first record that does not fit; None when whole."""
    expected: Seq = Seq(0)
    """Seq that the journal should reach: of the anchor (lost) or of the claimed or told head (tail-cut)."""
    first: Seq = Seq(1)
    """The record with which the journal begins: 1, or a snapshot or segment whose predecessors were compacted."""
    notes: tuple[str, ...] = ()
    """What could not be proved, and from where it was."""
    records: tuple[Stored, ...] = ()

    @property
    def whole(self) -> bool:
        return self.verdict is Verdict.WHOLE

    def require_whole(self) -> "VerifyReport":
        """This report if whole. Raises JournalLost or JournalTampered (neither is worth trying again)."""
        if self.whole:
            return self
        if self.verdict in _LOST:
            raise JournalLost(self.message, self.head.seq, self.expected)
        raise JournalTampered(self.message, self.bad_seq or Seq(1))


class Source(Protocol):
    """What verification reads: a store, or an export of one (`everstep.journal.exported`)."""

    def read(self, journal: JournalId, after: Seq = Seq(0), upto: Seq | None = None) -> AsyncIterator[Stored]: ...

    async def meta(self, journal: JournalId) -> Meta | None: ...


async def verify(
    store: Source,
    chain: Chain,
    journal_id: JournalId,
    *,
    upto: Head | None = None,
    anchor: Head | None = None,
    keep: bool = False,
    proved: Callable[[Stored], None] | None = None,
) -> VerifyReport:
    """Prove a journal from its first record to `upto`, the head that claim answered (None: to its end, as meta tells it).
    `anchor` is the newest head known outside the store. With `keep` the report carries the proved records; `proved` is told
    each as it is proved, which takes no memory here (a later one may still not fit: wait for the report).

    Raises only JournalUnavailable; what is wrong with the journal is in the report."""
    check = _Check(chain, journal_id, anchor, keep)
    told = upto
    if told is None:
        meta = await store.meta(journal_id)
        told = meta.head if meta else None
    if bad := check.start():
        return bad
    async for stored in store.read(journal_id, Seq(0), upto.seq if upto else None):
        if bad := check.link(stored):
            return bad
        if proved is not None:
            proved(stored)
    return check.end(told, claimed=upto is not None)


class _Place(msgspec.Struct):
    """What a record says of its place; the rest of it is passed over."""

    seq: int
    attempt: int


_PLACE = msgspec.json.Decoder(_Place)


class _Check:
    """Walks one journal; each method answers a report at the first thing that does not fit."""

    def __init__(self, chain: Chain, journal_id: JournalId, anchor: Head | None, keep: bool) -> None:
        self.chain = chain
        self.journal_id = journal_id
        self.anchor = anchor
        self.keep = keep
        self.genesis = chain.genesis()
        self.seq: int = 0
        self.hash = self.genesis
        self.attempt = 1
        self.last: Stored | None = None
        self.first = 1
        self.kept: list[Stored] = []

    def start(self) -> VerifyReport | None:
        if self.anchor is not None and self.anchor.seq == 0 and self.anchor.hash != self.genesis:
            return self._report(Verdict.ANCHOR, "the anchor at 0 was made for another journal or under another key", 1)
        return None

    def link(self, stored: Stored) -> VerifyReport | None:
        seq = self.seq + 1
        if stored.seq != seq:
            if bad := self._misplaced(stored, seq):
                return bad
            seq = stored.seq
        digest = self.chain.link(self.hash, stored.record)
        if digest != stored.hash or stored.prev_hash != self.hash:
            return self._diagnose(stored, digest)
        if bad := self._inner(stored):
            return bad
        self.seq, self.hash, self.last = seq, digest, stored
        if self.keep:
            self.kept.append(stored)
        if self.anchor is not None and self.anchor.seq == seq and self.anchor.hash != digest:
            return self._report(
                Verdict.ANCHOR,
                f"the chain fits together, but record {seq} is not the one the anchor was taken of: the journal was "
                f"rewritten at or before it",
                seq,
            )
        return None

    def _misplaced(self, stored: Stored, seq: int) -> VerifyReport | None:
        """Another record than the next one; fine only where the journal begins."""
        if stored.seq < seq:
            return self._report(Verdict.FOREIGN, f"an extra entry sits after record {self.seq}", seq)
        if seq == 1 and opens_epoch(stored.record):
            return self._begins_at(stored)
        return self._report(Verdict.DROPPED, f"record {seq} is missing, the next one there is {stored.seq}", seq)

    def _begins_at(self, stored: Stored) -> VerifyReport | None:
        """The journal was compacted up to this snapshot or segment, if its own link holds and no anchor lies before it."""
        seq, anchor = stored.seq, self.anchor
        try:
            proved = self.chain.link(stored.prev_hash, stored.record) == stored.hash
        except ValueError:
            proved = False
        if not proved:
            return self._report(
                Verdict.FOREIGN, f"the journal begins at record {seq}, which this run did not write at this place", seq
            )
        if anchor is not None and anchor.seq < seq:
            return self._report(
                Verdict.LOST,
                f"the journal begins at record {seq}, behind the anchor at {anchor.seq}: what is before an anchor's record may "
                f"be compacted, that record itself may not",
                1,
                expected=anchor.seq,
            )
        self.first, self.seq, self.hash = seq, seq - 1, stored.prev_hash
        return None

    def _inner(self, stored: Stored) -> VerifyReport | None:
        """A proved record must also say its own place, and attempts only grow."""
        try:
            told = _PLACE.decode(stored.record)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return self._report(Verdict.ALTERED, f"record {stored.seq} is not a record", stored.seq)
        seq, attempt = told.seq, told.attempt
        if seq != stored.seq:
            return self._report(
                Verdict.SWAPPED, f"record {stored.seq} says of itself that it is record {seq}", stored.seq
            )
        if attempt != stored.attempt or attempt < self.attempt:
            return self._report(
                Verdict.ALTERED,
                f"record {stored.seq} is of attempt {attempt}, stored under {stored.attempt}, after one of {self.attempt}",
                stored.seq,
            )
        self.attempt = attempt
        return None

    def _diagnose(self, stored: Stored, digest: str) -> VerifyReport:
        seq = stored.seq
        plain = Chain(self.journal_id)
        try:
            recomputed = self.chain.key is not None and plain.link(stored.prev_hash, stored.record) == stored.hash
        except ValueError:
            recomputed = False
        if recomputed:
            return self._report(Verdict.RECOMPUTED, f"the hash of record {seq} was made without the run's key", seq)
        if digest == stored.hash:
            return self._report(Verdict.ALTERED, f"the previous hash beside record {seq} was changed", seq)
        inner = inner_seq(stored.record)
        if inner is not None and inner != seq:
            return self._report(Verdict.SWAPPED, f"record {inner} sits at the place of record {seq}", seq)
        if stored.prev_hash != self.hash:
            hint = "; or the key is not this run's" if seq == 1 else ""
            return self._report(Verdict.FOREIGN, f"record {seq} comes from another chain{hint}", seq)
        return self._report(Verdict.ALTERED, f"record {seq} was changed after it was written", seq)

    def end(self, told: Head | None, *, claimed: bool) -> VerifyReport:
        anchor = self.anchor
        if anchor is not None and self.seq < anchor.seq:
            return self._report(
                Verdict.LOST,
                f"the journal ends at record {self.seq}, behind the anchor at {anchor.seq}: acknowledged records were lost, "
                f"or an old copy was restored",
                self.seq + 1,
                expected=anchor.seq,
            )
        if told is None:
            why = f"there are {self.seq} records but no meta" if self.seq else "there is no such journal"
            return self._report(Verdict.META if self.seq else Verdict.LOST, why, self.seq + 1)
        if told.seq > self.seq:
            who = "the claimed head" if claimed else "meta"
            return self._report(
                Verdict.TAIL_CUT,
                f"{who} tells of record {told.seq}, the journal ends at {self.seq}: a tail newer than the anchor may be "
                f"missing; meta alone cannot prove it",
                self.seq + 1,
                expected=told.seq,
            )
        if told.seq < self.seq or told.hash != self.hash:
            return self._report(
                Verdict.META,
                f"meta tells of head {told.seq} {told.hash[:8]}…, the records end at {self.seq} {self.hash[:8]}…",
                min(told.seq + 1, max(self.seq, 1)),
            )
        if self.first > 1:
            return self._report(Verdict.WHOLE, f"whole: records {self.first} to {self.seq}", None, notes=self._notes())
        return self._report(Verdict.WHOLE, f"whole: {self.seq} records", None, notes=self._notes())

    def _notes(self) -> tuple[str, ...]:
        begins = self._beginning()
        if self.last is not None and _kind(self.last.record) == "finished":
            return begins
        at = f"the anchor at {self.anchor.seq}" if self.anchor else "the head, for no anchor was given,"
        return (*begins, f"a tail newer than {at} may be missing; that cannot be proved")

    def _beginning(self) -> tuple[str, ...]:
        if self.first == 1:
            return ()
        if self.chain.key is not None:
            how = "its link under the run's key proves it"
        elif self.anchor is not None:
            how = f"the anchor at {self.anchor.seq} proves it"
        else:
            how = "nothing proves it: there is neither a key nor an anchor"
        return (f"what was before record {self.first} was compacted, the journal begins there; {how}",)

    def _report(
        self, verdict: Verdict, message: str, bad: int | None, *, expected: int = 0, notes: tuple[str, ...] = ()
    ) -> VerifyReport:
        return VerifyReport(
            journal_id=self.journal_id,
            verdict=verdict,
            message=message,
            head=Head(Seq(self.seq), self.hash),
            bad_seq=None if bad is None else Seq(bad),
            expected=Seq(expected),
            first=Seq(self.first),
            notes=notes,
            records=tuple(self.kept),
        )


def inner_seq(record: bytes) -> int | None:
    """The seq a broken record claims, only to word the finding."""
    try:
        seq = json.loads(record)["seq"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return seq if isinstance(seq, int) else None


def _kind(record: bytes) -> str:
    return str(json.loads(record).get("kind"))
