"""What a journal says about where its run stands: folded from its records, used to decide what comes next."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from everstep.journal.records import BudgetRaised, Park, Record, RunStarted, Settled, Uncertain

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
    """(kind, key) of the outcomes that count as progress."""

    def add(self, records: Iterable[Record]) -> bool:
        """Take in records; True if one of them is progress."""
        progress = False
        for record in records:
            self.last = record
            self.attempt = max(self.attempt, record.attempt)
            inbox = getattr(record, "inbox", "")
            if inbox:
                self.inbox_ids.add(inbox)
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

    @property
    def finished(self) -> bool:
        return self.last is not None and self.last.kind == "finished"

    @property
    def park(self) -> Park | None:
        """The park record if the run is parked, else None."""
        return self.last if isinstance(self.last, Park) else None
