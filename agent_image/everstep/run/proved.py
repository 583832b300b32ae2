"""From proved records to the history, one at a time: the raw bytes of a long journal are never all in memory."""

from typing import TYPE_CHECKING

from everstep.errors import EverstepError
from everstep.journal.records import Segment, Snapshot, decode
from everstep.journal.store import Stored
from everstep.run.history import History

if TYPE_CHECKING:
    from everstep.journal.sealing import Sealer


class Proved:
    """Give it each record as it is proved; ask for the history once all are."""

    def __init__(self, sealer: "Sealer | None") -> None:
        self.first_seq = 1
        """Of the first record that is there."""
        self._sealer = sealer
        self._history = History()
        self._refused: EverstepError | None = None

    def add(self, stored: Stored) -> None:
        """A record that cannot be read is told of later: what is wrong with the chain behind it counts more."""
        if self._refused is not None:
            return
        history = self._history
        try:
            record = decode(stored.record, stored.seq, self._sealer)
            history.add(record)
        except EverstepError as e:
            self._refused = e
            return
        if isinstance(record, Snapshot | Segment):
            history.size_bytes, history.tail = 0, [record]
            return
        history.size_bytes += len(stored.record)
        if history.began is not None:
            history.tail.append(record)

    def history(self) -> History:
        """Raises JournalUnreadable or Diverged, as the first record that could not be taken up says."""
        if self._refused is not None:
            raise self._refused
        self._history.first_seq = self.first_seq
        return self._history
