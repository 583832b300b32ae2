"""The bench of the scenarios: a three-node cluster, one release of the chart, the outside world, the scripted agent.

Redis, operator and world are pinned to the control plane, which no scenario takes away unless it is about them.
"""

import json
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import Kube, Row, Run, Table, WorldView, wait_for
from tests.kind import api, faults
from tests.kind.cluster import Cluster
from tests.support.install import helm, install_crds

ROOT = Path(__file__).resolve().parents[2]
SYSTEM = "everstep-e2e"
NAMESPACE = "e2e-runs"
RELEASE = "e2e"
PINNED: dict[str, Any] = {
    "nodeSelector": {"node-role.kubernetes.io/control-plane": ""},
    "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
}
AGENT_ENV = [{"name": "WORLD_URL", "value": "http://world.world"}, {"name": "PYTHONPATH", "value": "/scripted:/app"}]
TABLE_KEY = pytest.StashKey[Table]()
PASSED_KEY = pytest.StashKey[bool]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs a cluster, and a lost node takes its time."""
    for item in items:
        item.add_marker(pytest.mark.e2e)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(420))


def pytest_configure(config: pytest.Config) -> None:
    """The table of losses is collected over the session."""
    config.stash[TABLE_KEY] = Table()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Remember whether the test itself passed: what a failed one made is left for a look."""
    report = yield
    if call.when == "call":
        item.stash[PASSED_KEY] = bool(report.passed)
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:  # pytest's reporter is untyped
    """Print loss × moment × outcome."""
    table = config.stash.get(TABLE_KEY, None)
    if table is None or not (table.rows or table.notes):
        return
    terminalreporter.section("loss × moment × outcome (requests: the outside world's own count)")
    for row in table.rows:
        resumed = "" if row.resumed_after_s is None else f"{row.resumed_after_s:5.1f} s to the next new step"
        terminalreporter.line(
            f"{row.loss:<34} {row.moment:<3} {row.outcome:<22} attempts {row.attempts}  {row.requests}  {resumed}"
        )
    for note in table.notes:
        terminalreporter.line(note)


@pytest.fixture(scope="session")
def table(request: pytest.FixtureRequest) -> Table:
    """Where scenarios put their rows."""
    return request.config.stash[TABLE_KEY]


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The kind cluster, brought up if there is none, with our images in its nodes."""
    found = api.ensure_cluster("everstep")
    api.build_images(found)
    for node in found.workers:
        faults.heal(found, node)
        found.kubectl("uncordon", node)
    return found


@pytest.fixture(scope="session")
def kube(cluster: Cluster) -> Kube:
    """kubectl against it."""
    return Kube(cluster)


def namespace(kube: Kube, name: str) -> None:
    """Make a namespace if it is not there."""
    kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


def chart_values() -> dict[str, Any]:
    """The values of the release under test."""
    return {
        "crds": {"enabled": False},
        "installation": "e2e",
        "watchNamespaces": [NAMESPACE],
        "image": {"repository": "everstep/operator", "tag": "dev", "pullPolicy": "IfNotPresent"},
        "operator": PINNED,
        "redis": {"image": {"repository": "everstep/redis", "tag": "dev", "pullPolicy": "IfNotPresent"}, **PINNED},
    }


@pytest.fixture(scope="session")
def api_server() -> Kube:
    """kubectl with the chart everstep-crds installed and none of our images needed: CRDs, policy, roles for people."""
    found = api.ensure_cluster("everstep")
    install_crds(found, SYSTEM)
    return Kube(found)


@pytest.fixture(scope="session")
def release(cluster: Cluster, kube: Kube, api_server: Kube) -> str:
    """The charts, installed as a user would; removed at the end unless something failed."""
    namespace(kube, NAMESPACE)
    kube("-n", NAMESPACE, "delete", "agentruns", "--all", "--wait=false", timeout_s=120)
    values = ROOT / ".pytest_cache" / "e2e-values.json"
    values.parent.mkdir(exist_ok=True)
    values.write_text(json.dumps(chart_values()), encoding="utf-8")
    helm(
        cluster,
        "upgrade",
        "--install",
        RELEASE,
        str(ROOT / "charts/everstep"),
        "-n",
        SYSTEM,
        "-f",
        str(values),
        "--wait",
    )
    # A release that is there already keeps its pod, whatever the tag now stands for.
    operator = f"deployment/{RELEASE}-everstep"
    kube("-n", SYSTEM, "rollout", "restart", operator)
    kube("-n", SYSTEM, "rollout", "status", operator, "--timeout=120s", timeout_s=130)
    return RELEASE


@pytest.fixture(scope="session")
def world(kube: Kube) -> WorldView:
    """The outside world, out of Everstep's reach."""
    namespace(kube, "world")
    labels = {"app": "world"}
    container = {
        "name": "world",
        "image": "everstep/world:dev",
        "imagePullPolicy": "IfNotPresent",
        "args": ["--host", "0.0.0.0", "--port", "8080", "--model-latency-ms", "100"],
        "ports": [{"containerPort": 8080}],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1},
    }
    kube.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "world", "namespace": "world"},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [container], **PINNED}},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "world", "namespace": "world"},
            "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": 8080}]},
        },
    )
    kube("-n", "world", "rollout", "status", "deployment/world", "--timeout=120s", timeout_s=130)
    view = WorldView(kube)
    view.reset()
    return view


@pytest.fixture(scope="session")
def scripted(kube: Kube, release: str, world: WorldView) -> str:
    """The scripted agent as a ConfigMap that runs mount."""
    source = (ROOT / "tests/e2e/agents/scripted.py").read_text(encoding="utf-8")
    kube.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "scripted", "namespace": NAMESPACE},
            "data": {"scripted.py": source},
        }
    )
    return "scripted"


RunMaker = Callable[..., Run]


@pytest.fixture
def make_run(request: pytest.FixtureRequest, kube: Kube, scripted: str) -> Iterator[RunMaker]:
    """Makes AgentRuns with the scripted agent; deletes them after a test that passed."""
    made: list[Run] = []

    def make(
        name: str,
        *,
        fault: str = "",
        inputs: dict[str, Any] | None = None,
        node: str = "",
        agent_change: dict[str, Any] | None = None,
        **spec: Any,
    ) -> Run:
        env = [*AGENT_ENV, *([{"name": "EVERSTEP_FAULTS", "value": fault}] if fault else [])]
        agent = {
            "entrypoint": "scripted:run",
            "image": "everstep/agent:dev",
            "env": env,
            "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "160Mi"}},
        }
        template: dict[str, Any] = {
            "volumes": [{"name": "scripted", "configMap": {"name": scripted}}],
            "volumeMounts": [{"name": "scripted", "mountPath": "/scripted"}],
            "terminationGracePeriodSeconds": 2,
        }
        if node:
            # Preferred, not required: the replacement must be able to go elsewhere.
            term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
            preferred = [{"weight": 100, "preference": term}]
            template["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
        whole = {
            "goal": name,
            "inputs": inputs or {},
            "agent": {**agent, **(agent_change or {})},
            "template": template,
            "nodeLoss": {"policy": "Fence", "afterSeconds": 5},
            **spec,
        }
        run = Run(kube, NAMESPACE, name, {key: value for key, value in whole.items() if value is not None}).create()
        made.append(run)
        return run

    yield make
    for run in made if request.node.stash.get(PASSED_KEY, False) else []:
        kube("-n", NAMESPACE, "delete", "agentrun", run.name, "--wait=false", "--ignore-not-found")


@pytest.fixture
def operator_pod(kube: Kube, release: str) -> Callable[[], dict[str, Any]]:
    """The operator's running pod."""

    def look() -> dict[str, Any] | None:
        items = kube.json("-n", SYSTEM, "get", "pods", "-l", "app.kubernetes.io/component=operator")["items"]
        live = [p for p in items if p["status"].get("phase") == "Running" and "deletionTimestamp" not in p["metadata"]]
        return live[0] if live else None

    return lambda: wait_for("the operator's pod", look, timeout_s=60)


@pytest.fixture
def add_row(table: Table) -> Callable[..., None]:
    """Put a line into the table that the session prints."""

    def add(*arguments: Any, **named: Any) -> None:
        table.rows.append(Row(*arguments, **named))

    return add
