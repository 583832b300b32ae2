"""Builds what the operator may observe, piece by piece, for tests of deciding. Times are milliseconds since NOW."""

from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from everstep.contract import StopReason, Termination
from everstep.ids import Attempt, EpochMs, InboxId, JournalId, Owner, RecordHash, RunName, Seq
from everstep.journal.progress import Progress
from everstep.journal.records import Finished, Park, Record, Result, Waited
from everstep.journal.store import Head
from everstep_operator.api.models import AgentRunStatus, Json, read_spec, read_status
from everstep_operator.decide import decide
from everstep_operator.decide.model import (
    ContainerState,
    ContainerView,
    Decision,
    JournalDown,
    JournalView,
    News,
    Observed,
    PodCondition,
    PodView,
    Refusal,
    RequestView,
    Rules,
    RunView,
    StoreHealth,
)

NOW = EpochMs(1_770_000_000_000)
UID = JournalId("6f0e0000-0000-4000-8000-000000000001")
NAME = RunName("triage")
GENESIS = RecordHash("0" * 64)


def at(ms: int) -> EpochMs:
    """NOW plus so many milliseconds."""
    return EpochMs(NOW + ms)


def hash_of(seq: int) -> RecordHash:
    """The hash of record `seq` in these tests."""
    return RecordHash(f"{seq:064x}")


def head_of(seq: int) -> Head:
    return Head(Seq(seq), hash_of(seq) if seq else GENESIS)


def spec(**changes: Json) -> dict[str, Json]:
    """A spec as on the wire."""
    return {"goal": "Triage", "agent": {"entrypoint": "triage:run", "image": "registry.example/agent:1"}, **changes}


def journal(
    seq: int = 0,
    *,
    attempt: int = 1,
    owner: str | None = "pod-1/nonce",
    last: Record | None = None,
    anchor: int | None = None,
    progress: Progress | None = None,
    progressed: int | None = None,
    applied: tuple[str, ...] = (),
    inbox: tuple[str, ...] = (),
    requests: dict[str, str] | None = None,
    **more: Any,
) -> JournalView:
    """A journal whose head is `seq`; the newest record a plain result unless given."""
    if last is None and seq:
        last = Result(seq=seq, key=str(seq), name="step", attempt=attempt, time=NOW)
    return JournalView(
        genesis=GENESIS,
        attempt=Attempt(attempt),
        owner=Owner(owner) if owner else None,
        head=head_of(seq),
        last=last,
        at_anchor=hash_of(anchor) if anchor else None,
        progress=progress,
        news=News(Seq(progressed) if progressed else None, frozenset(InboxId(i) for i in applied)),
        inbox=frozenset(InboxId(i) for i in inbox),
        requests=requests or {},
        **more,
    )


NO_JOURNAL = JournalView(genesis=GENESIS)


def running(attempt: int = 1, **changes: Any) -> Progress:
    given = {"state": "running", "recorded": 3, "step_key": "3", "step_name": "classify", **changes}
    return Progress(attempt=attempt, **given)


def park(seq: int, attempt: int, *waits: Waited, wake: int | None = None) -> Park:
    return Park(seq=seq, attempt=attempt, time=NOW, waits=list(waits), wake=wake)


def finished(seq: int, attempt: int, outcome: str = "succeeded", **more: Any) -> Finished:
    return msgspec.convert(
        {"kind": "finished", "seq": seq, "attempt": attempt, "time": NOW, "outcome": outcome, **more}, Finished
    )


UNCERTAIN = Waited(kind="uncertain", key="12", name="send_mail", input="a" * 64, since=NOW - 5000)
TIMER = Waited(kind="timer", key="t0", due=NOW + 60_000, since=NOW - 5000)


def pod(attempt: int = 1, *, state: ContainerState = ContainerState.RUNNING, **changes: Any) -> PodView:
    """The pod of an attempt, running on `worker` unless changed. Fields of the container are given as `agent_…`."""
    inner = {k.removeprefix("agent_"): changes.pop(k) for k in list(changes) if k.startswith("agent_")}
    conditions = tuple(PodCondition(**c) if isinstance(c, dict) else c for c in changes.pop("conditions", ()))
    agent: dict[str, Any] = {"state": state}
    if state in (ContainerState.RUNNING, ContainerState.TERMINATED):
        agent |= {
            "started_epoch_ms": at(-60_000),
            "container_id": f"containerd://{attempt}",
            "memory_limit_bytes": 2**28,
        }
    if state is ContainerState.TERMINATED:
        agent |= {"finished_epoch_ms": at(-1000), "reason": "Error"}
    given: dict[str, Any] = {
        "name": f"{NAME}-{attempt}",
        "uid": f"pod-{attempt}",
        "owned": True,
        "attempt": Attempt(attempt),
        "phase": {ContainerState.RUNNING: "Running", ContainerState.TERMINATED: "Failed"}.get(state, "Pending"),
        "created_epoch_ms": at(-90_000),
        "agent": ContainerView(**(agent | inner)),
        "node": "worker",
        "conditions": conditions,
    }
    return PodView(**(given | changes))


def ended(attempt: int, exit_code: int, **changes: Any) -> PodView:
    return pod(attempt, state=ContainerState.TERMINATED, agent_exit_code=exit_code, **changes)


def said(
    reason: StopReason, message: str = "so it is", attempt: int = 1, seq: int = 0, hash: str = "", **more: Any
) -> str:
    """A termination message."""
    return Termination(reason, message, Attempt(attempt), Seq(seq), hash, **more).to_json()


def attempts(*entries: dict[str, Json]) -> list[dict[str, Json]]:
    """Entries of status.attempts; the last one is the current attempt."""
    return [{"number": i + 1, "cause": "First" if i == 0 else "Lost", **e} for i, e in enumerate(entries)]


def status(
    attempt: int = 1, *, anchor: int = 0, entries: list[dict[str, Json]] | None = None, **more: Json
) -> dict[str, Json]:
    """A status as the operator leaves it while attempt `attempt` runs."""
    given = [{"pod": f"{NAME}-{n}", "podUID": f"pod-{n}", "node": "worker"} for n in range(1, attempt + 1)]
    for entry in given[:-1]:
        entry |= {"endTime": "2026-02-02T02:30:00Z", "class": "Disruption", "reason": "PodDeleted"}
    return {
        "observedGeneration": 1,
        "attempt": attempt,
        "startTime": "2026-02-02T02:00:00Z",
        "checkpoint": _checkpoint(anchor),
        "attempts": attempts(*given) if entries is None else entries,
        "summary": "Running",
        "reason": "StepRunning",
        **more,
    }


def _checkpoint(seq: int) -> dict[str, Json]:
    when = "2026-02-02T02:00:00Z"
    return {"store": "redis", "key": "k", "seq": seq, "hash": head_of(seq).hash, "attempt": 1, "time": when}


@dataclass(frozen=True)
class Case:
    """One situation; `turn()` decides on it."""

    spec: dict[str, Json] = field(default_factory=spec)
    status: dict[str, Json] | None = None
    pods: tuple[PodView, ...] = ()
    journal: JournalView | JournalDown = NO_JOURNAL
    requests: tuple[RequestView, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    problems: tuple[str, ...] = ()
    prepared: bool = True
    generation: int = 1
    created: EpochMs = EpochMs(NOW - 3_600_000)
    annotations: dict[str, str] = field(default_factory=dict)
    deleting: bool = False
    exists: bool = True
    rules: Rules = field(default_factory=Rules)
    now: EpochMs = NOW

    def observed(self) -> Observed:
        view = RunView(
            namespace="default",
            name=NAME,
            uid=UID,
            generation=self.generation,
            resource_version="77",
            created_epoch_ms=self.created,
            spec=read_spec(self.spec),
            status=read_status(self.status),
            raw_status=self.status,
            deletion_epoch_ms=NOW if self.deleting else None,
            annotations=self.annotations,
        )
        return Observed(
            namespace="default",
            name=NAME,
            uid=UID,
            run=view if self.exists else None,
            pods=self.pods,
            journal=self._whole_journal(),
            requests=self.requests,
            store=StoreHealth(problems=self.problems, server="redis 8.0"),
            prepared_generation=self.generation if self.prepared else None,
            refusals=self.refusals,
        )

    def _whole_journal(self) -> JournalView | JournalDown:
        """The record at the anchor is the one that was anchored, unless the journal ends before it or says otherwise."""
        view, anchor = self.journal, read_status(self.status).checkpoint
        if isinstance(view, JournalDown) or view.at_anchor is not None or anchor is None or view.head is None:
            return view
        return replace(view, at_anchor=hash_of(anchor.seq)) if view.head.seq >= anchor.seq > 0 else view

    def turn(self) -> "Turn":
        return Turn(self, decide(self.observed(), rules=self.rules, now_epoch_ms=self.now))

    def but(self, **changes: Any) -> "Case":
        return replace(self, **changes)


@dataclass(frozen=True)
class Turn:
    """What was decided, in a form that tests can compare."""

    case: Case
    decision: Decision

    @property
    def status(self) -> AgentRunStatus:
        """The status after this turn."""
        patch = self.decision.status
        return read_status(patch.status if patch else self.case.status)

    @property
    def acts(self) -> list[str]:
        """Names of the actions, with the attempt or the object they are about."""
        return [_shown(a) for a in self.decision.actions]

    def condition(self, kind: str) -> tuple[str, str]:
        found = self.status.condition(kind)
        assert found is not None, f"no condition {kind}"
        return found.status, found.reason

    def message(self, kind: str) -> str:
        found = self.status.condition(kind)
        assert found is not None, f"no condition {kind}"
        return found.message

    @property
    def told(self) -> list[str]:
        return [e.reason for e in self.decision.events]

    @property
    def word(self) -> str:
        return f"{self.decision.summary}/{self.decision.reason}"

    def looks_again_in_s(self) -> float | None:
        at_ms = self.decision.look_again_epoch_ms
        return None if at_ms is None else (at_ms - self.case.now) / 1000

    def last_attempt(self) -> Any:
        return self.status.attempts[-1]


def _shown(action: Any) -> str:
    about = next((getattr(action, n) for n in ("attempt", "entry_id", "name") if hasattr(action, n)), "")
    return f"{type(action).__name__}({about})" if about != "" else type(action).__name__
