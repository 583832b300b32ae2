"""States in which nothing can start for now: each names the cause, says what cures it, and when it is tried again by itself."""

from dataclasses import replace

from everstep.ids import EpochMs
from everstep_operator.api.times import epoch_ms
from everstep_operator.api.words import EventReason, Reason, Summary
from everstep_operator.decide import pods
from everstep_operator.decide.look import Look
from everstep_operator.decide.model import Asked, JournalDown, Refusal
from everstep_operator.decide.plan import Plan, warning

_OWN_REASONS: dict[str, Reason] = {
    "DataKeyMissing": Reason.DATA_KEY_MISSING,
    "GoalNotFound": Reason.GOAL_NOT_FOUND,
    "SecretConflict": Reason.SECRET_CONFLICT,
    "InvalidInputs": Reason.BAD_INPUTS,
}
_SLOW = (Reason.POD_SECURITY, Reason.POD_REFUSED, Reason.BAD_INPUTS, Reason.SECRET_CONFLICT)
"""Cannot heal by itself: Stalled, and tried again only rarely."""
FORK_WITHIN_S = 120
"""A fork that is still unfinished then has lost its command."""


def block(
    look: Look, reason: Reason | str, message: str, *, stalled: bool = False, retry: EpochMs | None = None
) -> Plan:
    """A Blocked plan, with an Event when the cause is a new one."""
    plan = Plan(
        look.status,
        Summary.BLOCKED,
        reason,
        message,
        reconciling=not stalled,
        stalled=stalled,
        look_again=retry,
    )
    if look.run.status.reason != str(reason) or look.run.status.summary != Summary.BLOCKED:
        plan = plan.tell(warning(EventReason.BLOCKED, f"{reason}: {message}"))
    return plan


def refused(look: Look, asked: Asked) -> Plan | None:
    """While a refusal of this action stands and its retry is not due. The retry is one more request under the same attempt."""
    refusal = look.refusal(asked)
    if refusal is None:
        return None
    reason, cure = explain(refusal)
    slow = reason in _SLOW
    pause_s = look.rules.refused_retry_s if slow else look.rules.not_started_retry_s
    retry = EpochMs(refusal.at_epoch_ms + pause_s * 1000)
    if look.past(retry):
        return None
    plan = block(look, reason, f"{refusal.message}. {cure}", stalled=slow, retry=retry)
    if reason is Reason.QUOTA_EXCEEDED:
        # Our own dead pods may be what fills it: `count/pods` counts them, and so does `pods` while they terminate.
        plan = plan.plus(
            *(d for p in look.seen.pods if p.owned and p not in look.live_pods for d in pods.delete(p, "quota"))
        )
    return plan


def explain(refusal: Refusal) -> tuple[Reason, str]:
    """(reason, what cures it) of a refused action."""
    own = _OWN_REASONS.get(refusal.reason)
    text = refusal.message.lower()
    if own in (Reason.GOAL_NOT_FOUND, Reason.DATA_KEY_MISSING):
        return own, "The run starts when it is there"
    if own is not None:
        return own, "Create the run again with what the message asks for"
    if refusal.action is Asked.CREATE_REQUEST:
        return Reason.REQUEST_REFUSED, "Tried again by itself"
    if "exceeded quota" in text or "failed quota" in text:
        return Reason.QUOTA_EXCEEDED, "Starts by itself when the quota has room"
    if "podsecurity" in text:
        return Reason.POD_SECURITY, "Change spec.template, or the namespace's pod-security labels"
    return Reason.POD_REFUSED, "Change spec.agent or spec.template, or what refuses it"


def fork_unfinished(look: Look) -> Plan:
    """A fork waits for the records it begins with: started without them it would do again what its source has done."""
    return block(
        look,
        Reason.FORK_UNFINISHED,
        "the records this fork begins with are not written; if `kubectl everstep fork` is not at it any more, delete the run and "
        "fork again",
        stalled=look.run.created_epoch_ms + FORK_WITHIN_S * 1000 < look.now,
        retry=look.in_s(FORK_WITHIN_S),
    )


def journal_unhealthy(look: Look) -> Plan:
    """The store keeps less than it must: no new runs."""
    problems = "; ".join(look.seen.store.problems)
    return block(
        look,
        Reason.JOURNAL_UNHEALTHY,
        f"{problems}. The run starts by itself afterwards",
        retry=look.in_s(look.rules.not_started_retry_s),
    )


def journal_down(look: Look) -> Plan | None:
    """The store does not answer: no verdict, no new attempt. A live attempt is left alone; it knows better than we do."""
    down = look.seen.journal
    if not isinstance(down, JournalDown):
        return None
    retry = look.in_s(look.rules.store_down_retry_s)
    plan = block(
        look, Reason.JOURNAL_UNREACHABLE, f"{down.reason}. Goes on by itself when the store answers", retry=retry
    )
    before = look.run.status
    if look.live_pods and before.summary and before.summary != Summary.BLOCKED:
        plan = replace(plan, summary=Summary(before.summary), reason=before.reason, message="", events=())
    if _at_rest(look):
        # It needs neither pod nor journal now, and thousands may be like it: nothing is written, nothing is told.
        return replace(
            plan, quiet=True, events=(), look_again=epoch_ms(before.waiting.wake_time) if before.waiting else None
        )
    if look.spec.desired_state == "Suspended":
        plan = plan.plus(*(d for p in look.live_pods for d in pods.delete(p, "suspended")))
    return plan


def _at_rest(look: Look) -> bool:
    """Parked with nothing due, or suspended, with the spec as it was."""
    before = look.run.status
    if before.observed_generation != look.run.generation or look.live_pods:
        return False
    if before.summary == Summary.SUSPENDED:
        return True
    wake = epoch_ms(before.waiting.wake_time) if before.waiting else None
    parked = before.summary in (Summary.WAITING, Summary.UNCERTAIN)
    answered = any(r.response is not None and r.state in ("", "Open") for r in look.seen.requests)
    return parked and not look.past(wake) and not look.past(look.deadline) and not answered


def spec_invalid_message(error: str) -> str:
    """What to tell about a spec that the server let in and the models refuse."""
    return f"{error}. Correct the field; if it looks right, CRD and operator are of different versions"
