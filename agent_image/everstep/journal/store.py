"""What a store must do: the contract that Redis, SQLite and memory fulfil, held by one conformance suite.

All checks of a call come before its first write, so a refusal changes nothing. Replies are data; only "the store did not
answer" and "this URL cannot carry a journal" are exceptions (JournalUnavailable, BadStore).
"""

import enum
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol, runtime_checkable

from everstep.ids import Attempt, InboxId, JournalId, Owner, RecordHash, Seq


class Head(NamedTuple):
    """Last (seq, hash) of a journal. An anchor is a head copied into the AgentRun."""

    seq: Seq
    hash: RecordHash


class Sealed(NamedTuple):
    """A record ready to be written: its bytes and its place in the chain. Made once, outside any retry loop: the hash is
    the write's identity."""

    seq: Seq
    record: bytes
    prev_hash: RecordHash
    hash: RecordHash


class Stored(NamedTuple):
    """A record as read back, unverified."""

    seq: Seq
    record: bytes
    prev_hash: RecordHash
    hash: RecordHash
    attempt: Attempt


class FenceAnswer(enum.StrEnum):
    """What a store says to `Store.fence`."""

    OK = "OK"
    """This attempt number is now the only one that may claim; an equal one changed nothing."""
    FENCED = "FENCED"
    """A higher attempt is already there (`FenceReply.attempt`): go on from that + 1."""
    LOST = "LOST"
    """The head is behind the anchor, or the journal is gone."""
    TAMPERED = "TAMPERED"
    """Another hash sits at the anchor's seq."""


class FenceReply(NamedTuple):
    """The answer to a fence, with what is in force after it."""

    answer: FenceAnswer
    attempt: Attempt
    """The attempt in force after the call."""
    head: Head | None
    """The head in force, when there is a journal."""


class ClaimAnswer(enum.StrEnum):
    """What a store says to `Store.claim` and `Store.report`."""

    OK = "OK"
    FENCED = "FENCED"
    """meta.attempt differs from ours (or there is no fence at all)."""
    TAKEN = "TAKEN"
    """Another owner claimed this attempt."""


class ClaimReply(NamedTuple):
    """The answer to a claim, with what is in force after it."""

    answer: ClaimAnswer
    attempt: Attempt
    head: Head | None


class AppendAnswer(enum.StrEnum):
    """What a store says to `Store.append`."""

    OK = "OK"
    DUP = "DUP"
    """All of it was there already (a lost reply). A stored prefix is skipped and the rest appended, which answers OK."""
    CONFLICT = "CONFLICT"
    """Another record sits at one of these seqs, or the expected head's hash differs."""
    GAP = "GAP"
    """The stream ends before the expected head, or its last id differs from meta.seq."""
    NOLEASE = "NOLEASE"
    """There is no fence or claim for this journal (it was lost)."""
    FENCED = "FENCED"
    TAKEN = "TAKEN"
    INBOX = "INBOX"
    """Only for an append that parks: an unread inbox entry exists; read it first."""


class AppendReply(NamedTuple):
    """The answer to an append, with what is in force after it."""

    answer: AppendAnswer
    attempt: Attempt
    head: Head | None
    """The head after the call, where known."""


class CompactAnswer(enum.StrEnum):
    """What a store says to `Store.compact`."""

    OK = "OK"
    """No record is left before that one; again changes nothing."""
    REFUSED = "REFUSED"
    """The record there is no snapshot or segment, or lies after the anchor, or another hash sits at the anchor's seq."""
    FENCED = "FENCED"
    TAKEN = "TAKEN"


class InboxEntry(NamedTuple):
    """A message from the operator or a person to the run; JSON text in `body`, with an HMAC where the chain is keyed."""

    id: InboxId
    body: bytes
    mac: str
    position: str = ""
    """Place in the inbox, assigned by the store, strictly growing in sort order of (len, text); "" before it is stored."""


class Meta(NamedTuple):
    """The journal's meta, as read."""

    attempt: Attempt
    owner: Owner | None
    head: Head
    progress: bytes | None
    """What the live attempt last told of itself (JSON, see everstep.journal.progress); informs people, proves nothing."""
    fields: Mapping[str, str] = MappingProxyType({})
    """namespace, name, deletedAt, schema, keyId … as strings."""


COMPACT_MAX_BLOBS = 500
"""Blobs that one compact deletes: keeps the server's pause short."""

APPEND_MAX_RECORDS = 64
"""Records in one append: keeps the script's run time and the server's pause short."""


def check_append(after: Head, records: Sequence[Sealed]) -> None:
    """Raise ValueError if the records are not 1…64 links that follow `after`: a fault of the caller, never sent."""
    if not 1 <= len(records) <= APPEND_MAX_RECORDS:
        raise ValueError(f"an append carries 1 to {APPEND_MAX_RECORDS} records, not {len(records)}")
    seq, prev = after.seq, after.hash
    for record in records:
        if record.seq != seq + 1 or record.prev_hash != prev:
            raise ValueError(f"record {record.seq} does not follow {seq}")
        seq, prev = record.seq, record.hash


class Store(Protocol):
    """One journal store. All methods may raise JournalUnavailable (outcome unknown, repeat the same call)."""

    async def fence(self, journal: JournalId, attempt: Attempt, anchor: Head, fields: dict[str, str]) -> FenceReply:
        """By the operator or supervisor, before each attempt. Creates the journal only if the anchor is seq 0 and nothing is
        there. `fields` (namespace, name, keyId …) are stored in meta. A new attempt number removes the old owner.
        Must work when the store's memory is full."""
        ...

    async def claim(self, journal: JournalId, attempt: Attempt, owner: Owner) -> ClaimReply:
        """By the agent process, once; idempotent for the same owner."""
        ...

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
        """Append 1…64 sealed records that follow `after`. `park_after_inbox` = the last inbox position that was read ("" for
        none): the append is refused with INBOX if a later entry exists. Repeating the very same call is safe."""
        ...

    async def report(self, journal: JournalId, attempt: Attempt, owner: Owner, progress: bytes) -> ClaimReply:
        """Set meta.progress if this owner still holds the attempt; also how an idle process learns that it was fenced."""
        ...

    def read(self, journal: JournalId, after: Seq = Seq(0), upto: Seq | None = None) -> AsyncIterator[Stored]:
        """Records with after < seq <= upto, in order, fetched in pages."""
        ...

    async def meta(self, journal: JournalId) -> Meta | None:
        """None when there is no such journal."""
        ...

    async def last(self, journal: JournalId) -> Stored | None:
        """The newest record, None for an empty journal."""
        ...

    async def inbox_add(self, journal: JournalId, entry: InboxEntry) -> bool:
        """Add once: False when this id is there already. Works on a fenced journal without an owner, too."""
        ...

    async def inbox_read(self, journal: JournalId, after: str = "") -> list[InboxEntry]:
        """Entries after a position, oldest first."""
        ...

    async def blob_put(self, journal: JournalId, digest: str, value: bytes) -> None:
        """Keep a value under its SHA-256 hex; repeating is safe."""
        ...

    async def blob_get(self, journal: JournalId, digest: str) -> bytes | None: ...

    async def blob_ids(self, journal: JournalId) -> list[str]:
        """The digests of all blobs of one journal, sorted."""
        ...

    async def compact(
        self,
        journal: JournalId,
        attempt: Attempt,
        owner: Owner,
        upto: Seq,
        anchor: Head,
        blobs: Sequence[str] = (),
    ) -> CompactAnswer:
        """Delete the records before `upto`, which must be a snapshot or segment at or before `anchor` (the newest head known
        outside the store), and these blobs: the caller knows that no record names them. Only for the owner of the attempt.
        Must work when the store's memory is full."""
        ...

    async def set_fields(self, journal: JournalId, fields: dict[str, str]) -> None:
        """Set informative meta fields (deletedAt …). Only for operator and supervisor."""
        ...

    async def journals(self) -> list[JournalId]:
        """All journals of this installation (for the sweeper and `local list`)."""
        ...

    async def sweep(self, journal: JournalId) -> None:
        """Delete every key of one journal."""
        ...

    async def durability(self) -> "DurabilityReport":
        """How safely a confirmed write is kept; cheap enough to ask every minute. `durability.judge` compares it with what
        was declared."""
        ...

    async def aclose(self) -> None: ...


@runtime_checkable
class InlineStore(Protocol):
    """A store whose append never waits for the event loop (SQLite): its writer saves two turns of the loop per step."""

    def append_now(
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
        """As `Store.append`."""
        ...


@runtime_checkable
class SendingStore(Protocol):
    """A store that can send an append at once, in the same turn of the event loop, where its connection is open (Redis)."""

    def append_soon(
        self,
        journal: JournalId,
        attempt: Attempt,
        owner: Owner,
        after: Head,
        records: Sequence[Sealed],
        *,
        progress: bytes | None,
        answered: Callable[[Callable[[], AppendReply]], None],
    ) -> bool:
        """Send an append. False: not possible now, and nothing was sent; `append` is the way then. Else `answered` is called
        once, from the event loop, with what gives the reply or raises as `Store.append` does; it must not raise itself."""
        ...


class DurabilityReport(NamedTuple):
    """What is known of how safely the store keeps an acknowledged write."""

    level: str | None
    """`EveryWrite`, `EverySecond`, `None`, or None when it cannot be read (CONFIG blocked)."""
    problems: tuple[str, ...]
    """What must be changed before a run may use it (eviction policy, replica, persistence off, …), each with its cure."""
    server: str
    """e.g. `redis 7.0.15`, `valkey 8.1.3`, `sqlite 3.40.1`."""
    run_id: str
    """Identity of the server process; a change means: check again."""
    replicated: bool = False
    """At least one replica is connected (to each primary of a cluster)."""
