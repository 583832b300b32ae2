"""Where the node image comes from: published and pulled, or built here. Decided by itself, said in one line, quickly."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from tests.kind import versions
from tests.kind.errors import KindToolError
from tests.kind.node_image import image_id
from tests.kind.shell import run

ROUTE_VARIABLE = "EVERSTEP_KIND_ROUTE"
# One question to the registry, answered or not: a host without one must not wait for it.
PROBE_TIMEOUT_S = 15.0
PULL_TIMEOUT_S = 1200.0


class Route(Enum):
    """`public`: the published node image. `built`: everything from Debian's and the languages' package registries."""

    PUBLIC = "public"
    BUILT = "built"


@dataclass(frozen=True)
class Choice:
    """A route and why."""

    route: Route
    why: str


def decide(wish: str | None, has_built: bool, has_public: bool, can_pull: Callable[[], str | None]) -> Choice:
    """Choose a route. `wish`: EVERSTEP_KIND_ROUTE; `can_pull` is asked last and answers None or why not.

    Raises KindToolError for a wish that is no route.
    """
    if wish:
        if wish not in {route.value for route in Route}:
            raise KindToolError(f"{ROUTE_VARIABLE}={wish}: expected public or built")
        return Choice(Route(wish), f"{ROUTE_VARIABLE} says so")
    if has_public:
        return Choice(Route.PUBLIC, f"{versions.PUBLIC_NODE_IMAGE} is in the engine")
    if has_built:
        return Choice(Route.BUILT, f"{versions.NODE_IMAGE} is in the engine")
    problem = can_pull()
    if problem is None:
        return Choice(Route.PUBLIC, f"{versions.PUBLIC_NODE_IMAGE} can be pulled")
    return Choice(Route.BUILT, f"{versions.PUBLIC_NODE_IMAGE} cannot be pulled ({problem})")


def choose(*, built_is_fresh: bool) -> Choice:
    """Choose for this host; at most PROBE_TIMEOUT_S."""
    has_public = image_id(versions.PUBLIC_NODE_IMAGE) is not None
    return decide(os.environ.get(ROUTE_VARIABLE), built_is_fresh, has_public, _probe)


def _probe() -> str | None:
    try:
        run(["docker", "manifest", "inspect", versions.PUBLIC_NODE_IMAGE], timeout_s=PROBE_TIMEOUT_S)
    except KindToolError as e:
        return str(e).strip().splitlines()[-1][:160]
    return None


def pull(image: str) -> None:
    """Pull a published image unless the engine has it."""
    if image_id(image) is None:
        run(["docker", "pull", "--quiet", image], timeout_s=PULL_TIMEOUT_S)
