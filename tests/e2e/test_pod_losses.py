"""Losses of a pod or its process, each at all five moments: E1, E2, E4, E11, C17, C21, C24, C26, C27, C34."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from tests.e2e.conftest import NAMESPACE
from tests.e2e.harness import Kube, Run, WorldView, wait_for
from tests.e2e.moments import Moments, bring_to_moments, finish_and_judge, kill_process_1
from tests.kind import faults
from tests.kind.cluster import Cluster
from tests.kind.errors import CommandFailed

Make = Callable[..., Run]
AddRow = Callable[..., None]


def each_held(moments: Moments, do: Callable[[Run, str], None]) -> None:
    """Hit all runs that have a pod at the same time."""
    with ThreadPoolExecutor(5) as pool:
        list(pool.map(lambda m: do(moments.runs[m], moments.held_pods[m]), moments.held_pods))


def judge_all(
    moments: Moments, loss: str, class_: str, world: WorldView, add_row: AddRow, *, may_ask: bool = False
) -> None:
    """Judge the five runs and put a row each into the table."""
    for moment, run in moments.runs.items():
        outcome = finish_and_judge(moments, moment, world)
        status = outcome.status
        if moment == "M4":
            # Parked and woken: two attempts, no loss, whatever happened meanwhile.
            assert status["attempt"] == 2, f"{run.name}: a parked run was disturbed: {status['attempts']}"
        else:
            assert status["attempt"] > moments.attempts_before[moment], status
            lost = [a for a in status["attempts"] if a["number"] == moments.attempts_before[moment]]
            assert lost, f"{run.name}: no trace of the lost attempt in {status['attempts']}"
            assert lost[0]["class"] == class_, lost
        assert may_ask or not outcome.uncertain, f"{run.name} asked although the old process was proved dead"
        label = "settled by a person" if outcome.uncertain else "Succeeded"
        add_row(loss, moment, label, status["attempt"], outcome.requests, outcome.resumed_after_s)


def test_kill_9_of_process_1(cluster: Cluster, make_run: Make, world: WorldView, add_row: AddRow) -> None:
    """`kill -9` from the node. Nobody can tell it from the kernel's own SIGKILL of a child, so it is charged as out of memory."""
    moments = bring_to_moments(make_run, "kill")

    each_held(moments, partial(kill_process_1, cluster))
    judge_all(moments, "kill -9 of PID 1", "OutOfMemory", world, add_row)


def test_out_of_memory(make_run: Make, world: WorldView, add_row: AddRow) -> None:
    """E4: the kernel ends the process; charged to the out-of-memory budget only."""
    moments = bring_to_moments(make_run, "oom", action="oom")
    moments.attempts_before = {"M1": 1, "M2": 1, "M3": 1, "M4": 1, "M5": 2}
    judge_all(moments, "OOM kill", "OutOfMemory", world, add_row)


@pytest.mark.parametrize(
    ("name", "flags", "may_ask"),
    [("delete", [], True), ("force", ["--force", "--grace-period=0"], True)],
    ids=["delete", "force-delete"],
)
def test_delete_pod(
    kube: Kube, make_run: Make, world: WorldView, add_row: AddRow, name: str, flags: list[str], may_ask: bool
) -> None:
    """E11: a stranger deletes the pod, with and without grace. Not charged."""
    moments = bring_to_moments(make_run, name)
    each_held(moments, lambda run, pod: void(kube("-n", NAMESPACE, "delete", "pod", pod, "--wait=false", *flags)))
    judge_all(moments, f"kubectl delete pod {' '.join(flags)}".strip(), "Disruption", world, add_row, may_ask=may_ask)


def void(_: object) -> None:
    """Forget a value."""


def test_drain(cluster: Cluster, kube: Kube, make_run: Make, world: WorldView, add_row: AddRow) -> None:
    """E1: `kubectl drain` of the node, with no flag that loses data."""
    node = cluster.workers[0]
    moments = bring_to_moments(make_run, "drain", node=node)
    on_node = [p for run in moments.held_runs() for p in run.pods() if p["spec"].get("nodeName") == node]
    assert on_node, "no pod landed on the node that is to be drained"
    try:
        kube("drain", node, "--ignore-daemonsets", "--timeout=90s", timeout_s=120)
        for moment, pod in moments.held_pods.items():
            run = moments.runs[moment]
            if not any(p["metadata"]["name"] == pod and p["spec"].get("nodeName") == node for p in on_node):
                kube("-n", NAMESPACE, "delete", "pod", pod, "--wait=false")
            assert run.name
        judge_all(moments, "kubectl drain", "Disruption", world, add_row, may_ask=True)
    finally:
        kube("uncordon", node)


def test_eviction_against_a_budget(kube: Kube, make_run: Make, world: WorldView, add_row: AddRow) -> None:
    """E2: the eviction is refused while a PodDisruptionBudget forbids it, and moves the run once it is gone."""
    moments = bring_to_moments(make_run, "evict")
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "evict", "namespace": NAMESPACE},
        "spec": {
            "minAvailable": 99,
            "selector": {"matchExpressions": [{"key": "everstep.dev/run", "operator": "Exists"}]},
        },
    }
    kube.apply(budget)

    def evict(pod: str) -> None:
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": NAMESPACE}}
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction"
        kube("create", "--raw", path, "-f", "-", stdin=json.dumps(body))

    def budget_known() -> bool:
        status = kube.json("-n", NAMESPACE, "get", "pdb", "evict")["status"]
        return bool(status.get("observedGeneration")) and status.get("expectedPods", 0) >= 4

    try:
        wait_for("the budget to be counted", budget_known, timeout_s=60)
        for pod in moments.held_pods.values():
            with pytest.raises(CommandFailed, match="disruption budget"):
                evict(pod)
        for moment, run in moments.runs.items():
            assert run.attempt() == moments.attempts_before[moment], "a refused eviction must change nothing"
    finally:
        kube("-n", NAMESPACE, "delete", "pdb", "evict", "--ignore-not-found")
    each_held(moments, lambda run, pod: evict(pod))
    judge_all(moments, "API eviction against a PDB", "Disruption", world, add_row, may_ask=True)


@pytest.mark.timeout(600)
def test_twenty_kills_in_one_run(cluster: Cluster, make_run: Make, world: WorldView, add_row: AddRow) -> None:
    """C17, C34: the process is killed 20 times from its node, wherever it happens to be; a crash costs one step."""
    tickets, kills = 150, 20
    run = make_run("kill20", inputs={"tickets": tickets, "pace_s": 0.3})
    killed: set[str] = set()
    mails = 0
    for number in range(kills):
        look = partial(at_work, run, world, killed, mails)
        pod = wait_for(f"work after kill {number}", look, timeout_s=90, every_s=0.2)
        mails = sum(world.requests(run.name)["mail"].values())
        faults.kill_container_pid1(cluster, pod["spec"]["nodeName"], pod["metadata"]["uid"])
        killed.add(pod["metadata"]["name"])
    status = run.wait_finished(timeout_s=240)
    assert status["summary"] == "Succeeded", run.summary()
    assert status["attempt"] >= kills + 1
    requests = world.requests(run.name)
    assert {t: n for t, n in requests["mail"].items() if n != 1} == {}, "every mail went out exactly once"
    assert len(requests["mail"]) == tickets
    extra = {kind: sum(requests[kind].values()) - tickets for kind in ("model", "ticket")}
    assert extra["model"] + extra["ticket"] <= kills, f"a crash costs at most one step: {extra}"
    add_row(
        "kill -9 of PID 1, 20 times",
        "any",
        "Succeeded",
        status["attempt"],
        f"mail {tickets}/{tickets}, repeated {extra}",
    )


def at_work(run: Run, world: WorldView, killed: set[str], mails: int) -> dict[str, Any] | None:
    """The live pod, once it is a new one and more than `mails` mails have gone out."""
    if sum(world.requests(run.name)["mail"].values()) <= mails:
        return None
    pod = run.live_pod()
    return None if pod is None or pod["metadata"]["name"] in killed else pod
