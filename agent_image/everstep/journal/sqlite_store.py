"""The journal of local mode: one SQLite file, WAL, synchronous=FULL, one transaction per call.

Calls run in the event loop, not in a worker thread. A durable insert takes about 0.2 ms, a thread hop a third of that again; the
next effect waits for it anyway. A lock held by another process is waited for 1 s at most, then the call is JournalUnavailable
and the writer repeats it with back-off, so the loop never stands still for long.

    journals   no (INTEGER PRIMARY KEY), id (unique), attempt, owner, seq, hash, progress, fields (JSON object of strings)
    records    place (INTEGER PRIMARY KEY) = no * 2^32 + seq, record, prev_hash, hash, attempt
    inbox      position (grows), journal, id (unique in its journal), body, mac
    blobs      journal, digest, value
    live       see sqlite_live

One integer key per record keeps an append to one B-tree page beside the meta row. PRAGMA user_version is FORMAT.
"""

import json
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from everstep.errors import BadStore
from everstep.ids import Attempt, InboxId, JournalId, Owner, RecordHash, Seq
from everstep.journal.answers import (
    HashAt,
    State,
    answer_append,
    answer_claim,
    answer_compact,
    answer_fence,
    answer_report,
)
from everstep.journal.sqlite_live import SqliteLive, forget_live
from everstep.journal.sqlite_turn import BUSY_TIMEOUT_MS, Transaction, turn_of, wrap
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

FORMAT = 1
PAGE_RECORDS = 1000
_SHIFT = 32
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS journals (
  no INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, attempt INTEGER NOT NULL, owner TEXT,
  seq INTEGER NOT NULL, hash TEXT NOT NULL, progress BLOB, fields TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS records (
  place INTEGER PRIMARY KEY, record BLOB NOT NULL, prev_hash TEXT NOT NULL, hash TEXT NOT NULL, attempt INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS inbox (
  position INTEGER PRIMARY KEY AUTOINCREMENT, journal TEXT NOT NULL, id TEXT NOT NULL, body BLOB NOT NULL, mac TEXT NOT NULL,
  UNIQUE (journal, id));
CREATE TABLE IF NOT EXISTS blobs (
  journal TEXT NOT NULL, digest TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (journal, digest));
PRAGMA user_version = {FORMAT};
"""
T = TypeVar("T")


class SqliteStore(SqliteLive):
    """See `everstep.journal.store.Store`. Nothing is opened before the first call, and reading makes no file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.turn = turn_of(os.path.abspath(self.path))
        self._db: sqlite3.Connection | None = None
        self._numbers: dict[JournalId, int] = {}
        """`no` of the journals that were appended to; what is done with one checks that it is still the journal's."""

    async def fence(self, journal: JournalId, attempt: Attempt, anchor: Head, fields: dict[str, str]) -> FenceReply:
        with self._transaction() as db:
            row = _Row.load(db, journal)
            state = row.state if row else None
            answer = answer_fence(state, attempt, anchor, _hash_at(db, row))
            if row is None:
                if answer is not FenceAnswer.OK:
                    return FenceReply(answer, Attempt(0), None)
                db.execute(
                    "INSERT INTO journals (id, attempt, seq, hash, fields) VALUES (?, ?, ?, ?, ?)",
                    (journal, attempt, anchor.seq, anchor.hash, json.dumps({"schema": "1", **fields})),
                )
                return FenceReply(answer, attempt, anchor)
            if answer is FenceAnswer.OK and attempt > row.attempt:
                db.execute(
                    "UPDATE journals SET attempt = ?, owner = NULL, fields = ? WHERE no = ?",
                    (attempt, json.dumps({**row.fields, **fields}), row.no),
                )
                return FenceReply(answer, attempt, row.head)
            return FenceReply(answer, row.attempt, row.head)

    async def claim(self, journal: JournalId, attempt: Attempt, owner: Owner) -> ClaimReply:
        with self._transaction() as db:
            row = _Row.load(db, journal)
            answer = answer_claim(row.state if row else None, attempt, owner)
            if row is not None and answer is ClaimAnswer.OK:
                db.execute("UPDATE journals SET owner = ? WHERE no = ?", (owner, row.no))
            return ClaimReply(answer, row.attempt if row else Attempt(0), row.head if row else None)

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
        return self.append_now(
            journal, attempt, owner, after, records, progress=progress, park_after_inbox=park_after_inbox
        )

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
        """As `append`, for callers that would rather not go through the event loop once more."""
        check_append(after, records)
        with self._transaction(patient=False) as db:
            if park_after_inbox is None and self._append_plainly(db, journal, attempt, owner, after, records, progress):
                return AppendReply(AppendAnswer.OK, attempt, Head(records[-1].seq, records[-1].hash))
            row = _Row.load(db, journal)
            answer, skip = answer_append(
                row.state if row else None,
                (attempt, owner),
                after,
                records,
                _hash_at(db, row),
                lambda: park_after_inbox is not None and _unread(db, journal, park_after_inbox),
            )
            if row is None:
                return AppendReply(answer, Attempt(0), None)
            if answer is not AppendAnswer.OK:
                return AppendReply(answer, row.attempt, row.head)
            self._numbers[journal] = row.no
            base = row.no << _SHIFT
            db.executemany(_INSERT, [(base + r.seq, r.record, r.prev_hash, r.hash, attempt) for r in records[skip:]])
            head = Head(records[-1].seq, records[-1].hash)
            db.execute(
                "UPDATE journals SET seq = ?, hash = ?, progress = coalesce(?, progress) WHERE no = ?",
                (head.seq, head.hash, progress, row.no),
            )
            return AppendReply(answer, attempt, head)

    def _append_plainly(
        self,
        db: sqlite3.Connection,
        journal: JournalId,
        attempt: Attempt,
        owner: Owner,
        after: Head,
        records: Sequence[Sealed],
        progress: bytes | None,
    ) -> bool:
        """The append when all is as it should be, its checks in one statement. False: something is not, nothing was written."""
        no = self._numbers.get(journal)
        if no is None:
            return False
        base = no << _SHIFT
        last = records[-1]
        lease = (no, journal, attempt, owner, after.seq, after.hash, base, base + (1 << _SHIFT), base + after.seq)
        if db.execute(_ADVANCE, (last.seq, last.hash, progress, *lease)).rowcount != 1:
            return False
        db.executemany(_INSERT, [(base + r.seq, r.record, r.prev_hash, r.hash, attempt) for r in records])
        return True

    async def report(self, journal: JournalId, attempt: Attempt, owner: Owner, progress: bytes) -> ClaimReply:
        with self._transaction() as db:
            row = _Row.load(db, journal)
            answer = answer_report(row.state if row else None, attempt, owner)
            if row is not None and answer is ClaimAnswer.OK:
                db.execute("UPDATE journals SET progress = ? WHERE no = ?", (progress, row.no))
            return ClaimReply(answer, row.attempt if row else Attempt(0), row.head if row else None)

    async def read(self, journal: JournalId, after: Seq = Seq(0), upto: Seq | None = None) -> AsyncIterator[Stored]:
        row = self._look(lambda db: _Row.load(db, journal), None)
        if row is None:
            return
        base = row.no << _SHIFT
        place, end = base + after, base + ((1 << _SHIFT) - 1 if upto is None else upto)
        while page := self._rows(
            "SELECT place, record, prev_hash, hash, attempt FROM records WHERE place > ? AND place <= ? ORDER BY place "
            "LIMIT ?",
            (place, end, PAGE_RECORDS),
        ):
            for at, record, prev_hash, digest, attempt in page:
                yield Stored(Seq(at - base), _raw(record), RecordHash(prev_hash), RecordHash(digest), Attempt(attempt))
            place = page[-1][0]

    async def meta(self, journal: JournalId) -> Meta | None:
        row = self._look(lambda db: _Row.load(db, journal), None)
        return None if row is None else Meta(row.attempt, row.owner, row.head, row.progress, row.fields)

    async def last(self, journal: JournalId) -> Stored | None:
        row = self._look(lambda db: _Row.load(db, journal), None)
        if row is None:
            return None
        base = row.no << _SHIFT
        found = self._rows(
            "SELECT place, record, prev_hash, hash, attempt FROM records WHERE place > ? AND place < ? "
            "ORDER BY place DESC LIMIT 1",
            (base, base + (1 << _SHIFT)),
        )
        for at, record, prev_hash, digest, attempt in found:
            return Stored(Seq(at - base), _raw(record), RecordHash(prev_hash), RecordHash(digest), Attempt(attempt))
        return None

    async def inbox_add(self, journal: JournalId, entry: InboxEntry) -> bool:
        with self._transaction() as db:
            added = db.execute(
                "INSERT OR IGNORE INTO inbox (journal, id, body, mac) VALUES (?, ?, ?, ?)",
                (journal, entry.id, entry.body, entry.mac),
            )
            return added.rowcount == 1

    async def inbox_read(self, journal: JournalId, after: str = "") -> list[InboxEntry]:
        rows = self._rows(
            "SELECT position, id, body, mac FROM inbox WHERE journal = ? AND position > ? ORDER BY position",
            (journal, int(after or 0)),
        )
        return [InboxEntry(InboxId(i), bytes(body), mac, str(position)) for position, i, body, mac in rows]

    async def blob_put(self, journal: JournalId, digest: str, value: bytes) -> None:
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO blobs VALUES (?, ?, ?)", (journal, digest, value))

    async def blob_get(self, journal: JournalId, digest: str) -> bytes | None:
        rows = self._rows("SELECT value FROM blobs WHERE journal = ? AND digest = ?", (journal, digest))
        return bytes(rows[0][0]) if rows else None

    async def blob_ids(self, journal: JournalId) -> list[str]:
        return [row[0] for row in self._rows("SELECT digest FROM blobs WHERE journal = ? ORDER BY digest", (journal,))]

    async def compact(
        self,
        journal: JournalId,
        attempt: Attempt,
        owner: Owner,
        upto: Seq,
        anchor: Head,
        blobs: Sequence[str] = (),
    ) -> CompactAnswer:
        """The file does not shrink; its pages are used again."""
        with self._transaction() as db:
            row = _Row.load(db, journal)
            lease = (attempt, owner)
            state = row.state if row else None
            answer = answer_compact(state, lease, upto, anchor, _hash_at(db, row), _record_at(db, row))
            if row is not None and answer is CompactAnswer.OK:
                base = row.no << _SHIFT
                db.execute("DELETE FROM records WHERE place > ? AND place < ?", (base, base + upto))
                db.executemany("DELETE FROM blobs WHERE journal = ? AND digest = ?", [(journal, d) for d in blobs])
            return answer

    async def set_fields(self, journal: JournalId, fields: dict[str, str]) -> None:
        with self._transaction() as db:
            row = _Row.load(db, journal)
            if row is not None:
                merged = json.dumps({**row.fields, **fields})
                db.execute("UPDATE journals SET fields = ? WHERE no = ?", (merged, row.no))

    async def journals(self) -> list[JournalId]:
        return [JournalId(row[0]) for row in self._rows("SELECT id FROM journals ORDER BY id", ())]

    async def sweep(self, journal: JournalId) -> None:
        with self._transaction() as db:
            row = _Row.load(db, journal)
            if row is not None:
                base = row.no << _SHIFT
                db.execute("DELETE FROM records WHERE place > ? AND place < ?", (base, base + (1 << _SHIFT)))
                db.execute("DELETE FROM journals WHERE no = ?", (row.no,))
            db.execute("DELETE FROM inbox WHERE journal = ?", (journal,))
            db.execute("DELETE FROM blobs WHERE journal = ?", (journal,))
            forget_live(db, journal)

    async def durability(self) -> DurabilityReport:
        return DurabilityReport("EveryWrite", (), f"sqlite {sqlite3.sqlite_version}", str(self.path))

    async def aclose(self) -> None:
        self._live_close()
        if self._db is not None:
            self._db.close()
            self._db = None

    # --- the file ------------------------------------------------------------------------------------------------

    def _transaction(self, *, patient: bool = True) -> Transaction:
        return Transaction(self.path, self.turn, self.connection, patient=patient)

    def _look(self, ask: Callable[[sqlite3.Connection], T], absent: T) -> T:
        """Read; a file that does not exist is an empty store, and stays absent."""
        if self._db is None and not self.path.exists():
            return absent
        try:
            return ask(self.connection())
        except sqlite3.Error as e:
            raise wrap(self.path, e) from e

    def _rows(self, sql: str, arguments: tuple[object, ...]) -> list[tuple[Any, ...]]:  # Any: SQLite's columns
        return self._look(lambda db: db.execute(sql, arguments).fetchall(), [])

    def connection(self) -> sqlite3.Connection:
        """Opened and checked at its first use."""
        return self._db or self._connect()

    def _connect(self) -> sqlite3.Connection:
        if not self.path.exists():
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                os.close(
                    os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600)
                )  # goals and answers are nobody else's business
            except OSError as e:
                raise BadStore(f"cannot make the journal {self.path}: {e.strerror}") from e
        db = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_MS / 1000, isolation_level=None, check_same_thread=False)
        try:
            version = int(db.execute("PRAGMA user_version").fetchone()[0])
            if version > FORMAT:
                raise BadStore(
                    f"{self.path} has journal format {version}; this everstep knows {FORMAT}. Use the version that wrote it"
                )
            mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            if mode != "wal":
                raise BadStore(
                    f"{self.path} is on a file system without shared memory (journal_mode is {mode}, not wal)"
                )
            db.execute("PRAGMA synchronous = FULL")
            if version < FORMAT:
                db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
        except BaseException:
            db.close()
            raise
        self._db = db
        return db


def _raw(value: bytes | str) -> bytes:
    """A stored value as bytes. SQLite keeps whatever type is written: a statement by hand may turn a record into text."""
    return value.encode() if isinstance(value, str) else bytes(value)


_LOAD = f"""
SELECT no, attempt, owner, seq, hash, progress, fields,
  (SELECT max(place) FROM records WHERE place > no << {_SHIFT} AND place < (no + 1) << {_SHIFT})
FROM journals WHERE id = ?
"""


_INSERT = "INSERT INTO records VALUES (?, ?, ?, ?, ?)"
_ADVANCE = """
UPDATE journals SET seq = ?, hash = ?, progress = coalesce(?, progress)
WHERE no = ? AND id = ? AND attempt = ? AND owner = ? AND seq = ? AND hash = ?
  AND coalesce((SELECT max(place) FROM records WHERE place > ? AND place < ?), no << 32) = ?
"""
"""Moves the head on if attempt, owner and head are as expected and the records end at that head; else changes nothing."""


class _Row:
    """One row of `journals`, and the place of its newest record."""

    __slots__ = ("_fields", "_last_place", "attempt", "head", "no", "owner", "progress")

    def __init__(self, row: tuple[Any, ...]) -> None:  # Any: SQLite's columns
        self.no, self.attempt, self.owner, seq, digest, self.progress, self._fields, self._last_place = row
        self.head = Head(Seq(seq), RecordHash(digest))

    no: int
    attempt: Attempt
    owner: Owner | None
    progress: bytes | None

    @classmethod
    def load(cls, db: sqlite3.Connection, journal: JournalId) -> "_Row | None":
        found = db.execute(_LOAD, (journal,)).fetchone()
        return None if found is None else cls(found)

    @property
    def fields(self) -> dict[str, str]:
        loaded: dict[str, str] = json.loads(self._fields)
        return loaded

    @property
    def state(self) -> State:
        last = self._last_place
        return State(self.attempt, self.owner, self.head, 0 if last is None else last - (self.no << _SHIFT))


def _hash_at(db: sqlite3.Connection, row: _Row | None) -> HashAt:
    def hash_at(seq: int) -> RecordHash | None:
        if row is None:
            return None
        column, place = ("prev_hash", 1) if seq == 0 else ("hash", seq)
        found = db.execute(f"SELECT {column} FROM records WHERE place = ?", ((row.no << _SHIFT) + place,)).fetchone()
        return None if found is None else RecordHash(found[0])

    return hash_at


def _record_at(db: sqlite3.Connection, row: _Row | None) -> Callable[[int], bytes | None]:
    def record_at(seq: int) -> bytes | None:
        base = 0 if row is None else row.no << _SHIFT
        found = db.execute("SELECT record FROM records WHERE place = ?", (base + seq,)).fetchone()
        return None if found is None else _raw(found[0])

    return record_at


def _unread(db: sqlite3.Connection, journal: JournalId, position: str) -> bool:
    found = db.execute("SELECT max(position) FROM inbox WHERE journal = ?", (journal,)).fetchone()[0]
    return found is not None and int(found) > int(position or 0)
