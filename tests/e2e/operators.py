"""What scenarios do to the operator itself."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.e2e.conftest import SYSTEM
from tests.e2e.harness import Kube, wait_for

LABEL = "app.kubernetes.io/component=operator"


def deployment(kube: Kube) -> str:
    """Name of the operator's Deployment."""
    items = kube.json("-n", SYSTEM, "get", "deployments", "-l", LABEL)["items"]
    return str(items[0]["metadata"]["name"])


def rolled_out(kube: Kube, name: str) -> None:
    """Wait until the Deployment runs what it should."""
    kube("-n", SYSTEM, "rollout", "status", f"deployment/{name}", "--timeout=90s", timeout_s=100)


@contextmanager
def operator_away(kube: Kube) -> Iterator[None]:
    """No operator at all while the block runs; back and ready after it."""
    name = deployment(kube)
    kube("-n", SYSTEM, "scale", f"deployment/{name}", "--replicas=0")
    try:
        wait_for(
            "the operator to be gone",
            lambda: not kube.json("-n", SYSTEM, "get", "pods", "-l", LABEL)["items"],
            timeout_s=60,
        )
        yield
    finally:
        kube("-n", SYSTEM, "scale", f"deployment/{name}", "--replicas=1")
        rolled_out(kube, name)
