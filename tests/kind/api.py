"""What tests and the demo use of this package: one cluster, our images in it, pytest-kind's class for it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pytest_kind import KindCluster

from tests.kind import bring_up, images
from tests.kind import load as loading
from tests.kind.cache import Cache
from tests.kind.cluster import DEFAULT_NAME, Cluster
from tests.kind.errors import CommandFailed, KindToolError
from tests.kind.images import Images
from tests.kind.progress import Reporter

__all__ = [
    "Cluster",
    "CommandFailed",
    "Images",
    "KindToolError",
    "build_images",
    "ensure_cluster",
    "load_image",
    "load_images",
    "pytest_kind_cluster",
]


def ensure_cluster(name: str = DEFAULT_NAME, reporter: Reporter | None = None) -> Cluster:
    """The cluster `name`, brought up if it is not there (a second if it is, minutes on a host that never had one)."""
    return bring_up.up(Cache.default(), reporter or Reporter(), name)


def build_images(cluster: Cluster | None = None, reporter: Reporter | None = None) -> Images:
    """Build the project's images where their inputs changed, and with a cluster load them into its nodes."""
    reporter = reporter or Reporter()
    built = images.build(Cache.default(), reporter)
    if cluster is not None:
        loading.load(cluster, built.tags(), reporter)
    return built


def load_image(cluster: Cluster, tag: str) -> bool:
    """Load one image of the engine into all nodes that lack it; whether any did."""
    return bool(loading.load(cluster, [tag]))


def load_images(cluster: Cluster, tags: Sequence[str]) -> bool:
    """Load several images at once, shared layers only once; whether any node lacked any."""
    return bool(loading.load(cluster, tags))


def pytest_kind_cluster(cluster: Cluster) -> KindCluster:
    """pytest-kind's view of the cluster: `.kubectl()`, `.port_forward()`, `.api` (pykube). Nothing is downloaded or created.

    pytest-kind makes a folder `.pytest-kind` where it is called from; it is made in the cache instead.
    """
    here = Path.cwd()
    os.chdir(Cache.default().root)
    try:
        view = KindCluster(
            cluster.name, kubeconfig=cluster.kubeconfig, kind_path=cluster.kind_path, kubectl_path=cluster.kubectl_path
        )
    finally:
        os.chdir(here)
    os.environ["PATH"] = f"{cluster.docker_path.parent}:{os.environ.get('PATH', '')}"  # kind calls docker by name
    view.create()  # finds it and opens the API client
    return view
