"""From what `docker save` writes to what a node still lacks: an OCI image layout whose known layers are left out.

A saved archive has every layer in it, several hundred megabytes; after a change of one's own code a node lacks a few of them.
"""

from __future__ import annotations

import hashlib
import io
import json
import posixpath
import tarfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
NAME_ANNOTATION = "io.containerd.image.name"  # the node's containerd names the image by it
# What every engine means by a tag that names no registry; part of the image's full name, nothing is asked of it.
DEFAULT_REGISTRY = "docker.io"
GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class Layer:
    """A layer: its digest and size as a blob, its media type, the archive member that holds it."""

    digest: str
    size_bytes: int
    media_type: str
    member: tarfile.TarInfo


def _resolve(archive: tarfile.TarFile, name: str) -> tarfile.TarInfo:
    """A member by name; older engines write a layer that two images share once, and a link to it after that."""
    member = archive.getmember(name)
    while member.issym():
        name = posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))
        member = archive.getmember(name)
    return member


def _read(archive: tarfile.TarFile, name: str, limit: int = -1) -> bytes:
    file = archive.extractfile(_resolve(archive, name))
    if file is None:
        raise ValueError(f"{name} in the saved archive is no file")
    with file:
        return file.read(limit)


def _layer(archive: tarfile.TarFile, name: str, diff_id: str) -> Layer:
    member = _resolve(archive, name)
    compressed = _read(archive, name, 2) == GZIP_MAGIC
    # An uncompressed layer is named by the hash the image's configuration knows it by; a compressed one only by its own name.
    digest = f"sha256:{posixpath.basename(member.name)}" if compressed else diff_id
    return Layer(digest, member.size, LAYER_TYPE + ("+gzip" if compressed else ""), member)


def full_name(tag: str) -> str:
    """A tag as containerd writes it: with a registry host and at least one folder."""
    head, _, rest = tag.partition("/")
    if rest and ("." in head or ":" in head or head == "localhost"):
        return tag
    return f"{DEFAULT_REGISTRY}/{tag}" if rest else f"{DEFAULT_REGISTRY}/library/{tag}"


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _json(document: dict[str, Any]) -> bytes:  # Any: an OCI document
    return json.dumps(document, sort_keys=True).encode()


def write_layout(saved: Path, target: Path, held: Collection[str]) -> int:
    """Write the images of a saved archive to `target` as an OCI layout without the blobs in `held` (digests `sha256:…`).

    Returns the bytes of the layers written. Raises ValueError or KeyError for an archive of an unknown form.
    """
    small: dict[str, bytes] = {}
    layers: dict[str, Layer] = {}
    manifests = []
    with tarfile.open(saved) as archive, tarfile.open(target, "w") as out:
        for image in json.loads(_read(archive, "manifest.json")):
            config = _read(archive, image["Config"])
            diff_ids = json.loads(config)["rootfs"]["diff_ids"]
            own = [_layer(archive, name, diff) for name, diff in zip(image["Layers"], diff_ids, strict=True)]
            layers |= {layer.digest: layer for layer in own}
            manifest = _json({
                "schemaVersion": 2, "mediaType": MANIFEST_TYPE,
                "config": {"mediaType": CONFIG_TYPE, "digest": _digest(config), "size": len(config)},
                "layers": [{"mediaType": x.media_type, "digest": x.digest, "size": x.size_bytes} for x in own],
            })  # fmt: skip
            small |= {_digest(config): config, _digest(manifest): manifest}
            entry = {"mediaType": MANIFEST_TYPE, "digest": _digest(manifest), "size": len(manifest)}
            manifests += [{**entry, "annotations": {NAME_ANNOTATION: full_name(tag)}} for tag in image["RepoTags"]]
        _add(out, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(out, "index.json", _json({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": manifests}))
        for digest, data in small.items():
            _add(out, _blob(digest), data)
        lacking = [layer for layer in layers.values() if layer.digest not in held]
        for layer in lacking:
            entry_info = tarfile.TarInfo(_blob(layer.digest))
            entry_info.size = layer.size_bytes
            out.addfile(entry_info, archive.extractfile(layer.member))
    return sum(layer.size_bytes for layer in lacking)


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _add(out: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    out.addfile(info, io.BytesIO(data))
