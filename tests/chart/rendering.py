"""helm as a function: render a chart to objects, or tell what helm said against it."""

import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.chart.sync import ROOT
from tests.support.tools import find_helm

CHART = ROOT / "charts" / "everstep"
CRDS_CHART = ROOT / "charts" / "everstep-crds"
RELEASE, NAMESPACE = "everstep", "everstep-system"
OWN_REDIS: Mapping[str, Any] = {
    "redis": {"enabled": False},
    "journal": {"existingSecret": "store", "secretKeys": {"agentUrl": "agent-url", "ca": "ca.crt"}},
    "installation": "prod-eu",
}
TIMEOUT_S = 60

Object = dict[str, Any]


class HelmRefused(Exception):
    """helm ended with an error; its words."""


@cache
def helm_path() -> Path:
    """Found once per session."""
    return find_helm()


def helm(*arguments: str | Path) -> str:
    """Run helm with no cluster. Raises HelmRefused with what it printed."""
    with tempfile.TemporaryDirectory() as home:
        env = {"HOME": home, "PATH": "/usr/bin:/bin", "KUBECONFIG": f"{home}/none"}
        done = subprocess.run(
            [helm_path(), *arguments], env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    if done.returncode != 0:
        raise HelmRefused(done.stderr + done.stdout)
    return done.stdout


def template(
    values: Mapping[str, Any] | None = None,
    *,
    chart: Path = CHART,
    release: str = RELEASE,
    namespace: str = NAMESPACE,
) -> str:
    """What `helm template` prints with these values."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump(dict(values or {}), file)  # JSON is YAML, and has one reading
        file.flush()
        return helm("template", release, chart, "--namespace", namespace, "--values", file.name)


def objects(
    values: Mapping[str, Any] | None = None,
    *,
    chart: Path = CHART,
    release: str = RELEASE,
    namespace: str = NAMESPACE,
) -> list[Object]:
    """The same as objects."""
    text = template(values, chart=chart, release=release, namespace=namespace)
    return [document for document in yaml.safe_load_all(text) if document]


def only(found: list[Object], kind: str, name: str = "") -> Object:
    """The one object of this kind (and name)."""
    hits = [o for o in found if o["kind"] == kind and name in ("", o["metadata"]["name"])]
    assert len(hits) == 1, f"{len(hits)} objects {kind} {name}"
    return hits[0]


def pod_specs(found: list[Object]) -> Iterator[tuple[str, Object]]:
    """Name and pod spec of everything that makes pods."""
    for item in found:
        if item["kind"] in {"Deployment", "StatefulSet", "DaemonSet", "Job"}:
            yield f"{item['kind']} {item['metadata']['name']}", item["spec"]["template"]["spec"]
        assert item["kind"] not in {"Pod", "CronJob", "ReplicaSet"}, "teach pod_specs this kind"


def containers(pod: Object) -> list[Object]:
    """All containers of a pod spec."""
    return [*pod.get("initContainers", []), *pod["containers"], *pod.get("ephemeralContainers", [])]
