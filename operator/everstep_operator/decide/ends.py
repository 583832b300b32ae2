"""The end of an attempt that was lost: its class is counted, its budget checked, the next attempt waits for its back-off."""

from everstep.ids import EpochMs
from everstep_operator.api.models import AgentRunStatus, AttemptStatus, Checkpoint
from everstep_operator.api.times import epoch_ms, rfc3339
from everstep_operator.api.words import Cause, End, EventReason, LossClass, Reason, Summary
from everstep_operator.decide import attempts, over, pods
from everstep_operator.decide.look import Look, current, replace_entry
from everstep_operator.decide.losses import Loss, vanished
from everstep_operator.decide.plan import Plan, warning

_COUNTER: dict[LossClass, str] = {
    LossClass.DISRUPTION: "disruption",
    LossClass.OUT_OF_MEMORY: "out_of_memory",
    LossClass.APPLICATION: "application",
    LossClass.NOT_STARTED: "not_started",
}
_CHARGED = (LossClass.OUT_OF_MEMORY, LossClass.APPLICATION)


def end_attempt(look: Look, loss: Loss) -> Plan:
    """Record how the current attempt ended, and what follows from it: the next attempt, a wait, or failure."""
    entry = _ended_entry(look, loss)
    status = replace_entry(look.status, entry).model_copy(update={"pod": "", "node": ""})
    if entry.class_ == LossClass.STOPPED:
        # Its pod was taken away on purpose (suspended, cancelled): nothing was lost.
        return ended(look.with_status(status)) or _at_rest(look, status)
    if loss.class_ is LossClass.REFUSED:
        return _refused(look, status, loss)
    status = _count(status, loss.class_)
    status = status.model_copy(update={"memory_limit_bytes": _raised_memory(look, status, loss)})
    exhausted = _exhausted(look, status, loss)
    if exhausted is not None:
        return exhausted
    after = look.with_status(status)
    plan = ended(after) or _at_rest(look, status)
    charge = "charged" if loss.class_ in _CHARGED else "not charged"
    name = entry.pod or f"{look.run.name}-{entry.number}"
    note = f"{name}: {loss.reason} ({loss.class_}); {charge}"
    plan = plan.tell(warning(EventReason.POD_LOST, f"{note}. {loss.message}" if loss.message else note))
    if status.losses.disruption == look.rules.no_progress_losses:
        count = status.losses.disruption
        plan = plan.tell(
            warning(EventReason.NO_PROGRESS, f"{count} disruptions without one step done; see what takes the pods")
        )
    return plan


def vanished_pod(look: Look) -> Plan | None:
    """The attempt's pod was seen, or its process claimed the journal, and a live LIST does not show it any more."""
    entry, journal = current(look), look.journal
    if look.attempt == 0 or look.pod is not None or entry.end_time is not None or journal is None:
        return None
    claimed = journal.attempt == look.attempt and journal.owner is not None
    return end_attempt(look, vanished()) if entry.pod_uid or claimed else None


def ended(look: Look) -> Plan | None:
    """The current attempt is over: begin the next one when its back-off is."""
    entry = current(look)
    if entry.end_time is None:
        return None
    if entry.class_ == LossClass.STOPPED:
        cause = Cause.RENUMBERED if entry.reason == End.RENUMBERED else Cause.RESUMED
        return attempts.begin(look, look.status, Cause.CANCELLING if look.cancelling else cause)
    due = EpochMs((epoch_ms(entry.end_time) or look.now) + backoff_ms(look, entry.class_))
    if look.past(due):
        return attempts.begin(look, look.status, Cause.LOST)
    wait_s = -(-(due - look.now) // 1000)
    return Plan(
        look.status,
        Summary.STARTING,
        attempts.loss_reason(entry.class_),
        f"attempt {entry.number} ended ({entry.reason}); the next one starts in {wait_s} s",
        reconciling=True,
        look_again=due,
        actions=pods.tidy(look),
    )


def backoff_ms(look: Look, class_: str) -> int:
    """None after the first loss since the last progress; then doubling, per class."""
    losses, rules, application = look.status.losses, look.rules, look.spec.restarts.application
    if class_ in _CHARGED:
        count = losses.application + losses.out_of_memory
        return _doubling(count, application.backoff_seconds, application.backoff_max_seconds)
    if class_ == LossClass.NOT_STARTED:
        return _doubling(losses.not_started + 1, rules.not_started_backoff_s, rules.not_started_backoff_max_s)
    return _doubling(losses.disruption, rules.disruption_backoff_s, rules.disruption_backoff_max_s)


def _doubling(count: int, base_s: int, max_s: int) -> int:
    if count <= 1:
        return 0
    return min(base_s << min(count - 2, 20), max_s) * 1000


def _ended_entry(look: Look, loss: Loss) -> AttemptStatus:
    entry, pod = current(look), look.pod
    end = loss.at_epoch_ms or look.now
    stopped = entry.class_ == LossClass.STOPPED
    return entry.model_copy(
        update={
            "pod": pod.name if pod else entry.pod,
            "pod_uid": pod.uid if pod else entry.pod_uid,
            "node": (pod.node if pod else "") or entry.node,
            "end_time": rfc3339(EpochMs(end)),
            "class_": entry.class_ if stopped else str(loss.class_),
            "reason": entry.reason if stopped else str(loss.reason),
            "message": loss.message[:512] or entry.message,
            "exit_code": loss.exit_code,
            "last_seq": look.head.seq if look.head else None,
            "proven": loss.proven,
        }
    )


def _count(status: AgentRunStatus, class_: LossClass) -> AgentRunStatus:
    name = _COUNTER[class_]
    losses = status.losses.model_copy(update={name: getattr(status.losses, name) + 1})
    restarts = status.restarts + (class_ is not LossClass.NOT_STARTED)
    return status.model_copy(update={"losses": losses, "restarts": restarts})


def _raised_memory(look: Look, status: AgentRunStatus, loss: Loss) -> int | None:
    factor = look.spec.restarts.out_of_memory.memory_factor_percent
    limit = look.pod.agent.memory_limit_bytes if look.pod else None
    if loss.class_ is not LossClass.OUT_OF_MEMORY or factor <= 100 or limit is None:
        return status.memory_limit_bytes
    return limit * factor // 100


def _exhausted(look: Look, status: AgentRunStatus, loss: Loss) -> Plan | None:
    restarts, losses = look.spec.restarts, status.losses
    progress = look.journal.progress if look.journal else None
    where = f" in step {progress.step_name or progress.step_key}" if progress and progress.step_key else ""
    if loss.class_ is LossClass.OUT_OF_MEMORY and losses.out_of_memory > restarts.out_of_memory.max:
        message = (
            f"out of memory {losses.out_of_memory} times without progress{where} ({loss.message}). "
            "Raise spec.agent.resources.limits.memory, or set spec.restarts.outOfMemory.memoryFactorPercent"
        )
        return over.fail(look.with_status(status), Reason.OUT_OF_MEMORY, message)
    if loss.class_ is LossClass.APPLICATION and losses.application > restarts.application.max:
        message = (
            f"the agent's process ended {losses.application} times without progress{where}; the last time: {loss.reason}, "
            f"{loss.message}. See the logs of the kept pods; a change of spec.agent or spec.restarts starts it again"
        )
        return over.fail(look.with_status(status), Reason.RESTARTS_EXHAUSTED, message)
    return None


def _refused(look: Look, status: AgentRunStatus, loss: Loss) -> Plan:
    """The SDK refused to go on. The head it last saw confirmed becomes the anchor: what it saw must not be lost unseen."""
    told = loss.termination
    checkpoint = status.checkpoint
    if told is not None and told.hash and checkpoint is not None and told.seq > checkpoint.seq:
        confirmed = {"seq": told.seq, "hash": told.hash, "attempt": told.attempt, "time": rfc3339(look.now)}
        status = status.model_copy(
            update={"checkpoint": Checkpoint.model_validate({**checkpoint.model_dump(), **confirmed})}
        )
    return over.fail(look.with_status(status), Reason(loss.reason), loss.message)


def _at_rest(look: Look, status: AgentRunStatus) -> Plan:
    return Plan(status, Summary.STARTING, Reason.DISRUPTED, reconciling=True, again=True)
