"""The life of a cluster: create, look at, start again, delete."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.kind import engine
from tests.kind.cache import Cache, write_atomically
from tests.kind.errors import CommandFailed, KindToolError
from tests.kind.shell import Argv, run, succeeds, wait_until

DEFAULT_NAME = "everstep"
WORKERS = 2
CREATE_TIMEOUT_S = 420.0
READY_TIMEOUT_S = 150.0
CLUSTER_LABEL = "io.x-k8s.kind.cluster"  # kind's own labels on node containers
ROLE_LABEL = "io.x-k8s.kind.role"


@dataclass(frozen=True)
class Cluster:
    """A running cluster and the programs to use with it.

    `nodes`: container names, which are the Node names; the control plane is first.
    """

    name: str
    kubeconfig: Path
    kind_path: Path
    kubectl_path: Path
    helm_path: Path
    docker_path: Path
    nodes: tuple[str, ...]

    @property
    def control_plane(self) -> str:
        """The control-plane node."""
        return self.nodes[0]

    @property
    def workers(self) -> tuple[str, ...]:
        """The nodes that run ordinary pods."""
        return self.nodes[1:]

    def kubectl(self, *arguments: str, timeout_s: float = 60.0, stdin: str | None = None) -> str:
        """Run kubectl against this cluster and return what it printed. Raises CommandFailed."""
        return run([self.kubectl_path, "--kubeconfig", self.kubeconfig, *arguments], timeout_s=timeout_s, stdin=stdin)

    def environment(self) -> dict[str, str]:
        """The variables that make kubectl, helm and kind on the command line use this cluster; PATH has only the added part."""
        return {"KUBECONFIG": str(self.kubeconfig), "PATH": str(self.kubectl_path.parent)}

    def shell_line(self) -> str:
        """The same as a line for a shell to evaluate."""
        values = self.environment()
        return f"export KUBECONFIG={shlex.quote(values['KUBECONFIG'])} PATH={shlex.quote(values['PATH'])}:$PATH"


@dataclass(frozen=True)
class NodeContainer:
    """A node as the engine sees it."""

    name: str
    role: str
    running: bool


def kind_config(workers: int = WORKERS) -> str:
    """kind's configuration as JSON (which is YAML). A dead node is NotReady after about 12 s instead of 47 s."""
    # As text, since kind merges this into kubeadm's configuration of whichever API version the node speaks.
    patch = (
        "kind: ClusterConfiguration\ncontrollerManager:\n  extraArgs:\n"
        "    node-monitor-grace-period: 16s\n    node-monitor-period: 2s\n"
    )
    document = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "nodes": [{"role": "control-plane"}, *({"role": "worker"} for _ in range(workers))],
        "kubeadmConfigPatches": [patch],
    }
    return json.dumps(document, indent=2) + "\n"


def check_name(name: str) -> str:
    """The name itself if kind takes it. Raises KindToolError otherwise."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,48}", name):
        raise KindToolError(
            f"cluster name {name!r}: lower-case letters, digits, '.' and '-', at most 49, beginning with a letter or digit"
        )
    return name


def node_containers(name: str) -> list[NodeContainer]:
    """The cluster's node containers, control plane first, then by name; empty if there is no such cluster."""
    layout = f'{{{{.Names}}}} {{{{.Label "{ROLE_LABEL}"}}}} {{{{.State}}}}'
    text = run(["docker", "ps", "--all", "--no-trunc", "--filter", f"label={CLUSTER_LABEL}={name}", "--format", layout])
    nodes = [
        NodeContainer(words[0], words[1], words[2] == "running")
        for line in text.splitlines()
        if (words := line.split())
    ]
    return sorted(nodes, key=lambda node: (node.role != "control-plane", node.name))


def describe(cache: Cache, name: str, nodes: Sequence[NodeContainer]) -> Cluster:
    """The Cluster of existing node containers."""
    programs = cache.bin
    return Cluster(name, cache.kubeconfig(name), programs / "kind", programs / "kubectl", programs / "helm", engine.docker_path(),
                   tuple(node.name for node in nodes))  # fmt: skip


def nodes_ready(cluster: Cluster) -> bool:
    """Whether every node is Ready by the word of the API server, which itself is ready."""
    return _ready_nodes(cluster) >= set(cluster.nodes)


def kubelet_answers(cluster: Cluster, node: str) -> bool:
    """Whether a node's kubelet says itself that it works; unlike the API server's word this is never an old one."""
    ask = ["curl", "--silent", "--fail", "--max-time", "2", "http://127.0.0.1:10248/healthz"]
    return succeeds([cluster.docker_path, "exec", node, *ask])


def cordoned(cluster: Cluster) -> list[str]:
    """The nodes that take no new pods because someone said so."""
    listing = json.loads(cluster.kubectl("get", "nodes", "-o", "json", timeout_s=10))
    return [node["metadata"]["name"] for node in listing["items"] if node["spec"].get("unschedulable")]


def _ready_nodes(cluster: Cluster) -> set[str]:
    """The nodes that are Ready; none if the API server does not answer."""
    try:
        cluster.kubectl("get", "--raw", "/readyz", timeout_s=5)
        listing = json.loads(cluster.kubectl("get", "nodes", "-o", "json", timeout_s=10))
    except (CommandFailed, ValueError):
        return set()
    return {
        node["metadata"]["name"]
        for node in listing["items"]
        for condition in node["status"].get("conditions", [])
        if condition["type"] == "Ready" and condition["status"] == "True"
    }


def create(cache: Cache, name: str, image: str) -> Cluster:
    """Create a cluster of one control plane and two workers and wait until its nodes are Ready; at most CREATE_TIMEOUT_S."""
    config = cache.root / f"{name}.kind.json"
    write_atomically(config, kind_config())
    kubeconfig = cache.kubeconfig(name)
    command: Argv = [cache.bin / "kind", "create", "cluster", "--name", name, "--config", config, "--image", image,
               "--kubeconfig", kubeconfig, "--wait", "120s"]  # fmt: skip
    run(command, timeout_s=CREATE_TIMEOUT_S, log=cache.logs / f"create-{name}.log")
    cluster = describe(cache, name, node_containers(name))
    wait_until(f"all nodes of {name} are Ready", lambda: nodes_ready(cluster), timeout_s=READY_TIMEOUT_S)
    # A pod created before its namespace has its service account is refused.
    account = ["get", "serviceaccount", "default", "--namespace", "default"]
    wait_until("the default service account exists", lambda: _answers(cluster, account), timeout_s=60)
    # Nodes are Ready a little before names resolve in them and volumes can be had.
    for namespace, deployment in (("kube-system", "coredns"), ("local-path-storage", "local-path-provisioner")):
        status = [
            "rollout",
            "status",
            f"deployment/{deployment}",
            "--namespace",
            namespace,
            f"--timeout={READY_TIMEOUT_S:.0f}s",
        ]
        cluster.kubectl(*status, timeout_s=READY_TIMEOUT_S + 10)
    return cluster


def _answers(cluster: Cluster, arguments: Sequence[str]) -> bool:
    try:
        cluster.kubectl(*arguments, timeout_s=10)
    except CommandFailed:
        return False
    return True


def delete(cache: Cache, name: str) -> None:
    """Delete a cluster, its containers and its kubeconfig; nothing if there is none."""
    nodes = node_containers(name)
    kind = cache.bin / "kind"
    if nodes and kind.exists():
        run([kind, "delete", "cluster", "--name", name, "--kubeconfig", cache.kubeconfig(name)], timeout_s=120)
    elif nodes:  # the cache was removed and the cluster left
        run(["docker", "rm", "--force", "--volumes", *(node.name for node in nodes)], timeout_s=120)
    cache.kubeconfig(name).unlink(missing_ok=True)


def revive(cache: Cache, name: str, nodes: Sequence[NodeContainer]) -> Cluster:
    """Start a cluster's stopped nodes and restart those that are not Ready, control plane first; wait until all are Ready.

    Raises KindToolError if they do not come back within READY_TIMEOUT_S; then only a new cluster helps.
    """
    cluster = describe(cache, name, nodes)
    ready = _ready_nodes(cluster)
    for node in nodes:
        if not node.running:
            run(["docker", "start", node.name])
        elif node.name not in ready and all(other.running for other in nodes):
            run(["docker", "restart", "--time", "5", node.name])  # also ends a forgotten partition or a paused kubelet
    write_kubeconfig(cluster)  # the API server's port on this host may be another now

    def back() -> bool:
        # A loss that nobody noticed yet still counts as Ready at the API server, so the kubelets are asked as well.
        return nodes_ready(cluster) and all(kubelet_answers(cluster, node) for node in cluster.nodes)

    wait_until(f"all nodes of {name} are Ready again", back, timeout_s=READY_TIMEOUT_S)
    return cluster


def write_kubeconfig(cluster: Cluster) -> None:
    """Write the kubeconfig anew from the control plane's own."""
    arguments: Argv = ["export", "kubeconfig", "--name", cluster.name, "--kubeconfig", cluster.kubeconfig]
    run([cluster.kind_path, *arguments], timeout_s=30)


def find(cache: Cache, name: str, *, patience_s: float = 30.0) -> Cluster | None:
    """The cluster if it is there and healthy within `patience_s` (a node may just be coming back), else None."""
    nodes = node_containers(name)
    if len(nodes) != WORKERS + 1 or not all(node.running for node in nodes):
        return None
    cluster = describe(cache, name, nodes)
    if not cluster.kubeconfig.exists():
        try:
            write_kubeconfig(cluster)
        except CommandFailed:
            return None
    deadline = time.monotonic() + patience_s
    while not nodes_ready(cluster):
        if time.monotonic() > deadline:
            return None
        time.sleep(1)
    return cluster
