"""Losses of a node: power, the way to the API server, a result that nobody saw. E6, E7, E8, C19, C22, C27."""

from collections.abc import Callable

import pytest

from tests.e2e.harness import Kube, Run, WorldView, wait_for
from tests.e2e.moments import bring_to_moments, finish_and_judge
from tests.e2e.operators import operator_away
from tests.e2e.test_pod_losses import judge_all
from tests.kind import faults
from tests.kind.cluster import Cluster
from tests.kind.errors import CommandFailed

Make = Callable[..., Run]
AddRow = Callable[..., None]
SECONDS_UNTIL_FINISHED = 20
"""How long the run sleeps while the operator is taken away: shorter than its linger time of 30 s, so its pod stays."""


def pods_on(moments_runs: list[Run], node: str) -> dict[str, str]:
    """Run name → pod name of the live pods on a node."""
    found = {}
    for run in moments_runs:
        for pod in run.pods():
            if pod["spec"].get("nodeName") == node and pod["status"].get("phase") == "Running":
                found[run.name] = pod["metadata"]["name"]
    return found


@pytest.mark.timeout(600)
def test_power_off_and_return(cluster: Cluster, make_run: Make, world: WorldView, add_row: AddRow) -> None:
    """E6: the node loses power in mid-step; a fenced replacement runs elsewhere; the returning node changes nothing."""
    node = cluster.workers[0]
    moments = bring_to_moments(make_run, "power", node=node)
    assert len(pods_on(moments.held_runs(), node)) == len(moments.held_runs()), "all pods must be on the node that goes"
    faults.power_off(cluster, node)
    try:
        judge_all(moments, "node power-off", "Disruption", world, add_row, may_ask=True)
    finally:
        faults.power_on(cluster, node)
    before = {name: run.attempt() for name, run in moments.runs.items()}
    wait_for("the old pods to go", lambda: not pods_on(moments.held_runs(), node), timeout_s=90)
    assert {name: run.attempt() for name, run in moments.runs.items()} == before, (
        "the return of the node changed something"
    )


@pytest.mark.timeout(600)
def test_partition_from_the_api_server(cluster: Cluster, make_run: Make, world: WorldView, add_row: AddRow) -> None:
    """E7, E8: the old process lives on and reaches Redis; its next write is FENCED, it starts no further effect and exits 75."""
    node = cluster.workers[0]
    moments = bring_to_moments(make_run, "part", node=node)
    # A sixth run keeps working (or rather waits on a slow tool) behind the partition: it must meet the fence by itself.
    walker = make_run("part-live", node=node, inputs={"tickets": 2000})
    wait_for("the sixth run to work", lambda: walker.status().get("summary") == "Running", timeout_s=60)
    pod = walker.wait_live_pod()
    assert pod["spec"]["nodeName"] == node
    container = faults.container_id(cluster, node, pod["metadata"]["uid"], "agent")
    faults.partition_api(cluster, node)
    try:
        wait_for("the sixth run's replacement", lambda: walker.attempt() >= 2, timeout_s=150)
        wait_for("the fenced process to end by itself", lambda: exited(cluster, node, container), timeout_s=90)
        code, said = exit_of(cluster, node, container)
        assert code == 75, f"the fenced process exited {code}: {said}"
        assert "attempt 2 has replaced attempt 1" in said, f"not ended by a FENCED answer: {said}"
        judge_all(moments, "partition from the API server", "Disruption", world, add_row, may_ask=True)
    finally:
        faults.heal(cluster, node)
    before = walker.attempt()
    wait_for(
        "the old pod to go",
        lambda: not [p for p in walker.pods() if p["metadata"]["name"] == "part-live-1"],
        timeout_s=90,
    )
    assert walker.attempt() == before, "the healed partition caused another attempt"
    requests = world.requests("part-live")
    assert requests["mail"], "the sixth run never sent a mail"
    twice = {ticket: n for ticket, n in requests["mail"].items() if n != 1}
    assert len(twice) == 0, f"two live processes sent a mail twice: {twice}"


def exited(cluster: Cluster, node: str, container: str) -> bool:
    """Whether a container has ended, by the word of its node's runtime (the API server cannot know)."""
    return '"CONTAINER_EXITED"' in faults.node_exec(cluster, node, ["crictl", "inspect", "--output", "json", container])


def exit_of(cluster: Cluster, node: str, container: str) -> tuple[int, str]:
    """Exit code and log of an ended container, from its node."""
    template = ["crictl", "inspect", "--output", "go-template", "--template", "{{.status.exitCode}}", container]
    code = int(faults.node_exec(cluster, node, template).strip())
    log = faults.node_exec(cluster, node, ["sh", "-c", f"crictl logs --tail 20 {container} 2>&1"])
    return code, log


@pytest.mark.timeout(600)
def test_finished_but_nobody_saw_it(
    cluster: Cluster, kube: Kube, make_run: Make, world: WorldView, add_row: AddRow
) -> None:
    """C27: `finished` is in the journal, then pod and node die; success is the record, whichever attempt wrote it.

    The operator is away from before the record until after the loss: an operator that is there reads it within seconds.
    """
    node = cluster.workers[1]
    inputs = {"tickets": 2, "sleep_after": 0, "sleep_s": SECONDS_UNTIL_FINISHED}
    run = make_run("unseen", node=node, fault="after_finished@1=hold", inputs=inputs)
    assert run.wait_live_pod()["spec"]["nodeName"] == node
    try:
        with operator_away(kube):
            pod = run.wait_holding(1)
            assert run.condition("Finished").get("status") != "True", "somebody saw it before its node died"
            faults.power_off(cluster, node)
        status = run.wait_finished(timeout_s=180)
    finally:
        faults.power_on(cluster, node)
    assert status["summary"] == "Succeeded", run.summary()
    requests = world.requests("unseen")
    assert all(n == 1 for kind in requests.values() for n in kind.values()), (
        f"{pod} finished, yet work was repeated: {requests}"
    )
    add_row("node dies after `finished`", "end", "Succeeded", status["attempt"], "nothing repeated")


@pytest.mark.timeout(600)
def test_api_server_restarted(cluster: Cluster, make_run: Make, world: WorldView, add_row: AddRow) -> None:
    """E23: the API server goes away and comes back; agents notice nothing, nothing is replaced."""
    moments = bring_to_moments(make_run, "api")
    worker = make_run("api-live", inputs={"tickets": 12})
    wait_for("a run at work", lambda: worker.status().get("summary") == "Running", timeout_s=60)
    faults.restart_apiserver(cluster)
    status = worker.wait_finished(timeout_s=120)
    assert status["attempt"] == 1, f"an agent was disturbed by the API server: {status['attempts']}"
    for moment, run in moments.runs.items():
        if moment != "M4":
            assert run.attempt() == moments.attempts_before[moment], f"{run.name} was replaced although its pod lived"
    # The held pods go on only when they are lost; lose them now, under the new API server.
    for moment, pod in moments.held_pods.items():
        target = moments.runs[moment]
        try:
            target.kube("-n", target.namespace, "delete", "pod", pod, "--wait=false")
        except CommandFailed as e:
            raise AssertionError(f"{pod} was gone before anybody deleted it") from e
    for moment in moments.runs:
        outcome = finish_and_judge(moments, moment, world)
        add_row("API server restarted, then delete", moment, "Succeeded", outcome.status["attempt"], outcome.requests)
