"""Debian: packages on this host, and root file systems made from the mirror this host already uses."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.kind import versions
from tests.kind.cache import Cache, digest, folder_in_place
from tests.kind.errors import KindToolError
from tests.kind.shell import run, succeeds

MIRROR_VARIABLE = "EVERSTEP_DEBIAN_MIRROR"
INSTALL_TIMEOUT_S = 900.0
BOOTSTRAP_TIMEOUT_S = 1800.0
# What no program in a node or an image reads.
UNUSED = ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale")


def missing_packages(wanted: Sequence[str]) -> list[str]:
    """Those of `wanted` that are not installed on this host."""
    return [name for name in wanted if not succeeds(["dpkg", "-s", name])]


def install_packages(wanted: Sequence[str], log: Path) -> None:
    """Install Debian packages. Raises KindToolError where that cannot work (not root, not a Debian)."""
    if os.geteuid() != 0:
        raise KindToolError(
            f"{', '.join(wanted)} missing and only root can install them: run `apt-get install {' '.join(wanted)}`"
        )
    if shutil.which("apt-get") is None:
        raise KindToolError(
            f"{', '.join(wanted)} missing and this is no Debian: install a Docker engine, then try again"
        )
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "-q"], timeout_s=INSTALL_TIMEOUT_S, env=env, log=log.with_suffix(".update.log"))
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *wanted]
    run(install, timeout_s=INSTALL_TIMEOUT_S, env=env, log=log)


def pick_mirror(index_targets: str, suite: str) -> str | None:
    """From lines `uri|release|component|origin`, the mirror of Debian's main archive that serves `suite`, else any of main."""
    rows = [line.split("|") for line in index_targets.splitlines()]
    main = [row for row in rows if len(row) == 4 and row[2] == "main" and row[3] == "Debian"]
    for row in sorted(main, key=lambda row: row[1] != suite):
        if not row[1].endswith(("-security", "-updates", "-backports")):
            return row[0].rstrip("/")
    return None


def mirror() -> str:
    """The Debian mirror: EVERSTEP_DEBIAN_MIRROR, else the one in this host's apt sources.

    Raises KindToolError if there is none.
    """
    if given := os.environ.get(MIRROR_VARIABLE):
        return given
    listing = [
        "apt-get",
        "indextargets",
        "--format",
        "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(ORIGIN)",
        "Created-By: Packages",
    ]
    found = pick_mirror(run(listing), versions.DEBIAN_SUITE) if shutil.which("apt-get") else None
    if found is None:
        raise KindToolError(
            f"no Debian mirror in this host's apt sources; set {MIRROR_VARIABLE} to one that has {versions.DEBIAN_SUITE}"
        )
    return found


class RootFileSystem:
    """A Debian root file system with given packages, made once per package list."""

    def __init__(self, cache: Cache, name: str, packages: Sequence[str]) -> None:
        self.path = cache.root / "rootfs" / name
        self.key = digest(versions.DEBIAN_SUITE, *packages)
        self._cache, self._name, self._packages = cache, name, packages

    def fresh(self) -> bool:
        """Whether it is there and complete."""
        return self._cache.fresh(f"rootfs-{self._name}", self.key, self.path)

    def make(self) -> None:
        """Run debootstrap (about a minute, mostly download and unpack)."""
        log = self._cache.logs / f"debootstrap-{self._name}.log"
        with folder_in_place(self.path) as target:
            target.chmod(0o755)
            command = ["debootstrap", "--variant=minbase", f"--include={','.join(self._packages)}"]
            run([*command, versions.DEBIAN_SUITE, target, mirror()], timeout_s=BOOTSTRAP_TIMEOUT_S, log=log)
            for folder in UNUSED:
                for entry in (target / folder).glob("*"):
                    shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        self._cache.mark(f"rootfs-{self._name}", self.key)
