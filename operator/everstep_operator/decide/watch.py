"""An attempt whose pod exists: is it over, given up, starting, blocked, or running?"""

from dataclasses import dataclass, replace

from everstep.ids import EpochMs
from everstep.journal.progress import Progress
from everstep_operator.api.models import AgentRunStatus
from everstep_operator.api.times import epoch_ms
from everstep_operator.api.words import Cause, End, EventReason, LossClass, Reason, Summary
from everstep_operator.decide import blocked, ends, over, pods, questions
from everstep_operator.decide.attempts import starting_reason
from everstep_operator.decide.look import Look, current, replace_entry
from everstep_operator.decide.losses import Loss, classify, is_over
from everstep_operator.decide.model import ContainerState, EmitEvent, PodView
from everstep_operator.decide.plan import Plan, normal

TERMINAL_WAITS = {"InvalidImageName": Reason.INVALID_IMAGE_NAME, "ErrImageNeverPull": Reason.ERR_IMAGE_NEVER_PULL}
PULL_WAITS = (
    "ErrImagePull",
    "ImagePullBackOff",
    "RegistryUnavailable",
    "ImageInspectError",
    "SignatureValidationFailed",
)
HEALING_WAITS = {"CreateContainerConfigError": Reason.CONFIG_ERROR}
RUNTIME_WAITS = ("CreateContainerError", "RunContainerError", "PostStartHookError")


@dataclass(frozen=True)
class Waits:
    """Why a pod's container has not started: reason and message as Kubernetes tells them."""

    reason: str
    message: str


def watch(look: Look) -> Plan | None:
    """The current attempt's pod exists or was seen."""
    pod = look.pod
    if pod is None or current(look).end_time is not None:
        return None
    if is_over(pod):
        return ends.end_attempt(look, classify(pod))
    given_up = _given_up(look, pod)
    if given_up is not None:
        plan = ends.end_attempt(look, given_up)
        return plan if plan.again else plan.plus(*pods.delete(pod, given_up.reason))
    plan = _alive(look.with_status(_seen(look, pod)), pod)
    return plan.tell(*_placed(look, pod)).plus(*questions.states(look, None))


def _alive(look: Look, pod: PodView) -> Plan:
    if pod.deletion_epoch_ms is not None:
        return _stopping(look, pod)
    if pod.node_view is not None and pod.node_view.unreachable_since_epoch_ms is not None:
        return _out_of_reach(look, pod)
    if pod.agent.state is ContainerState.RUNNING:
        return _running(look, pod)
    return _pending(look, pod)


def _placed(look: Look, pod: PodView) -> tuple[EmitEvent, ...]:
    """Told once, when the pod's node is first known."""
    if not pod.node or (current(look).node and current(look).pod_uid == pod.uid):
        return ()
    return (normal(EventReason.ATTEMPT_STARTED, f"pod {pod.name} on {pod.node}"),)


def _given_up(look: Look, pod: PodView) -> Loss | None:
    """Replaced although nothing proves it dead: allowed because it is fenced first."""
    if look.node_loss_policy == "Fence":
        if pods.unreachable(look, pod):
            return Loss(
                LossClass.DISRUPTION, End.NODE_UNREACHABLE, f"node {pod.node} does not answer; fenced, not proved dead"
            )
        if pods.stuck(look, pod):
            return Loss(
                LossClass.DISRUPTION, End.STUCK_TERMINATING, f"still on node {pod.node} after its deadline; fenced"
            )
    waits = _waits(pod)
    if waits.reason == Reason.ERR_IMAGE_NEVER_PULL and look.status.agent_image:
        # The image ran before: it is this node that does not have it.
        return Loss(LossClass.NOT_STARTED, Reason.ERR_IMAGE_NEVER_PULL, f"node {pod.node}: {waits.message}")
    curable = waits.reason in (*TERMINAL_WAITS, *PULL_WAITS, *HEALING_WAITS)
    bound = bool(pod.node) and pod.agent.state is not ContainerState.RUNNING and not curable
    if bound and look.past(EpochMs(_bound_since(pod) + look.rules.pending_deadline_s * 1000)):
        why = f"{waits.reason}: {waits.message}" if waits.reason else "its container was not started"
        return Loss(LossClass.NOT_STARTED, End.PENDING_TOO_LONG, f"on node {pod.node}: {why}")
    return None


def _bound_since(pod: PodView) -> EpochMs:
    scheduled = pod.condition("PodScheduled")
    return (scheduled.since_epoch_ms if scheduled else None) or pod.created_epoch_ms


def _seen(look: Look, pod: PodView) -> AgentRunStatus:
    """The pod in the current entry; the image pinned once it runs."""
    entry = current(look)
    update: dict[str, object] = {"pod": pod.name, "pod_uid": pod.uid, "node": pod.node}
    if entry.class_ == LossClass.STOPPED and pod.deletion_epoch_ms is None:
        update |= {
            "class_": "",
            "reason": "",
        }  # it was to be stopped, the deletion never happened, and it is wanted again
    status = replace_entry(look.status, entry.model_copy(update=update))
    status = status.model_copy(update={"pod": pod.name, "node": pod.node, "waiting": None})
    named = look.spec.agent.image or ""
    if pod.agent.image_id and (not status.agent_image or status.agent_image_from != named):
        status = status.model_copy(update={"agent_image": pod.agent.image_id, "agent_image_from": named})
    return status


def _stopping(look: Look, pod: PodView) -> Plan:
    target = pod.condition("DisruptionTarget")
    why = f" ({target.reason})" if target else ""
    return Plan(
        look.status,
        Summary(look.run.status.summary or Summary.RUNNING),
        Reason.STOPPING,
        f"pod {pod.name} is being deleted{why}; its process may still be working",
        reconciling=True,
        look_again=pods.look_at_leaving(look, pod),
    )


def _out_of_reach(look: Look, pod: PodView) -> Plan:
    due = pods.given_up_at(look, pod)
    if look.node_loss_policy == "Wait":
        message = f"node {pod.node} does not answer; nodeLoss.policy Wait: replaced when the cluster says that the pod is gone"
        return blocked.block(look, Reason.NODE_UNREACHABLE, message, retry=look.in_s(look.rules.not_started_retry_s))
    message = f"node {pod.node} does not answer; replaced after {look.node_loss_after_ms // 1000} s"
    summary = Summary(look.run.status.summary or Summary.RUNNING)
    return Plan(look.status, summary, Reason.NODE_UNREACHABLE, message, reconciling=True, look_again=due)


def _running(look: Look, pod: PodView) -> Plan:
    journal = look.journal
    told = journal.progress if journal else None
    claimed = journal is not None and journal.attempt == look.attempt and journal.owner is not None
    told = told if told is not None and told.attempt == look.attempt and claimed else None
    state = told.state if told else ""
    starting = told is None or state == "replaying"
    base = Plan(
        look.status,
        Summary.STARTING,
        starting_reason(look),
        "the agent's process is starting",
        reconciling=True,
        look_again=look.in_s(look.rules.poll_start_s),
        actions=pods.tidy(look),
    )
    if look.cancelling:
        grace = f"the agent has {look.spec.cancel_grace_seconds} s to clean up"
        summary = Summary.STARTING if starting else Summary.RUNNING
        return replace(base, summary=summary, reason=Reason.CANCELLING, message=grace)
    if told is None:
        return base
    if state == "replaying":
        return replace(
            base, summary=Summary.REPLAYING, reason=Reason.REPLAYING, message="verifying and replaying", urgent=False
        )
    if state == "stopping":
        return replace(base, summary=Summary.RUNNING, reason=Reason.STOPPING, message="the agent's process is leaving")
    return replace(
        base,
        summary=Summary.RUNNING,
        reason=Reason.STEP_RUNNING,
        message="",
        reconciling=False,
        look_again=look.in_s(look.rules.poll_live_s),
        events=_resumed(look, told),
        urgent=False,
    )


def _resumed(look: Look, told: Progress) -> tuple[EmitEvent, ...]:
    """Told once, when an attempt after the first is first seen past its replay."""
    if look.attempt <= 1 or look.run.status.summary not in (Summary.STARTING, Summary.REPLAYING):
        return ()
    took = f" in {told.replay_ms} ms, chain verified" if told.replay_ms is not None else ""
    before = next((a for a in reversed(look.status.attempts) if a.number < look.attempt), None)
    lost = epoch_ms(before.end_time) if before is not None and current(look).cause == Cause.LOST else None
    since = ""
    if lost is not None and told.resumed_epoch_ms is not None and told.resumed_epoch_ms >= lost:
        since = f", {(told.resumed_epoch_ms - lost) / 1000:.1f} s after the loss"
    return (normal(EventReason.RESUMED, f"attempt {look.attempt} replayed {told.replayed} steps{took}{since}"),)


def _pending(look: Look, pod: PodView) -> Plan:
    """Not started yet: tell what holds it, by the word Kubernetes uses."""
    waits = _waits(pod)
    scheduled = pod.condition("PodScheduled")
    if scheduled is not None and scheduled.status == "False" and not pod.node:
        message = f"{scheduled.message or 'no node fits'}. Starts by itself when a node has room"
        return blocked.block(look, Reason.UNSCHEDULABLE, message, retry=look.in_s(look.rules.not_started_retry_s))
    if waits.reason in TERMINAL_WAITS:
        return over.fail(
            look, TERMINAL_WAITS[waits.reason], f"{waits.message}. Correct spec.agent.image; the run then starts"
        )
    retry = look.in_s(look.rules.poll_live_s)
    if waits.reason in PULL_WAITS:
        look, cause = _first_cause(look, waits)
        message = (
            f"{cause}. Fixes itself when the image can be pulled; else correct spec.agent.image or imagePullSecrets"
        )
        return blocked.block(look, Reason.IMAGE_PULL_BACK_OFF, message, retry=retry)
    if waits.reason in HEALING_WAITS:
        message = f"{waits.message}. Create what is missing; the pod then starts by itself"
        return blocked.block(look, HEALING_WAITS[waits.reason], message, retry=retry)
    if waits.reason in RUNTIME_WAITS:
        look, cause = _first_cause(look, waits)
        message = f"{cause}. The pod is replaced after {look.rules.pending_deadline_s} s"
        return blocked.block(look, Reason.CONTAINER_ERROR, message, retry=retry)
    where = f"on node {pod.node}: {waits.reason or 'waiting for the kubelet'}" if pod.node else "waiting for a node"
    return Plan(
        look.status, Summary.STARTING, starting_reason(look), f"pod {pod.name} {where}", reconciling=True, look_again=retry,
        actions=pods.tidy(look),
    )  # fmt: skip


def _waits(pod: PodView) -> Waits:
    if pod.init_waiting:
        reason, _, message = pod.init_waiting.partition(": ")
        return Waits(reason, message)
    if pod.agent.state is ContainerState.WAITING:
        return Waits(pod.agent.reason, pod.agent.message)
    return Waits("", "")


def _first_cause(look: Look, waits: Waits) -> tuple[Look, str]:
    """Back-off hides the first cause: keep it in the entry, and show it."""
    entry = current(look)
    backing_off = waits.message.startswith("Back-off") and ": Err" not in waits.message
    cause = entry.message if backing_off and entry.message else waits.message or waits.reason
    kept = replace_entry(look.status, entry.model_copy(update={"message": cause[:512]}))
    return look.with_status(kept), cause
