"""The whole status, computed from a plan: every condition, the columns, the anchor; and the patch that writes it.

When it is written
    at once       something other than progress changed (a transition)
    progress      lastStep, steps, usage and the anchor, when the last write is at least `progress_every_s` old. Each
                  such write moves the anchor to the head, so no anchor is older than that while steps advance
    never         nothing changed
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from everstep.ids import EpochMs
from everstep_operator.api.models import AgentRunStatus, Checkpoint, Condition, Json, LastStep, Steps, Usage
from everstep_operator.api.times import epoch_ms, rfc3339, whole_seconds
from everstep_operator.api.words import Cond, EventReason, Reason
from everstep_operator.decide.look import Look, chain_doubt
from everstep_operator.decide.model import ContainerState, Decision, EmitEvent, JournalDown, JournalView, PatchStatus
from everstep_operator.decide.plan import Plan, normal, warning

MESSAGE_MAX = 2048
Truth = Literal["True", "False", "Unknown"]
PROGRESS_FIELDS = frozenset({"checkpoint", "last_step", "steps", "usage", "progress_seq", "losses"})


@dataclass(frozen=True)
class _Cond:
    status: Truth
    reason: str
    message: str = ""


def settle(look: Look, plan: Plan) -> Decision:
    """The plan as a Decision: the status written if it must be, the events, the actions, the next look."""
    new = complete(look, plan)
    patch = _patch(look, new) if _must_write(look, plan, new) else None
    events = (*plan.events, *_health_event(look, new)) if patch is not None else ()
    return Decision(
        status=patch,
        events=events,
        actions=plan.actions,
        again=plan.again,
        look_again_epoch_ms=_next_look(look, plan),
        summary=str(plan.summary),
        reason=str(plan.reason),
    )


def complete(look: Look, plan: Plan) -> AgentRunStatus:
    """Every field of the status."""
    status = plan.status
    update: dict[str, object] = {
        "observed_generation": look.run.generation,
        "summary": str(plan.summary),
        "reason": str(plan.reason),
        "conditions": _conditions(look, plan),
    }
    journal = look.journal
    if journal is not None:
        update["checkpoint"] = _anchor(look, plan, journal)
        update |= _progress(status, journal)
    return status.model_copy(update=update)


def _anchor(look: Look, plan: Plan, journal: JournalView) -> Checkpoint | None:
    """The head, if it is past the anchor: anchors only grow, and never onto a journal that was refused."""
    old, head = plan.status.checkpoint, journal.head
    if old is None or head is None or head.seq <= old.seq or _verified(look, plan).status == "False":
        return old
    writer = journal.last.attempt if journal.last is not None else journal.attempt
    moved = {"seq": head.seq, "hash": head.hash, "attempt": writer, "time": rfc3339(look.now)}
    return old.model_copy(update=moved)


def _progress(status: AgentRunStatus, journal: JournalView) -> dict[str, object]:
    """What the newest attempt told of itself. It informs people; nothing is decided from it."""
    told = journal.progress
    if told is None or told.attempt > status.attempt:
        return {}
    usage = told.usage
    tokens_in, tokens_out = usage.get("inputTokens", 0), usage.get("outputTokens", 0)
    update: dict[str, object] = {
        "steps": Steps(recorded=told.recorded, replayed=told.replayed),
        "usage": Usage(
            input_tokens=tokens_in,
            output_tokens=tokens_out,
            total_tokens=tokens_in + tokens_out,
            cost_micro_usd=usage.get("costMicroUSD", 0),
        ),
    }
    if told.step_key:
        at = rfc3339(EpochMs(told.step_epoch_ms)) if told.step_epoch_ms else None
        update["last_step"] = LastStep(
            name=told.step_name[:256], key=told.step_key[:256], state=told.step_state, time=at
        )
    return update


# --- conditions


def _conditions(look: Look, plan: Plan) -> tuple[Condition, ...]:
    now = whole_seconds(look.now)
    old = {c.type: c for c in look.run.status.conditions}
    found = []
    for kind, value in _values(look, plan).items():
        before = old.get(kind)
        kept = before is not None and before.status == value.status
        found.append(
            Condition(
                type=kind,
                status=value.status,
                reason=value.reason,
                message=value.message[:MESSAGE_MAX],
                observed_generation=look.run.generation,
                last_transition_time=before.last_transition_time if before is not None and kept else now,
            )
        )
    return tuple(found)


def _values(look: Look, plan: Plan) -> dict[Cond, _Cond]:
    reason, message = str(plan.reason), plan.message
    finished = _Cond("True", reason, message) if plan.over else _Cond("False", Reason.NOT_FINISHED)
    return {
        Cond.SUCCEEDED: _succeeded(plan),
        Cond.FINISHED: finished,
        Cond.PARKED: _Cond("True", reason, message) if plan.parked else _Cond("False", Reason.NOT_PARKED),
        Cond.POD_READY: _pod_ready(look, plan),
        Cond.SUSPENDED: _Cond("True", Reason.SUSPENDED, message)
        if plan.suspended
        else _Cond("False", Reason.NOT_SUSPENDED),
        Cond.RECONCILING: _Cond("True", reason, message) if plan.reconciling else _Cond("False", Reason.AS_DESIRED),
        Cond.STALLED: _Cond("True", reason, message) if plan.stalled else _Cond("False", Reason.NOT_STALLED),
        Cond.JOURNAL_HEALTHY: _healthy(look, plan),
        Cond.JOURNAL_VERIFIED: _verified(look, plan),
    }


def _succeeded(plan: Plan) -> _Cond:
    if plan.over is None:
        return _Cond("Unknown", Reason.NOT_FINISHED)
    return _Cond("True" if plan.over == "Succeeded" else "False", str(plan.reason), plan.message)


def _pod_ready(look: Look, plan: Plan) -> _Cond:
    pod = look.pod
    if plan.over or pod is None or pod.gone or plan.status.attempt != look.attempt:
        return _Cond("False", Reason.NO_POD)
    running = pod.agent.state is ContainerState.RUNNING and pod.deletion_epoch_ms is None
    if running and pod.node_view is not None and pod.node_view.unreachable_since_epoch_ms is not None:
        return _Cond("Unknown", Reason.NODE_UNREACHABLE, f"node {pod.node} does not answer")
    if running:
        return _Cond("True", "PodRunning", f"pod {pod.name} on node {pod.node}")
    if pod.agent.state is ContainerState.TERMINATED:
        return _Cond("False", "PodEnded", f"pod {pod.name}")
    return _Cond(
        "False", Reason.STOPPING if pod.deletion_epoch_ms is not None else Reason.POD_PENDING, f"pod {pod.name}"
    )


def _healthy(look: Look, plan: Plan) -> _Cond:
    down, problems = look.seen.journal, look.seen.store.problems
    before = look.run.status.condition(Cond.JOURNAL_HEALTHY)
    if plan.over and before is not None:
        return _Cond(before.status, before.reason, before.message)  # its journal is not needed any more
    if isinstance(down, JournalDown):
        return _Cond("False", Reason.JOURNAL_UNREACHABLE, down.reason)
    if problems:
        return _Cond("False", Reason.JOURNAL_UNHEALTHY, "; ".join(problems))
    return _Cond("True", Reason.HEALTHY, look.seen.store.server)


def _verified(look: Look, plan: Plan) -> _Cond:
    """Only an attempt that has replayed proves the whole chain; what it proved holds until something else is found."""
    doubt = chain_doubt(look)
    if doubt is not None:
        return _Cond("False", doubt[0], doubt[1])
    if plan.reason in _CHAIN_REFUSALS:
        return _Cond("False", str(plan.reason), plan.message)
    before = look.run.status.condition(Cond.JOURNAL_VERIFIED)
    journal = look.journal
    told = journal.progress if journal else None
    replayed = told is not None and told.state in ("running", "waiting") and told.attempt == look.attempt
    if journal is not None and told is not None and replayed and journal.attempt == told.attempt:
        return _Cond("True", Reason.VERIFIED, f"by attempt {told.attempt}")
    if before is not None:
        return _Cond(before.status, before.reason, before.message)  # a refusal, too, until an attempt proves otherwise
    return _Cond("Unknown", Reason.NOT_VERIFIED)


_CHAIN_REFUSALS = (
    Reason.JOURNAL_TAMPERED,
    Reason.JOURNAL_LOST,
    Reason.JOURNAL_UNREADABLE,
    Reason.JOURNAL_REFUSED,
)


def _health_event(look: Look, new: AgentRunStatus) -> tuple[EmitEvent, ...]:
    before, now = look.run.status.condition(Cond.JOURNAL_HEALTHY), new.condition(Cond.JOURNAL_HEALTHY)
    if not look.live_pods:
        return ()  # thousands may be parked; a Blocked run has its own Event
    if now is None or (before is not None and before.status == now.status):
        return ()
    if now.status == "False":
        return (warning(EventReason.JOURNAL_UNHEALTHY, f"{now.reason}: {now.message}"),)
    return () if before is None else (normal(EventReason.JOURNAL_UNHEALTHY, "the journal store is fit again"),)


# --- writing


def _must_write(look: Look, plan: Plan, new: AgentRunStatus) -> bool:
    old = look.run.status
    if new == old or plan.quiet:
        return False
    changed = {name for name in AgentRunStatus.model_fields if getattr(new, name) != getattr(old, name)}
    if plan.urgent or changed - PROGRESS_FIELDS:
        return True
    written = epoch_ms(old.checkpoint.time) if old.checkpoint else None
    every_s = min(look.rules.progress_every_s, look.rules.anchor_every_s)
    return written is None or look.now - written >= every_s * 1000


def _patch(look: Look, new: AgentRunStatus) -> PatchStatus:
    """A JSON patch that holds only if the run is the same and nobody wrote its status since. It tests the whole status
    rather than the resourceVersion: labels, annotations and spec may change under it a hundred times a second, and the
    write still lands."""
    wire = new.to_wire()
    raw = look.run.raw_status
    operations: list[Mapping[str, Json]] = [
        {"op": "test", "path": "/metadata/uid", "value": look.run.uid},
        {"op": "test", "path": "/status", "value": raw},
        {"op": "add" if raw is None else "replace", "path": "/status", "value": wire},
    ]
    return PatchStatus(tuple(operations), wire)


def _next_look(look: Look, plan: Plan) -> EpochMs | None:
    """The plan's own time, and the times that end a run whatever it does."""
    if plan.over:
        return plan.look_again
    times = [t for t in (plan.look_again, look.deadline, look.cancel_due) if t is not None]
    return min(times) if times else None
