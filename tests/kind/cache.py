"""Where built things live, and how a thing is known to be up to date.

Everything is below one folder outside the checkout. An output is written beside its place and renamed into it; then a stamp with
the hash of its inputs is written. An output without a matching stamp is made again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

CACHE_VARIABLE = "EVERSTEP_KIND_CACHE"


def digest(*parts: str | bytes) -> str:
    """A short hash (16 hex digits) of parts; the borders between parts count."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(str(len(data)).encode() + b":" + data)
    return total.hexdigest()[:16]


def tree_digest(paths: Iterable[Path], root: Path) -> str:
    """The hash of files and folders: names relative to `root`, executable bits and contents; caches of Python don't count."""
    parts: list[bytes] = []
    for path in paths:
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
        for file in files:
            if "__pycache__" in file.parts or file.suffix == ".pyc":
                continue
            mode = b"x" if os.access(file, os.X_OK) else b"-"
            parts += [str(file.relative_to(root)).encode(), mode, file.read_bytes()]
    return digest(*parts)


@dataclass(frozen=True)
class Cache:
    """The folder of built things and the names in it."""

    root: Path

    @staticmethod
    def default() -> Cache:
        """The folder named by EVERSTEP_KIND_CACHE, else `~/.cache/everstep-kind`; made if absent."""
        root = Path(os.environ.get(CACHE_VARIABLE) or "~/.cache/everstep-kind").expanduser().absolute()
        for folder in (root, root / "bin", root / "stamps", root / "build", root / "logs"):
            folder.mkdir(parents=True, exist_ok=True)
        return Cache(root)

    @property
    def bin(self) -> Path:
        """Built programs."""
        return self.root / "bin"

    @property
    def build(self) -> Path:
        """Folders that hold a build while and after it runs."""
        return self.root / "build"

    @property
    def logs(self) -> Path:
        """Output of long steps."""
        return self.root / "logs"

    def kubeconfig(self, name: str) -> Path:
        """The kubeconfig of a cluster."""
        return self.root / f"{name}.kubeconfig"

    def fresh(self, name: str, key: str, *outputs: Path) -> bool:
        """Whether `outputs` exist and were made from inputs of hash `key`."""
        stamp = self.root / "stamps" / name
        return all(output.exists() for output in outputs) and stamp.exists() and stamp.read_text() == key

    def mark(self, name: str, key: str) -> None:
        """Record that the outputs of `name` are complete and were made from inputs of hash `key`."""
        write_atomically(self.root / "stamps" / name, key)

    @contextlib.contextmanager
    def lock(self, name: str, say: Callable[[str], None]) -> Iterator[None]:
        """Hold a lock between processes, so that two calls never build the same thing at once; `say` tells if one has to wait."""
        with (self.root / f"{name}.lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"waiting for another process that holds {file.name}")
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


def write_atomically(path: Path, text: str) -> None:
    """Write a whole file or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.replace(path)


@contextlib.contextmanager
def folder_in_place(path: Path) -> Iterator[Path]:
    """Give an empty folder that becomes `path` (replacing what was there) only if the block ends without an error."""
    partial = path.with_name(path.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    shutil.rmtree(path, ignore_errors=True)
    partial.replace(path)
