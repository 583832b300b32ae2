"""Turning a Debian root file system into a kind node: kind's own files, Kubernetes' programs, our pod network.

The files of kind's base image are read from kind's published module, so that nothing of them is kept here.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.kind import versions
from tests.kind.cache import Cache
from tests.kind.errors import KindToolError
from tests.kind.gomodules import module_folder
from tests.kind.shell import run

NODE_FOLDER = Path(__file__).parent / "node"
UNITS = ("kubelet", "containerd", "undo-mount-hacks", "pod-network")


@dataclass(frozen=True)
class Storage:
    """kind's default StorageClass: the manifest, and the names of the two images it runs."""

    manifest: str
    provisioner_image: str
    helper_image: str


def storage_of_kind(source: str) -> Storage:
    """Read kind's storage manifest from the Go file that holds it. Raises KindToolError if the file has another form."""
    names = dict(re.findall(r'^const (storage\w+Image) = "([^"]+)"', source, flags=re.MULTILINE))
    text = re.search(r"const defaultStorageManifest = `\n(.*?)\n`\s*$", source, flags=re.DOTALL | re.MULTILINE)
    if text is None or not {"storageProvisionerImage", "storageHelperImage"} <= names.keys():
        raise KindToolError(f"kind {versions.KIND} keeps its storage manifest in another form; adapt storage_of_kind")
    manifest = text[1]
    for name, image in names.items():
        manifest = manifest.replace(f"` + {name} + `", image)
    return Storage(manifest + "\n", names["storageProvisionerImage"], names["storageHelperImage"])


def containerd_config(upstream: str, sandbox_image: str) -> str:
    """kind's containerd configuration with three changes.

    No fuse snapshotter (not installed); containers keep the node's OOM score (lowering it needs CAP_SYS_RESOURCE); the
    sandbox image is the one that is in the node.
    """
    kept = [
        line
        for line in upstream.splitlines()
        if not re.search(r'fuse-overlayfs|^\[proxy_plugins|type = "snapshot"', line)
    ]
    text = "\n".join(kept) + "\n"
    text = text.replace("restrict_oom_score_adj = false", "restrict_oom_score_adj = true")
    return re.sub(r"sandbox_image = .*", f'sandbox_image = "{sandbox_image}"', text)


def containerd_unit(upstream: str) -> str:
    """kind's containerd unit without limits and OOM score, which systemd may set only with CAP_SYS_RESOURCE."""
    return "".join(
        line for line in upstream.splitlines(keepends=True) if not line.startswith(("OOMScoreAdjust", "Limit"))
    )


def base_runtime_spec(spec: str) -> str:
    """The default runtime spec of the node's containerd plus kind's hook, without rlimits (see containerd_unit)."""
    document = json.loads(spec)
    hooks = document.setdefault("hooks", {}).setdefault("createContainer", [])
    hooks.append({"path": "/kind/bin/mount-product-files.sh"})
    document["process"].pop("rlimits", None)
    return json.dumps(document)


def _copy_tree(source: Path, target: Path, mode: int) -> None:
    for file in source.rglob("*"):
        if file.is_file():
            place = target / file.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)
            place.chmod(mode)


def _remove(root: Path, *patterns: str) -> None:
    for pattern in patterns:
        for entry in root.glob(pattern):
            entry.unlink()


def make_node(root: Path, cache: Cache, sandbox_image: str) -> Storage:
    """Change a Debian root file system in place into that of a kind node; needs the built programs in the cache's bin folder."""
    kind = module_folder("sigs.k8s.io/kind", versions.KIND)
    files = kind / "images" / "base" / "files"
    etc, systemd = root / "etc", root / "etc" / "systemd" / "system"
    _copy_tree(files / "etc", etc, 0o644)
    _copy_tree(files / "kind" / "bin", root / "kind" / "bin", 0o755)
    _copy_tree(files / "usr" / "local" / "bin", root / "usr" / "local" / "bin", 0o755)
    for folder in (root / "kind" / "manifests", etc / "kubernetes" / "manifests", root / "opt" / "cni" / "bin"):
        folder.mkdir(parents=True, exist_ok=True)
    for plugin in (root / "usr" / "lib" / "cni").iterdir():
        shutil.copy(plugin, root / "opt" / "cni" / "bin" / plugin.name)
    # kind's unit and entrypoint name these two paths.
    (root / "usr" / "local" / "bin" / "containerd").symlink_to("/usr/bin/containerd")
    (root / "sbin" / "init").unlink(missing_ok=True)
    (root / "sbin" / "init").symlink_to("/usr/lib/systemd/systemd")
    _services(root, systemd)
    config = etc / "containerd" / "config.toml"
    config.write_text(containerd_config(config.read_text(), sandbox_image))
    unit = systemd / "containerd.service"
    unit.write_text(containerd_unit(unit.read_text()))
    (etc / "containerd" / "cri-base.json").write_text(
        base_runtime_spec(run(["chroot", root, "/usr/bin/ctr", "oci", "spec"]))
    )
    places = {"kubeadm": "usr/bin", "kubelet": "usr/bin", "kubectl": "usr/bin", "crictl": "usr/local/bin"}
    for program, place in places.items():
        shutil.copy(cache.bin / program, root / place / program)
    shutil.copyfile(NODE_FOLDER / "default-cni.yaml", root / "kind" / "manifests" / "default-cni.yaml")
    storage = storage_of_kind((kind / "pkg" / "build" / "nodeimage" / "const_storage.go").read_text())
    (root / "kind" / "manifests" / "default-storage.yaml").write_text(storage.manifest)
    (root / "kind" / "version").write_text(f"v{versions.KUBERNETES}")
    return storage


def _services(root: Path, systemd: Path) -> None:
    """Only what a node needs starts; udev, binfmt and temporary files are the host's business (as in kind's own image)."""
    lib = root / "lib" / "systemd" / "system"
    _remove(lib, "sysinit.target.wants/systemd-tmpfiles-setup.service", "multi-user.target.wants/*", "local-fs.target.wants/*",
            "basic.target.wants/*", "sockets.target.wants/*udev*", "sockets.target.wants/*initctl*")  # fmt: skip
    _remove(systemd, "*.wants/*")
    with (root / "etc" / "systemd" / "journald.conf").open("a") as journald:
        journald.write("ReadKMsg=no\n")
    shutil.copyfile(NODE_FOLDER / "pod-network.service", systemd / "pod-network.service")
    shutil.copy(NODE_FOLDER / "pod-network", root / "usr" / "local" / "bin" / "pod-network")
    wants = systemd / "multi-user.target.wants"
    wants.mkdir(parents=True, exist_ok=True)
    for name in UNITS:
        (wants / f"{name}.service").symlink_to(f"/etc/systemd/system/{name}.service")
    (systemd / "systemd-binfmt.service").symlink_to("/dev/null")
