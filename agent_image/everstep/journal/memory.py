"""A store in the process's own memory: for tests and `everstep.testing`. Nothing survives the process.

It gives the same answers as the other stores, held by the same conformance suite, so a test on it says what Redis would say.
No call awaits anything, so each is atomic under asyncio; it is not meant for threads.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace

from everstep.ids import Attempt, JournalId, Owner, RecordHash, Seq
from everstep.journal.answers import (
    HashAt,
    State,
    answer_append,
    answer_claim,
    answer_compact,
    answer_fence,
    answer_report,
)
from everstep.journal.live import CAP_ENTRIES, PAGE_ENTRIES
from everstep.journal.store import (
    AppendAnswer,
    AppendReply,
    ClaimAnswer,
    ClaimReply,
    CompactAnswer,
    DurabilityReport,
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
        self.live: dict[JournalId, list[tuple[int, bytes]]] = {}

    def copy(self) -> "MemoryStore":
        """An independent copy, as a dump restored elsewhere would be (tests)."""
        twin = MemoryStore()
        twin.journals_by_id = {
            name: replace(journal, fields=dict(journal.fields), records=list(journal.records))
            for name, journal in self.journals_by_id.items()
        }
        twin.inboxes = {name: list(entries) for name, entries in self.inboxes.items()}
        twin.blobs = dict(self.blobs)
        return twin

    async def fence(self, journal: JournalId, attempt: Attempt, anchor: Head, fields: dict[str, str]) -> FenceReply:
        have = self.journals_by_id.get(journal)
        answer = answer_fence(_state(have), attempt, anchor, _hash_at(have))
        if have is None:
            if answer is not FenceAnswer.OK:
                return FenceReply(answer, Attempt(0), None)
            have = self.journals_by_id[journal] = MemoryJournal(attempt, anchor, fields={"schema": "1", **fields})
        elif answer is FenceAnswer.OK and attempt > have.attempt:
            have.attempt, have.owner = attempt, None
            have.fields.update(fields)
        return FenceReply(answer, have.attempt, have.head)

    async def claim(self, journal: JournalId, attempt: Attempt, owner: Owner) -> ClaimReply:
        have = self.journals_by_id.get(journal)
        answer = answer_claim(_state(have), attempt, owner)
        if have is None:
            return ClaimReply(answer, Attempt(0), None)
        if answer is ClaimAnswer.OK:
            have.owner = owner
        return ClaimReply(answer, have.attempt, have.head)

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
        answer, skip = answer_append(
            _state(have),
            (attempt, owner),
            after,
            records,
            _hash_at(have),
            lambda: park_after_inbox is not None and self._unread(journal, park_after_inbox),
        )
        if have is None:
            return AppendReply(answer, Attempt(0), None)
        if answer is AppendAnswer.OK:
            have.records.extend(Stored(r.seq, r.record, r.prev_hash, r.hash, attempt) for r in records[skip:])
            have.head = Head(records[-1].seq, records[-1].hash)
            have.progress = have.progress if progress is None else progress
        return AppendReply(answer, have.attempt, have.head)

    async def report(self, journal: JournalId, attempt: Attempt, owner: Owner, progress: bytes) -> ClaimReply:
        have = self.journals_by_id.get(journal)
        answer = answer_report(_state(have), attempt, owner)
        if have is None:
            return ClaimReply(answer, Attempt(0), None)
        if answer is ClaimAnswer.OK:
            have.progress = progress
        return ClaimReply(answer, have.attempt, have.head)

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
        entries.append(entry._replace(position=str(len(entries) + 1)))
        return True

    async def inbox_read(self, journal: JournalId, after: str = "") -> list[InboxEntry]:
        return [e for e in self.inboxes.get(journal, []) if int(e.position) > int(after or 0)]

    async def blob_put(self, journal: JournalId, digest: str, value: bytes) -> None:
        self.blobs[journal, digest] = value

    async def blob_get(self, journal: JournalId, digest: str) -> bytes | None:
        return self.blobs.get((journal, digest))

    async def blob_ids(self, journal: JournalId) -> list[str]:
        return sorted(digest for owner, digest in self.blobs if owner == journal)

    async def compact(
        self,
        journal: JournalId,
        attempt: Attempt,
        owner: Owner,
        upto: Seq,
        anchor: Head,
        blobs: Sequence[str] = (),
    ) -> CompactAnswer:
        have = self.journals_by_id.get(journal)
        records = have.records if have else []
        answer = answer_compact(
            _state(have),
            (attempt, owner),
            upto,
            anchor,
            _hash_at(have),
            lambda seq: next((r.record for r in records if r.seq == seq), None),
        )
        if answer is CompactAnswer.OK:
            records[:] = [r for r in records if r.seq >= upto]
            for digest in blobs:
                self.blobs.pop((journal, digest), None)
        return answer

    async def set_fields(self, journal: JournalId, fields: dict[str, str]) -> None:
        if journal in self.journals_by_id:
            self.journals_by_id[journal].fields.update(fields)

    async def journals(self) -> list[JournalId]:
        return sorted(self.journals_by_id)

    async def sweep(self, journal: JournalId) -> None:
        self.journals_by_id.pop(journal, None)
        self.inboxes.pop(journal, None)
        self.live.pop(journal, None)
        self.blobs = {k: v for k, v in self.blobs.items() if k[0] != journal}

    async def live_add(self, journal: JournalId, attempt: Attempt, owner: Owner, entries: list[bytes]) -> ClaimReply:
        have = self.journals_by_id.get(journal)
        answer = answer_report(_state(have), attempt, owner)
        if have is None:
            return ClaimReply(answer, Attempt(0), None)
        if answer is ClaimAnswer.OK:
            kept = self.live.setdefault(journal, [])
            newest = kept[-1][0] if kept else 0
            kept += [(newest + i + 1, entry) for i, entry in enumerate(entries)]
            del kept[:-CAP_ENTRIES]
        return ClaimReply(answer, have.attempt, have.head)

    async def live_read(self, journal: JournalId, after: int = 0, count: int = PAGE_ENTRIES) -> list[tuple[int, bytes]]:
        return [entry for entry in self.live.get(journal, []) if entry[0] > after][:count]

    async def durability(self) -> DurabilityReport:
        return DurabilityReport("None", (), "memory", "memory")

    async def aclose(self) -> None:
        return None

    def _unread(self, journal: JournalId, position: str) -> bool:
        entries = self.inboxes.get(journal, [])
        return bool(entries) and int(entries[-1].position) > int(position or 0)


def _state(have: MemoryJournal | None) -> State | None:
    if have is None:
        return None
    return State(have.attempt, have.owner, have.head, have.records[-1].seq if have.records else 0)


def _hash_at(have: MemoryJournal | None) -> HashAt:
    def hash_at(seq: int) -> RecordHash | None:
        records = have.records if have else []
        if seq == 0:
            return records[0].prev_hash if records and records[0].seq == 1 else None
        return next((r.hash for r in reversed(records) if r.seq == seq), None)

    return hash_at
