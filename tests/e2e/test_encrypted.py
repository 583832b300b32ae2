"""Encryption switched on in the chart: nothing of a run is readable in Redis, all of it by command, nothing once it is erased."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.command import kubectl_everstep
from tests.e2e.conftest import PINNED, ROOT
from tests.e2e.harness import Kube
from tests.e2e.test_install import AGENT, make_run
from tests.kind.cluster import Cluster
from tests.support.install import helm

SYSTEM, RUNS, RELEASE = "e2e-sealed", "e2e-sealed-runs", "sealed"
WORD = "platypus"
"""In the goal and in the result."""
DUMP = """
import redis
client = redis.Redis.from_url(open("/dev/shm/everstep/url").read())
read = {b"hash": client.hgetall, b"stream": client.xrange, b"string": client.get, b"set": client.smembers}
for key in client.scan_iter("es:*"):
    print(key, read[client.type(key)](key))
"""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def sealed(cluster: Cluster, api_server: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    """A release of its own with `journal.encrypt`; everything of it is removed at the end."""
    kube = api_server
    remove(cluster, kube)
    for name in (SYSTEM, RUNS):
        kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    code = {"name": "agent-code", "namespace": RUNS}
    kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": code, "data": {"doubling.py": AGENT}})
    values = {
        "crds": {"enabled": False},
        "watchNamespaces": [RUNS],
        "journal": {"encrypt": True},
        "image": {"repository": "everstep/operator", "tag": "dev"},
        "agent": {"image": {"repository": "everstep/agent", "tag": "dev"}},
        "operator": PINNED,
        "redis": {"image": {"repository": "everstep/redis", "tag": "dev"}, **PINNED},
    }
    file: Path = tmp_path_factory.mktemp("values") / "values.json"
    file.write_text(json.dumps(values), encoding="utf-8")
    chart = str(ROOT / "charts/everstep")
    helm(cluster, "upgrade", "--install", RELEASE, chart, "-n", SYSTEM, "-f", str(file), "--wait", "--timeout", "180s")
    yield kube
    remove(cluster, kube)


def remove(cluster: Cluster, kube: Kube) -> None:
    """Uninstall and delete both namespaces, whatever is there."""
    helm(cluster, "uninstall", RELEASE, "-n", SYSTEM, "--wait", "--ignore-not-found")
    kube("delete", "namespace", RUNS, SYSTEM, "--ignore-not-found", "--timeout=120s", timeout_s=130)


def test_sealed_readable_by_command_and_erased_for_ever(sealed: Kube, cluster: Cluster) -> None:
    def command(*arguments: str) -> str:
        done = kubectl_everstep(cluster, *arguments, namespace=RUNS, system=SYSTEM)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    run = make_run(sealed, "duckbill", namespace=RUNS, goal=WORD)
    assert run.wait_finished()["summary"] == "Succeeded", run.summary()
    stored = sealed(
        "-n", SYSTEM, "exec", f"deployment/{RELEASE}-everstep", "-c", "operator", "--", "python", "-c", DUMP
    )
    assert run.get()["metadata"]["uid"] in stored
    assert "double" in stored, "names of steps stay readable"
    assert WORD not in stored
    assert "result" not in run.status()
    assert command("result", run.name) == f"{WORD}: 42"

    assert "wrapped anew" in command("rotate-key")
    assert command("result", run.name) == f"{WORD}: 42"

    assert "erased" in command("erase", run.name, "--yes")
    assert "whole" in command("verify", run.name)
    assert command("result", run.name) == "(erased)"
    secrets = sealed.json("-n", RUNS, "get", "secrets")["items"]
    assert f"{run.name}-run" not in [secret["metadata"]["name"] for secret in secrets]
