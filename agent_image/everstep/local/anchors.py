"""The anchor file: the newest head of a run's journal, kept apart from the journal, so that a cut or altered one is noticed.

    {"journal": "monday.5f1c…", "seq": 75, "hash": "4f1c…a9", "attempt": 2, "time": 1767225600000}

Written before the first fence (seq 0), at the start of each attempt, at park and finish, and every few seconds while steps
advance. It only grows.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from everstep.errors import ConfigError, JournalError, JournalTampered
from everstep.ids import Attempt, EpochMs, JournalId, RecordHash, Seq
from everstep.journal.store import Head
from everstep.local.files import write_atomic


@dataclass(frozen=True)
class Anchor:
    """A head, and when it was seen."""

    head: Head
    attempt: Attempt
    time_epoch_ms: EpochMs


class AnchorMissing(JournalError):
    """The journal is there, its anchor is not: a cut could not be noticed. A person decides with `everstep local accept`."""


@dataclass(frozen=True)
class AnchorFile:
    """One run's anchor."""

    path: Path
    journal: JournalId

    def read(self) -> Anchor | None:
        """None when there is no file. Raises ConfigError when it cannot be read or is another run's."""
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            head = Head(Seq(int(data["seq"])), RecordHash(str(data["hash"])))
            anchor = Anchor(head, Attempt(int(data["attempt"])), EpochMs(int(data["time"])))
            journal = data["journal"]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise ConfigError(
                f"the anchor {self.path} cannot be read ({e!r}), so a cut journal could not be told from a whole one; "
                "restore it from a copy"
            ) from e
        if journal != self.journal:
            raise ConfigError(f"the anchor {self.path} belongs to journal {journal}, not to {self.journal}; restore it")
        return anchor

    def grow(self, head: Head, attempt: Attempt, now: EpochMs) -> bool:
        """Move the anchor forward to a verified head; True if the file changed. An older head changes nothing.

        Raises JournalTampered when another hash was anchored at that seq.
        """
        old = self.read()
        if old is not None:
            if head.seq < old.head.seq or (head == old.head and attempt == old.attempt):
                return False
            if head.seq == old.head.seq and head.hash != old.head.hash:
                raise JournalTampered(f"record {head.seq} is not the one that was anchored", head.seq)
        self.replace(head, attempt, now)
        return True

    def replace(self, head: Head, attempt: Attempt, now: EpochMs) -> None:
        """Set the anchor whatever it was: only on a person's explicit word (`everstep local accept`)."""
        data = {"journal": self.journal, "seq": head.seq, "hash": head.hash, "attempt": attempt, "time": now}
        write_atomic(self.path, json.dumps(data) + "\n")
