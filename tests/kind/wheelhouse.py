"""The wheels of the project and of all it depends on, for the base image's Python, fetched by this host's pip.

Fetched outside the image build, since containers of a host without an image registry may not reach a package registry either.
"""

from __future__ import annotations

import json
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


def marker_environment(python: str, machine: str) -> dict[str, str]:
    """The values that environment markers have in the image: CPython `python` (such as `3.11.2`) on Linux."""
    return {
        "implementation_name": "cpython",
        "implementation_version": python,
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": python,
        "python_version": ".".join(python.split(".")[:2]),
        "sys_platform": "linux",
    }


# pip chooses wheels for another Python but evaluates markers for the one it runs in, and so leaves out what only the other needs.
PIP_FOR_ANOTHER_PYTHON = """
import json, sys
from pip._internal.cli.main import main
from pip._vendor.packaging import markers
environment = json.loads(sys.argv[1])
markers.default_environment = lambda: dict(environment)
sys.exit(main(sys.argv[2:]))
"""


def dependencies_key(pyproject: str, python: str, machine: str) -> str:
    """The hash of what decides which wheels are needed."""
    return digest(python, machine, *requirements(pyproject))


def dependencies(cache: Cache, pyproject: str, python: str, machine: str) -> Path:
    """A folder with the wheels of all dependencies for CPython `python` (as in `3.11.2`) on `machine`; kept until either changes.

    Raises CommandFailed with pip's words, for instance where a dependency has no wheel for that Python.
    """
    key = dependencies_key(pyproject, python, machine)
    folder = cache.root / "wheels" / key
    if cache.fresh(f"wheels-{key}", key, folder):
        return folder
    major, minor = python.split(".")[:2]
    target = ["--only-binary", ":all:", "--implementation", "cp", "--python-version", python]
    for abi in (f"cp{major}{minor}", "abi3", "none"):
        target += ["--abi", abi]
    for tag in platform_tags(machine):
        target += ["--platform", tag]
    environment = json.dumps(marker_environment(python, machine))
    pip = [sys.executable, "-c", PIP_FOR_ANOTHER_PYTHON, environment]
    with folder_in_place(folder) as partial:
        command: Argv = [*pip, "download", "--quiet", "--dest", partial, *target, *requirements(pyproject)]
        run(command, timeout_s=FETCH_TIMEOUT_S)
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
