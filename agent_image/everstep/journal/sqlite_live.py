"""The live stream in the SQLite file of local mode.

    live   journal, position (1, 2, 3 … per journal), entry

On a connection of its own with synchronous=OFF: what is live need not survive a power cut, and must not cost a disk write per
token. The table is made at the first entry, so a file without one is as any other.
"""

import sqlite3
from pathlib import Path

from everstep.errors import JournalUnavailable
from everstep.ids import Attempt, JournalId, Owner, RecordHash, Seq
from everstep.journal.live import CAP_ENTRIES, PAGE_ENTRIES
from everstep.journal.store import ClaimAnswer, ClaimReply, Head

BUSY_TIMEOUT_MS = 200
_TABLE = """
CREATE TABLE IF NOT EXISTS live (
  journal TEXT NOT NULL, position INTEGER NOT NULL, entry BLOB NOT NULL, PRIMARY KEY (journal, position)) WITHOUT ROWID
"""


class SqliteLive:
    """A part of SqliteStore."""

    path: Path
    _live_db: sqlite3.Connection | None = None
    _live_made = False

    async def live_add(self, journal: JournalId, attempt: Attempt, owner: Owner, entries: list[bytes]) -> ClaimReply:
        """See `everstep.journal.live.LiveStore`."""
        try:
            db = self._live_connection(make=True)
            assert db is not None
            with db:
                db.execute("BEGIN IMMEDIATE")
                row = db.execute("SELECT attempt, owner, seq, hash FROM journals WHERE id = ?", (journal,)).fetchone()
                if row is None:
                    return ClaimReply(ClaimAnswer.FENCED, Attempt(0), None)
                head = Head(Seq(row[2]), RecordHash(row[3]))
                if row[0] != attempt or row[1] is None:
                    return ClaimReply(ClaimAnswer.FENCED, Attempt(row[0]), head)
                if row[1] != owner:
                    return ClaimReply(ClaimAnswer.TAKEN, Attempt(row[0]), head)
                newest = db.execute("SELECT max(position) FROM live WHERE journal = ?", (journal,)).fetchone()[0] or 0
                rows = [(journal, newest + i + 1, entry) for i, entry in enumerate(entries)]
                db.executemany("INSERT INTO live VALUES (?, ?, ?)", rows)
                db.execute(
                    "DELETE FROM live WHERE journal = ? AND position <= ?", (journal, newest + len(rows) - CAP_ENTRIES)
                )
                return ClaimReply(ClaimAnswer.OK, attempt, head)
        except sqlite3.Error as e:
            raise JournalUnavailable(f"{self.path}: {e}") from e

    async def live_read(self, journal: JournalId, after: int = 0, count: int = PAGE_ENTRIES) -> list[tuple[int, bytes]]:
        """See `everstep.journal.live.LiveStore`."""
        try:
            db = self._live_connection(make=False)
            if db is None:
                return []
            rows = db.execute(
                "SELECT position, entry FROM live WHERE journal = ? AND position > ? ORDER BY position LIMIT ?",
                (journal, after, count),
            ).fetchall()
        except sqlite3.Error as e:
            if "no such table" in str(e):
                return []
            raise JournalUnavailable(f"{self.path}: {e}") from e
        return [(position, bytes(entry)) for position, entry in rows]

    def _live_connection(self, *, make: bool) -> sqlite3.Connection | None:
        if self._live_db is None:
            if not self.path.exists():
                return None
            db = sqlite3.connect(
                self.path, timeout=BUSY_TIMEOUT_MS / 1000, isolation_level=None, check_same_thread=False
            )
            db.execute("PRAGMA synchronous = OFF")
            self._live_db = db
        if make and not self._live_made:
            self._live_db.execute(_TABLE)
            self._live_made = True
        return self._live_db

    def _live_close(self) -> None:
        if self._live_db is not None:
            self._live_db.close()
            self._live_db, self._live_made = None, False


def forget_live(db: sqlite3.Connection, journal: JournalId) -> None:
    """Delete the live stream of a journal that is swept, within the caller's transaction."""
    if db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'live'").fetchone():
        db.execute("DELETE FROM live WHERE journal = ?", (journal,))
