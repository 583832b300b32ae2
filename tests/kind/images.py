"""The project's images: built from a context that has every wheel in it, and only when something in it changed.

A Dockerfile gets the build argument BASE_IMAGE and a context with `wheels/` (the project and all it depends on), `dependencies/`
(the same without the project, and a requirements file per extra, so that a layer of them survives changes of the project), and
`agent_image/`, `operator/`, `tests/support/` and `tests/__init__.py` as they are in the repository.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from tests.kind import node_image, route, versions, wheelhouse
from tests.kind.cache import Cache, digest, tree_digest
from tests.kind.errors import KindToolError
from tests.kind.node_image import KEY_LABEL, image_id, image_label
from tests.kind.plan import Step, run_plan
from tests.kind.progress import Reporter
from tests.kind.shell import run

REPOSITORY = Path(__file__).resolve().parents[2]
REDIS_TAG = "everstep/redis:dev"
SOURCES = ("agent_image", "operator", "tests/support")
PROJECT_FILES = ("pyproject.toml", "README.md", "LICENSE", "tests/__init__.py")
IGNORED = ("__pycache__", "*.pyc", ".mypy_cache", ".ruff_cache", ".pytest_cache")


@dataclass(frozen=True)
class Recipe:
    """One image: its tag and its Dockerfile, relative to the repository."""

    tag: str
    dockerfile: str


RECIPES = (
    Recipe("everstep/operator:dev", "operator/Dockerfile"),
    Recipe("everstep/agent:dev", "agent_image/Dockerfile"),
    Recipe("everstep/world:dev", "tests/support/world/Dockerfile"),
)


@dataclass(frozen=True)
class Images:
    """The tags of the built images."""

    operator: str
    agent: str
    world: str
    redis: str

    def tags(self) -> list[str]:
        """All of them."""
        return [self.operator, self.agent, self.world, self.redis]


@dataclass(frozen=True)
class Base:
    """The base image and what is in it."""

    tag: str
    id: str
    python: str
    machine: str


def input_key(base_id: str, dependencies_key: str, repository: Path, sources: Iterable[str] = SOURCES) -> str:
    """The hash of everything that goes into an image except its Dockerfile's own name."""
    present = [repository / name for name in (*sources, *PROJECT_FILES) if (repository / name).exists()]
    return digest(base_id, dependencies_key, tree_digest(present, repository))


def find_base() -> Base:
    """The base for our images: the one built here if the engine has it, else the published Python image.

    Raises KindToolError if neither can be had.
    """
    tag = versions.BASE_IMAGE
    if image_id(tag) is None:
        tag = versions.PUBLIC_BASE_IMAGE
        try:
            route.pull(tag)
        except KindToolError as e:
            raise KindToolError(
                f"no base image: {tag} cannot be pulled and {versions.BASE_IMAGE} is not built; run `up` first\n{e}"
            ) from e
    program = "import json, platform; print(json.dumps([platform.python_version(), platform.machine()]))"
    answer = run(["docker", "run", "--rm", "--network", "none", "--entrypoint", "python3", tag, "-c", program])
    version, machine = json.loads(answer)
    return Base(tag, image_id(tag) or "", version, machine)


def build(
    cache: Cache, reporter: Reporter, repository: Path = REPOSITORY, recipes: tuple[Recipe, ...] = RECIPES
) -> Images:
    """Build all images whose inputs changed since they were built, and tag the Redis image.

    Raises KindToolError naming a missing Dockerfile, CommandFailed with pip's or the builder's words.
    """
    for recipe in recipes:
        if not (repository / recipe.dockerfile).exists():
            raise KindToolError(f"{recipe.dockerfile} is missing, from which {recipe.tag} is built")
    with cache.lock("images", reporter.say), reporter.live():
        base = find_base()
        pyproject = (repository / "pyproject.toml").read_text()
        key = input_key(base.id, wheelhouse.dependencies_key(pyproject, base.python, base.machine), repository)
        stale = [recipe for recipe in recipes if image_label(recipe.tag) != _image_key(key, recipe, repository)]
        if stale:
            with reporter.step("wheels of the dependencies"):
                wheels = wheelhouse.dependencies(cache, pyproject, base.python, base.machine)
            with tempfile.TemporaryDirectory(dir=cache.build) as name:
                context = Path(name)
                with reporter.step("project wheel and build context"):
                    make_context(context, wheels, repository)
                steps = [_build_step(recipe, context, base, _image_key(key, recipe, repository)) for recipe in stale]
                # One goes ahead: builds that begin with the same layers at once would each cache their own copy of them.
                run_plan(
                    [steps[0], *(replace(step, needs=(steps[0].name,)) for step in steps[1:])], reporter, workers=2
                )
            # What had these tags before; the layers that serve as the builder's cache stay.
            run(["docker", "image", "prune", "--force", "--filter", f"label={KEY_LABEL}"], timeout_s=120)
        _tag_redis(base, reporter)
    tags = [recipe.tag for recipe in recipes]
    reporter.say(f"images up to date: {', '.join([*tags, REDIS_TAG])}")
    return Images(tags[0], tags[1], tags[2], REDIS_TAG)


def _image_key(key: str, recipe: Recipe, repository: Path) -> str:
    return digest(key, recipe.tag, (repository / recipe.dockerfile).read_bytes())


def make_context(context: Path, wheels: Path, repository: Path) -> None:
    """Fill a build context: the wheelhouse with and without the project, and the sources that Dockerfiles copy from."""
    for folder in ("wheels", "dependencies"):
        (context / folder).mkdir()
        for wheel in wheels.iterdir():
            (context / folder / wheel.name).hardlink_to(wheel)
    pyproject = (repository / "pyproject.toml").read_text()
    for extra in (*wheelhouse.EXTRAS, "integrity"):  # its wheels are among the operator's
        needs = wheelhouse.requirements(pyproject, (extra,))
        (context / "dependencies" / f"{extra}.txt").write_text("\n".join(needs) + "\n")
    wheelhouse.project_wheel(repository, context / "wheels")
    for source in SOURCES:
        if (repository / source).is_dir():
            shutil.copytree(repository / source, context / source, ignore=shutil.ignore_patterns(*IGNORED))
    for file in PROJECT_FILES:
        if (repository / file).exists():
            shutil.copyfile(repository / file, context / file)


def _build_step(recipe: Recipe, context: Path, base: Base, key: str) -> Step:
    def make() -> None:
        options = [
            "--file",
            str(context / recipe.dockerfile),
            "--build-arg",
            f"BASE_IMAGE={base.tag}",
            "--label",
            f"{KEY_LABEL}={key}",
        ]
        # A container of the build has no way out, and needs none.
        node_image.docker_build(context, recipe.tag, "--network", "none", *options)

    return Step(f"image {recipe.tag}", make)


def _tag_redis(base: Base, reporter: Reporter) -> None:
    """Debian's redis-server is in the built base; elsewhere the published Redis image serves."""
    source = base.tag
    if base.tag != versions.BASE_IMAGE:
        with reporter.step(f"image {versions.PUBLIC_REDIS_IMAGE} (pull)"):
            route.pull(versions.PUBLIC_REDIS_IMAGE)
        source = versions.PUBLIC_REDIS_IMAGE
    if image_id(REDIS_TAG) != image_id(source):
        run(["docker", "tag", source, REDIS_TAG])
