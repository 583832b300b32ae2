"""A small agent process: the same steps every time, journaled on the real store, settled by the real rules.

It advances one move at a time, so that anything may happen between any two: intent, effect, result are three moves. A
paused process keeps its place and may go on after it was replaced: what fencing and the proof of death are for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from everstep.contract import ExitCode, StopReason, Termination
from everstep.ids import Attempt, Owner, Seq
from everstep.journal.inbox import CancelBody, SettleBody, read_body
from everstep.journal.progress import Progress
from everstep.journal.records import (
    Cancel,
    Finished,
    Fired,
    Intent,
    Park,
    Record,
    Result,
    RunStarted,
    Settled,
    Timer,
    Uncertain,
    Waited,
    encode,
)
from everstep.journal.store import AppendAnswer, ClaimAnswer, Head, Sealed
from tests.sim.world import UID, now_of

if TYPE_CHECKING:
    from tests.sim.world import Pod, World

_CLASSES = ("read", "at_most_once", "idempotent", "at_most_once")
STEPS: tuple[tuple[str, str], ...] = tuple(
    (f"t{i}", "timer") if i in (7, 15) else (str(i), _CLASSES[i % 4]) for i in range(1, 24)
)
"""Keys and effect classes, in the order of the agent's calls."""
TIMER_MS = 60_000
UNREACHABLE_MS = 60_000
STARTUP_MS = 800


@dataclass
class Told:
    """What the journal tells of one key."""

    intent: Intent | None = None
    done: bool = False
    uncertain: Uncertain | None = None
    settled: Settled | None = None
    timer: Timer | None = None


class Process:
    """One container's main process."""

    def __init__(self, world: "World", pod: "Pod") -> None:
        self.world, self.pod = world, pod
        self.attempt = Attempt(pod.attempt)
        self.owner = Owner(f"{pod.uid}/nonce")
        self.started = self.alive = self.paused = self.stopping = False
        self.claimed = False
        self.exit_code: int | None = None
        self.exit_reason = self.message = ""
        self.ended: int | None = None
        self.head: Head | None = None
        self.ready_at = 0
        self.unreachable_since: int | None = None
        self.in_body: tuple[str, str] | None = None
        self.effect_done = False
        self.inbox_read = ""

    # --- life

    def start(self) -> None:
        self.started = self.alive = True
        self.ready_at = self.world.now + STARTUP_MS

    def never_ran(self) -> None:
        self.started = False

    def terminate(self) -> None:
        """SIGTERM: no new body; the one in flight may finish."""
        self.stopping = True
        if self.in_body is None:
            self.die(ExitCode.TERMINATED, "", reason=StopReason.TERMINATED)

    def die(self, code: int, why: str, *, reason: StopReason | None = None, container_reason: str = "Error") -> None:
        if not self.alive:
            return
        self.alive, self.exit_code, self.exit_reason, self.ended = False, int(code), container_reason, self.world.now
        if reason is not None:
            head = self.head or Head(Seq(0), self.world.chain.genesis())
            self.message = Termination(reason, why or reason, self.attempt, head.seq, head.hash).to_json()
        self.world.note(f"process of {self.pod.name} ({self.pod.uid}) ended {int(code)} {why}")

    @property
    def reaches_store(self) -> bool:
        node = self.world.nodes.get(self.pod.node)
        return self.world.store_up and node is not None and node.up

    # --- one move

    def move(self) -> None:
        """Do the next small thing, if it can run at all."""
        node = self.world.nodes.get(self.pod.node)
        if node is not None and not node.up and self.alive:
            self.alive, self.exit_code, self.ended = False, 137, self.world.now
            self.exit_reason = "ContainerStatusUnknown"
        if not self.alive or self.paused or self.world.now < self.ready_at:
            return
        if self.in_body is not None and not self.effect_done:
            self._effect()
            return
        if not self.reaches_store:
            self._wait_for_store()
            return
        self.unreachable_since = None
        if not self.claimed:
            self._claim()
        elif self.in_body is not None:
            self._record_result()
        else:
            self._next()

    def _wait_for_store(self) -> None:
        self.unreachable_since = self.unreachable_since or self.world.now
        if self.world.now - self.unreachable_since > UNREACHABLE_MS:
            self.die(ExitCode.JOURNAL_UNREACHABLE, "", reason=StopReason.JOURNAL_UNREACHABLE)

    def _claim(self) -> None:
        reply = now_of(self.world.store.claim(UID, self.attempt, self.owner))
        if reply.answer is not ClaimAnswer.OK:
            self.die(ExitCode.SUPERSEDED, reply.answer, reason=StopReason.FENCED)
            return
        self.claimed, self.head = True, reply.head
        self._report("replaying")

    def _report(self, state: str) -> None:
        recorded = sum(1 for t in self._told().values() if t.done)
        raw = Progress(self.attempt, state, recorded=recorded, step_key="1", step_name="step").to_bytes()
        now_of(self.world.store.report(UID, self.attempt, self.owner, raw))

    def _told(self) -> dict[str, Told]:
        told = {key: Told() for key, _ in STEPS}
        for stored in list(self.world.store.journals_by_id[UID].records):
            record = self.world.decoded(stored)
            place = told.get(record.key)
            if place is None:
                continue
            if isinstance(record, Intent):
                place.intent, place.uncertain, place.settled = record, None, None
            elif isinstance(record, Result | Fired):
                place.done = True
            elif isinstance(record, Uncertain):
                place.uncertain = record
            elif isinstance(record, Settled):
                place.settled, place.done = record, record.decision != "again"
            elif isinstance(record, Timer):
                place.timer = record
        return told

    def _next(self) -> None:
        """What the agent does next, by the journal alone."""
        if self.stopping:
            self.die(ExitCode.TERMINATED, "", reason=StopReason.TERMINATED)
            return
        if self._heed_inbox():
            return
        if self.head is not None and self.head.seq == 0:
            self._append(
                lambda seq: RunStarted(
                    seq=seq, attempt=self.attempt, time=self.world.now, run="sim", python="3.11", sdk="0"
                )
            )
            return
        told = self._told()
        for key, effect in STEPS:
            place = told[key]
            if place.done:
                continue
            if effect == "timer":
                self._timer(key, place)
            else:
                self._step(key, effect, place)
            return
        if self._append(
            lambda seq: Finished(seq=seq, attempt=self.attempt, time=self.world.now, outcome="succeeded", value="done")
        ):
            self.die(ExitCode.OK, "finished", reason=StopReason.FINISHED, container_reason="Completed")

    def _step(self, key: str, effect: str, place: Told) -> None:
        again = place.settled is not None and place.settled.decision == "again"
        if effect == "at_most_once" and place.intent is not None and not again and self._unsettled(key, place):
            return
        kind: Any = effect
        intent = self._append(
            lambda seq: Intent(
                seq=seq,
                key=key,
                name=f"step{key}",
                attempt=self.attempt,
                time=self.world.now,
                effect=kind,
                input="a" * 64,
                idem=key,
            )
        )
        if intent:
            self._report("running")
            self.in_body, self.effect_done = (key, effect), False
            self.world.intents_run[key] += 1

    def _unsettled(self, key: str, place: Told) -> bool:
        """An at_most_once step was in flight. True: this move settled it or parks for it; False: it may run again."""
        if place.uncertain is not None:
            self._park(Waited(kind="uncertain", key=key, name=f"step{key}", input="a" * 64, since=place.uncertain.time))
            return True
        happened = self.world.effects[key] > 0
        if happened:
            self._append(
                lambda seq: Settled(
                    seq=seq, key=key, attempt=self.attempt, time=self.world.now, decision="done", by="probe"
                )
            )
            return True
        if self.pod.predecessor_dead:
            return False  # the probe says "not done", and whoever could still do it is proved dead
        self._append(
            lambda seq: Uncertain(
                seq=seq,
                key=key,
                name=f"step{key}",
                attempt=self.attempt,
                time=self.world.now,
                reason="lost",
                input="a" * 64,
            )
        )
        return True

    def _timer(self, key: str, place: Told) -> None:
        if place.timer is None:
            due = self.world.now + TIMER_MS
            self._append(lambda seq: Timer(seq=seq, key=key, attempt=self.attempt, time=self.world.now, due=due))
        elif place.timer.due > self.world.now:
            self._park(Waited(kind="timer", key=key, due=place.timer.due, since=place.timer.time), wake=place.timer.due)
        else:
            self._append(lambda seq: Fired(seq=seq, key=key, attempt=self.attempt, time=self.world.now))

    def _park(self, wait: Waited, wake: int | None = None) -> None:
        parked = self._append(
            lambda seq: Park(seq=seq, attempt=self.attempt, time=self.world.now, waits=[wait], wake=wake), park=True
        )
        if parked:
            self.die(ExitCode.OK, "parked", reason=StopReason.PARKED, container_reason="Completed")

    def _heed_inbox(self) -> bool:
        known = {
            record.inbox
            for s in self.world.store.journals_by_id[UID].records
            if isinstance(record := self.world.decoded(s), Settled | Cancel)
        }
        for entry in now_of(self.world.store.inbox_read(UID, self.inbox_read)):
            self.inbox_read = entry.position
            body = read_body(self.world.chain, entry)
            if entry.id in known or body is None:
                continue
            if isinstance(body, CancelBody):
                self._append(
                    lambda seq, e=entry: Cancel(seq=seq, attempt=self.attempt, time=self.world.now, inbox=e.id)
                )
                if self._append(
                    lambda seq: Finished(seq=seq, attempt=self.attempt, time=self.world.now, outcome="cancelled")
                ):
                    self.die(ExitCode.OK, "cancelled", reason=StopReason.FINISHED, container_reason="Completed")
                return True
            if isinstance(body, SettleBody) and not self._told()[body.key].done:
                self._settle(body, entry.id)
                return True
        return False

    def _settle(self, body: SettleBody, inbox: str) -> None:
        self._append(
            lambda seq: Settled(
                seq=seq,
                key=body.key,
                attempt=self.attempt,
                time=self.world.now,
                decision=body.decision,
                by=body.by or "person",
                inbox=inbox,
            )
        )
        if body.decision == "again":
            self.world.licences[body.key] += 1

    # --- the body

    def _effect(self) -> None:
        """The outside sees it, whether or not this process has been replaced meanwhile."""
        assert self.in_body is not None
        key, _ = self.in_body
        self.world.effects[key] += 1
        self.effect_done = True
        self.world.note(f"EFFECT {key} by attempt {self.attempt} ({self.pod.uid})")

    def _record_result(self) -> None:
        assert self.in_body is not None
        key, _ = self.in_body
        if self._append(
            lambda seq: Result(seq=seq, key=key, name=f"step{key}", attempt=self.attempt, time=self.world.now)
        ):
            self.in_body = None
            self._report("running")

    # --- the journal

    def _append(self, make: Callable[..., Record], *, park: bool = False) -> bool:
        """Append one record. A refusal ends the process as the SDK would."""
        head = self.head
        assert head is not None, "claimed"
        seq = Seq(head.seq + 1)
        raw = encode(make(seq))
        sealed = Sealed(seq, raw, head.hash, self.world.chain.link(head.hash, raw))
        reply = now_of(
            self.world.store.append(
                UID, self.attempt, self.owner, head, [sealed], park_after_inbox=self.inbox_read if park else None
            )
        )
        if reply.answer in (AppendAnswer.OK, AppendAnswer.DUP):
            self.head = Head(seq, sealed.hash)
            return True
        if reply.answer is AppendAnswer.INBOX:
            return False
        if reply.answer in (AppendAnswer.FENCED, AppendAnswer.TAKEN):
            self.die(ExitCode.SUPERSEDED, reply.answer, reason=StopReason.FENCED)
        else:
            self.die(ExitCode.JOURNAL_REFUSED, reply.answer, reason=StopReason.JOURNAL_LOST)
        return False
