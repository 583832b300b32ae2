"""Faults on real nodes: power, partition from the API server, a paused kubelet, signals to a container's process 1.

Every call is bounded in time, can be repeated (a node that is already off stays off) and names what it could not do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from signal import SIGKILL, Signals

from tests.kind.cluster import Cluster, kubelet_answers
from tests.kind.errors import CommandFailed, KindToolError
from tests.kind.shell import Argv, run, succeeds, wait_until

EXEC_TIMEOUT_S = 30.0
READY_TIMEOUT_S = 120.0
NOT_READY_TIMEOUT_S = 90.0
API_PORT = 6443


def _check_node(cluster: Cluster, node: str) -> None:
    if node not in cluster.nodes:
        raise KindToolError(f"{cluster.name} has no node {node!r}; it has {', '.join(cluster.nodes)}")


def node_exec(cluster: Cluster, node: str, argv: Sequence[str], *, timeout_s: float = EXEC_TIMEOUT_S) -> str:
    """Run a program inside a node (as root, in the node's namespaces) and return its output. Raises CommandFailed."""
    _check_node(cluster, node)
    return run([cluster.docker_path, "exec", node, *argv], timeout_s=timeout_s)


def node_ready(cluster: Cluster, node: str) -> bool:
    """Whether the API server says the node is Ready; False as well when it cannot be asked."""
    path = '{.status.conditions[?(@.type=="Ready")].status}'
    try:
        return cluster.kubectl("get", "node", node, "-o", f"jsonpath={path}", timeout_s=10).strip() == "True"
    except CommandFailed:
        return False


def wait_ready(cluster: Cluster, node: str, *, timeout_s: float = READY_TIMEOUT_S) -> float:
    """Wait until a node is Ready; returns the seconds it took."""
    return wait_until(f"node {node} is Ready", lambda: node_ready(cluster, node), timeout_s=timeout_s)


def wait_not_ready(cluster: Cluster, node: str, *, timeout_s: float = NOT_READY_TIMEOUT_S) -> float:
    """Wait until the API server holds a node for lost; returns the seconds it took."""
    return wait_until(f"node {node} is not Ready", lambda: not node_ready(cluster, node), timeout_s=timeout_s)


# --- power


def power_off(cluster: Cluster, node: str) -> None:
    """Cut a node's power: all its processes die at once, its disk stays."""
    _check_node(cluster, node)
    run([cluster.docker_path, "stop", "--time", "0", node], timeout_s=60)


def power_on(cluster: Cluster, node: str, *, timeout_s: float = READY_TIMEOUT_S) -> float:
    """Start a node again and wait until it is Ready; returns the seconds it took."""
    _check_node(cluster, node)
    run([cluster.docker_path, "start", node], timeout_s=60)

    def started_anew() -> bool:
        # Until the node controller notices the loss, Ready is still the old word; the kubelet's own answer is the new one.
        return kubelet_answers(cluster, node) and node_ready(cluster, node)

    return wait_until(f"node {node} is Ready after power on", started_anew, timeout_s=timeout_s)


# --- partition


def _control_plane_address(cluster: Cluster) -> str:
    layout = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    return run([cluster.docker_path, "inspect", "--format", layout, cluster.control_plane]).strip()


def _rule(address: str) -> list[str]:
    return ["--destination", address, "--protocol", "tcp", "--dport", str(API_PORT), "--jump", "DROP"]


def partition_api(cluster: Cluster, node: str) -> None:
    """Cut a worker and its pods off from the API server, and from nothing else: its containers run on and reach other pods.

    Packets are dropped, not refused, so that open connections hang as they do behind a broken switch.
    """
    _check_node(cluster, node)
    if node == cluster.control_plane:
        raise KindToolError(
            f"{node} runs the API server and cannot be cut off from it; name one of {', '.join(cluster.workers)}"
        )
    rule = _rule(_control_plane_address(cluster))
    for chain in ("OUTPUT", "FORWARD"):
        if not succeeds([cluster.docker_path, "exec", node, "iptables", "--wait", "--check", chain, *rule]):
            node_exec(cluster, node, ["iptables", "--wait", "--insert", chain, *rule])


def heal(cluster: Cluster, node: str, *, timeout_s: float = READY_TIMEOUT_S) -> float:
    """End the partition and wait until the node is Ready; returns the seconds it took."""
    _check_node(cluster, node)
    rule = _rule(_control_plane_address(cluster))
    for chain in ("OUTPUT", "FORWARD"):
        while succeeds([cluster.docker_path, "exec", node, "iptables", "--wait", "--delete", chain, *rule]):
            pass
    return wait_ready(cluster, node, timeout_s=timeout_s)


# --- kubelet


def pause_kubelet(cluster: Cluster, node: str) -> None:
    """Stop a kubelet where it stands (SIGSTOP): the node falls silent, its containers run on."""
    node_exec(cluster, node, ["systemctl", "kill", "--kill-who=main", "--signal=STOP", "kubelet"])


def continue_kubelet(cluster: Cluster, node: str, *, timeout_s: float = READY_TIMEOUT_S) -> float:
    """Let a paused kubelet go on and wait until its node is Ready; returns the seconds it took."""
    node_exec(cluster, node, ["systemctl", "kill", "--kill-who=main", "--signal=CONT", "kubelet"])
    return wait_ready(cluster, node, timeout_s=timeout_s)


# --- containers


def container_id(cluster: Cluster, node: str, pod_uid: str, container: str) -> str:
    """The id of a pod's running container on a node. Raises KindToolError if there is none."""
    labels = [f"io.kubernetes.pod.uid={pod_uid}", f"io.kubernetes.container.name={container}"]
    options = [word for label in labels for word in ("--label", label)]
    found = node_exec(cluster, node, ["crictl", "ps", "--quiet", "--state", "running", *options]).split()
    if not found:
        raise KindToolError(f"node {node} runs no container {container!r} of the pod with uid {pod_uid}")
    return found[0]


def container_pid(cluster: Cluster, node: str, container: str) -> int:
    """The pid, in the node's namespace, of process 1 of a container (by id)."""
    state = json.loads(node_exec(cluster, node, ["crictl", "inspect", "--output", "json", container]))
    pid = int(state.get("info", {}).get("pid", 0))
    if pid == 0:
        raise KindToolError(
            f"container {container} on {node} has no process: state {state.get('status', {}).get('state')}"
        )
    return pid


def signal_container(
    cluster: Cluster, node: str, pod_uid: str, *, container: str = "agent", signal: Signals = SIGKILL
) -> int:
    """Send a signal from the node to process 1 of a pod's container, past the kubelet; returns the pid it was sent to.

    SIGKILL by default. From inside the container process 1 is immune to it; from the node it is not.
    """
    pid = container_pid(cluster, node, container_id(cluster, node, pod_uid, container))
    node_exec(cluster, node, ["kill", f"-{int(signal)}", str(pid)])
    return pid


def kill_container_pid1(
    cluster: Cluster, node: str, pod_uid: str, *, container: str = "agent", timeout_s: float = 15.0
) -> float:
    """`kill -9` process 1 of a pod's container from its node and wait until it is gone; returns the seconds it took."""
    pid = signal_container(cluster, node, pod_uid, container=container, signal=SIGKILL)
    gone: Argv = [cluster.docker_path, "exec", node, "test", "!", "-e", f"/proc/{pid}"]
    return wait_until(f"pid {pid} on {node} is gone", lambda: succeeds(gone), timeout_s=timeout_s, every_s=0.1)


# --- control plane


def api_ready(cluster: Cluster) -> bool:
    """Whether the API server answers that it is ready."""
    try:
        return cluster.kubectl("get", "--raw", "/readyz", timeout_s=5).strip() == "ok"
    except CommandFailed:
        return False


def restart_apiserver(cluster: Cluster, *, timeout_s: float = READY_TIMEOUT_S) -> float:
    """Kill the API server's process; the kubelet starts it again. Returns the seconds until it is ready again."""
    node = cluster.control_plane
    find = ["crictl", "ps", "--quiet", "--state", "running", "--name", "^kube-apiserver$"]
    old = node_exec(cluster, node, find).split()
    if not old:
        raise KindToolError(f"no running kube-apiserver on {node}")
    node_exec(cluster, node, ["kill", "-9", str(container_pid(cluster, node, old[0]))])

    def another_answers() -> bool:
        now = node_exec(cluster, node, find).split()
        return bool(now) and now[0] not in old and api_ready(cluster)

    return wait_until("the API server is ready again", another_answers, timeout_s=timeout_s)


# --- for with-statements


@contextmanager
def powered_off(cluster: Cluster, node: str) -> Iterator[None]:
    """A node without power inside the block; back and Ready after it, whatever happened."""
    power_off(cluster, node)
    try:
        yield
    finally:
        power_on(cluster, node)


@contextmanager
def partitioned(cluster: Cluster, node: str) -> Iterator[None]:
    """A worker cut off from the API server inside the block; healed and Ready after it, whatever happened."""
    partition_api(cluster, node)
    try:
        yield
    finally:
        heal(cluster, node)
