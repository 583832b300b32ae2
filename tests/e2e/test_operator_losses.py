"""Losses of the operator: killed between each two steps of the attempt protocol, killed in the middle of five losses, and
two of them at once without a Lease. E20, E21, C23, C28."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.e2e.conftest import NAMESPACE, SYSTEM
from tests.e2e.harness import Kube, Run, WorldView, wait_for
from tests.e2e.moments import HIT_CALL, TICKETS, bring_to_moments
from tests.e2e.operators import deployment, rolled_out
from tests.e2e.test_pod_losses import each_held, judge_all, void
from tests.kind import faults
from tests.kind.cluster import Cluster

Make = Callable[..., Run]
AddRow = Callable[..., None]

PROTOCOL_POINTS = (
    "after_pod_gone",
    "before_bump",
    "after_bump",
    "before_fence",
    "after_fence",
    "before_create_pod",
    "after_create_pod",
    "after_status",
)


@contextmanager
def operator_that_dies_at(kube: Kube, point: str) -> Iterator[None]:
    """An operator that kills itself the first time it reaches a point, and does not when it comes back."""
    name = deployment(kube)
    kube(
        "-n",
        SYSTEM,
        "set",
        "env",
        f"deployment/{name}",
        f"EVERSTEP_OPERATOR_FAULTS={point}=kill",
        "EVERSTEP_OPERATOR_FAULTS_DIR=/dev/shm/faults",
    )
    rolled_out(kube, name)
    try:
        yield
    finally:
        kube(
            "-n",
            SYSTEM,
            "set",
            "env",
            f"deployment/{name}",
            "EVERSTEP_OPERATOR_FAULTS-",
            "EVERSTEP_OPERATOR_FAULTS_DIR-",
        )
        rolled_out(kube, name)


def operator_restarts(kube: Kube) -> int:
    """Container restarts of the operator's pods."""
    pods = kube.json("-n", SYSTEM, "get", "pods", "-l", "app.kubernetes.io/component=operator")["items"]
    return sum(s["restartCount"] for pod in pods for s in pod["status"].get("containerStatuses", []))


@pytest.mark.parametrize("point", PROTOCOL_POINTS)
def test_operator_killed_between_two_steps(
    cluster: Cluster, kube: Kube, make_run: Make, world: WorldView, add_row: AddRow, point: str
) -> None:
    """E20: exactly one live attempt after the restart, no orphan pod, no number used twice."""
    run = make_run(
        f"op-{point.replace('_', '-')}", fault=f"after_intent:{HIT_CALL}@1=hold", inputs={"tickets": TICKETS}
    )
    run.wait_holding(1)
    with operator_that_dies_at(kube, point):
        pod = run.wait_live_pod()
        faults.kill_container_pid1(cluster, pod["spec"]["nodeName"], pod["metadata"]["uid"])
        wait_for(f"the operator to die at {point}", lambda: operator_restarts(kube) >= 1, timeout_s=60)
        status = run.wait_finished(timeout_s=120)
    assert status["summary"] == "Succeeded", run.summary()
    numbers = [a["number"] for a in status["attempts"]]
    assert numbers == list(range(1, len(numbers) + 1)), f"numbers skipped or used twice: {status['attempts']}"
    requests = world.requests(run.name)
    assert set(requests["mail"].values()) == {1}, requests["mail"]
    assert len(requests["mail"]) == TICKETS
    wait_for(
        "no live pod to be left", lambda: not [p for p in run.pods() if p["status"]["phase"] == "Running"], timeout_s=60
    )
    told = " ".join(f"{kind} {sum(found.values())}/{TICKETS}" for kind, found in requests.items())
    add_row(f"operator killed {point}", "M2", "Succeeded", status["attempt"], told)


def test_operator_deleted_amid_losses(kube: Kube, make_run: Make, world: WorldView, add_row: AddRow) -> None:
    """The operator's pod is force-deleted at the same moment as five pods of runs."""
    moments = bring_to_moments(make_run, "opdel")
    kube(
        "-n",
        SYSTEM,
        "delete",
        "pod",
        "-l",
        "app.kubernetes.io/component=operator",
        "--force",
        "--grace-period=0",
        "--wait=false",
    )
    each_held(moments, lambda run, pod: void(kube("-n", NAMESPACE, "delete", "pod", pod, "--wait=false")))
    judge_all(moments, "operator and pods deleted", "Disruption", world, add_row, may_ask=True)


def test_two_operators_without_a_lease(
    cluster: Cluster, kube: Kube, make_run: Make, world: WorldView, add_row: AddRow
) -> None:
    """E21: two replicas act on the same runs; at most one pod per attempt, nothing twice."""
    name = deployment(kube)
    kube("-n", SYSTEM, "scale", f"deployment/{name}", "--replicas=2")
    try:
        rolled_out(kube, name)
        moments = bring_to_moments(make_run, "twoop")

        def hit(run: Run, pod: str) -> None:
            found: dict[str, Any] = next(p for p in run.pods() if p["metadata"]["name"] == pod)
            faults.kill_container_pid1(cluster, found["spec"]["nodeName"], found["metadata"]["uid"])

        each_held(moments, hit)
        judge_all(moments, "kill -9 under two operators", "OutOfMemory", world, add_row)
        for run in moments.runs.values():
            names = [p["metadata"]["name"] for p in run.pods()]
            assert len(names) == len(set(names))
    finally:
        kube("-n", SYSTEM, "scale", f"deployment/{name}", "--replicas=1")
        rolled_out(kube, name)
