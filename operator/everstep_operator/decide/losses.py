"""How an attempt ended: from what its pod shows to a class, a reason, and whether its process is proved dead.

The table, first match wins:

    termination message or exit code says refused (64, 65), or there is no SDK   Refused: the run fails, whatever else happened
    condition DisruptionTarget                            Disruption, with Kubernetes' own reason
    status.reason Evicted                                 Disruption; Application if it was the pod's own storage limit
    status.reason of a shutdown or kubelet preemption     Disruption
    phase Failed, container never made                    NotStarted (kubelet admission: OutOfcpu, NodeAffinity …)
    exit 69, 75                                           Disruption
    OOMKilled                                             OutOfMemory
    ContainerStatusUnknown, or Unknown with exit 255      Disruption (the node was rebooted under it)
    being deleted or gone (and none of the above)         Disruption, PodDeleted
    exit 143                                              Disruption (SIGTERM from outside)
    exit 137                                              OutOfMemory (a group kill the runtime gave no name, or kill -9)
    exit 0, 70, other                                     Application

A process is proved dead only by a terminal status of the container that the kubelet wrote, or by the kubelet's refusal
to start it. A 404, a forced deletion, pod garbage collection and Terminating prove nothing: a paused process may still
send.
"""

from dataclasses import dataclass
from typing import TypeAlias

from everstep.contract import ExitCode, StopReason, Termination
from everstep.ids import EpochMs
from everstep_operator.api.words import End, LossClass, Reason
from everstep_operator.decide.model import ContainerState, PodView

NOT_PROVEN = ("ContainerStatusUnknown", "Unknown")
"""Reasons of kubelet and containerd for a container that was gone after the node's restart: how it ended nobody saw."""
SIGKILLED = 137
START_FAILED_EXIT = 128
NOT_FOUND_EXITS = (126, 127)
NO_SDK_SIGNS = ("No module named everstep", "No module named 'everstep")
NO_PYTHON_SIGNS = ("executable file not found", "no such file or directory")
STORAGE_SIGNS = (
    "exceeds the total limit of containers",
    "exceeds the limit",
    "exceeds its local ephemeral storage limit",
)
GONE = "the pod is gone; somebody or something deleted it"

_POD_REASONS: dict[str, End] = {
    "Evicted": End.EVICTED,
    "NodeShutdown": End.NODE_SHUTDOWN,
    "Terminated": End.NODE_SHUTDOWN,
    "Shutdown": End.NODE_SHUTDOWN,
    "Preempting": End.PREEMPTED,
}
"""`status.reason` of a pod that the kubelet ended for the node's sake."""

_REFUSED: dict[StopReason, Reason] = {
    StopReason.BAD_ENTRYPOINT: Reason.BAD_ENTRYPOINT,
    StopReason.BAD_INPUTS: Reason.BAD_INPUTS,
    StopReason.BAD_CONFIG: Reason.BAD_CONFIG,
    StopReason.DIVERGED: Reason.DIVERGED,
    StopReason.JOURNAL_TAMPERED: Reason.JOURNAL_TAMPERED,
    StopReason.JOURNAL_LOST: Reason.JOURNAL_LOST,
    StopReason.JOURNAL_UNREADABLE: Reason.JOURNAL_UNREADABLE,
}


@dataclass(frozen=True)
class Loss:
    """The end of an attempt that ended neither with a park nor with `finished`."""

    class_: LossClass
    reason: str
    """A word: one of `End`, a `Reason` with class Refused, or Kubernetes' own."""
    message: str = ""
    proven: bool = False
    at_epoch_ms: EpochMs | None = None
    """When the container ended, where the kubelet says so."""
    exit_code: int | None = None
    termination: Termination | None = None


def is_over(pod: PodView) -> bool:
    """Whether the cluster counts this pod's process as ended: its container did, the pod is terminal, or it is gone."""
    return pod.gone or pod.agent.state is ContainerState.TERMINATED or pod.phase in ("Succeeded", "Failed")


def is_proved_dead(pod: PodView) -> bool:
    """See the module's last paragraph."""
    agent = pod.agent
    if agent.state is ContainerState.TERMINATED:
        return bool(agent.container_id) and agent.reason not in NOT_PROVEN
    return _never_made(pod)


def classify(pod: PodView) -> Loss:
    """What the end of this attempt was. `pod` is over."""
    agent = pod.agent
    ended = agent.state is ContainerState.TERMINATED
    told = Termination.from_json(agent.message) if ended else None
    class_, reason, message = _refused(pod, told) or _disrupted(pod) or _ended(pod)
    return Loss(
        class_,
        reason,
        (message or (told.message if told else "") or _last_line(agent.message if ended else pod.message))[:1024],
        proven=is_proved_dead(pod),
        at_epoch_ms=agent.finished_epoch_ms,
        exit_code=agent.exit_code if ended else None,
        termination=told,
    )


def vanished() -> Loss:
    """The pod was seen (or the attempt was claimed), and a live LIST has it no more."""
    return Loss(LossClass.DISRUPTION, End.POD_DELETED, GONE)


Verdict: TypeAlias = tuple[LossClass, str, str]


def _refused(pod: PodView, told: Termination | None) -> Verdict | None:
    """The SDK said no, or is not there."""
    agent = pod.agent
    if agent.state is not ContainerState.TERMINATED:
        return None
    if told is not None and told.reason in _REFUSED:
        return LossClass.REFUSED, _REFUSED[told.reason], _with_seq(told)
    if agent.exit_code == ExitCode.BAD_CONFIG:
        return LossClass.REFUSED, Reason.BAD_CONFIG, agent.message or "the SDK refused its configuration (exit 64)"
    if agent.exit_code == ExitCode.JOURNAL_REFUSED:
        return LossClass.REFUSED, Reason.JOURNAL_REFUSED, agent.message or "the SDK refused the journal (exit 65)"
    missing = _no_sdk(pod)
    return (LossClass.REFUSED, Reason.NO_SDK, missing) if missing else None


def _no_sdk(pod: PodView) -> str:
    """What is missing in the image, "" if that is not how it ended."""
    agent = pod.agent
    not_started = agent.reason == "StartError" or agent.exit_code in (START_FAILED_EXIT, *NOT_FOUND_EXITS)
    if not_started and any(sign in agent.message for sign in NO_PYTHON_SIGNS):
        return f"the image cannot start `python -m everstep.run`: {agent.message}"
    if agent.exit_code == 1 and any(sign in agent.message for sign in NO_SDK_SIGNS):
        return "the image has no everstep in it: add `pip install everstep` to it, or use an image that has it"
    return ""


def _with_seq(told: Termination) -> str:
    return f"{told.message} (first bad record: {told.bad_seq})" if told.bad_seq is not None else told.message


def _disrupted(pod: PodView) -> Verdict | None:
    """What the pod's own status says of its end."""
    target = pod.condition("DisruptionTarget")
    if target is not None:
        return LossClass.DISRUPTION, target.reason or End.EVICTED, target.message
    if pod.reason == "Evicted" and any(sign in pod.message for sign in STORAGE_SIGNS):
        return LossClass.APPLICATION, End.STORAGE_LIMIT, pod.message
    if pod.reason in _POD_REASONS:
        return LossClass.DISRUPTION, _POD_REASONS[pod.reason], pod.message
    if _never_made(pod):
        return LossClass.NOT_STARTED, pod.reason or End.POD_FAILED, pod.message
    return None


def _ended(pod: PodView) -> Verdict:
    """What the container's end says."""
    agent = pod.agent
    if agent.state is not ContainerState.TERMINATED:
        if pod.gone or pod.deletion_epoch_ms is not None:
            return LossClass.DISRUPTION, End.POD_DELETED, GONE
        return LossClass.DISRUPTION, pod.reason or End.POD_FAILED, pod.message
    told = _by_sdk_or_runtime(pod)
    if told is not None:
        return told
    if pod.gone or pod.deletion_epoch_ms is not None:
        return LossClass.DISRUPTION, End.POD_DELETED, ""
    return _by_exit_code(pod)


def _by_sdk_or_runtime(pod: PodView) -> Verdict | None:
    """Ends that mean the same whether or not the pod was being deleted."""
    agent = pod.agent
    if agent.reason == "OOMKilled":
        return LossClass.OUT_OF_MEMORY, End.OOM_KILLED, _memory(pod)
    if agent.reason in NOT_PROVEN:
        return LossClass.DISRUPTION, End.CONTAINER_LOST, "the node or its container runtime was restarted"
    uncharged = {ExitCode.JOURNAL_UNREACHABLE: End.JOURNAL_UNREACHABLE, ExitCode.SUPERSEDED: End.SUPERSEDED}
    for code, end in uncharged.items():
        if agent.exit_code == code:
            return LossClass.DISRUPTION, end, ""
    return None


def _by_exit_code(pod: PodView) -> Verdict:
    agent, code = pod.agent, pod.agent.exit_code
    if agent.reason in ("StartError", "ContainerCannotRun"):
        return LossClass.NOT_STARTED, End.START_FAILED, agent.message
    if code == SIGKILLED:
        return LossClass.OUT_OF_MEMORY, End.KILLED, f"SIGKILL: out of memory in a child, or `kill -9`; {_memory(pod)}"
    known: dict[int, Verdict] = {
        ExitCode.TERMINATED: (LossClass.DISRUPTION, End.TERMINATED, ""),
        ExitCode.OK: (LossClass.APPLICATION, End.EXITED_EARLY, "exit 0, but the run is neither finished nor parked"),
        ExitCode.AGENT_FAILED: (LossClass.APPLICATION, End.AGENT_FAILED, ""),
    }
    last = _last_line(agent.message)
    return known.get(code if code is not None else -1) or (
        LossClass.APPLICATION,
        End.EXITED,
        f"exit {code}: {last}" if last else f"exit {code}",
    )


def _memory(pod: PodView) -> str:
    limit = pod.agent.memory_limit_bytes
    return f"memory limit {limit // 2**20} MiB" if limit else "no memory limit is set"


def _never_made(pod: PodView) -> bool:
    """The kubelet refused the pod, or it failed before a container was made: it says Failed and shows no container."""
    if pod.phase != "Failed" or pod.agent.container_id:
        return False
    return pod.agent.state in (ContainerState.ABSENT, ContainerState.WAITING) and not _by_controller(pod)


def _by_controller(pod: PodView) -> bool:
    """Failed by a controller (garbage collection, taint manager), which never asks the kubelet."""
    target = pod.condition("DisruptionTarget")
    return target is not None and target.reason in ("DeletionByPodGC", "DeletionByTaintManager")


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
