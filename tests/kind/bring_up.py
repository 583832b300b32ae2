"""From nothing to a healthy cluster: engine, route, node image, cluster; every part kept from earlier calls is used again."""

from __future__ import annotations

import os
from collections.abc import Callable

from tests.kind import cluster as clusters
from tests.kind import debian, engine, gomodules, node_files, node_image, route, versions
from tests.kind.cache import Cache
from tests.kind.clients import Clients
from tests.kind.cluster import Cluster
from tests.kind.errors import KindToolError
from tests.kind.plan import Step, run_plan
from tests.kind.progress import Reporter
from tests.kind.route import Route

LEFTOVER_AGE_S = 3600.0


def up(cache: Cache, reporter: Reporter, name: str = clusters.DEFAULT_NAME) -> Cluster:
    """Bring a cluster up, or find it: an existing healthy one is a matter of a second. Safe to call from several processes.

    Raises KindToolError naming what is missing; a later call goes on where this one ended.
    """
    clusters.check_name(name)
    with cache.lock("up", reporter.say), reporter.live():
        if not engine.answers():
            with reporter.step("Docker engine"):
                engine.start(cache)
        found = clusters.find(cache, name) if Clients(cache, from_path=False).kind_fresh() else None
        if found is not None:
            if os.geteuid() == 0 and node_image.image_id(versions.NODE_IMAGE) is not None:
                engine.ensure_node_network()  # the rule does not outlive a restart of the host or its firewall
            _uncordon(found, reporter)
            return found
        image = prepare(cache, reporter)
        return _create_or_start(cache, reporter, name, image)


def prepare(cache: Cache, reporter: Reporter) -> str:
    """Make kind, kubectl, helm and a node image available; return the image's name."""
    nodes = node_image.NodeImage(cache)
    choice = route.choose(built_is_fresh=nodes.fresh())
    reporter.say(f"route: {choice.route.value}, because {choice.why}")
    if choice.route is Route.PUBLIC:
        try:
            _prepare_public(cache, reporter)
            return versions.PUBLIC_NODE_IMAGE
        except KindToolError as e:
            if os.environ.get(route.ROUTE_VARIABLE):
                raise
            reporter.say(f"route: built, because the public one failed: {str(e).splitlines()[0]}")
    _prepare_built(cache, reporter, nodes)
    return versions.NODE_IMAGE


def _prepare_public(cache: Cache, reporter: Reporter) -> None:
    clients = Clients(cache, from_path=True)
    steps = [
        Step("kind", clients.make_kind, clients.kind_fresh),
        Step("kubectl and helm", clients.make, clients.fresh),
        Step("node image (pull)", lambda: route.pull(versions.PUBLIC_NODE_IMAGE), _has(versions.PUBLIC_NODE_IMAGE)),
    ]
    run_plan(steps, reporter)


def _has(image: str) -> Callable[[], bool]:
    return lambda: node_image.image_id(image) is not None


def _prepare_built(cache: Cache, reporter: Reporter, nodes: node_image.NodeImage) -> None:
    node_image.require_root()
    node_image.remove_unused(cache.build, LEFTOVER_AGE_S)
    clients = Clients(cache, from_path=False)
    kubernetes = gomodules.Kubernetes(cache)
    pause = gomodules.LocalProgram(cache, node_files.NODE_FOLDER / "pause.go")
    programs: list[tuple[str, gomodules.Program | gomodules.LocalProgram]] = [
        *((program.name, gomodules.Program(cache, program)) for program in versions.GO_PROGRAMS),
        ("pause", pause),
    ]
    # Go uses all cores, so its builds come one after the other, while Debian's and Python's downloads run beside them.
    steps = [
        Step("Kubernetes programs", kubernetes.make, kubernetes.fresh),
        Step("kind", clients.make_kind, clients.kind_fresh),
        Step("kubectl and helm", clients.make, clients.fresh),
        Step("debootstrap", lambda: _install_debootstrap(cache), lambda: engine.which("debootstrap") is not None),
        Step("base root file system", nodes.base_root.make, nodes.base_root.fresh, ("debootstrap",)),
        Step("node root file system", nodes.node_root.make, nodes.node_root.fresh, ("base root file system",)),
        Step("base image", nodes.make_base, nodes.base_fresh, ("base root file system",)),
    ]
    previous = "Kubernetes programs"
    for name, program in programs:
        steps.append(Step(name, program.make, program.fresh, (previous,)))
        previous = name
    if not nodes.fresh():
        inputs = tuple(step.name for step in steps)
        run_plan([*steps, Step("node image", nodes.make, nodes.fresh, inputs)], reporter)
    else:
        wanted = {"kind", "kubectl and helm"} | (
            set() if nodes.base_fresh() else {"debootstrap", "base root file system", "base image"}
        )
        run_plan([step for step in steps if step.name in wanted], reporter)
    with reporter.step("node network"):
        engine.ensure_node_network()


def _install_debootstrap(cache: Cache) -> None:
    debian.install_packages(["debootstrap"], cache.logs / "debootstrap-package.log")


def _uncordon(cluster: Cluster, reporter: Reporter) -> None:
    """A drain that nobody ended would leave the cluster healthy and without room."""
    for node in clusters.cordoned(cluster):
        cluster.kubectl("uncordon", node)
        reporter.say(f"{node} was cordoned; uncordoned it")


def _create_or_start(cache: Cache, reporter: Reporter, name: str, image: str) -> Cluster:
    nodes = clusters.node_containers(name)
    if len(nodes) == clusters.WORKERS + 1:
        try:
            with reporter.step(f"start the nodes of {name} that are stopped or not Ready"):
                cluster = clusters.revive(cache, name, nodes)
            _uncordon(cluster, reporter)
            return cluster
        except KindToolError as e:
            reporter.say(f"{name} did not come back ({e}); making a new one")
    if nodes:
        with reporter.step(f"delete the unhealthy cluster {name}"):
            clusters.delete(cache, name)
    with reporter.step(f"create cluster {name}"):
        return clusters.create(cache, name, image)
