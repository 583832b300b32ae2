"""Losses of the journal's store: Redis killed in the middle of appends, then its node without power. E26, E27a, C52.

A second release of the chart has its Redis on a worker, so that the node can be taken away.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.conftest import AGENT_ENV, PINNED, ROOT, SYSTEM, namespace
from tests.e2e.harness import Kube, Run, WorldView, wait_for
from tests.e2e.moments import bring_to_moments
from tests.e2e.test_pod_losses import each_held, judge_all, void
from tests.kind import faults
from tests.kind.cluster import Cluster
from tests.support.install import helm

RUNS = "e2e-redis-runs"
RELEASE = "e2e-redis"
TICKETS = 40
AddRow = Callable[..., None]


@pytest.fixture
def second_release(cluster: Cluster, kube: Kube, scripted: str) -> Iterator[str]:
    """A release whose Redis lives on the second worker; its runs live on the first."""
    namespace(kube, RUNS)
    source = (ROOT / "tests/e2e/agents/scripted.py").read_text(encoding="utf-8")
    kube.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "scripted", "namespace": RUNS},
            "data": {"scripted.py": source},
        }
    )
    values = {
        "crds": {"enabled": False},  # the first release owns them
        "installation": RELEASE,
        "watchNamespaces": [RUNS],
        "image": {"repository": "everstep/operator", "tag": "dev", "pullPolicy": "IfNotPresent"},
        "operator": PINNED,
        "redis": {
            "image": {"repository": "everstep/redis", "tag": "dev", "pullPolicy": "IfNotPresent"},
            "nodeSelector": {"kubernetes.io/hostname": cluster.workers[1]},
        },
    }
    path = ROOT / ".pytest_cache" / "e2e-redis-values.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    helm(
        cluster, "upgrade", "--install", RELEASE, str(ROOT / "charts/everstep"), "-n", SYSTEM, "-f", str(path), "--wait"
    )
    yield RELEASE
    kube("-n", RUNS, "delete", "agentruns", "--all", "--wait=false")
    helm(cluster, "uninstall", RELEASE, "-n", SYSTEM)


def redis_pod(kube: Kube) -> dict[str, Any]:
    """The running Redis pod of the second release."""

    def look() -> dict[str, Any] | None:
        selector = f"app.kubernetes.io/component=redis,app.kubernetes.io/instance={RELEASE}"
        items = kube.json("-n", SYSTEM, "get", "pods", "-l", selector)["items"]
        ready = [
            p
            for p in items
            if "deletionTimestamp" not in p["metadata"]
            and any(s.get("ready") for s in p["status"].get("containerStatuses", []))
        ]
        return ready[0] if ready else None

    return wait_for("Redis to be ready", look, timeout_s=180)


def spec(name: str, node: str) -> dict[str, Any]:
    """A run pinned to one node."""
    return {
        "goal": name,
        "inputs": {"tickets": TICKETS},
        "agent": {"entrypoint": "scripted:run", "image": "everstep/agent:dev", "env": AGENT_ENV},
        "template": {
            "volumes": [{"name": "scripted", "configMap": {"name": "scripted"}}],
            "volumeMounts": [{"name": "scripted", "mountPath": "/scripted"}],
            "nodeSelector": {"kubernetes.io/hostname": node},
        },
    }


@pytest.mark.timeout(600)
def test_redis_killed_mid_append_and_its_node_stopped(
    cluster: Cluster, kube: Kube, second_release: str, world: WorldView, add_row: AddRow
) -> None:
    """With fsync on every write and the volume kept nothing is lost: runs wait, then go on where they were."""
    runs = [Run(kube, RUNS, f"store-{n}", spec(f"store-{n}", cluster.workers[0])).create() for n in range(3)]

    def mails(at_least: int) -> bool:
        return all(len(world.requests(run.name)["mail"]) >= at_least for run in runs)

    wait_for("all runs to be at work", lambda: mails(3), timeout_s=90)
    for n in range(2):
        pod = redis_pod(kube)
        faults.kill_container_pid1(cluster, pod["spec"]["nodeName"], pod["metadata"]["uid"], container="redis")
        seen = min(len(world.requests(run.name)["mail"]) for run in runs)
        wait_for(f"work to go on after kill {n + 1}", lambda seen=seen: mails(min(seen + 2, TICKETS)), timeout_s=120)  # type: ignore[misc]  # mypy cannot infer a default
    faults.power_off(cluster, cluster.workers[1])
    wait_for("the runs to stand still or wait", lambda: not all_finished(runs), timeout_s=30)
    faults.power_on(cluster, cluster.workers[1])
    redis_pod(kube)
    for run in runs:
        status = run.wait_finished(timeout_s=240)
        assert status["summary"] == "Succeeded", run.summary()
        requests = world.requests(run.name)
        twice = {ticket: n for ticket, n in requests["mail"].items() if n != 1}
        assert not twice, f"mails sent twice over a lost Redis: {twice}"
        assert len(requests["mail"]) == TICKETS
        told = " ".join(f"{kind} {sum(found.values())}/{TICKETS}" for kind, found in requests.items())
        add_row("Redis killed twice, its node off", "any", "Succeeded", status["attempt"], told)


@pytest.mark.timeout(600)
def test_redis_killed_at_every_moment(
    cluster: Cluster, kube: Kube, second_release: str, world: WorldView, add_row: AddRow
) -> None:
    """Redis dies while five runs are at M1-M5, then their pods do: the journal that comes back carries all of them."""

    def make(name: str, *, fault: str = "", inputs: dict[str, Any] | None = None, node: str = "") -> Run:
        whole = spec(name, node)
        whole["inputs"] = inputs or {}
        whole["agent"]["env"] = [*AGENT_ENV, {"name": "EVERSTEP_FAULTS", "value": fault}]
        whole["template"]["terminationGracePeriodSeconds"] = 2
        return Run(kube, RUNS, name, whole).create()

    moments = bring_to_moments(make, "rkill", node=cluster.workers[0])
    pod = redis_pod(kube)
    faults.kill_container_pid1(cluster, pod["spec"]["nodeName"], pod["metadata"]["uid"], container="redis")
    each_held(moments, lambda run, held: void(kube("-n", RUNS, "delete", "pod", held, "--wait=false")))
    judge_all(moments, "Redis killed, then the pods", "Disruption", world, add_row, may_ask=True)


def all_finished(runs: list[Run]) -> bool:
    """Whether every run is over."""
    return all(run.condition("Finished").get("status") == "True" for run in runs)
