"""The record as replay sees it: what the agent did, in order, and what came of each call.

Two lists matter. *Claims* are the records agent code itself caused (first intents, timers, values): on replay the code must make
the same calls in the same order, and each is checked against the record at its turn. *Outcomes* are delivered one at a time, in
journal order. Whatever does not fit is Diverged, told from both sides.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from everstep.errors import Diverged
from everstep.ids import StepKey
from everstep.journal.records import (
    Abandoned,
    Cancel,
    Failure,
    Finished,
    Fired,
    Intent,
    Record,
    Result,
    RunStarted,
    Settled,
    Timer,
    TryFailed,
    Uncertain,
    Value,
)

CURE = (
    "Run the code that wrote the journal (the same image), or start a new run for the changed code. "
    "Nothing was written and no step ran"
)


PATCHED = "patched:"
"""Begins the name of a marker (everstep.run.patches), and its key within the epoch."""
DEPRECATED = "deprecated"
"""Value of a marker that code may pass over."""


def is_marker(record: Record) -> bool:
    """Whether a record is a marker of `patched` or `deprecate_patch`."""
    return record.kind == "value" and record.name.startswith(PATCHED)


@dataclass(slots=True)
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


@dataclass
class History:
    """Built once from the proved records; consumed by replay."""

    claims: deque[Record] = field(default_factory=deque)
    outcomes: deque[Record] = field(default_factory=deque)
    past: dict[str, Past] = field(default_factory=dict)
    passable: set[str] = field(default_factory=set)
    """Keys of the markers that `deprecate_patch` lets pass wherever they stand."""
    inbox_ids: set[str] = field(default_factory=set)
    started: RunStarted | None = None
    cancel: Cancel | None = None
    finished: Finished | None = None
    steps: int = 0
    """Steps with an outcome."""
    usage: dict[str, int] = field(default_factory=dict)
    last_seq: int = 0

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
        match record:
            case Intent():
                self._intent(record)
            case Timer() | Value():
                self.claims.append(record)
                self.past[record.key] = Past(record)
            case TryFailed() | Uncertain():
                past = self._at(record)
                past.last = record
                past.failures += isinstance(record, TryFailed)
            case Settled():
                self.inbox_ids.add(record.inbox)
                if record.decision == "again":
                    self._at(record).last = record
                else:
                    self._outcome(record)
            case Result() | Failure() | Abandoned() | Fired():
                self._outcome(record)
            case Cancel():
                self.cancel = record
                self.inbox_ids.add(record.inbox)
                self.outcomes.append(record)
            case RunStarted():
                self.started = record
            case Finished():
                self.finished = record
            case _:
                pass  # a park tells the operator, not the agent

    def _intent(self, record: Intent) -> None:
        past = self.past.get(record.key)
        if past is None:
            past = self.past[record.key] = Past(record)
            self.claims.append(record)
        past.tries += 1
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
        if isinstance(record, Result) and record.usage:
            for name, amount in record.usage.items():
                self.usage[name] = self.usage.get(name, 0) + amount

    # --- consumed by replay -------------------------------------------------------------------------------------

    def claim(self, kind: str, key: StepKey, name: str, digest: str = "") -> Past | None:
        """Check a call of agent code against the record at its turn. None: the record does not reach this far, so the call is
        new. Raises Diverged."""
        if not self.claims or not self.pass_markers(key):
            return None
        record = self.claims[0]
        if record.key != key or record.kind != kind or record.name != name:
            raise self._mismatch(record, kind, key, name)
        if isinstance(record, Intent) and record.input != digest:
            raise self._changed(record, digest)
        self.claims.popleft()
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

    def _mismatch(self, record: Record, kind: str, key: StepKey, name: str) -> Diverged:
        return Diverged(
            "the code took another way than the journal tells.\n"
            f"  the record:  {describe(record)}\n"
            f"  the code:    {_call(kind, key, name)}\n"
            f"{_marker_cure(record)}{CURE}."
        )

    def _changed(self, record: Intent, digest: str) -> Diverged:
        return Diverged(
            f"step {record.name} was called with other arguments than the journal tells.\n"
            f"  the record:  {describe(record)}, arguments with digest {record.input[:12]}…\n"
            f"  the code:    {_call('intent', StepKey(record.key), record.name)}, arguments with digest {digest[:12]}…\n"
            "Arguments must come from inputs, step results, everstep.now() and the like, not from the clock, randomness or the "
            f"environment. {CURE}."
        )

    def unclaimed(self, code_does: str) -> Diverged:
        """The code stopped short of a call that the record tells of."""
        return Diverged(
            "the code stopped short of what the journal tells.\n"
            f"  the record:  {describe(self.claims[0])}\n"
            f"  the code:    {code_does}\n"
            f"{CURE}."
        )


def unexpected(outcome: Record, code_does: str) -> Diverged:
    """An outcome is next, and nothing in the code waits for it or ever will."""
    return Diverged(
        "the journal holds an outcome that the code does not wait for.\n"
        f"  the record:  {describe(outcome)}\n"
        f"  the code:    {code_does}\n"
        f"{CURE}."
    )


def describe(record: Record) -> str:
    """A record in a few words."""
    what = {
        "intent": f"step {record.name} was called",
        "timer": "a timer was set (asyncio.sleep, timeout, wait_for)",
        "value": f"{_drawn(record.name)} was called",
        "result": f"step {record.name} returned",
        "failure": f"step {record.name} failed",
        "abandoned": f"step {record.name} was cancelled by the agent",
        "fired": "a timer fell due",
        "settled": f"step {record.name} was settled",
        "cancel": "the run was cancelled",
    }.get(record.kind, record.kind)
    return f"record {record.seq}: {what}" + (f" at {record.key!r}" if record.key else "")


def _call(kind: str, key: StepKey, name: str) -> str:
    what = {
        "intent": f"calls step {name}",
        "timer": "sets a timer (asyncio.sleep, timeout, wait_for)",
        "value": f"calls {_drawn(name)}",
    }[kind]
    return f"{what} at {key!r}"


def _drawn(name: str) -> str:
    """A value as it is called in code."""
    return f'everstep.patched("{name.removeprefix(PATCHED)}")' if name.startswith(PATCHED) else f"everstep.{name}()"


def _marker_cure(record: Record) -> str:
    """What to do about a marker that the code has no call for."""
    if not is_marker(record):
        return ""
    id = record.name.removeprefix(PATCHED)
    return (
        f'Put everstep.patched("{id}") back, or everstep.deprecate_patch("{id}") in its place if the old way is gone; it can '
        "leave the code once no run with this marker is left. "
    )
