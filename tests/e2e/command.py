"""`kubectl everstep` and `everstep` as a person types them, against the cluster under test."""

import os
import subprocess
import sys

from tests.e2e.conftest import NAMESPACE, SYSTEM
from tests.kind.cluster import Cluster


def everstep(*arguments: str, timeout_s: float = 60) -> "subprocess.CompletedProcess[str]":
    """The command `everstep`."""
    return subprocess.run(
        [sys.executable, "-m", "everstep.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def kubectl_everstep(
    cluster: Cluster, *arguments: str, timeout_s: float = 240, namespace: str = NAMESPACE, system: str = SYSTEM
) -> "subprocess.CompletedProcess[str]":
    """`kubectl everstep` with the cluster's kubectl first on PATH, in the namespace of the runs; `system` is the operator's."""
    env = dict(os.environ, KUBECONFIG=str(cluster.kubeconfig))
    env["PATH"] = f"{cluster.kubectl_path.parent}{os.pathsep}{env.get('PATH', '')}"
    asks = arguments[0] in (
        "result",
        "steps",
        "verify",
        "export",
        "fork",
        "budget",
        "public-key",
        "erase",
        "rotate-key",
    )
    place = ["--operator-namespace", system] if asks else []
    return subprocess.run(
        [sys.executable, "-c", "from everstep.cli.kubectl import main; main()", *arguments, "-n", namespace, *place],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env=env,
    )
