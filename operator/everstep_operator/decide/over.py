"""The end of a run: verdicts, what is cleaned up afterwards, and the ways in which an end is forced.

Success is a `finished` record, never an exit code or a pod's phase. An end that the journal does not tell (cancel by
force, deadline) takes three steps: bump, fence, read again; a `finished` record found there wins.
"""

import hashlib
from dataclasses import replace

from everstep.ids import Attempt, EpochMs, InboxId
from everstep.journal.inbox import CancelBody
from everstep.journal.records import Finished, canonical
from everstep_operator.api.models import AgentRunStatus, RunResult
from everstep_operator.api.times import epoch_ms, rfc3339
from everstep_operator.api.words import (
    ANNOTATION_FORK,
    FORK_PENDING,
    Cause,
    Cond,
    End,
    EventReason,
    LossClass,
    Reason,
    Summary,
)
from everstep_operator.decide import attempts, blocked, pods, questions
from everstep_operator.decide.look import Look, chain_doubt, current, replace_entry
from everstep_operator.decide.model import AddInbox, DeleteRun, Fence
from everstep_operator.decide.plan import Over, Plan, normal, warning

CURABLE = frozenset(
    {
        Reason.RESTARTS_EXHAUSTED, Reason.OUT_OF_MEMORY, Reason.BAD_ENTRYPOINT, Reason.BAD_INPUTS, Reason.BAD_CONFIG,
        Reason.NO_SDK, Reason.DIVERGED, Reason.JOURNAL_TAMPERED, Reason.JOURNAL_LOST, Reason.JOURNAL_UNREADABLE,
        Reason.JOURNAL_REFUSED, Reason.INVALID_IMAGE_NAME, Reason.ERR_IMAGE_NEVER_PULL,
    }
)  # fmt: skip
"""Failures that are the operator's verdict, not the journal's: a change of the spec (another image, higher limits) has
them looked at again. What the journal, a deadline or a person ended stays ended."""
CANCEL_ID = "cancel-"


def _verdict(look: Look, over: Over, reason: Reason | str, message: str) -> Plan:
    """The run is over: its pods go, open questions close."""
    summary = Summary(over)
    status = look.status.model_copy(
        update={"finish_time": look.status.finish_time or rfc3339(look.now), "waiting": None, "pod": "", "node": ""}
    )
    tell = warning if over == "Failed" else normal
    event = {"Succeeded": EventReason.SUCCEEDED, "Failed": EventReason.FAILED, "Cancelled": EventReason.CANCELLED}[over]
    return Plan(
        status,
        summary,
        reason,
        message,
        over=over,
        stalled=over == "Failed",
        actions=(
            *pods.delete_all(look, "the run is over", keep_failed=over == "Failed"),
            *questions.close_all(look, f"the run is over: {reason}"),
        ),
        events=(tell(event, f"{reason}: {message}" if message else str(reason)),),
        look_again=_expiry(look, status.finish_time),
    )


def fail(look: Look, reason: Reason, message: str) -> Plan:
    """The run failed by the operator's verdict."""
    return _verdict(look, "Failed", reason, message)


def _expiry(look: Look, finish_time: str | None) -> EpochMs | None:
    ttl_s, finished = look.spec.ttl_seconds_after_finished, epoch_ms(finish_time)
    return None if ttl_s is None or finished is None else EpochMs(finished + ttl_s * 1000)


def already_over(look: Look) -> Plan | None:
    """A verdict stands: keep it, clean up, expire. Or look at it again because the spec was changed."""
    if not look.is_over:
        return None
    finished, stalled = look.status.condition(Cond.FINISHED), look.status.condition(Cond.STALLED)
    succeeded = look.status.condition(Cond.SUCCEEDED)
    reason = finished.reason if finished else ""
    changed = look.run.generation != look.status.observed_generation
    if changed and reason in CURABLE and look.spec.desired_state == "Running":
        return _reopened(look)
    over: Over = "Succeeded" if succeeded and succeeded.status == "True" else "Failed"
    if over == "Failed" and (stalled is None or stalled.status != "True"):
        over = "Cancelled"
    plan = _verdict(look, over, reason, finished.message if finished else "")
    plan = replace(plan, events=())
    if look.past(_expiry(look, look.status.finish_time)):
        after_s = look.spec.ttl_seconds_after_finished
        plan = plan.tell(normal(EventReason.EXPIRED, f"deleted {after_s} s after its end"))
        plan = plan.plus(DeleteRun(look.run.resource_version))
    return plan


def _reopened(look: Look) -> Plan:
    status = attempts.fresh_losses(look.status).model_copy(update={"finish_time": None, "conditions": ()})
    if look.attempt == 0:
        return Plan(status, Summary.STARTING, Reason.SPEC_CHANGED, reconciling=True, again=True)
    return attempts.begin(look, status, Cause.SPEC_CHANGED)


def never_started(look: Look) -> Plan | None:
    """Cancelled, suspended or out of time before attempt 1: there is no process and no journal to ask."""
    if look.attempt > 0 or look.seen.pods or (look.journal is not None and look.journal.attempt > 0):
        return None
    if look.past(look.deadline):
        return _verdict(look, "Failed", Reason.DEADLINE_EXCEEDED, _deadline_message(look))
    if look.spec.desired_state == "Cancelled":
        return _verdict(look, "Cancelled", Reason.CANCELLED, "before the first attempt")
    if look.spec.desired_state == "Suspended":
        return Plan(look.status, Summary.SUSPENDED, Reason.SUSPENDED, "not started yet", suspended=True)
    return None


def fork_unfinished(look: Look) -> Plan | None:
    """A fork whose beginning is not written yet: nothing may start it, not even to clean up."""
    if look.run.annotations.get(ANNOTATION_FORK) != FORK_PENDING or look.attempt > 0:
        return None
    if look.past(look.deadline):
        return _verdict(look, "Failed", Reason.DEADLINE_EXCEEDED, _deadline_message(look))
    if look.spec.desired_state == "Cancelled":
        return _verdict(look, "Cancelled", Reason.CANCELLED, "before the first attempt")
    return blocked.fork_unfinished(look)


def journal_refused(look: Look) -> Plan | None:
    """The journal is not the one the anchor was taken from: nothing resumes from it."""
    doubt = chain_doubt(look)
    if doubt is None:
        return None
    reason, what = doubt
    cure = "Nothing resumes from it. Restore the store from a newer copy, then change the run's spec to have it checked again"
    return fail(look, reason, f"{what}. {cure}")


def journal_finished(look: Look) -> Plan | None:
    """A `finished` head is the end, whichever attempt wrote it and whatever was wished meanwhile."""
    record = look.finished
    if record is None:
        return None
    entry = current(look)
    status = look.status
    if look.attempt > 0 and entry.end_time is None:
        done = {
            "class_": LossClass.FINISHED,
            "reason": record.outcome.capitalize(),
            "end_time": rfc3339(look.now),
            "last_seq": record.seq,
        }
        if look.pod is not None:
            done |= {"pod": look.pod.name, "pod_uid": look.pod.uid, "node": look.pod.node}
        status = replace_entry(status, entry.model_copy(update=done))
    encrypted = look.journal is not None and look.journal.encrypted
    look = look.with_status(status.model_copy(update={"result": result_of(record, encrypted=encrypted)}))
    if record.outcome == "succeeded":
        return _verdict(look, "Succeeded", Reason.SUCCEEDED, f"the result is in record {record.seq}")
    if record.outcome == "cancelled":
        return _verdict(look, "Cancelled", Reason.CANCELLED, record.message[:512])
    kind = f"{record.type}: " if record.type else ""
    return _verdict(look, "Failed", Reason.AGENT_FAILED, f"{kind}{record.message}"[:512])


def erased(look: Look) -> Plan | None:
    """Somebody destroyed the data key: an attempt could read nothing of what it replays."""
    if look.journal is None or not look.journal.erased:
        return None
    return fail(look, Reason.ERASED, "the run was erased: what it recorded cannot be read, so it cannot go on")


def result_of(record: Finished, *, encrypted: bool = False) -> RunResult | None:
    """Digest and size of the result; the result itself stays in the journal. None of an encrypted run: a short value could be
    guessed from its digest."""
    if record.outcome != "succeeded":
        return None
    value = record.value
    if isinstance(value, dict) and isinstance(value.get("$blob"), str):
        return RunResult(digest=f"sha256:{value['$blob']}", bytes=int(value.get("bytes", 0)))
    if encrypted:
        return None
    raw = canonical(value)
    return RunResult(digest=f"sha256:{hashlib.sha256(raw).hexdigest()}", bytes=len(raw))


def closing(look: Look) -> Plan | None:
    """An attempt number that was bumped only to fence the run off: fence, read, and only then the verdict."""
    entry, journal = current(look), look.journal
    if journal is None or entry.cause not in (Cause.FORCED_CANCEL, Cause.DEADLINE):
        return None
    if journal.attempt < look.attempt:
        fence = Fence(Attempt(look.attempt), look.anchor, None)
        reason = Reason.CANCELLING if entry.cause == Cause.FORCED_CANCEL else Reason.DEADLINE_EXCEEDED
        return Plan(look.status, Summary.RUNNING, reason, "fencing", reconciling=True, actions=(fence,), again=True)
    if entry.cause == Cause.FORCED_CANCEL:
        message = f"did not end within {look.spec.cancel_grace_seconds} s; fenced off, its clean-up may be incomplete"
        return _verdict(look, "Cancelled", Reason.CANCEL_FORCED, message)
    return _verdict(look, "Failed", Reason.DEADLINE_EXCEEDED, _deadline_message(look))


def deadline_passed(look: Look) -> Plan | None:
    """Out of time: bump, then `closing` fences and reads."""
    if not look.past(look.deadline):
        return None
    return attempts.begin(look, _stopped(look, End.DEADLINE), Cause.DEADLINE)


def _deadline_message(look: Look) -> str:
    return f"not finished {look.spec.deadline_seconds} s after its creation (spec.deadlineSeconds, waiting included)"


def cancel(look: Look) -> Plan | None:
    """A wish to cancel: tell the run through its inbox; when its grace time is over, fence it off."""
    journal = look.journal
    if not look.cancelling or journal is None:
        return None
    if look.past(look.cancel_due):
        return attempts.begin(look, _stopped(look, End.CANCELLED), Cause.FORCED_CANCEL)
    if journal.attempt > 0 and cancel_entry(look) is None:
        add = AddInbox(InboxId(f"{CANCEL_ID}{look.run.generation}"), CancelBody(reason="desiredState is Cancelled"))
        return Plan(
            look.status,
            Summary(look.run.status.summary or Summary.RUNNING),
            Reason.CANCELLING,
            f"the agent has {look.spec.cancel_grace_seconds} s to clean up",
            reconciling=True,
            actions=(add,),
            events=(normal(EventReason.CANCELLING, f"the agent has {look.spec.cancel_grace_seconds} s to clean up"),),
            again=True,
        )
    return None


def cancel_entry(look: Look) -> InboxId | None:
    """The wish to cancel as it stands in the inbox."""
    inbox = look.journal.inbox if look.journal else frozenset()
    return next((i for i in sorted(inbox) if i.startswith(CANCEL_ID)), None)


def _stopped(look: Look, reason: End) -> AgentRunStatus:
    entry = current(look)
    if entry.end_time is not None:
        return look.status
    stopped = {"class_": LossClass.STOPPED, "reason": str(reason), "end_time": rfc3339(look.now)}
    if look.pod is not None:
        stopped |= {"pod": look.pod.name, "pod_uid": look.pod.uid, "node": look.pod.node}
    return replace_entry(look.status, entry.model_copy(update=stopped))
