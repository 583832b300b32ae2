"""The chart with somebody's own Redis: TLS with a private CA, two ACL users, everything through one Secret."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import PINNED, ROOT
from tests.e2e.harness import Kube, wait_for
from tests.e2e.test_install import AGENT, make_run
from tests.kind.cluster import Cluster
from tests.support.install import helm
from tests.support.topologies import make_certificates

SYSTEM, RUNS, RELEASE = "charttest-own", "charttest-own-runs", "own"
HOST = f"redis.{SYSTEM}.svc"
RIGHTS = "+@all -@admin -@dangerous +info"
ACL = f"""user default off resetpass ~* &* +@all
user operator on >op-secret ~es:* resetchannels {RIGHTS} +config|get +acl|getuser
user agent on >agent-secret ~es:own:* resetchannels {RIGHTS}
"""
CONF = """port 0
tls-port 6379
tls-cert-file /tls/server.crt
tls-key-file /tls/server.key
tls-ca-cert-file /tls/ca.crt
tls-auth-clients no
aclfile /tls/users.acl
dir /data
appendonly yes
appendfsync always
maxmemory-policy noeviction
save ""
"""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def own_redis(cluster: Cluster, api_server: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    """A Redis that the chart did not make, and the Secret `store` that tells how to reach it."""
    kube, folder = api_server, tmp_path_factory.mktemp("tls")
    make_certificates(folder, f"DNS:{HOST}")
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    for name in (SYSTEM, RUNS):
        kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": restricted}})
    files = {name: (folder / name).read_text() for name in ("server.crt", "server.key", "ca.crt")}
    tls = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "redis", "namespace": SYSTEM}}
    kube.apply({**tls, "stringData": {**files, "users.acl": ACL, "redis.conf": CONF}})
    store = {
        "uri": f"rediss://operator:op-secret@{HOST}:6379/0",
        "agent": f"rediss://agent:agent-secret@{HOST}:6379/0",
        "root.pem": files["ca.crt"],
    }
    kube.apply({**tls, "metadata": {"name": "store", "namespace": SYSTEM}, "stringData": store})
    kube.apply(*redis_objects())
    wait_for("Redis", lambda: "True" in kube("-n", SYSTEM, "get", "pod", "redis", "-o", READY), timeout_s=90)
    yield kube
    helm(cluster, "uninstall", RELEASE, "-n", SYSTEM, "--wait", "--ignore-not-found")
    kube("delete", "namespace", RUNS, SYSTEM, "--ignore-not-found", "--timeout=120s", timeout_s=130)


READY = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"


def redis_objects() -> list[dict[str, object]]:
    """A plain pod and its Service."""
    meta = {"name": "redis", "namespace": SYSTEM, "labels": {"app": "redis"}}
    container = {
        "name": "redis",
        "image": "everstep/redis:dev",
        "imagePullPolicy": "IfNotPresent",
        "command": ["redis-server", "/tls/redis.conf"],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "tls", "mountPath": "/tls"}, {"name": "data", "mountPath": "/data"}],
        "readinessProbe": {"tcpSocket": {"port": 6379}, "periodSeconds": 1},
    }
    security = {"runAsNonRoot": True, "runAsUser": 999, "fsGroup": 999, "seccompProfile": {"type": "RuntimeDefault"}}
    volumes = [{"name": "tls", "secret": {"secretName": "redis"}}, {"name": "data", "emptyDir": {}}]
    pod_spec = {"containers": [container], "securityContext": security, "volumes": volumes, **PINNED}
    service = {"selector": {"app": "redis"}, "ports": [{"port": 6379}]}
    return [
        {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod_spec},
        {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": service},
    ]


def test_a_run_succeeds_on_ones_own_redis(own_redis: Kube, cluster: Cluster, tmp_path: Path) -> None:
    """TLS, CA and both users reach operator and agent; no Redis of ours is installed."""
    values = {
        "crds": {"enabled": False},
        "watchNamespaces": [RUNS],
        "installation": "own",
        "image": {"repository": "everstep/operator", "tag": "dev"},
        "agent": {"image": {"repository": "everstep/agent", "tag": "dev"}},
        "operator": PINNED,
        "redis": {"enabled": False},
        "journal": {"existingSecret": "store", "secretKeys": {"url": "uri", "agentUrl": "agent", "ca": "root.pem"}},
    }
    file = tmp_path / "values.json"
    file.write_text(json.dumps(values), encoding="utf-8")
    chart = str(ROOT / "charts/everstep")
    helm(cluster, "upgrade", "--install", RELEASE, chart, "-n", SYSTEM, "-f", str(file), "--wait", "--timeout", "180s")
    assert not own_redis.json("-n", SYSTEM, "get", "statefulsets")["items"]
    code = {"name": "agent-code", "namespace": RUNS}
    own_redis.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": code, "data": {"doubling.py": AGENT}})
    run = make_run(own_redis, "first", namespace=RUNS)
    assert run.wait_finished()["summary"] == "Succeeded"
    log = own_redis("-n", SYSTEM, "logs", "deployment/own-everstep")
    assert "fit to use" in log
    for secret in ("op-secret", "agent-secret"):
        assert secret not in log
        assert secret not in json.dumps(own_redis.json("-n", RUNS, "get", "pods,events,agentruns"))
