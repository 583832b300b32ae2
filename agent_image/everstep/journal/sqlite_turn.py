"""Whose turn it is to write a journal's file, and a transaction in its turn, with SQLite's errors in our words."""

import sqlite3
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import TracebackType

from everstep.clock import SystemClock
from everstep.errors import BadStore, JournalUnavailable, JournalUnreadable
from everstep.ids import Seq

BUSY_TIMEOUT_MS = 1000
SPARED_S = 1.0
"""After somebody waited in vain for another process, an append does not wait for this long: many runs that share an event loop
would make it stand still one after the other. Their writers try again."""
_LASTING = ("unable to open", "no such table", "no such column")
"""Words in sqlite3's errors that no repetition heals."""
_CLOCK = SystemClock()


class Turn:
    """Of one file. Runs of one process wait for each other here: SQLite's own waiting sleeps ever longer, and starves whoever
    came first. `locked_s`: when somebody last waited in vain for another process, monotonic; 0 = not since somebody wrote."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.locked_s = 0.0


@cache
def turn_of(path: str) -> Turn:
    """The same for all who name this absolute path."""
    return Turn()


class Transaction:
    """BEGIN IMMEDIATE … COMMIT, with SQLite's errors in our words. A class, as it is entered once per durable write and a
    generator would cost 3 µs more."""

    __slots__ = ("_connect", "_db", "_path", "_patient", "_turn")

    def __init__(
        self, path: Path, turn: Turn, connect: Callable[[], sqlite3.Connection], *, patient: bool = True
    ) -> None:
        self._path = path
        self._turn = turn
        self._connect = connect
        self._patient = patient

    def __enter__(self) -> sqlite3.Connection:
        turn = self._turn
        if turn.locked_s and not self._patient and _CLOCK.monotonic_s() < turn.locked_s + SPARED_S:
            raise JournalUnavailable(f"{self._path}: another process keeps it locked")
        if not turn.lock.acquire(timeout=BUSY_TIMEOUT_MS / 1000):
            raise JournalUnavailable(f"{self._path}: other runs of this process are writing")
        try:
            self._db = self._connect()
            self._db.execute("BEGIN IMMEDIATE")
            turn.locked_s = 0.0
        except BaseException as e:
            turn.lock.release()
            if isinstance(e, sqlite3.Error):
                wrapped = wrap(self._path, e)
                if isinstance(wrapped, JournalUnavailable):
                    turn.locked_s = _CLOCK.monotonic_s()
                raise wrapped from e
            raise
        return self._db

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            self._leave(error)
        finally:
            self._turn.lock.release()

    def _leave(self, error: BaseException | None) -> None:
        try:
            if error is None:
                self._db.execute("COMMIT")
        except sqlite3.Error as e:
            error = e
        if error is not None and self._db.in_transaction:
            self._db.execute("ROLLBACK")
        if isinstance(error, sqlite3.Error):
            raise wrap(self._path, error) from error


_CORRUPT = ("not a database", "malformed", "unsupported file format")
"""Words in sqlite3's errors about a file that is no journal any more."""


def wrap(path: Path, error: sqlite3.Error) -> BadStore | JournalUnavailable | JournalUnreadable:
    """An error of SQLite's about this file, as ours: to be retried (JournalUnavailable), or lasting."""
    text = str(error)
    if any(word in text for word in _CORRUPT):
        return JournalUnreadable(
            f"{path} cannot be read as a journal: {text}; restore it from a copy, or move it away and delete the runs in it",
            Seq(0),
        )
    if any(word in text for word in _LASTING):
        return BadStore(f"{path} cannot be used as a journal: {text}")
    return JournalUnavailable(f"{path}: {text}")
