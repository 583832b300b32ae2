"""The kind node image, built from root file systems and programs: no image registry is asked for anything."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

from tests.kind import gomodules, node_files, versions
from tests.kind.cache import Cache, digest, tree_digest
from tests.kind.debian import RootFileSystem
from tests.kind.errors import CommandFailed, KindToolError
from tests.kind.shell import Argv, pipe, run, succeeds, wait_until

BUILD_TIMEOUT_S = 600.0
KEY_LABEL = "dev.everstep.key"
COMPONENTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")


def docker_build(context: Path, tag: str, *options: str, timeout_s: float = BUILD_TIMEOUT_S) -> None:
    """Build an image; by the classic builder where the client lacks the buildx plugin. Raises CommandFailed."""
    env = {} if succeeds(["docker", "buildx", "version"]) else {"DOCKER_BUILDKIT": "0"}
    run(["docker", "build", "--quiet", "--tag", tag, *options, context], timeout_s=timeout_s, env=env)


def image_label(tag: str, label: str = KEY_LABEL) -> str | None:
    """A label of a local image; None if there is no such image or label."""
    try:
        answer = run(["docker", "image", "inspect", "--format", f'{{{{index .Config.Labels "{label}"}}}}', tag])
    except CommandFailed:
        return None
    return answer.strip() or None


def image_id(tag: str) -> str | None:
    """The id of a local image (`sha256:…`, what a node calls it too); None if there is no such image."""
    try:
        return run(["docker", "image", "inspect", "--format", "{{.Id}}", tag]).strip()
    except CommandFailed:
        return None


def component_names(listing: str) -> dict[str, str]:
    """From `kubeadm config images list`: image name by component (`pause`, `etcd`, `coredns`, `kube-proxy` …)."""
    names = [line.strip() for line in listing.splitlines() if ":" in line and not line.startswith(("W", "I"))]
    return {name.rsplit("/", 1)[-1].split(":")[0]: name for name in names}


class NodeImage:
    """The node image and the base image of our own containers, made from the outputs of the plan's earlier steps."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self.node_root = RootFileSystem(cache, "node", versions.NODE_PACKAGES)
        self.base_root = RootFileSystem(cache, "base", versions.BASE_PACKAGES)
        self.base_key = self.base_root.key
        programs = [gomodules.Program(cache, program).key for program in versions.GO_PROGRAMS]
        own = tree_digest([node_files.NODE_FOLDER, Path(node_files.__file__), Path(__file__)], Path(__file__).parent)
        self.key = digest(gomodules.Kubernetes.key, *programs, versions.KIND, self.node_root.key, self.base_key, own)

    def base_fresh(self) -> bool:
        """Whether the engine has the base image."""
        return image_label(versions.BASE_IMAGE) == self.base_key

    def make_base(self) -> None:
        """Import the base root file system as an image."""
        change = [
            "--change",
            f"LABEL {KEY_LABEL}={self.base_key}",
            "--change",
            "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        ]
        archive: Argv = ["tar", "--numeric-owner", "-C", self.base_root.path, "-c", "."]
        pipe(archive, ["docker", "import", *change, "-", versions.BASE_IMAGE], timeout_s=BUILD_TIMEOUT_S)

    def fresh(self) -> bool:
        """Whether the engine has the node image made from these very inputs."""
        return image_label(versions.NODE_IMAGE) == self.key

    def make(self) -> None:
        """Build it: node root file system, component images inside, one commit."""
        listing = run(
            [self._cache.bin / "kubeadm", "config", "images", "list", "--kubernetes-version", f"v{versions.KUBERNETES}"]
        )
        names = component_names(listing)
        with tempfile.TemporaryDirectory(dir=self._cache.build) as scratch:
            root = Path(scratch) / "node"
            run(["cp", "-a", self.node_root.path, root], timeout_s=BUILD_TIMEOUT_S)
            storage = node_files.make_node(root, self._cache, names["pause"])
            images = self._component_images(names, storage)
            archive = Path(scratch) / "images.tar"
            run(["docker", "save", "--output", archive, *images], timeout_s=BUILD_TIMEOUT_S)
            files, bare = f"{versions.NODE_IMAGE}-files", f"{versions.NODE_IMAGE}-bare"
            pipe(
                ["tar", "--numeric-owner", "-C", root, "-c", "."],
                ["docker", "import", "-", files],
                timeout_s=BUILD_TIMEOUT_S,
            )
            # Import and commit cannot set a stop signal in every engine; a build can. systemd ends on this one.
            with tempfile.TemporaryDirectory(dir=self._cache.build) as name:
                (Path(name) / "Dockerfile").write_text(f"FROM {files}\nENV container=docker\nSTOPSIGNAL SIGRTMIN+3\n")
                docker_build(Path(name), bare)
            try:
                self._commit_with_images(bare, archive)
            finally:
                run(["docker", "image", "rm", "--no-prune", files, bare])

    def _component_images(self, names: dict[str, str], storage: node_files.Storage) -> list[str]:
        """Images of the control plane, DNS and storage, each one program on nothing; kube-proxy on the base, for iptables."""
        programs = {names["pause"]: ("pause", "/pause"), names["etcd"]: ("etcd", "/usr/local/bin/etcd"),
                    names["coredns"]: ("coredns", "/coredns"),
                    storage.provisioner_image: ("local-path-provisioner", "/usr/local/bin/local-path-provisioner"),
                    **{names[name]: (name, f"/usr/local/bin/{name}") for name in COMPONENTS}}  # fmt: skip
        for tag, (program, place) in programs.items():
            entry = f'ENV PATH=/usr/local/bin:/\nCOPY {program} {place}\nENTRYPOINT ["{place}"]\n'
            self._program_image(tag, "scratch", program, entry)
        proxy = names["kube-proxy"]
        self._program_image(proxy, versions.BASE_IMAGE, "kube-proxy", "COPY kube-proxy /usr/local/bin/kube-proxy\n")
        run(["docker", "tag", versions.BASE_IMAGE, storage.helper_image])
        return [*programs, proxy, storage.helper_image, versions.BASE_IMAGE]

    def _program_image(self, tag: str, base: str, program: str, rest: str) -> None:
        with tempfile.TemporaryDirectory(dir=self._cache.build) as name:
            context = Path(name)
            os.link(self._cache.bin / program, context / program)
            (context / "Dockerfile").write_text(f"FROM {base}\n{rest}")
            docker_build(context, tag, "--no-cache")

    def _commit_with_images(self, bare: str, archive: Path) -> None:
        """Import the images into a node's containerd and commit. Not unpacked: overlayfs does not stack on overlayfs."""
        mount = f"{archive}:/images.tar:ro"
        start = [
            "docker",
            "run",
            "--detach",
            "--privileged",
            "--entrypoint",
            "sleep",
            "--volume",
            mount,
            bare,
            "infinity",
        ]
        container = run(start).strip()
        inside = ["docker", "exec", container]
        try:
            run(["docker", "exec", "--detach", container, "containerd"])
            wait_until(
                "containerd answers in the new node image", lambda: succeeds([*inside, "ctr", "version"]), timeout_s=30
            )
            options = ["--all-platforms", "--no-unpack", "--digests"]
            run(
                [*inside, "ctr", "-n", "k8s.io", "images", "import", *options, "/images.tar"], timeout_s=BUILD_TIMEOUT_S
            )
            run([*inside, "pkill", "-x", "containerd"])
            wait_until("containerd ends", lambda: not succeeds([*inside, "pgrep", "-x", "containerd"]), timeout_s=30)
            run([*inside, "sh", "-c", "rm -rf /run/containerd/* /var/lib/containerd/tmpmounts"])
            changes = [
                "--change",
                'ENTRYPOINT ["/usr/local/bin/entrypoint","/sbin/init"]',
                "--change",
                f"LABEL {KEY_LABEL}={self.key}",
            ]
            run(["docker", "commit", *changes, container, versions.NODE_IMAGE], timeout_s=BUILD_TIMEOUT_S)
        finally:
            run(["docker", "rm", "--force", "--volumes", container])


def remove_unused(folder: Path, older_than_s: float) -> None:
    """Remove scratch folders that an interrupted build left behind."""
    for entry in folder.glob("tmp*"):
        if entry.is_dir() and time.time() - entry.stat().st_mtime > older_than_s:
            shutil.rmtree(entry, ignore_errors=True)


def require_root() -> None:
    """Raise KindToolError unless this is root, without which no root file system can be made."""
    if os.geteuid() != 0:
        raise KindToolError(
            "the public node image cannot be pulled, and only root can build one (debootstrap): run as root"
        )
