"""Programs built from published Go modules through the host's own Go settings (proxy, checksums, caches)."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from pathlib import Path

from tests.kind import versions
from tests.kind.cache import Cache, digest, write_atomically
from tests.kind.errors import KindToolError
from tests.kind.shell import Argv, run
from tests.kind.versions import GoProgram

BUILD_TIMEOUT_S = 3600.0
BUILD_ENV = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=mod"}
HEADER = "module everstep.local/build\n\ngo 1.24.0\n"


def module_folder(module: str, version: str) -> Path:
    """The unpacked source of a module in Go's module cache; fetched if absent. Raises KindToolError without Go."""
    if shutil.which("go") is None:
        raise KindToolError("go not found: building kind and the node image needs Go 1.25 or newer on PATH")
    with tempfile.TemporaryDirectory() as empty:
        answer = run(
            ["go", "mod", "download", "-json", f"{module}@v{version}"], timeout_s=600, env=BUILD_ENV, cwd=Path(empty)
        )
    return Path(json.loads(answer)["Dir"])


def kubernetes_go_mod(upstream: str, version: str) -> str:
    """A go.mod that requires k8s.io/kubernetes from outside.

    Upstream's own go.mod replaces each staging module by a folder of its repository; `replace` lines of a dependency don't
    count, so ours name the published version of each (v1.34.4 is published as v0.34.4).
    """
    staging = re.findall(r"^\s*(\S+) => \./staging/src/\S+", upstream, flags=re.MULTILINE)
    published = "v0." + version.split(".", 1)[1]
    lines = "".join(f"\t{name} => {name} {published}\n" for name in staging)
    # The defaults of run-time behaviour follow the main module's Go version unless pinned.
    return f"{HEADER}\ngodebug default=go1.24\n\nrequire k8s.io/kubernetes v{version}\n\nreplace (\n{lines})\n"


def kubernetes_linker_flags(version: str) -> str:
    """Linker flags that give the programs their version, which kubeadm compares and `kubectl version` shows."""
    major, minor, _ = version.split(".")
    values = {
        "gitVersion": f"v{version}",
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
        "gitCommit": "unknown",
    }
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return " ".join(
        ["-s -w", *(f"-X {package}.{key}={value}" for package in packages for key, value in values.items())]
    )


class Kubernetes:
    """The six programs of a node, built in one go: they share nearly all packages."""

    key = digest(versions.KUBERNETES, *versions.KUBERNETES_PROGRAMS)

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._outputs = [cache.bin / name for name in versions.KUBERNETES_PROGRAMS]

    def fresh(self) -> bool:
        """Whether all six are there."""
        return self._cache.fresh("kubernetes", self.key, *self._outputs)

    def make(self) -> None:
        """Build them (minutes on two cores; Go's own build cache makes a second run quick)."""
        folder = self._cache.build / "kubernetes"
        out = folder / "out"
        out.mkdir(parents=True, exist_ok=True)
        upstream = (module_folder("k8s.io/kubernetes", versions.KUBERNETES) / "go.mod").read_text()
        write_atomically(folder / "go.mod", kubernetes_go_mod(upstream, versions.KUBERNETES))
        packages = [f"k8s.io/kubernetes/cmd/{name}" for name in versions.KUBERNETES_PROGRAMS]
        flags = ["-trimpath", "-ldflags", kubernetes_linker_flags(versions.KUBERNETES), "-o", f"{out}/"]
        run(
            ["go", "build", *flags, *packages],
            timeout_s=BUILD_TIMEOUT_S,
            env=BUILD_ENV,
            cwd=folder,
            log=self._cache.logs / "kubernetes.log",
        )
        for output in self._outputs:
            (out / output.name).replace(output)
        self._cache.mark("kubernetes", self.key)


class Program:
    """One program of one module."""

    def __init__(self, cache: Cache, program: GoProgram) -> None:
        self.key = digest(program.module, program.version, program.package)
        self._cache, self._program = cache, program

    def fresh(self) -> bool:
        """Whether it is there."""
        return self._cache.fresh(self._program.name, self.key, self._cache.bin / self._program.name)

    def make(self) -> None:
        """Build it from a go.mod of ours, since a module with `replace` lines cannot be `go install`ed."""
        program = self._program
        folder = self._cache.build / program.name
        write_atomically(folder / "go.mod", f"{HEADER}\nrequire {program.module} v{program.version}\n")
        partial = folder / program.name
        command: Argv = ["go", "build", "-trimpath", "-ldflags", "-s -w", "-o", partial, program.package]
        run(command, timeout_s=BUILD_TIMEOUT_S, env=BUILD_ENV, cwd=folder, log=self._cache.logs / f"{program.name}.log")
        partial.replace(self._cache.bin / program.name)
        self._cache.mark(program.name, self.key)


class LocalProgram:
    """A program of one Go file kept in this folder (the pause container's process)."""

    def __init__(self, cache: Cache, source: Path) -> None:
        self.key = digest(source.read_bytes())
        self._cache, self._source = cache, source

    def fresh(self) -> bool:
        """Whether it is there."""
        return self._cache.fresh(self._source.stem, self.key, self._cache.bin / self._source.stem)

    def make(self) -> None:
        """Build it."""
        partial = self._cache.build / self._source.stem
        command: Argv = ["go", "build", "-trimpath", "-ldflags", "-s -w", "-o", partial, self._source]
        run(command, timeout_s=BUILD_TIMEOUT_S, env={"CGO_ENABLED": "0"}, cwd=self._source.parent)
        partial.replace(self._cache.bin / self._source.stem)
        self._cache.mark(self._source.stem, self.key)


def install_kind(cache: Cache) -> None:
    """Build kind itself into the cache."""
    if shutil.which("go") is None:
        raise KindToolError("neither kind nor go found: put kind on PATH, or Go 1.25 or newer to build it")
    env = {"GOBIN": str(cache.bin), "GOFLAGS": "", "CGO_ENABLED": "0"}
    command = ["go", "install", f"sigs.k8s.io/kind@v{versions.KIND}"]
    run(command, timeout_s=BUILD_TIMEOUT_S, env=env, cwd=cache.build, log=cache.logs / "kind.log")
    os.chmod(cache.bin / "kind", 0o755)
