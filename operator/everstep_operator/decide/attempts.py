"""The attempt protocol: bump the number in the status, fence the journal with it, create the pod.

    begin    a turn of its own: status.attempt = n, with the anchor; nothing else happens in it
    create   Fence(n, anchor, the head seen) → EnsureRunSecret → CreatePod(n)

etcd's counter is the token, the store refuses lower ones, the pod's name is the mutex.
"""

from collections.abc import Sequence

from everstep.ids import Attempt
from everstep.journal.records import Park
from everstep_operator.api.models import AgentRunStatus, AttemptStatus, Checkpoint, Losses
from everstep_operator.api.times import rfc3339
from everstep_operator.api.words import ANNOTATION_REPIN, Cause, End, LossClass, Reason, Summary
from everstep_operator.decide import blocked, pods
from everstep_operator.decide.look import Look, current, replace_entry
from everstep_operator.decide.model import Asked, CreatePod, EnsureRunSecret, Fence, Prepare
from everstep_operator.decide.plan import Plan

_REASON_OF_CAUSE: dict[str, Reason] = {
    Cause.FIRST: Reason.CREATED,
    Cause.ANSWERED: Reason.ANSWERED,
    Cause.TIMER_DUE: Reason.TIMER_DUE,
    Cause.RESUMED: Reason.RESUMED,
    Cause.CANCELLING: Reason.CANCELLING,
    Cause.SPEC_CHANGED: Reason.SPEC_CHANGED,
    Cause.RENUMBERED: Reason.RENUMBERED,
}
_REASON_OF_CLASS: dict[str, Reason] = {
    LossClass.DISRUPTION: Reason.DISRUPTED,
    LossClass.OUT_OF_MEMORY: Reason.OUT_OF_MEMORY,
    LossClass.APPLICATION: Reason.AGENT_CRASHED,
    LossClass.NOT_STARTED: Reason.NOT_STARTED,
}
FOREIGN_POD = "ForeignPod"
_NODE_AT_FAULT = (End.NODE_UNREACHABLE, End.STUCK_TERMINATING, End.PENDING_TOO_LONG, Reason.ERR_IMAGE_NEVER_PULL)


def starting_reason(look: Look) -> Reason:
    """Why the current attempt is being made, as a reason: after a loss, what was lost."""
    entry = current(look)
    if entry.cause != Cause.LOST:
        return _REASON_OF_CAUSE.get(entry.cause, Reason.CREATED)
    before = next((a for a in reversed(look.status.attempts) if a.number < entry.number), None)
    return loss_reason(before.class_ if before else "")


def loss_reason(class_: str) -> Reason:
    """A loss class as the reason of what follows it."""
    return _REASON_OF_CLASS.get(class_, Reason.DISRUPTED)


def begin(
    look: Look, status: AgentRunStatus, cause: Cause, *, inbox: Sequence[str] = (), number: int | None = None
) -> Plan:
    """The bump. `status` already tells how the attempt before ended."""
    number = status.attempt + 1 if number is None else number
    head = look.head
    entry = AttemptStatus(
        number=number,
        cause=cause,
        start_time=rfc3339(look.now),
        first_seq=(head.seq if head else 0) + 1,
        inbox=tuple(inbox),
    )
    bumped = replace_entry(status, entry).model_copy(update={"attempt": number, "waiting": None, "pod": "", "node": ""})
    bumped = _first_anchor(look, doubt(look, bumped))
    after = look.with_status(bumped)
    reason = starting_reason(after)
    return Plan(bumped, Summary.STARTING, reason, f"attempt {number}", reconciling=True, again=True)


def _first_anchor(look: Look, status: AgentRunStatus) -> AgentRunStatus:
    """(0, h0) stands in the status before the first fence: without it the store could be emptied unseen."""
    if (status.checkpoint is not None and status.checkpoint.hash) or look.journal is None:
        return status
    checkpoint = Checkpoint(
        store=look.rules.store_name,
        key=look.rules.journal_key_format.format(uid=look.run.uid),
        seq=0,
        hash=look.journal.genesis,
        attempt=0,
        time=rfc3339(look.now),
    )
    return status.model_copy(update={"checkpoint": checkpoint})


def doubt(look: Look, status: AgentRunStatus) -> AgentRunStatus:
    """Note the newest attempt that wrote records and was given up without proof of its death. What such a process had in flight
    may still happen, so later attempts are not told that their predecessors are dead, until a park settles it."""
    if look.journal is None or look.head is None or look.head.seq == 0:
        return status
    last = look.journal.last
    if isinstance(last, Park):
        return status  # a park ends with no body in flight
    unproven = [
        a.number
        for a in status.attempts
        if not a.proven and a.number < status.attempt and (last is None or a.number == last.attempt)
    ]
    if unproven and status.unproven_attempt < max(unproven):
        return status.model_copy(update={"unproven_attempt": max(unproven)})
    return status


def journal_ahead(look: Look) -> Plan | None:
    """The journal was fenced for a higher number than the status knows (etcd was
    restored): go on from there."""
    journal = look.journal
    if journal is None or journal.attempt <= look.attempt:
        return None
    alive = any(p.attempt == journal.attempt for p in look.live_pods)
    # A pod that lives and holds the fence is the current attempt: replacing it would lose a step for nothing.
    number = journal.attempt if alive else journal.attempt + 1
    status = _close(look, End.RENUMBERED)
    if journal.last is not None:
        # Of the attempts that the status does not know nobody can say how they ended.
        doubtful = max(status.unproven_attempt, min(journal.last.attempt, number - 1))
        status = status.model_copy(update={"unproven_attempt": doubtful})
    return begin(look, status, Cause.RENUMBERED, number=number)


def _close(look: Look, reason: End) -> AgentRunStatus:
    """The current entry ended on purpose, unless it has ended already."""
    if look.attempt == 0:
        return look.status
    entry = current(look)
    if entry.end_time is not None:
        return look.status
    ended = entry.model_copy(update={"end_time": rfc3339(look.now), "class_": LossClass.STOPPED, "reason": str(reason)})
    return replace_entry(look.status, ended)


def first(look: Look) -> Plan | None:
    """Attempt 1: only into a store that is fit, and only after the pod was accepted as a dry run."""
    if look.attempt > 0:
        return None
    if look.seen.store.problems:
        return blocked.journal_unhealthy(look)
    if look.seen.prepared_generation != look.run.generation:
        refused = blocked.refused(look, Asked.PREPARE)
        if refused is not None:
            return refused
        return Plan(
            look.status,
            Summary.STARTING,
            Reason.PREPARING,
            "copying the goal, trying the pod as a dry run",
            reconciling=True,
            actions=(Prepare(),),
            again=True,
        )
    return begin(look, look.status, Cause.FIRST)


def create(look: Look) -> Plan | None:
    """Fence, Secret, pod. (That a pod was there and is lost, `ends.vanished_pod` has found before.)"""
    entry = current(look)
    if look.pod is not None or entry.end_time is not None:
        return None
    journal = look.journal
    if journal is None:
        return None
    foreign = look.refusal(Asked.CREATE_POD)
    if foreign is not None and foreign.reason == FOREIGN_POD and foreign.attempt == look.attempt:
        return begin(look, _close(look, End.RENUMBERED), Cause.RENUMBERED)
    refused = blocked.refused(look, Asked.PREPARE) or blocked.refused(look, Asked.CREATE_POD)
    if refused is not None:
        return refused.plus(*pods.tidy(look))
    doubted = doubt(look, look.status)
    plan = Plan(
        doubted,
        Summary.STARTING,
        starting_reason(look),
        f"creating pod {look.run.name}-{look.attempt}",
        reconciling=True,
        again=True,
    )
    if doubted is not look.status:
        return plan
    return plan.plus(
        Fence(Attempt(look.attempt), look.anchor, journal.head),
        EnsureRunSecret(),
        CreatePod(
            Attempt(look.attempt),
            look.anchor,
            predecessor_dead(look),
            image(look),
            not_on_nodes=_lost_nodes(look),
            memory_limit_bytes=look.status.memory_limit_bytes,
        ),
    )


def predecessor_dead(look: Look) -> bool:
    """Whether every earlier attempt that may have something in flight is proved dead. One that wrote no record has
    nothing in flight: an effect needs its intent confirmed first, and the fence before the pod lets nothing in after
    this look."""
    if look.attempt <= 1 or look.status.unproven_attempt > 0:
        return False
    last = look.journal.last if look.journal else None
    if last is None:
        return look.head is None or look.head.seq == 0
    wrote = next((a for a in look.status.attempts if a.number == last.attempt), None)
    return wrote is not None and (wrote.proven or wrote.class_ == LossClass.PARKED)


def image(look: Look) -> str:
    """The pinned image while the spec names what it named then; else the spec's own. A run that names none keeps the pinned one
    as well when the operator's default moves on."""
    named = look.spec.agent.image or ""
    pinned = look.status.agent_image
    if pinned and look.status.agent_image_from == named and _same_repository(named or look.rules.default_image, pinned):
        return pinned
    return named


def repin_asked(look: Look) -> bool:
    """Somebody chose another image with `kubectl everstep repin` and waits for the journal to be replayed with it."""
    named = look.spec.agent.image or ""
    return look.run.annotations.get(ANNOTATION_REPIN) == named != look.status.agent_image_from


def _same_repository(named: str, pinned: str) -> bool:
    """Only a digest of the very repository the spec names can be pulled by another node; an image that was loaded into
    a node by hand shows another name, or none."""
    repository, at, _ = pinned.partition("@sha256:")
    if not at:
        return False
    bare = named.partition("@")[0]
    head, slash, tail = bare.rpartition("/")
    bare = f"{head}{slash}{tail.partition(':')[0]}"
    return repository in {bare, f"docker.io/{bare}", f"docker.io/library/{bare}"}


def _lost_nodes(look: Look) -> tuple[str, ...]:
    before = next((a for a in reversed(look.status.attempts) if a.number < look.attempt), None)
    lost = before is not None and before.reason in _NODE_AT_FAULT and before.node
    return (before.node,) if before is not None and lost else ()


def fresh_losses(status: AgentRunStatus) -> AgentRunStatus:
    """Budgets start anew: somebody changed the spec."""
    return status.model_copy(update={"losses": Losses()})
