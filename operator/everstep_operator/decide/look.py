"""What follows at once from an observation: the status with the journal's news in it, the current pod, what is live."""

from dataclasses import dataclass, replace
from functools import cached_property

from everstep.contract import DEFAULT_CANCEL_GRACE_S
from everstep.ids import EpochMs, RecordHash, Seq
from everstep.journal.records import Finished, Park
from everstep.journal.store import Head
from everstep_operator.api.models import AgentRunSpec, AgentRunStatus, AttemptStatus, Losses
from everstep_operator.api.times import epoch_ms, rfc3339
from everstep_operator.api.words import Cond, Reason
from everstep_operator.decide.losses import is_over
from everstep_operator.decide.model import Asked, JournalDown, JournalView, Observed, PodView, Refusal, Rules, RunView

ATTEMPTS_KEPT = 10
CANCEL_START_ALLOWANCE_MS = 60_000
"""The grace time of a cancel counts from when the agent can read it, but no later than this after the wish."""
CANCEL_MARGIN_MS = 5_000
"""The SDK bounds the clean-up by the same grace time; it gets a moment to record its end first."""


@dataclass(frozen=True)
class Look:
    """One observation of an existing run, with what follows from it. `status` already holds the journal's news."""

    seen: Observed
    run: RunView
    spec: AgentRunSpec
    status: AgentRunStatus
    rules: Rules
    now: EpochMs

    @classmethod
    def of(cls, seen: Observed, run: RunView, spec: AgentRunSpec, rules: Rules, now: EpochMs) -> "Look":
        return cls(seen, run, spec, _absorb(seen, run, spec, now), rules, now)

    def with_status(self, status: AgentRunStatus) -> "Look":
        """The same look at a run with this status."""
        return replace(self, status=status)

    @property
    def journal(self) -> JournalView | None:
        """None while the store does not answer."""
        return None if isinstance(self.seen.journal, JournalDown) else self.seen.journal

    @property
    def attempt(self) -> int:
        return self.status.attempt

    @cached_property
    def entry(self) -> AttemptStatus | None:
        """The current attempt in `status.attempts`."""
        return next((a for a in self.status.attempts if a.number == self.status.attempt), None)

    @cached_property
    def pod(self) -> PodView | None:
        """The current attempt's pod, or what the watch last showed of it."""
        own = [p for p in self.seen.pods if p.owned and p.attempt == self.status.attempt]
        return min(own, key=lambda p: p.gone) if own else None

    @cached_property
    def live_pods(self) -> tuple[PodView, ...]:
        """Pods of any attempt whose process may be running as far as the cluster knows."""
        return tuple(p for p in self.seen.pods if p.owned and not is_over(p))

    @property
    def head(self) -> Head | None:
        return self.journal.head if self.journal else None

    @property
    def park(self) -> Park | None:
        """The park that ends the current attempt. A park of an earlier one is history: the attempt after it was made to go on."""
        last = self.journal.last if self.journal else None
        return last if isinstance(last, Park) and last.attempt == self.status.attempt else None

    @property
    def finished(self) -> Finished | None:
        """The `finished` record, whichever attempt wrote it."""
        last = self.journal.last if self.journal else None
        return last if isinstance(last, Finished) else None

    @property
    def anchor(self) -> Head:
        """The anchor in the status, or (0, h0) before there is one."""
        checkpoint = self.status.checkpoint
        if checkpoint is not None and checkpoint.hash:
            return Head(Seq(checkpoint.seq), RecordHash(checkpoint.hash))
        genesis = self.journal.genesis if self.journal else RecordHash("")
        return Head(Seq(0), genesis)

    @property
    def is_over(self) -> bool:
        """Whether a verdict stands."""
        finished = self.status.condition(Cond.FINISHED)
        return finished is not None and finished.status == "True"

    @property
    def deadline(self) -> EpochMs | None:
        """When the run is over whatever it does: wall time since its creation, parked and suspended time included."""
        seconds = self.spec.deadline_seconds
        return None if seconds is None else EpochMs(self.run.created_epoch_ms + seconds * 1000)

    @property
    def cancelling(self) -> bool:
        return self.spec.desired_state == "Cancelled"

    @property
    def cancel_due(self) -> EpochMs | None:
        """When a cancelled run is fenced off if it has not ended by itself."""
        wished = epoch_ms(self.status.cancel_time)
        if not self.cancelling or wished is None:
            return None
        grace_ms = int((self.spec.cancel_grace_seconds or DEFAULT_CANCEL_GRACE_S) * 1000)
        if self.spec.cancel_grace_seconds == 0:
            return wished
        latest = wished + CANCEL_START_ALLOWANCE_MS
        started = self.pod.agent.started_epoch_ms if self.pod else None
        reads_from = latest if started is None else min(max(wished, started), latest)
        return EpochMs(reads_from + grace_ms + CANCEL_MARGIN_MS)

    @property
    def node_loss_policy(self) -> str:
        return self.spec.node_loss.policy or self.rules.node_loss_policy

    @property
    def node_loss_after_ms(self) -> int:
        given = self.spec.node_loss.after_seconds
        return (self.rules.node_loss_after_s if given is None else given) * 1000

    def refusal(self, asked: Asked) -> Refusal | None:
        """The standing refusal of this action for the spec as it is now."""
        return next(
            (
                r
                for r in self.seen.refusals
                if r.action is asked
                and r.generation == self.run.generation
                and (asked is not Asked.CREATE_POD or r.attempt in (None, self.attempt))
            ),
            None,
        )

    def past(self, at: EpochMs | None) -> bool:
        """Whether a time has come."""
        return at is not None and self.now >= at

    def in_s(self, seconds: float) -> EpochMs:
        return EpochMs(self.now + int(seconds * 1000))


def _absorb(seen: Observed, run: RunView, spec: AgentRunSpec, now: EpochMs) -> AgentRunStatus:
    """The status with what the journal newly tells: progress resets the budgets, a park settles old doubts about the dead."""
    status, change = run.status, {}
    if status.start_time is None:
        change["start_time"] = rfc3339(now)
    if spec.desired_state == "Cancelled" and status.cancel_time is None:
        change["cancel_time"] = rfc3339(now)
    journal = seen.journal
    updated = status.model_copy(update=change)
    if isinstance(journal, JournalDown):
        return updated
    progress = journal.news.progress_seq
    if progress is not None and progress > status.progress_seq:
        updated = updated.model_copy(update={"progress_seq": int(progress), "losses": Losses()})
    last = journal.last
    if isinstance(last, Park) and last.attempt >= status.unproven_attempt > 0:
        # A park ends with no body in flight: whatever a process given up for lost had begun is settled by now.
        updated = updated.model_copy(update={"unproven_attempt": 0})
    return updated


def chain_doubt(look: Look) -> tuple[Reason, str] | None:
    """Why the journal cannot be the one that the anchor was taken from; None if it may be (or was not read)."""
    journal, anchor = look.journal, look.anchor
    if journal is None:
        return None
    if journal.tampered:
        return Reason.JOURNAL_TAMPERED, journal.tampered
    have = journal.head.seq if journal.head else 0
    if anchor.seq == 0:
        # A pod is made only after a fence, and a fence makes the journal.
        gone = journal.attempt == 0 and any(a.pod_uid for a in look.status.attempts)
        return (Reason.JOURNAL_LOST, "the journal is gone although an attempt has run") if gone else None
    if have < anchor.seq or journal.at_anchor is None:
        behind = f"the journal ends at record {have}" if have < anchor.seq else f"record {anchor.seq} is missing"
        what = f"{behind}, but record {anchor.seq} was confirmed before: the store lost it, or an old copy was restored"
        return Reason.JOURNAL_LOST, what
    if journal.at_anchor == anchor.hash:
        return None
    hashes = f"its hash is {journal.at_anchor[:12]}…, the anchor says {anchor.hash[:12]}…"
    return Reason.JOURNAL_TAMPERED, f"record {anchor.seq} is not the one that was confirmed: {hashes}"


def replace_entry(status: AgentRunStatus, entry: AttemptStatus) -> AgentRunStatus:
    """The status with this attempt's entry put in place, the newest ATTEMPTS_KEPT kept."""
    others = [a for a in status.attempts if a.number != entry.number]
    kept = sorted([*others, entry], key=lambda a: a.number)[-ATTEMPTS_KEPT:]
    return status.model_copy(update={"attempts": tuple(kept)})


def current(look: Look) -> AttemptStatus:
    """The current attempt's entry, made up from the number alone if it is not there (a status from elsewhere)."""
    return look.entry or AttemptStatus(number=look.attempt, start_time=rfc3339(look.now))
