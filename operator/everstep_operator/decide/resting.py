"""Runs without a pod on purpose: suspended, or parked until a time or an answer."""

from dataclasses import replace

from everstep.ids import EpochMs
from everstep.journal.inbox import budget_entry_prefix
from everstep.journal.records import Park
from everstep_operator.api.models import AgentRunStatus, Waiting
from everstep_operator.api.times import epoch_ms, rfc3339
from everstep_operator.api.words import Cause, Cond, End, EventReason, LossClass, Reason, Summary
from everstep_operator.decide import attempts, blocked, over, pods, questions
from everstep_operator.decide.look import Look, current, replace_entry
from everstep_operator.decide.losses import classify, is_over, vanished
from everstep_operator.decide.model import Asked, PodView
from everstep_operator.decide.plan import Plan, normal

Questions = tuple[questions.Question, ...]

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
            look_again=pods.look_at_leaving(look, pod),
        )
    status = _end(look, LossClass.STOPPED, str(End.SUSPENDED))
    park = look.park
    plan = Plan(
        _waiting(status, park, questions.open_questions(look, park)) if park else status,
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
    asked = questions.open_questions(look, park)
    status = _waiting(_end(look, LossClass.PARKED, "Parked"), park, asked)
    here = look.with_status(status)
    states = questions.states(look, asked)
    wake = _wake(here, park, asked)
    if wake is not None and not any(not _given_up(look, p) for p in look.live_pods):
        cause, inbox = wake
        note = {Cause.ANSWERED: "answered", Cause.TIMER_DUE: "the time has come", Cause.CANCELLING: "to clean up"}
        plan = attempts.begin(here, status, cause, inbox=inbox)
        return plan.plus(*states).tell(normal(EventReason.WOKEN, note.get(cause, str(cause))))
    deliveries = questions.deliveries(look, asked)
    plan = _rest(here, park, asked).plus(*pods.delete_all(look, "parked", keep_failed=True), *deliveries, *states)
    if wake is not None:
        # Its pod is on the way out; a park leaves nothing for it to write, but there is one pod at a time.
        return replace(plan, look_again=look.in_s(look.rules.poll_start_s))
    refused = blocked.refused(here, Asked.CREATE_REQUEST)
    if refused is not None:
        return replace(refused, parked=True, actions=plan.actions)
    create = questions.missing(asked)
    return replace(plan.plus(*create), again=bool(create or deliveries))


def _given_up(look: Look, pod: PodView) -> bool:
    fence = look.node_loss_policy == "Fence"
    return fence and (pods.unreachable(look, pod) or pods.stuck(look, pod))


def _wake(look: Look, park: Park, asked: Questions) -> tuple[Cause, tuple[str, ...]] | None:
    """Why the run goes on now, and the inbox entries it goes on for. No attempt is made twice for the same entry."""
    if look.cancelling:
        wish = over.cancel_entry(look)
        known = any(wish in a.inbox for a in look.status.attempts)
        return (Cause.CANCELLING, (wish,)) if wish is not None and not known else None
    answers = questions.answered(look, asked)
    if answers:
        return Cause.ANSWERED, answers
    raised = budget_entries(look, park)
    if raised:
        return Cause.ANSWERED, raised
    if attempts.repin_asked(look) and current(look).cause != Cause.SPEC_CHANGED:
        return Cause.SPEC_CHANGED, ()
    return (Cause.TIMER_DUE, ()) if look.past(wake_time(look, park)) else None


def budget_entries(look: Look, park: Park) -> tuple[str, ...]:
    """Changes of the budget that were made for this very park. A run that takes one up and parks again waits for another."""
    inbox = look.journal.inbox if look.journal else frozenset()
    return tuple(sorted(entry for entry in inbox if entry.startswith(budget_entry_prefix(park.seq))))


def wake_time(look: Look, park: Park) -> EpochMs | None:
    """When the earliest timer is due; later, if an attempt was just made for it and parked again."""
    if park.wake is None:
        return None
    entry = current(look)
    started = epoch_ms(entry.start_time)
    if entry.cause == Cause.TIMER_DUE and started is not None and park.wake <= started:
        return EpochMs((epoch_ms(entry.end_time) or look.now) + REPARK_PAUSE_MS)
    return EpochMs(park.wake)


def _rest(look: Look, park: Park, asked: Questions) -> Plan:
    message = _what(look, park, asked)
    before = look.run.status.condition(Cond.PARKED)
    first_look = before is None or before.status != "True"
    unclear = any(q.wait.kind == "uncertain" for q in asked)
    held = any(w.kind == "budget" for w in park.waits)
    rest = Reason.BUDGET_EXCEEDED if held else Reason.TIMER_PENDING
    return Plan(
        look.status,
        Summary.UNCERTAIN if unclear else Summary.WAITING,
        Reason.STEP_UNCERTAIN if unclear else Reason.TRIES_EXHAUSTED if asked else rest,
        message,
        parked=True,
        look_again=None if look.cancelling else wake_time(look, park),
        events=(normal(EventReason.PARKED, message),) if first_look else (),
    )


def _what(look: Look, park: Park, asked: Questions) -> str:
    held = [w for w in park.waits if w.kind == "budget"]
    if held and not asked:
        more = f", and {len(held) - 1} more" if len(held) > 1 else ""
        return f"{held[0].reason}{more}: kubectl everstep budget {look.run.name} --max-… raises it"
    if not asked:
        return f"until {rfc3339(EpochMs(park.wake))}" if park.wake is not None else "nothing to wake it"
    names = ", ".join(f"{q.wait.name or 'step'} #{q.wait.key}" for q in asked[:3]) + (" …" if len(asked) > 3 else "")
    refused = next((q.wait.reason for q in asked if q.number > 1 and q.wait.reason), "")
    why = f" (the answer before could not be taken: {refused})" if refused else ""
    key = asked[0].wait.key
    kinds = {q.wait.kind for q in asked}
    what = "may have happened" if "uncertain" in kinds else "failed in all tries"
    if len(kinds) > 1:
        what = "may have happened, or failed in all tries"
    return f"{names} {what}{why}: kubectl everstep settle {look.run.name} {key} --done VALUE | --again | --fail"


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


def _waiting(status: AgentRunStatus, park: Park, asked: Questions) -> AgentRunStatus:
    question = asked[0] if asked else None
    held = sorted(park.waits, key=lambda w: w.kind != "budget")  # a timer beside it is not what people want to know
    wait = question.wait if question else (held[0] if held else None)
    waiting = Waiting(
        kind=wait.kind if wait else "timer",
        request=question.request.name if question and question.request else None,
        key=wait.key if wait else "",
        name=wait.name if wait else "",
        since=rfc3339(EpochMs((wait.since if wait else 0) or park.time)),
        wake_time=rfc3339(EpochMs(park.wake)) if park.wake is not None else None,
    )
    return status.model_copy(update={"waiting": waiting, "pod": "", "node": ""})
