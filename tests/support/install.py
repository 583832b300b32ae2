"""Installing the charts into a cluster that others may have used before."""

import subprocess
from pathlib import Path

from tests.kind.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]


class HelmFailed(Exception):
    """helm ended with an error; its words."""


def helm(cluster: Cluster, *arguments: str, timeout_s: float = 240) -> str:
    """Run helm against the cluster and return what it printed. Raises HelmFailed."""
    command = [str(cluster.helm_path), "--kubeconfig", str(cluster.kubeconfig), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        raise HelmFailed(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def install_crds(cluster: Cluster, namespace: str) -> None:
    """CRDs, policy and roles for people, as release `everstep-crds`.

    Another release or kubectl may have brought the same objects: whoever installs last owns them, and nobody removes them.
    """
    flags = ["--create-namespace", "--take-ownership"]
    if not helm(cluster, "version", "--template", "{{.Version}}").startswith("v3."):
        flags.append("--force-conflicts")  # helm 4 applies on the server, which keeps fields that kubectl wrote
    helm(cluster, "upgrade", "--install", "everstep-crds", str(ROOT / "charts/everstep-crds"), "-n", namespace, *flags)
    selector = ["crd", "-l", "app.kubernetes.io/part-of=everstep"]
    cluster.kubectl("wait", "--for=condition=Established", *selector, "--timeout=60s", timeout_s=70)
