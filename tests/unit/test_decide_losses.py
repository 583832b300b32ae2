"""Every way an attempt can end, from recorded pod statuses to class, reason and proof of death (design §6; E1-E14, C32)."""

from dataclasses import dataclass

import pytest
from tests.support.observed import at, ended, pod, said

from everstep.contract import StopReason
from everstep_operator.decide.losses import Loss, classify, is_over
from everstep_operator.decide.model import ContainerState, PodView


def disrupted(reason: str, message: str = "") -> dict[str, str]:
    return {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}


KUBELET_EVICTED = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 51Mi."
OWN_STORAGE = "Pod ephemeral local storage usage exceeds the total limit of containers 16Mi. "
EMPTY_DIR = 'Usage of EmptyDir volume "scratch" exceeds the limit "8Mi". '
NO_PYTHON = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to "
    'start container process: error during container init: exec: "python": executable file not found in $PATH: unknown'
)
NO_EVERSTEP = (
    "/usr/local/bin/python: Error while finding module specification for 'everstep.run' "
    "(ModuleNotFoundError: No module named 'everstep')"
)


@dataclass(frozen=True)
class End:
    name: str
    pod: PodView
    class_: str
    reason: str
    proven: bool


TABLE = [
    # --- the cluster's doing
    End(
        "E1 drain",
        ended(1, 143, conditions=(disrupted("EvictionByEvictionAPI"),)),
        "Disruption",
        "EvictionByEvictionAPI",
        True,
    ),
    End(
        "E1 drain, seen before the process ended, then gone",
        pod(1, gone=True, conditions=(disrupted("EvictionByEvictionAPI"),)),
        "Disruption",
        "EvictionByEvictionAPI",
        False,
    ),
    End(
        "E3a node pressure, with condition",
        ended(1, 137, reason="Evicted", message=KUBELET_EVICTED, conditions=(disrupted("TerminationByKubelet"),)),
        "Disruption",
        "TerminationByKubelet",
        True,
    ),
    End(
        "E3a node pressure, reason alone",
        ended(1, 137, reason="Evicted", message=KUBELET_EVICTED),
        "Disruption",
        "Evicted",
        True,
    ),
    End(
        "E3b own storage limit",
        ended(1, 137, reason="Evicted", message=OWN_STORAGE),
        "Application",
        "StorageLimitExceeded",
        True,
    ),
    End(
        "E3b emptyDir limit",
        ended(1, 137, reason="Evicted", message=EMPTY_DIR),
        "Application",
        "StorageLimitExceeded",
        True,
    ),
    End(
        "E6 taint manager",
        pod(1, gone=True, conditions=(disrupted("DeletionByTaintManager"),)),
        "Disruption",
        "DeletionByTaintManager",
        False,
    ),
    End(
        "E9 pod garbage collection marks Failed without asking a kubelet",
        pod(1, phase="Failed", conditions=(disrupted("DeletionByPodGC"),)),
        "Disruption",
        "DeletionByPodGC",
        False,
    ),
    End(
        "E9 the same before its container was reported",
        pod(1, state=ContainerState.ABSENT, phase="Failed", conditions=(disrupted("DeletionByPodGC"),)),
        "Disruption",
        "DeletionByPodGC",
        False,
    ),
    End("E11 force deleted", pod(1, gone=True), "Disruption", "PodDeleted", False),
    End(
        "E11 deleted, its end seen", ended(1, 143, gone=True, deletion_epoch_ms=at(0)), "Disruption", "PodDeleted", True
    ),
    End("E11 deleted, killed at its grace", ended(1, 137, deletion_epoch_ms=at(0)), "Disruption", "PodDeleted", True),
    End(
        "C27 deleted, left with 0 on SIGTERM",
        ended(1, 0, deletion_epoch_ms=at(0), phase="Succeeded"),
        "Disruption",
        "PodDeleted",
        True,
    ),
    End(
        "E12 node shutdown",
        ended(1, 143, reason="Terminated", message="Pod was terminated in response to imminent node shutdown."),
        "Disruption",
        "NodeShutdown",
        True,
    ),
    End(
        "E12 with condition",
        ended(1, 137, reason="Terminated", conditions=(disrupted("TerminationByKubelet"),)),
        "Disruption",
        "TerminationByKubelet",
        True,
    ),
    End(
        "E14 preemption",
        pod(1, gone=True, conditions=(disrupted("PreemptionByScheduler"),)),
        "Disruption",
        "PreemptionByScheduler",
        False,
    ),
    End("kubelet preemption", ended(1, 137, reason="Preempting"), "Disruption", "Preempted", True),
    End(
        "E13 reboot",
        ended(1, 137, agent_reason="ContainerStatusUnknown"),
        "Disruption",
        "ContainerStatusUnknown",
        False,
    ),
    End(
        "E13 power off and return, as containerd tells it",
        ended(1, 255, agent_reason="Unknown", agent_message=said(StopReason.TERMINATED)),
        "Disruption",
        "ContainerStatusUnknown",
        False,
    ),
    End("Failed, and nothing tells why", pod(1, phase="Failed"), "Disruption", "PodFailed", False),
    # --- the SDK's exit codes
    End(
        "69", ended(1, 69, agent_message=said(StopReason.JOURNAL_UNREACHABLE)), "Disruption", "JournalUnreachable", True
    ),
    End("E7 75", ended(1, 75, agent_message=said(StopReason.FENCED)), "Disruption", "Superseded", True),
    End("143 without a deletion", ended(1, 143), "Disruption", "Terminated", True),
    End(
        "64 entrypoint",
        ended(1, 64, agent_message=said(StopReason.BAD_ENTRYPOINT, "no module x")),
        "Refused",
        "BadEntrypoint",
        True,
    ),
    End("64 inputs", ended(1, 64, agent_message=said(StopReason.BAD_INPUTS)), "Refused", "BadInputs", True),
    End("64 without a word", ended(1, 64), "Refused", "BadConfig", True),
    End("65 diverged", ended(1, 65, agent_message=said(StopReason.DIVERGED)), "Refused", "Diverged", True),
    End(
        "65 tampered",
        ended(1, 65, agent_message=said(StopReason.JOURNAL_TAMPERED, bad_seq=33)),
        "Refused",
        "JournalTampered",
        True,
    ),
    End("65 lost", ended(1, 65, agent_message=said(StopReason.JOURNAL_LOST)), "Refused", "JournalLost", True),
    End(
        "65 unreadable",
        ended(1, 65, agent_message=said(StopReason.JOURNAL_UNREADABLE)),
        "Refused",
        "JournalUnreadable",
        True,
    ),
    End("65 without a word", ended(1, 65), "Refused", "JournalRefused", True),
    End(
        "65 during a drain is still a refusal",
        ended(1, 65, agent_message=said(StopReason.DIVERGED), conditions=(disrupted("EvictionByEvictionAPI"),)),
        "Refused",
        "Diverged",
        True,
    ),
    End("70 without a record", ended(1, 70), "Application", "AgentFailed", True),
    End("C27 exit 0 without a record", ended(1, 0, phase="Succeeded"), "Application", "ExitedWithoutRecord", True),
    End(
        "exit 1",
        ended(1, 1, agent_message="Traceback (most recent call last):\nValueError: no"),
        "Application",
        "Exited",
        True,
    ),
    End("segmentation fault", ended(1, 139), "Application", "Exited", True),
    # --- memory
    End("E4 OOMKilled", ended(1, 137, agent_reason="OOMKilled"), "OutOfMemory", "OOMKilled", True),
    End("E4 only 137", ended(1, 137), "OutOfMemory", "Killed", True),
    End(
        "E4 OOMKilled while being deleted",
        ended(1, 137, agent_reason="OOMKilled", deletion_epoch_ms=at(0)),
        "OutOfMemory",
        "OOMKilled",
        True,
    ),
    # --- never ran
    End(
        "E17 no Python in the image",
        ended(1, 128, agent_reason="StartError", agent_message=NO_PYTHON),
        "Refused",
        "NoSDK",
        True,
    ),
    End("no SDK in the image", ended(1, 1, agent_message=NO_EVERSTEP), "Refused", "NoSDK", True),
    End(
        "the runtime hiccuped",
        ended(1, 128, agent_reason="StartError", agent_message="cgroup: device busy"),
        "NotStarted",
        "StartFailed",
        True,
    ),
    End(
        "E19 full node",
        pod(
            1,
            state=ContainerState.ABSENT,
            phase="Failed",
            reason="OutOfcpu",
            message="Node didn't have enough resource: cpu",
        ),
        "NotStarted",
        "OutOfcpu",
        True,
    ),
    End(
        "E19 label removed",
        pod(1, state=ContainerState.ABSENT, phase="Failed", reason="NodeAffinity"),
        "NotStarted",
        "NodeAffinity",
        True,
    ),
]


@pytest.mark.parametrize("end", TABLE, ids=lambda e: e.name)
def test_an_end_is_classified(end: End) -> None:
    assert is_over(end.pod)
    loss = classify(end.pod)
    assert (loss.class_, loss.reason) == (end.class_, end.reason)
    assert loss.proven is end.proven, "proof of death"


def test_five_deaths_are_told_apart_by_class_and_reason() -> None:
    """C32: one word for all deaths tells nobody anything."""
    seen = {(classify(e.pod).class_, classify(e.pod).reason) for e in TABLE}
    assert len(seen) >= 25


def test_messages_say_what_happened() -> None:
    def of(name: str) -> Loss:
        return classify(next(e.pod for e in TABLE if e.name == name))

    assert "pip install everstep" in of("no SDK in the image").message
    assert "python -m everstep.run" in of("E17 no Python in the image").message
    assert "first bad record: 33" in of("65 tampered").message
    assert of("exit 1").message == "exit 1: ValueError: no"
    assert "256 MiB" in of("E4 OOMKilled").message
    assert "16Mi" in of("E3b own storage limit").message


@pytest.mark.parametrize(
    ("what", "view"),
    [
        ("running", pod(1)),
        ("running while being deleted", pod(1, deletion_epoch_ms=at(0))),
        ("pending", pod(1, state=ContainerState.WAITING)),
        ("not reported yet", pod(1, state=ContainerState.ABSENT)),
        ("unknown to the node controller", pod(1, phase="Unknown")),
    ],
)
def test_a_pod_that_may_live_is_not_over(what: str, view: PodView) -> None:
    """C23: nothing is replaced while it may run, unless it is given up and fenced."""
    assert not is_over(view), what


def test_an_ended_agent_ends_the_attempt_although_a_sidecar_runs_on() -> None:
    assert is_over(ended(1, 1, phase="Running"))
