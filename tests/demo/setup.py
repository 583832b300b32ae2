"""Before the story: charts, outside world, the run. Everything can be repeated on a cluster that has it already."""

import json
import tempfile
from pathlib import Path
from typing import Any

import yaml

from tests.demo.run_view import NAMESPACE, SYSTEM, WORLD_NAMESPACE, Demo
from tests.e2e.harness import GROUP, wait_for
from tests.support.install import helm, install_crds

ROOT = Path(__file__).resolve().parents[2]
ON_THE_CONTROL_PLANE: dict[str, Any] = {
    "nodeSelector": {"node-role.kubernetes.io/control-plane": ""},
    "tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}],
}
VALUES: dict[str, Any] = {
    "crds": {"enabled": False},
    "image": {"repository": "everstep/operator", "tag": "dev", "pullPolicy": "IfNotPresent"},
    "agent": {"image": {"repository": "everstep/agent", "tag": "dev"}},
    "operator": ON_THE_CONTROL_PLANE,
    "redis": {
        "image": {"repository": "everstep/redis", "tag": "dev", "pullPolicy": "IfNotPresent"},
        **ON_THE_CONTROL_PLANE,
    },
    "watchNamespaces": [NAMESPACE],
}
"""Redis and operator stay where no drain comes: the demo is about agents. The e2e tier takes them away, too."""


def install(demo: Demo) -> None:
    """The two charts, and a fresh operator: the image behind the tag may be newer than the pod, and a pod whose operator an
    earlier demo killed would be started again with a growing delay."""
    demo.kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    demo.say(f"$ helm upgrade --install everstep-crds charts/everstep-crds -n {SYSTEM} --create-namespace")
    install_crds(demo.cluster, SYSTEM)
    demo.say(f"$ helm upgrade --install everstep charts/everstep -n {SYSTEM}")
    with tempfile.NamedTemporaryFile("w", suffix=".json") as values:
        json.dump(VALUES, values)
        values.flush()
        chart = str(ROOT / "charts" / "everstep")
        helm(demo.cluster, "upgrade", "--install", "everstep", chart, "-n", SYSTEM, "--wait", "-f", values.name)
    demo.kube("-n", SYSTEM, "rollout", "restart", "deployment/everstep")
    demo.kube("-n", SYSTEM, "rollout", "status", "deployment/everstep", "--timeout=120s", timeout_s=130)


def start_world(demo: Demo) -> None:
    """The outside world, with nothing counted yet."""
    demo.say("the outside world (model, tracker, mail gateway) starts in a namespace of its own")
    demo.kube("apply", "-f", str(ROOT / "tests/support/world/k8s.yaml"))
    demo.kube("-n", WORLD_NAMESPACE, "rollout", "restart", "deployment/world")
    demo.kube("-n", WORLD_NAMESPACE, "rollout", "status", "deployment/world", "--timeout=120s", timeout_s=130)
    wait_for("the outside world", demo.world.counts, timeout_s=30)
    if demo.world.counts()["requests"]:
        raise RuntimeError("the outside world has seen requests before the run began")


def clean_up_after_earlier_runs(demo: Demo) -> None:
    """Undo what an earlier demo, maybe interrupted, left behind: a cordoned node, its run."""
    for node in demo.cluster.workers:
        demo.kube("uncordon", node)
    crds = demo.kube("get", "crd", "-o", "name")
    if f"agentruns.{GROUP}" in crds:
        demo.kube("-n", NAMESPACE, "delete", "agentrun", "triage", "--ignore-not-found", "--timeout=60s", timeout_s=70)
        wait_for(
            "pods of the earlier run to go",
            lambda: not demo.kube.json("-n", NAMESPACE, "get", "pods", "-l", f"{GROUP}/run=triage")["items"],
            timeout_s=60,
        )


def start_run(demo: Demo) -> None:
    """kubectl apply -f crds/examples/triage.yaml."""
    source = ROOT / "crds" / "examples" / "triage.yaml"
    name = yaml.safe_load(source.read_text(encoding="utf-8"))["metadata"]["name"]
    demo.say(f"$ kubectl -n {NAMESPACE} apply -f {source.relative_to(ROOT)}")
    demo.kube("-n", NAMESPACE, "apply", "-f", str(source))
    demo.run.name = name
