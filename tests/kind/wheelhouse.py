"""The wheels of the project and of all it depends on, for the base image's Python, fetched by this host's pip.

Fetched outside the image build, since containers of a host without an image registry may not reach a package registry either.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from tests.kind.cache import Cache, digest, folder_in_place
from tests.kind.shell import Argv, run

EXTRAS = ("operator", "kubectl", "openai", "world")
FETCH_TIMEOUT_S = 900.0
# glibc of the base images: Debian 12 has 2.36; wheels for an older one run on it.
GLIBC_MINORS = (36, 35, 34, 31, 28, 27, 26, 24, 17, 12, 5)


def platform_tags(machine: str) -> list[str]:
    """The wheel platforms that run on the base images of a machine type (`x86_64`, `aarch64`), newest first."""
    return [f"manylinux_2_{minor}_{machine}" for minor in GLIBC_MINORS] + [
        f"manylinux2014_{machine}",
        f"linux_{machine}",
    ]


def requirements(pyproject: str, extras: tuple[str, ...] = EXTRAS) -> list[str]:
    """What the project needs with its extras, as written in pyproject.toml. Raises KeyError for an extra that is not there."""
    project = tomllib.loads(pyproject)["project"]
    optional = project.get("optional-dependencies", {})
    return [*project.get("dependencies", []), *(line for extra in extras for line in optional[extra])]


def dependencies(cache: Cache, pyproject: str, python: str, machine: str) -> Path:
    """A folder with the wheels of all dependencies for CPython `python` (such as `3.11`); fetched again only when either changes.

    Raises CommandFailed with pip's words, for instance where a dependency has no wheel for that Python.
    """
    wanted = requirements(pyproject)
    key = digest(python, machine, *wanted)
    folder = cache.root / "wheels" / key
    if cache.fresh(f"wheels-{key}", key, folder):
        return folder
    minor = python.replace(".", "")
    target = ["--only-binary", ":all:", "--implementation", "cp", "--python-version", python]
    for abi in (f"cp{minor}", "abi3", "none"):
        target += ["--abi", abi]
    for tag in platform_tags(machine):
        target += ["--platform", tag]
    with folder_in_place(folder) as partial:
        run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--dest", partial, *target, *wanted],
            timeout_s=FETCH_TIMEOUT_S,
        )
    cache.mark(f"wheels-{key}", key)
    return folder


def project_wheel(repository: Path, folder: Path) -> Path:
    """Build the project's own wheel into `folder` and return its path."""
    # The build backend is in the environment that runs this, so nothing has to be fetched for the build.
    command: Argv = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        folder,
        repository,
    ]
    run(command, timeout_s=FETCH_TIMEOUT_S)
    return next(folder.glob("everstep-*.whl"))
