"""The record as replay sees it: what the agent did, in order, and what came of each call.

Two lists matter. *Claims* are the records agent code itself caused (first intents, timers, values): on replay the code must make
the same calls in the same order, and each is checked against the record at its turn. *Outcomes* are delivered one at a time, in
journal order. Whatever does not fit is Diverged, told from both sides.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from everstep.errors import Diverged
from everstep.ids import Seq, StepKey
from everstep.journal.records import (
    Abandoned,
    BudgetRaised,
    Cancel,
    Failure,
    Finished,
    Fired,
    Heartbeat,
    Held,
    Intent,
    Json,
    Pinned,
    Record,
    Result,
    RunStarted,
    Segment,
    Settled,
    Snapshot,
    Timer,
    TryFailed,
    Uncertain,
    Value,
    canonical,
    decode,
)
from everstep.journal.spend import Spend
from everstep.run.divergence import (
    AHEAD_SEARCHED,
    Call,
    Told,
    after_the_end,
    another_way,
    began_at,
    other_arguments,
    stopped_short,
    unasked,
    unexpected,
)
from everstep.run.markers import DEPRECATED, PATCHED, is_marker

_CALLS = {"held": "intent"}
"""Records that keep the place of a call besides the one that is named for it."""


@dataclass(slots=True, eq=False, repr=False)
class Past:
    """What the record tells of one key."""

    claim: Record
    tries: int = 0
    """Intents so far."""
    failures: int = 0
    """Tries that failed; a try that was lost with its process is none."""
    last: Record | None = None
    """The newest of its intent, try_failed, uncertain and `settled: again` records: where the step stands."""
    intent: Intent | None = None
    outcome: Record | None = None
    began: int = 0
    """When its first intent was made, epoch ms; later, once a person has let it run again."""
    failures_by: dict[str, int] | None = None
    """Failures per entry of `max_tries_by`."""
    details: Json = None
    """Of its newest heartbeat."""

    def note(self, record: TryFailed | Uncertain | Heartbeat) -> None:
        """What happened between its intents."""
        if isinstance(record, Heartbeat):
            self.details = record.details
            return
        self.last = record
        if isinstance(record, Uncertain):
            return
        self.failures += 1
        if record.limit:
            counts = self.failures_by = self.failures_by or {}
            counts[record.limit] = counts.get(record.limit, 0) + 1

    def again(self, record: Settled) -> None:
        """It may run again. A person's word begins the time anew, and after exhausted tries the tries, too."""
        if record.inbox:
            self.began = record.time
        if isinstance(self.last, Uncertain) and self.last.exhausted:
            self.failures = 0
            self.failures_by = None
        self.last = record


@dataclass(eq=False, repr=False)
class History:
    """Built once from the proved records; consumed by replay."""

    claims: deque[Record] = field(default_factory=deque)
    outcomes: deque[Record] = field(default_factory=deque)
    past: dict[str, Past] = field(default_factory=dict)
    passable: set[str] = field(default_factory=set)
    """Keys of the markers that `deprecate_patch` lets pass wherever they stand."""
    inbox_ids: set[str] = field(default_factory=set)
    started: RunStarted | None = None
    pinned: Pinned | None = None
    """The newest."""
    cancel: Cancel | None = None
    finished: Finished | None = None
    agreed: Record | None = None
    """The newest call that agent code has repeated."""
    steps: int = 0
    """Steps with an outcome."""
    spend: Spend = field(default_factory=Spend)
    last_seq: int = 0
    began: Snapshot | Segment | None = None
    """Where replay begins; None = at the first record."""
    kept: list[Record] = field(default_factory=list)
    """Records of the run itself that a later snapshot or segment carries on (everstep.run.epochs)."""
    state: Json = None
    """The state of the snapshot at which replay begins."""
    inputs: dict[str, Json] | None = None
    """Those of the newest segment; None = those of the run."""
    openings: list[tuple[int, int]] = field(default_factory=list)
    """(epoch, seq) of the snapshots and segments that are in the journal."""
    first_seq: int = 1
    """Of the journal's first record."""
    tail: list[Record] = field(default_factory=list)
    """All records from where replay begins, for compaction; empty where that is the run's beginning."""
    size_bytes: int = 0
    """Of the records from where replay begins."""
    unasked: bool = False
    """Replay begins at a snapshot, and the agent has not asked for its state yet."""

    @classmethod
    def of(cls, records: Sequence[Record]) -> "History":
        history = cls()
        for record in records:
            history.add(record)
        return history

    @property
    def consumed(self) -> bool:
        return not self.outcomes and not self.claims

    def add(self, record: Record) -> None:
        self.last_seq = record.seq
        self.spend.add(record)
        match record:
            case Intent():
                self._intent(record)
            case Timer() | Value() | Held():
                self.claims.append(record)
                self.past[record.key] = Past(record)
            case TryFailed() | Uncertain() | Heartbeat():
                self._at(record).note(record)
            case Settled():
                self.inbox_ids.add(record.inbox)
                if record.decision == "again":
                    self._at(record).again(record)
                else:
                    self._outcome(record)
            case Result() | Failure() | Abandoned() | Fired():
                self._outcome(record)
            case Cancel():
                self.cancel = record
                self.inbox_ids.add(record.inbox)
                self.outcomes.append(record)
                self.keep(record)
            case BudgetRaised():
                self.inbox_ids.add(record.inbox)
            case _:
                self._of_the_run(record)

    def _of_the_run(self, record: Record) -> None:
        """Records that no call of the agent caused."""
        match record:
            case RunStarted():
                self.started = record
                self.keep(record)
            case Pinned():
                self.pinned = record
                self.keep(record)
            case Snapshot() | Segment():
                self._begin(record)
            case Finished():
                self.finished = record
            case _:
                pass  # a park tells the operator, not the agent

    def keep(self, record: Record) -> None:
        """Carry a record of the run itself over later snapshots and segments; of pins and segments the newest."""
        if record.kind in ("pinned", "segment"):
            self.kept = [r for r in self.kept if r.kind != record.kind]
        self.kept.append(record)

    def _begin(self, record: Snapshot | Segment) -> None:
        """Replay begins here: what is before counts only as far as it was carried over."""
        self.claims.clear()
        self.outcomes.clear()
        self.past.clear()
        self.kept.clear()
        self.cancel = None
        for kept in (decode(canonical(data), Seq(record.seq)) for data in record.kept):
            (self.keep if isinstance(kept, Segment) else self.add)(kept)
        if isinstance(record, Segment):
            self.keep(record)
        if isinstance(record.applied, list):
            self.inbox_ids.update(record.applied)
        self.openings.append((record.epoch, record.seq))
        self.began, self.unasked = record, isinstance(record, Snapshot)
        self.steps = record.totals["steps"]
        self.spend.restore(record.totals["spend"])
        self.last_seq = record.seq

    @property
    def segment(self) -> Segment | None:
        """The newest segment."""
        return next((r for r in self.kept if isinstance(r, Segment)), None)

    @property
    def clock_ms(self) -> int:
        """Run time where replay begins."""
        return self.began.clock if self.began else self.started.time if self.started else 0

    def _intent(self, record: Intent) -> None:
        past = self.past.get(record.key)
        if past is None:
            past = self.past[record.key] = Past(record)
            self.claims.append(record)
        past.tries += 1
        past.began = past.began or record.time
        past.last = past.intent = record

    def _at(self, record: Record) -> Past:
        past = self.past.get(record.key)
        if past is None:
            raise Diverged(
                f"record {record.seq} is a {record.kind} of {record.key!r}, but no call with that key comes before it"
            )
        return past

    def _outcome(self, record: Record) -> None:
        past = self._at(record)
        if past.outcome is not None:
            raise Diverged(f"records {past.outcome.seq} and {record.seq} are both outcomes of {record.key!r}")
        past.outcome = record
        self.outcomes.append(record)
        if not isinstance(record, Fired):
            self.steps += 1

    # --- consumed by replay -------------------------------------------------------------------------------------

    def claim(
        self, kind: str, key: StepKey, name: str, digest: str = "", args: Mapping[str, Json] | None = None
    ) -> Past | None:
        """Check a call of agent code against the record at its turn. None: the record does not reach this far, so the call is
        new. Raises Diverged."""
        if self.unasked and self.began is not None and not name.startswith(PATCHED):
            raise unasked(self.began, Call(kind, key, name, digest, args))
        if not self.claims or not self.pass_markers(key):
            if self.finished is not None and not name.startswith(PATCHED):
                raise after_the_end(self._told(), self.finished, Call(kind, key, name, digest, args))
            return None
        record = self.claims[0]
        if record.key != key or _CALLS.get(record.kind, record.kind) != kind or record.name != name:
            raise another_way(self._told(), Call(kind, key, name, digest, args))
        if isinstance(record, Intent | Held) and record.input != digest:
            raise other_arguments(self._told(), Call(kind, key, name, digest, args))
        self.agreed = self.claims.popleft()
        return self.past.pop(key)

    def pass_markers(self, key: str = "") -> bool:
        """Pass over markers that the code need not take any more (everstep.run.patches), except that of `key`. Whether a claim is
        left."""
        claims = self.claims
        while claims and is_marker(first := claims[0]) and first.key != key and self._passable(first):
            del self.past[first.key]
            claims.popleft()
        return bool(claims)

    def _passable(self, marker: Record) -> bool:
        return marker.key in self.passable or (isinstance(marker, Value) and marker.value == DEPRECATED)

    def unclaimed(self, code_does: str) -> Diverged:
        """The code stopped short of a call that the record tells of."""
        return stopped_short(self._told(), code_does)

    def unexpected(self, outcome: Record, code_does: str) -> Diverged:
        """An outcome is next that nothing waits for: of a call the code did not come to, or of none at all."""
        if self.claims and outcome.key in self.past:
            return stopped_short(self._told(), code_does)
        return unexpected(outcome, code_does, began_at(self.began))

    def _told(self) -> Told:
        return Told(self.agreed, list(islice(self.claims, AHEAD_SEARCHED)), began_at(self.began))
