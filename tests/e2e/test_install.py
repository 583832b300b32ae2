"""The chart as a user meets it: installed into a restricted namespace, upgraded, uninstalled, installed again; nothing is lost.

E25 (uninstall), E27 (Redis comes back with its volume), C43 (the operator's rights suffice and are no more than tested).
"""

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import PINNED, ROOT
from tests.e2e.harness import Kube, Run, wait_for
from tests.kind.cluster import Cluster
from tests.support.install import helm

RELEASE = SYSTEM = "charttest"
RUNS = "charttest-runs"
SECRETS = ("charttest-everstep-keys", "charttest-everstep-redis-auth", "charttest-everstep-keys-signing")
CLAIM = "data-charttest-everstep-redis-0"
AGENT = """
import everstep


@everstep.step(effect="read")
async def double(number: int) -> int:
    return 2 * number


@everstep.agent
async def run(goal: str) -> str:
    return f"{goal}: {await double(21)}"
"""

pytestmark = pytest.mark.timeout(600)


def values(**changes: Any) -> dict[str, Any]:
    """The values of a release that serves one namespace, on the node that no scenario takes away."""
    return {
        "crds": {"enabled": False},
        "watchNamespaces": [RUNS],
        "image": {"repository": "everstep/operator", "tag": "dev"},
        "agent": {"image": {"repository": "everstep/agent", "tag": "dev"}},
        "operator": {**PINNED, **changes.get("operator", {})},
        "redis": {"image": {"repository": "everstep/redis", "tag": "dev"}, **PINNED, **changes.get("redis", {})},
    }


def upgrade(cluster: Cluster, folder: Path, wanted: Mapping[str, Any]) -> None:
    """`helm upgrade --install … --wait`."""
    file = folder / "values.json"
    file.write_text(json.dumps(wanted), encoding="utf-8")
    chart = str(ROOT / "charts/everstep")
    words = ["upgrade", "--install", RELEASE, chart, "-n", SYSTEM, "-f", str(file), "--wait", "--timeout", "180s"]
    helm(cluster, *words)


@pytest.fixture(scope="module")
def installed(cluster: Cluster, api_server: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    """The release in namespaces where Pod Security admits restricted pods only; everything of it is removed at the end."""
    kube = api_server
    remove(cluster, kube)
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    for name in (SYSTEM, RUNS):
        kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": restricted}})
    agent = {"name": "agent-code", "namespace": RUNS}
    kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": agent, "data": {"doubling.py": AGENT}})
    upgrade(cluster, tmp_path_factory.mktemp("values"), values())
    yield kube
    remove(cluster, kube)


def remove(cluster: Cluster, kube: Kube) -> None:
    """Uninstall and delete both namespaces, whatever is there."""
    helm(cluster, "uninstall", RELEASE, "-n", SYSTEM, "--wait", "--ignore-not-found")
    kube("delete", "namespace", RUNS, SYSTEM, "--ignore-not-found", "--timeout=120s", timeout_s=130)


def make_run(kube: Kube, name: str, *, namespace: str = RUNS, **spec: Any) -> Run:
    """An AgentRun of the doubling agent."""
    template = {
        "volumes": [{"name": "code", "configMap": {"name": "agent-code"}}],
        "volumeMounts": [{"name": "code", "mountPath": "/code"}],
    }
    agent = {"entrypoint": "doubling:run", "env": [{"name": "PYTHONPATH", "value": "/code"}]}
    return Run(kube, namespace, name, {"goal": name, "agent": agent, "template": template, **spec}).create()


def pods(kube: Kube) -> dict[str, Any]:
    """Component → its pod."""
    items = kube.json("-n", SYSTEM, "get", "pods")["items"]
    live = [p for p in items if "deletionTimestamp" not in p["metadata"]]
    return {p["metadata"]["labels"]["app.kubernetes.io/component"]: p for p in live}


def kept(kube: Kube) -> dict[str, str]:
    """What must outlive everything: name → content or uid."""
    found = {
        name: json.dumps(kube.json("-n", SYSTEM, "get", "secret", name)["data"], sort_keys=True) for name in SECRETS
    }
    claim = kube.json("-n", SYSTEM, "get", "pvc", CLAIM)
    return {**found, CLAIM: claim["metadata"]["uid"] + claim["spec"]["volumeName"]}


def operator_log(kube: Kube) -> str:
    return kube("-n", SYSTEM, "logs", "deployment/charttest-everstep")


def test_operator_and_redis_are_ready_and_a_run_succeeds(installed: Kube) -> None:
    """In restricted namespaces, with Roles alone, as the least of Redis' users; the log shows no refusal."""
    run = make_run(installed, "first")
    assert run.wait_finished()["summary"] == "Succeeded"
    for pod in pods(installed).values():
        statuses = pod["status"]["containerStatuses"]
        assert all(s["ready"] and s["restartCount"] == 0 for s in statuses), statuses
    log = operator_log(installed)
    assert "fit to use" in log
    for refusal in ("Traceback", "orbidden", "NOPERM", "HTTP 403"):
        assert refusal not in log, log


def test_metrics_and_health_are_served(installed: Kube) -> None:
    """Through the Service, on both ports."""
    path = f"/api/v1/namespaces/{SYSTEM}/services/charttest-everstep"
    assert "everstep_" in installed("get", "--raw", f"{path}:metrics/proxy/metrics")
    assert json.loads(installed("get", "--raw", f"{path}:health/proxy/healthz"))["complaints"] == []


def test_both_pods_can_be_drained(installed: Kube) -> None:
    """E1: without --force and --delete-emptydir-data, as far as our pods are concerned."""
    for component, pod in pods(installed).items():
        node = pod["spec"]["nodeName"]
        selector = f"app.kubernetes.io/component={component},app.kubernetes.io/instance={RELEASE}"
        told = installed("drain", node, "--ignore-daemonsets", f"--pod-selector={selector}", "--dry-run=server")
        assert f"evicting pod {SYSTEM}/{pod['metadata']['name']}" in told


def test_an_upgrade_without_changes_touches_no_pod(installed: Kube, cluster: Cluster, tmp_path: Path) -> None:
    """Rendered equal, so nothing restarts."""
    before = {c: p["metadata"]["uid"] for c, p in pods(installed).items()}
    upgrade(cluster, tmp_path, values())
    assert {c: p["metadata"]["uid"] for c, p in pods(installed).items()} == before


def test_an_upgrade_keeps_passwords_keys_and_data(installed: Kube, cluster: Cluster, tmp_path: Path) -> None:
    """Both pods are replaced, a parked run survives it and finishes, and earlier journals are still there."""
    before, uids = kept(installed), {c: p["metadata"]["uid"] for c, p in pods(installed).items()}
    waiting = make_run(installed, "waiting", desiredState="Suspended")
    wait_for("the run to be suspended", lambda: waiting.condition("Suspended").get("status") == "True", timeout_s=60)
    upgrade(cluster, tmp_path, values(operator={"logFormat": "json"}, redis={"maxMemory": "300mb"}))
    after = pods(installed)
    assert all(after[c]["metadata"]["uid"] != uid for c, uid in uids.items()), "a pod was not replaced"
    assert kept(installed) == before
    patch = json.dumps({"spec": {"desiredState": "Running"}})
    installed("-n", RUNS, "patch", "agentrun", "waiting", "--type=merge", "-p", patch)
    assert waiting.wait_finished()["summary"] == "Succeeded"
    assert journals(installed) >= {uid_of(installed, "first"), uid_of(installed, "waiting")}


def test_uninstalling_keeps_what_cannot_be_made_again(installed: Kube, cluster: Cluster, tmp_path: Path) -> None:
    """E25: CRDs and runs, keys, passwords, volume; a new release of the same name goes on with them."""
    before, runs = kept(installed), {uid_of(installed, "first"), uid_of(installed, "waiting")}
    helm(cluster, "uninstall", RELEASE, "-n", SYSTEM, "--wait")
    wait_for("the pods to be gone", lambda: not installed.json("-n", SYSTEM, "get", "pods")["items"], timeout_s=90)
    assert kept(installed) == before
    assert {uid_of(installed, "first"), uid_of(installed, "waiting")} == runs
    upgrade(cluster, tmp_path, values())
    assert kept(installed) == before
    assert make_run(installed, "third").wait_finished()["summary"] == "Succeeded"
    assert journals(installed) >= runs


def uid_of(kube: Kube, run: str) -> str:
    return str(kube.json("-n", RUNS, "get", "agentrun", run)["metadata"]["uid"])


def journals(kube: Kube) -> set[str]:
    """Ids of the journals that Redis holds, as its administrator sees them."""
    data = kube.json("-n", SYSTEM, "get", "secret", SECRETS[1])["data"]
    password = base64.b64decode(data["admin-password"]).decode()
    words = [
        "redis-cli",
        "--no-auth-warning",
        "--user",
        "admin",
        "--pass",
        password,
        "--scan",
        "--pattern",
        "es:*:meta",
    ]
    told = kube("-n", SYSTEM, "exec", "charttest-everstep-redis-0", "--", *words)
    return {line.split("{")[1].split("}")[0] for line in told.splitlines() if line.startswith("es:")}
