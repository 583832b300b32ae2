"""Losses of the operator: killed between each two steps of the attempt protocol, killed in the middle of five losses, and
two of them at once without a Lease. E20, E21, C23, C28."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from tests.e2e.conftest import NAMESPACE, SYSTEM
from tests.e2e.harness import Kube, Run, WorldView, wait_for
from tests.e2e.moments import bring_to_moments, kill_process_1, live_pods
from tests.e2e.operators import deployment, rolled_out
from tests.e2e.test_pod_losses import each_held, judge_all, void
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
OVERSLEPT_S = 900
"""The parked run's sleep, longer than any of these tests may take."""


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
    """E20: exactly one live attempt after the restart, no orphan pod, no number used twice; a parked run sleeps on."""
    moments = bring_to_moments(make_run, f"op-{point.replace('_', '-')}", parked_s=OVERSLEPT_S)
    parked = moments.runs.pop("M4")
    with operator_that_dies_at(kube, point):
        each_held(moments, partial(kill_process_1, cluster))
        wait_for(f"the operator to die at {point}", lambda: operator_restarts(kube) >= 1, timeout_s=60)
        judge_all(moments, f"operator killed {point}", "OutOfMemory", world, add_row)
    for run in moments.runs.values():
        attempts = run.status()["attempts"]
        numbers = [a["number"] for a in attempts]
        assert numbers == list(range(1, len(numbers) + 1)), f"numbers skipped or used twice: {attempts}"
        wait_for(f"{run.name} to have no live pod left", partial(has_no_pod, run), timeout_s=60)
    assert parked.condition("Parked").get("status") == "True", parked.summary()
    assert parked.attempt() == 1, parked.status()
    assert has_no_pod(parked)
    add_row(f"operator killed {point}", "M4", "Parked, untouched", 1, "")


def has_no_pod(run: Run) -> bool:
    """That has not ended."""
    return not live_pods(run)


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

        each_held(moments, partial(kill_process_1, cluster))
        judge_all(moments, "kill -9 under two operators", "OutOfMemory", world, add_row)
        for run in moments.runs.values():
            names = [p["metadata"]["name"] for p in run.pods()]
            assert len(names) == len(set(names))
    finally:
        kube("-n", SYSTEM, "scale", f"deployment/{name}", "--replicas=1")
        rolled_out(kube, name)
