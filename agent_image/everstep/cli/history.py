"""A journal as people read it: steps with their state, attempts, waits. Folded from records, without any I/O."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from everstep.journal.records import (
    Abandoned,
    Failure,
    Finished,
    Fired,
    Held,
    Intent,
    Park,
    Record,
    Result,
    RunStarted,
    Segment,
    Settled,
    Snapshot,
    Timer,
    TryFailed,
    Uncertain,
)
from everstep.journal.spend import Spend

ASKED = ("uncertain", "exhausted")
"""States of a step that waits for a person."""
IN_FLIGHT = ("intent", "try_failed", "again")
"""States of a step that has no outcome yet and nobody to wait for."""


@dataclass
class Row:
    """One step, or one timer (`effect` is then `timer`)."""

    key: str
    name: str
    effect: str
    first_epoch_ms: int
    epoch: int = 0
    """The epoch it was called in."""
    tries: int = 0
    state: str = "intent"
    """held, intent, try_failed, result, failure, abandoned, uncertain, exhausted, done, again, fail; timer: timer, fired."""
    took_ms: int | None = None
    usage: dict[str, int] = field(default_factory=dict)
    attempt: int = 0
    """The attempt that wrote the newest record of the step."""
    seq: int = 0
    last_epoch_ms: int = 0
    """When the newest record was made."""
    note: str = ""
    """An error, a reason."""
    input: str = ""
    due: int | None = None

    @property
    def has_outcome(self) -> bool:
        return self.state not in (*IN_FLIGHT, *ASKED, "held", "timer")

    @property
    def is_step(self) -> bool:
        return self.effect != "timer"

    @property
    def tokens(self) -> tuple[int, int]:
        """Input and output tokens the step reported."""
        return self.usage.get("inputTokens", 0), self.usage.get("outputTokens", 0)


@dataclass
class AttemptRow:
    """What one attempt wrote."""

    number: int
    first_seq: int
    last_seq: int
    start_epoch_ms: int
    end_epoch_ms: int
    replayed: int = 0
    """Steps that it took from the record instead of running them: those of the epoch it began in."""
    paid: int = 0
    """How many of them had used tokens."""


@dataclass
class History:
    """Grows record by record; `rows` keeps the order in which steps began."""

    rows: dict[str, Row] = field(default_factory=dict)
    attempts: dict[int, AttemptRow] = field(default_factory=dict)
    started: RunStarted | None = None
    finished: Finished | None = None
    park: Park | None = None
    """Set while the newest record is a park."""
    records: int = 0
    first_seq: int = 1
    """Of the first record that is left: 1, or a snapshot or segment whose predecessors were compacted."""
    before: int = 0
    """Steps with an outcome that are not among `rows`: compacted, or forgotten."""
    epoch: int = 0
    """The epoch in force."""
    forget: bool = False
    """Whether rows of earlier epochs are only counted: for watching a run that goes on for ever."""
    spend: Spend = field(default_factory=Spend)
    _forgotten: Counter[int] = field(default_factory=Counter)
    """Attempt → its steps that were only counted."""

    def add(self, records: Iterable[Record]) -> "History":
        """Take in records; returns itself."""
        for record in records:
            self._add(record)
        return self

    def _add(self, record: Record) -> None:
        if self.records == 0:
            self.first_seq = record.seq
        self.records += 1
        self.spend.add(record)
        self.park = record if isinstance(record, Park) else None
        attempt = self.attempts.get(record.attempt)
        if attempt is None:
            attempt = AttemptRow(record.attempt, record.seq, record.seq, record.time, record.time)
            self.attempts[record.attempt] = attempt
            told = [row for row in self.steps if row.has_outcome and row.epoch == self.epoch]
            attempt.replayed, attempt.paid = len(told), sum(any(row.tokens) for row in told)
        attempt.last_seq, attempt.end_epoch_ms = record.seq, record.time
        if isinstance(record, RunStarted):
            self.started = record
        elif isinstance(record, Finished):
            self.finished = record
        elif isinstance(record, Snapshot | Segment):
            self._open(record)
        elif isinstance(record, Intent | Held | Timer):
            self._begin(record)
        elif (row := self.rows.get(record.key)) is not None:
            _outcome(row, record)

    def _open(self, record: Snapshot | Segment) -> None:
        """A new epoch. What the record carries counts where its predecessors are gone."""
        self.epoch = record.epoch
        if self.records == 1:
            self.started = next(
                (msgspec.convert(r, RunStarted) for r in record.kept if r["kind"] == "run_started"), None
            )
            self.spend.restore(record.totals["spend"])
        if self.records == 1 or self.forget:
            self._forgotten.update(row.attempt for row in self.steps if row.has_outcome)
            self.rows.clear()
            self.before = record.totals["steps"]

    def _begin(self, record: Intent | Held | Timer) -> None:
        row = self.rows.get(record.key)
        if row is None:
            effect = "timer" if isinstance(record, Timer) else record.effect
            row = self.rows[record.key] = Row(record.key, record.name, effect, record.time, self.epoch)
        row.attempt, row.seq, row.last_epoch_ms, row.state = record.attempt, record.seq, record.time, record.kind
        if isinstance(record, Intent):
            row.tries, row.input = record.tries, record.input
        elif isinstance(record, Held):
            row.note = record.reason
        else:
            row.due = record.due

    @property
    def steps(self) -> list[Row]:
        return [row for row in self.rows.values() if row.is_step]

    @property
    def last_attempt(self) -> int:
        return max(self.attempts, default=0)

    def in_flight(self) -> list[Row]:
        """Steps with an intent and no outcome."""
        return [row for row in self.steps if row.state in IN_FLIGHT]

    def asked(self) -> list[Row]:
        """Steps that wait for a person."""
        return [row for row in self.steps if row.state in ASKED]

    def recorded(self) -> int:
        """How many steps have an outcome."""
        return self.before + sum(row.has_outcome for row in self.steps)

    def to_replay(self) -> int:
        """How many steps an attempt that begins now takes from the record."""
        return sum(row.has_outcome for row in self.steps if row.epoch == self.epoch)

    def replayed(self, attempt: int) -> int:
        """How many steps `attempt` took from the record instead of running them."""
        return self.attempts[attempt].replayed if attempt in self.attempts else 0

    def run_by(self, attempt: int) -> int:
        """How many steps ended in `attempt`."""
        return self._forgotten[attempt] + sum(row.has_outcome and row.attempt == attempt for row in self.steps)

    def usage(self) -> dict[str, int]:
        """What steps reported, over all tries."""
        return dict(self.spend.usage)

    @property
    def summary(self) -> str:
        """The word of the Summary column, as far as the journal alone can tell."""
        if self.finished is not None:
            return self.finished.outcome.capitalize()
        states = {row.state for row in self.asked()}
        if "uncertain" in states:
            return "Uncertain"
        if states or self.park is not None:
            return "Waiting"
        return "Running" if self.records else "Starting"


def _outcome(row: Row, record: Record) -> None:
    row.attempt, row.seq, row.last_epoch_ms = record.attempt, record.seq, record.time
    if isinstance(record, Result):
        row.state, row.took_ms, row.usage = "result", record.took_ms, dict(record.usage or {})
    elif isinstance(record, Failure):
        row.state, row.took_ms, row.note = "failure", record.took_ms, f"{record.type}: {record.message}"
    elif isinstance(record, TryFailed):
        row.state, row.note = "try_failed", f"{record.type}: {record.message}"
    elif isinstance(record, Abandoned):
        row.state, row.note = record.kind, record.reason
    elif isinstance(record, Uncertain):
        row.state, row.note = "exhausted" if record.exhausted else record.kind, record.reason
    elif isinstance(record, Settled):
        row.state = record.decision
        row.note = f"settled by {record.by}" + (f": {record.reason}" if record.reason else "")
    elif isinstance(record, Fired):
        row.state = "fired"
