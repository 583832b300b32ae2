"""What a journal says about where its run stands: folded from its records, used to decide what comes next."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from everstep.journal.records import BudgetRaised, Park, Record, RunStarted, Segment, Settled, Snapshot, Uncertain

_PROGRESS = ("result", "fired", "settled")


@dataclass
class RunState:
    """Grows record by record."""

    last: Record | None = None
    attempt: int = 0
    inbox_ids: set[str] = field(default_factory=set)
    """Inbox entries that were copied into the chain."""
    uncertain: dict[str, Uncertain] = field(default_factory=dict)
    """Steps nobody has settled yet, by key."""
    budget: dict[str, object] | None = None
    """The budget the run was last started with (everstep.budget); what people set since is not in it."""
    progressed: set[tuple[str, str]] = field(default_factory=set)
    """(kind, key) of the outcomes of this epoch that count as progress."""
    opened_seq: int = 0
    """Seq of the newest snapshot or segment."""

    def add(self, records: Iterable[Record]) -> bool:
        """Take in records; True if one of them is progress."""
        progress = False
        for record in records:
            self.last = record
            self.attempt = max(self.attempt, record.attempt)
            inbox = getattr(record, "inbox", "")
            if inbox:
                self.inbox_ids.add(inbox)
            if isinstance(record, Snapshot | Segment):
                self._open(record)
            if isinstance(record, Uncertain):
                self.uncertain[record.key] = record
            elif isinstance(record, Settled):
                self.uncertain.pop(record.key, None)
            if isinstance(record, RunStarted):
                self.budget = record.budget
            elif isinstance(record, BudgetRaised) and not record.inbox:
                self.budget = {name: value for name, value in record.limits.items() if value is not None}
            if record.kind in _PROGRESS and (record.kind, record.key) not in self.progressed:
                self.progressed.add((record.kind, record.key))
                progress = True
        return progress

    def _open(self, record: Snapshot | Segment) -> None:
        """A new epoch: its keys are new, and what it carries stands for records that may be gone."""
        self.opened_seq = record.seq
        self.progressed.clear()
        self.inbox_ids.update(record.applied if isinstance(record.applied, list) else ())
        self.budget = record.totals["spend"]["given"]

    @property
    def finished(self) -> bool:
        return self.last is not None and self.last.kind == "finished"

    @property
    def park(self) -> Park | None:
        """The park record if the run is parked, else None."""
        return self.last if isinstance(self.last, Park) else None
