"""Bringing images from the engine into the nodes: once per image and node, all nodes at the same time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.kind.cluster import Cluster
from tests.kind.errors import KindToolError
from tests.kind.node_image import image_id
from tests.kind.progress import Reporter
from tests.kind.shell import pipe, run

LOAD_TIMEOUT_S = 300.0
PROJECT_PREFIX = "everstep/"


def images_in_node(listing: str) -> dict[str, str]:
    """From `crictl images -o json`: image id by tag, as the engine writes tags (without the default registry)."""
    found: dict[str, str] = {}
    for image in json.loads(listing).get("images") or []:
        for tag in image.get("repoTags") or []:
            found[short_name(tag)] = image["id"]
    return found


def short_name(tag: str) -> str:
    """A tag without the registry host and folder that engines add to short names (`x.io/library/redis:8` is `redis:8`)."""
    head, _, rest = tag.partition("/")
    if rest and ("." in head or ":" in head or head == "localhost"):
        tag = rest
    return tag.removeprefix("library/")


def _node_images(node: str) -> dict[str, str]:
    return images_in_node(run(["docker", "exec", node, "crictl", "images", "-o", "json"]))


def project_images_in(node: str) -> list[str]:
    """The project's images that a running node holds."""
    try:
        held = _node_images(node)
    except KindToolError:
        return []
    return sorted(tag for tag in held if tag.startswith(PROJECT_PREFIX))


def load(cluster: Cluster, tags: Sequence[str], reporter: Reporter | None = None) -> list[str]:
    """Load images into all nodes that lack them (by image id); returns `node: tags` lines of what was loaded.

    Raises KindToolError for a tag that the engine does not have, CommandFailed if a node refuses an image.
    """
    wanted: dict[str, str] = {}
    for tag in tags:
        found = image_id(tag)
        if found is None:
            raise KindToolError(f"the engine has no image {tag}: build it first (python -m tests.kind images)")
        wanted[tag] = found
    with ThreadPoolExecutor(len(cluster.nodes)) as pool:
        held = dict(zip(cluster.nodes, pool.map(_node_images, cluster.nodes), strict=True))
        missing = {
            node: [tag for tag, id_ in wanted.items() if held[node].get(short_name(tag)) != id_]
            for node in cluster.nodes
        }
        jobs = [(node, lacks) for node, lacks in missing.items() if lacks]
        if not jobs:
            if reporter:
                reporter.say(f"nothing to load: all nodes have {', '.join(tags)}")
            return []

        def one(job: tuple[str, list[str]]) -> str:
            node, lacks = job
            if reporter is None:
                _import(node, lacks)
            else:
                with reporter.step(f"load {', '.join(lacks)} into {node}"):
                    _import(node, lacks)
            return f"{node}: {', '.join(lacks)}"

        return list(pool.map(one, jobs))


def _import(node: str, tags: Sequence[str]) -> None:
    importer = ["docker", "exec", "--interactive", node, "ctr", "--namespace", "k8s.io", "images", "import",
                "--all-platforms", "--digests", "--snapshotter", "overlayfs", "-"]  # fmt: skip
    pipe(["docker", "save", *tags], importer, timeout_s=LOAD_TIMEOUT_S)
