"""Runs without a pod on purpose: suspended, or parked until a time or an answer."""

from dataclasses import replace

from everstep.ids import EpochMs
from everstep.journal.records import Park
from everstep_operator.api.models import AgentRunStatus, Waiting
from everstep_operator.api.times import epoch_ms, rfc3339
from everstep_operator.api.words import Cause, Cond, End, EventReason, LossClass, Reason, Summary
from everstep_operator.decide import attempts, blocked, over, pods, questions
from everstep_operator.decide.look import Look, current, replace_entry
from everstep_operator.decide.losses import classify, is_over, vanished
from everstep_operator.decide.model import Action, Asked, EmitEvent, PodView
from everstep_operator.decide.plan import Plan, normal, warning

REPARK_PAUSE_MS = 60_000
"""A run that parks again for a time that had come gets this pause: its clock may be behind ours."""


def suspended(look: Look) -> Plan | None:
    """desiredState Suspended: the pod is stopped; nothing wakes the run until it is Running again."""
    if look.spec.desired_state != "Suspended":
        return None
    pod = look.pod
    if pod is not None and not is_over(pod) and not _given_up(look, pod):
        entry = current(look).model_copy(
            update={
                "class_": LossClass.STOPPED,
                "reason": str(End.SUSPENDED),
                "pod": pod.name,
                "pod_uid": pod.uid,
                "node": pod.node,
            }
        )
        return Plan(
            replace_entry(look.status, entry),
            Summary(look.run.status.summary or Summary.RUNNING),
            Reason.SUSPENDING,
            f"stopping pod {pod.name}",
            reconciling=True,
            actions=pods.delete(pod, "suspended"),
            look_again=look.in_s(look.rules.poll_start_s),
        )
    status = _end(look, LossClass.STOPPED, str(End.SUSPENDED))
    park = look.park
    plan = Plan(
        _waiting(look, status, park) if park else status,
        Summary.SUSPENDED,
        Reason.SUSPENDED,
        "set spec.desiredState to Running to go on",
        parked=park is not None,
        suspended=True,
        actions=pods.delete_all(look, "suspended", keep_failed=True),
    )
    if look.run.status.summary != Summary.SUSPENDED:
        plan = plan.tell(normal(EventReason.SUSPENDED, f"at record {look.head.seq if look.head else 0}"))
    return plan


def parked(look: Look) -> Plan | None:
    """The current attempt parked: no pod, only a timer or a question. Wake when one of them is due."""
    park = look.park
    if park is None:
        return None
    status = _waiting(look, _end(look, LossClass.PARKED, "Parked"), park)
    here = look.with_status(status)
    deliveries = questions.deliveries(look, park)
    asking: tuple[Action, ...] = (*deliveries, *questions.states(look))
    wake = _wake(here, park)
    if wake is not None:
        cause, inbox = wake
        if look.live_pods and any(not _given_up(look, p) for p in look.live_pods):
            return _rest(here, park).plus(*asking, *_stop(look))
        note = {Cause.ANSWERED: "answered", Cause.TIMER_DUE: "the time has come", Cause.CANCELLING: "to clean up"}
        plan = attempts.begin(here, status, cause, inbox=inbox)
        return plan.plus(*questions.states(look)).tell(normal(EventReason.WOKEN, note.get(cause, str(cause))))
    plan = _rest(here, park).plus(*_stop(look), *asking)
    if look.refusal(Asked.CREATE_REQUEST) is not None:
        refused = blocked.refused(here, Asked.CREATE_REQUEST)
        if refused is not None:
            return replace(refused, parked=True, actions=plan.actions)
    create = questions.missing(look, park)
    return replace(plan.plus(*create), again=bool(create or deliveries))


def _stop(look: Look) -> tuple[Action, ...]:
    return pods.delete_all(look, "parked", keep_failed=True)


def _given_up(look: Look, pod: PodView) -> bool:
    fence = look.node_loss_policy == "Fence"
    return fence and (pods.unreachable(look, pod) or pods.stuck(look, pod))


def _wake(look: Look, park: Park) -> tuple[Cause, tuple[str, ...]] | None:
    """Why the run goes on now, and the inbox entries it goes on for. An attempt is never started twice for the same entry."""
    known = current(look).inbox
    if look.cancelling:
        wish = over.cancel_entry(look)
        return (Cause.CANCELLING, (wish,)) if wish is not None and wish not in known else None
    answers = questions.answered(look, park)
    if any(a not in known for a in answers):
        return Cause.ANSWERED, answers
    due = wake_time(look, park)
    return (Cause.TIMER_DUE, ()) if look.past(due) else None


def wake_time(look: Look, park: Park) -> EpochMs | None:
    """When the earliest timer is due; later, if an attempt was just made for it and parked again."""
    if park.wake is None:
        return None
    entry = current(look)
    started = epoch_ms(entry.start_time)
    if entry.cause == Cause.TIMER_DUE and started is not None and park.wake <= started:
        return EpochMs((epoch_ms(entry.end_time) or look.now) + REPARK_PAUSE_MS)
    return EpochMs(park.wake)


def _rest(look: Look, park: Park) -> Plan:
    wake = None if look.cancelling else wake_time(look, park)
    waits = questions.asked(park)
    message = _what(look, park)
    ignored = any(a in current(look).inbox for a in questions.answered(look, park))
    events: tuple[EmitEvent, ...] = (normal(EventReason.PARKED, message),)
    if ignored:
        message = "the answer was delivered and the run still asks; delete the HumanRequest to be asked again"
        events = (warning(EventReason.ANSWER_REFUSED, message),)
    before = look.run.status.condition(Cond.PARKED)
    if before is not None and before.status == "True":
        events = ()
    return Plan(
        look.status,
        Summary.UNCERTAIN if waits else Summary.WAITING,
        Reason.STEP_UNCERTAIN if waits else Reason.TIMER_PENDING,
        message,
        parked=True,
        look_again=wake,
        events=events,
    )


def _what(look: Look, park: Park) -> str:
    waits = questions.asked(park)
    if not waits:
        return f"until {rfc3339(EpochMs(park.wake))}" if park.wake is not None else "nothing to wake it"
    names = ", ".join(f"{w.name or 'step'} #{w.key}" for w in waits[:3]) + (" …" if len(waits) > 3 else "")
    key = waits[0].key
    return f"{names} may have happened: kubectl everstep settle {look.run.name} {key} --done VALUE | --again | --fail"


def _end(look: Look, class_: LossClass, reason: str) -> AgentRunStatus:
    """Close the current entry, once. An attempt that never got a pod stays open: its number is still good."""
    entry, pod = current(look), look.pod
    claimed = look.journal is not None and look.journal.owner is not None and look.journal.attempt == look.attempt
    if look.attempt == 0 or entry.end_time is not None or not (pod or entry.pod_uid or claimed):
        return look.status
    loss = classify(pod) if pod is not None and is_over(pod) else vanished()
    ended = {
        "class_": str(class_),
        "reason": reason,
        "end_time": rfc3339(loss.at_epoch_ms or look.now),
        "proven": loss.proven,
        "exit_code": loss.exit_code,
        "last_seq": look.head.seq if look.head else None,
    }
    if pod is not None:
        ended |= {"pod": pod.name, "pod_uid": pod.uid, "node": pod.node}
    return replace_entry(look.status, entry.model_copy(update=ended))


def _waiting(look: Look, status: AgentRunStatus, park: Park) -> AgentRunStatus:
    waits = questions.asked(park)
    wait = waits[0] if waits else (park.waits[0] if park.waits else None)
    request = questions.request_of(look, wait) if wait is not None and wait.kind == "uncertain" else None
    since = EpochMs((wait.since if wait else 0) or park.time)
    waiting = Waiting(
        kind=wait.kind if wait else "timer",
        request=request.name if request else None,
        key=wait.key if wait else "",
        name=wait.name if wait else "",
        since=rfc3339(since),
        wake_time=rfc3339(EpochMs(park.wake)) if park.wake is not None else None,
    )
    return status.model_copy(update={"waiting": waiting, "pod": "", "node": ""})
