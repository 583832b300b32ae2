"""Bringing images from the engine into the nodes: once per image and node, all nodes at the same time."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from tests.kind.cluster import Cluster
from tests.kind.errors import CommandFailed, KindToolError
from tests.kind.layout import write_layout
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
    """Load images into all nodes that lack them (by image id); returns a line per node that lacked any.

    Raises KindToolError for a tag that the engine does not have, CommandFailed if a node refuses an image.
    """
    wanted: dict[str, str] = {}
    for tag in tags:
        found = image_id(tag)
        if found is None:
            raise KindToolError(f"the engine has no image {tag}: build it first (python -m tests.kind images)")
        wanted[tag] = found
    with ThreadPoolExecutor(len(cluster.nodes)) as pool, tempfile.TemporaryDirectory() as scratch:
        held = dict(zip(cluster.nodes, pool.map(_node_images, cluster.nodes), strict=True))
        missing = {
            node: [tag for tag, id_ in wanted.items() if held[node].get(short_name(tag)) != id_]
            for node in cluster.nodes
        }
        jobs = {node: lacks for node, lacks in missing.items() if lacks}
        if not jobs:
            if reporter:
                reporter.say(f"nothing to load: all nodes have {', '.join(tags)}")
            return []
        saved = Path(scratch) / "saved.tar"
        together = sorted({tag for lacks in jobs.values() for tag in lacks})
        with _step(reporter, f"save {', '.join(together)}"):
            run(["docker", "save", "--output", saved, *together], timeout_s=LOAD_TIMEOUT_S)

        def one(node: str) -> str:
            with _step(reporter, f"load into {node}"):
                size = _import(node, saved, Path(scratch) / f"{node}.tar")
            line = f"{node}: {', '.join(together)} ({size / 1e6:.1f} MB of new layers)"
            if reporter:
                reporter.say(line)
            return line

        return list(pool.map(one, jobs))


def _step(reporter: Reporter | None, name: str) -> AbstractContextManager[None]:
    return reporter.step(name) if reporter else nullcontext()


def _import(node: str, saved: Path, scratch: Path) -> int:
    """Give a node what it lacks of a saved archive; returns the bytes of the layers that had to travel."""
    inside = ["docker", "exec", "--interactive", node, "ctr", "--namespace", "k8s.io"]
    importer = [*inside, "images", "import", "--all-platforms", "--snapshotter", "overlayfs", "-"]
    size = write_layout(saved, scratch, set(run([*inside, "content", "ls", "--quiet"]).split()))
    try:
        pipe(["cat", scratch], importer, timeout_s=LOAD_TIMEOUT_S)
    except CommandFailed:
        # A layer that was there a moment ago may have been collected as garbage: give the node everything.
        size = write_layout(saved, scratch, ())
        pipe(["cat", scratch], importer, timeout_s=LOAD_TIMEOUT_S)
    scratch.unlink()
    return size
