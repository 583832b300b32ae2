"""A store in the process's own memory: for tests and `everstep.testing`. Nothing survives the process.

It gives the same answers as the other stores, held by the same conformance suite, so a test on it says what Redis would say.
No call awaits anything, so each is atomic under asyncio; it is not meant for threads.
"""

import copy
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace

from everstep.ids import Attempt, JournalId, Owner, Seq
from everstep.journal.store import (
    AppendAnswer,
    AppendReply,
    ClaimAnswer,
    ClaimReply,
    FenceAnswer,
    FenceReply,
    Head,
    InboxEntry,
    Meta,
    Sealed,
    Stored,
    check_append,
)


@dataclass
class MemoryJournal:
    """Everything of one journal. Tests tamper with it directly."""

    attempt: Attempt
    head: Head
    owner: Owner | None = None
    progress: bytes | None = None
    fields: dict[str, str] = field(default_factory=dict)
    records: list[Stored] = field(default_factory=list)


class MemoryStore:
    """See `everstep.journal.store.Store`."""

    def __init__(self) -> None:
        self.journals_by_id: dict[JournalId, MemoryJournal] = {}
        self.inboxes: dict[JournalId, list[InboxEntry]] = {}
        self.blobs: dict[tuple[JournalId, str], bytes] = {}

    def copy(self) -> "MemoryStore":
        """An independent copy, as a dump restored elsewhere would be (tests)."""
        return copy.deepcopy(self)

    async def fence(self, journal: JournalId, attempt: Attempt, anchor: Head, fields: dict[str, str]) -> FenceReply:
        have = self.journals_by_id.get(journal)
        if have is None:
            if anchor.seq != 0:
                return FenceReply(FenceAnswer.LOST, Attempt(0), None)
            self.journals_by_id[journal] = MemoryJournal(attempt, anchor, fields=dict(fields))
            return FenceReply(FenceAnswer.OK, attempt, anchor)
        verdict = _check_anchor(have, anchor)
        if verdict is not FenceAnswer.OK:
            return FenceReply(verdict, have.attempt, have.head)
        if attempt < have.attempt:
            return FenceReply(FenceAnswer.FENCED, have.attempt, have.head)
        if attempt > have.attempt:
            have.attempt, have.owner = attempt, None
            have.fields.update(fields)
        return FenceReply(FenceAnswer.OK, have.attempt, have.head)

    async def claim(self, journal: JournalId, attempt: Attempt, owner: Owner) -> ClaimReply:
        have = self.journals_by_id.get(journal)
        if have is None:
            return ClaimReply(ClaimAnswer.FENCED, Attempt(0), None)
        if have.attempt != attempt:
            return ClaimReply(ClaimAnswer.FENCED, have.attempt, have.head)
        if have.owner not in (None, owner):
            return ClaimReply(ClaimAnswer.TAKEN, have.attempt, have.head)
        have.owner = owner
        return ClaimReply(ClaimAnswer.OK, have.attempt, have.head)

    async def append(
        self,
        journal: JournalId,
        attempt: Attempt,
        owner: Owner,
        after: Head,
        records: Sequence[Sealed],
        *,
        progress: bytes | None = None,
        park_after_inbox: str | None = None,
    ) -> AppendReply:
        check_append(after, records)
        have = self.journals_by_id.get(journal)
        if have is None:
            return AppendReply(AppendAnswer.NOLEASE, Attempt(0), None)
        refusal = _check_lease(have, attempt, owner)
        if refusal is None:
            last_seq = have.records[-1].seq if have.records else 0
            refusal = AppendAnswer.GAP if last_seq != have.head.seq else None
        skip = have.head.seq - after.seq
        if refusal is None:
            refusal = _check_place(have, after, records, skip)
        fresh = records[max(skip, 0) :]
        if refusal is None and not fresh:
            refusal = AppendAnswer.DUP
        if refusal is None and park_after_inbox is not None and self._unread(journal, park_after_inbox):
            refusal = AppendAnswer.INBOX
        if refusal is not None:
            return AppendReply(refusal, have.attempt, have.head)
        have.records.extend(Stored(r.seq, r.record, r.prev_hash, r.hash, attempt) for r in fresh)
        have.head = Head(fresh[-1].seq, fresh[-1].hash)
        if progress is not None:
            have.progress = progress
        return AppendReply(AppendAnswer.OK, have.attempt, have.head)

    async def report(self, journal: JournalId, attempt: Attempt, owner: Owner, progress: bytes) -> ClaimReply:
        have = self.journals_by_id.get(journal)
        if have is None:
            return ClaimReply(ClaimAnswer.FENCED, Attempt(0), None)
        if have.attempt != attempt or have.owner is None:
            return ClaimReply(ClaimAnswer.FENCED, have.attempt, have.head)
        if have.owner != owner:
            return ClaimReply(ClaimAnswer.TAKEN, have.attempt, have.head)
        have.progress = progress
        return ClaimReply(ClaimAnswer.OK, have.attempt, have.head)

    async def read(self, journal: JournalId, after: Seq = Seq(0), upto: Seq | None = None) -> AsyncIterator[Stored]:
        have = self.journals_by_id.get(journal)
        for stored in list(have.records) if have else []:
            if stored.seq > after and (upto is None or stored.seq <= upto):
                yield stored

    async def meta(self, journal: JournalId) -> Meta | None:
        have = self.journals_by_id.get(journal)
        if have is None:
            return None
        return Meta(have.attempt, have.owner, have.head, have.progress, dict(have.fields))

    async def last(self, journal: JournalId) -> Stored | None:
        have = self.journals_by_id.get(journal)
        return have.records[-1] if have and have.records else None

    async def inbox_add(self, journal: JournalId, entry: InboxEntry) -> bool:
        entries = self.inboxes.setdefault(journal, [])
        if any(e.id == entry.id for e in entries):
            return False
        entries.append(replace(entry, position=str(len(entries) + 1)))
        return True

    async def inbox_read(self, journal: JournalId, after: str = "") -> list[InboxEntry]:
        return [e for e in self.inboxes.get(journal, []) if int(e.position) > int(after or 0)]

    async def blob_put(self, journal: JournalId, digest: str, value: bytes) -> None:
        self.blobs[journal, digest] = value

    async def blob_get(self, journal: JournalId, digest: str) -> bytes | None:
        return self.blobs.get((journal, digest))

    async def set_fields(self, journal: JournalId, fields: dict[str, str]) -> None:
        if journal in self.journals_by_id:
            self.journals_by_id[journal].fields.update(fields)

    async def journals(self) -> list[JournalId]:
        return sorted(self.journals_by_id)

    async def sweep(self, journal: JournalId) -> None:
        self.journals_by_id.pop(journal, None)
        self.inboxes.pop(journal, None)
        self.blobs = {k: v for k, v in self.blobs.items() if k[0] != journal}

    async def aclose(self) -> None:
        return None

    def _unread(self, journal: JournalId, position: str) -> bool:
        entries = self.inboxes.get(journal, [])
        return bool(entries) and int(entries[-1].position) > int(position or 0)


def _check_anchor(have: MemoryJournal, anchor: Head) -> FenceAnswer:
    last_seq = have.records[-1].seq if have.records else Seq(0)
    if anchor.seq > have.head.seq or anchor.seq > last_seq:
        return FenceAnswer.LOST
    if anchor.seq == 0:
        genesis = have.records[0].prev_hash if have.records else have.head.hash
        return FenceAnswer.OK if genesis == anchor.hash else FenceAnswer.TAMPERED
    at = [r.hash for r in have.records if r.seq == anchor.seq]
    return FenceAnswer.OK if at == [anchor.hash] else FenceAnswer.TAMPERED


def _check_lease(have: MemoryJournal, attempt: Attempt, owner: Owner) -> AppendAnswer | None:
    if have.attempt > attempt:
        return AppendAnswer.FENCED
    if have.attempt < attempt or have.owner is None:
        return AppendAnswer.NOLEASE  # our fence or claim is gone: the store went back in time
    return None if have.owner == owner else AppendAnswer.TAKEN


def _check_place(have: MemoryJournal, after: Head, records: Sequence[Sealed], skip: int) -> AppendAnswer | None:
    if skip < 0:
        return AppendAnswer.GAP
    if skip == 0:
        return None if have.head.hash == after.hash else AppendAnswer.CONFLICT
    stored = {r.seq: r.hash for r in have.records[-skip:]}
    same = all(stored.get(r.seq) == r.hash for r in records[:skip])
    return None if same else AppendAnswer.CONFLICT
