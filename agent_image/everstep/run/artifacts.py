"""Files that a step made, kept with its result and put back where they were.

`everstep.artifact(path)` in a body notes a file. When the body is over, its content is kept in blobs of at most CHUNK_BYTES,
before the result that names them, and what the step gave is kept in one more:

    value  {"$blob": <name of the whole>, "bytes": n, "parts": [<names of the chunks, file after file>]}
    whole  {"$artifact": <the step's own value>, "files": [{"path", "sha256", "size", "mode", "parts": <how many chunks>}]}

So a record names every blob that belongs to it and nothing of a file, and where a run is encrypted its files are, too. Before a
result is given to agent code, its files are there: as they are, if the content is the same, else restored from the blobs (written
beside, then renamed). So a pod that replays finds them as the one that ran the step left them.

A restart that begins at a snapshot or segment is given no results of before, so that record lists the files of before itself, in
the same form with null as the step's value: of each path the newest content that agent code was given, as long as there is a file
at that path. Who removes a file says that it is not needed any more; its blobs go with the next compaction.
"""

import contextlib
import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from everstep import faults
from everstep.errors import LimitError, ResourceFailed, ValueTooLarge
from everstep.journal.records import Json, canonical
from everstep.run.values import digest

if TYPE_CHECKING:
    from everstep.run.engine import Engine

log = logging.getLogger("everstep.run")
CHUNK_BYTES = 4 * 1024 * 1024
"""Of one blob: no store minds it, and neither does the memory of a small pod."""
ARTIFACT_MAX_BYTES = 256 * 1024 * 1024
"""Above this a file is refused: every pod that replays would fetch it. Keep it in an object store and journal its address."""
CARRIED_MAX_PARTS = 1000
"""Blobs of files that one snapshot or segment lists, so that its record stays below RECORD_MAX_BYTES: 67 bytes each."""
CARRIED_WARN = 0.8
"""Part of it from which on the log warns."""


class ArtifactChanged(LimitError):
    """A file was changed or removed between `everstep.artifact` and the end of the body."""


class Noted(NamedTuple):
    """A file of a body."""

    path: str
    sha256: str
    size: int
    mode: int
    chunks: list[str]
    """Digests of its parts."""


def note(path: str | os.PathLike[str], max_bytes: int) -> Noted:
    """Look at a file. Raises FileNotFoundError, IsADirectoryError, ValueTooLarge."""
    name = os.fspath(path)
    stat = os.stat(name)
    if stat.st_size > max_bytes:
        raise ValueTooLarge(
            f"artifact {name} has {stat.st_size} bytes; the bound is {max_bytes} (max_bytes=). Keep it elsewhere and journal its "
            f"address"
        )
    whole, chunks, size = hashlib.sha256(), [], 0
    for chunk in _chunks(name):
        whole.update(chunk)
        size += len(chunk)
        chunks.append(digest(chunk))
    return Noted(path=name, sha256=whole.hexdigest(), size=size, mode=stat.st_mode & 0o777, chunks=chunks)


def _chunks(path: str) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


class Artifacts:
    """Of one attempt."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._in_place: dict[str, tuple[str, int, int]] = {}
        """By path: the content that this process has seen there, with the size and time of the file then."""
        self._newest: dict[str, tuple[Json, list[str]]] = {}
        """By path: what agent code was given last, and the names of its parts; in the order it was given."""
        self._warned = False

    async def keep(self, value: Json, files: list[Noted]) -> Json:
        """Keep what a body noted, before its result. Raises ArtifactChanged, and what the store raises."""
        faults.reach("before_artifact")
        parts: list[str] = []
        for file in files:
            parts += await self._keep_file(file)
        whole = canonical({"$artifact": value, "files": [_told(file) for file in files]})
        name = await self._engine.delivery.blobs.put(whole)
        faults.reach("after_artifact")
        return {"$blob": name, "bytes": len(whole), "parts": parts}

    async def _keep_file(self, file: Noted) -> list[str]:
        blobs = self._engine.delivery.blobs
        names: list[str] = []
        try:
            for chunk in _chunks(file.path):
                if len(names) == len(file.chunks) or digest(chunk) != file.chunks[len(names)]:
                    raise ArtifactChanged(f"artifact {file.path} was changed before the step was over")
                name, kept = blobs.seal(chunk)
                await blobs.store(name, kept)
                names.append(name)
        except OSError as e:
            raise ArtifactChanged(f"artifact {file.path} cannot be read after the step: {e.strerror}") from e
        if len(names) < len(file.chunks):
            raise ArtifactChanged(f"artifact {file.path} was cut before the step was over")
        self._seen(file.path, file.sha256)
        return names

    def in_place(self, files: list[Json]) -> bool:
        """Whether this process knows that all of them are there."""
        return all(self._known(file["path"]) == file["sha256"] for file in files)

    async def restore(self, files: list[Json], parts: list[str]) -> None:
        """Put them where they were. Raises JournalTampered if a blob is missing or another one, ResourceFailed if a file cannot
        be written."""
        for file, names in _with_parts(files, parts):
            if self._known(file["path"]) == file["sha256"]:
                continue
            if not _is_there(file):
                faults.reach("in_restore")
                try:
                    await self._write(file, names)
                except OSError as e:
                    raise ResourceFailed(f"artifact {file['path']} cannot be put back: {e.strerror}") from e
            self._seen(file["path"], file["sha256"])

    def given(self, files: list[Json], parts: list[str]) -> None:
        """Agent code is given a result with these files, or begins with them."""
        for file, names in _with_parts(files, parts):
            self._newest.pop(file["path"], None)
            self._newest[file["path"]] = (file, names)

    def check_carried(self) -> None:
        """Raises ValueTooLarge if there are more files than a snapshot or segment can list."""
        self._still_there()

    def carried(self) -> tuple[bytes, list[str]] | None:
        """What a snapshot or segment lists: the list as bytes of a blob, and the names of all parts. What is not there any more
        is forgotten. Raises ValueTooLarge."""
        self._newest = self._still_there()
        if not self._newest:
            return None
        listed = [file for file, _ in self._newest.values()]
        parts = [name for _, names in self._newest.values() for name in names]
        return canonical({"$artifact": None, "files": listed}), parts

    def _still_there(self) -> dict[str, tuple[Json, list[str]]]:
        there = {path: kept for path, kept in self._newest.items() if os.path.isfile(path)}
        parts = sum(len(names) for _, names in there.values())
        if parts > CARRIED_MAX_PARTS:
            raise ValueTooLarge(
                f"the files that steps kept with everstep.artifact and that are still there ({len(there)}, the newest "
                f"{next(reversed(there))}) have {parts} parts; a snapshot or continue_as_new carries at "
                f"most {CARRIED_MAX_PARTS}. Remove those that are not needed any more, in a step's body, or keep them elsewhere"
            )
        if parts > CARRIED_WARN * CARRIED_MAX_PARTS and not self._warned:
            self._warned = True
            log.warning(
                "a snapshot carries %d parts of files that steps kept with everstep.artifact; the bound is %d. Remove files that "
                "are not needed any more",
                parts,
                CARRIED_MAX_PARTS,
            )
        return there

    async def _write(self, file: Json, names: list[str]) -> None:
        target = Path(file["path"])
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f".{target.name}.{self._engine.clock.nonce()[:12]}")
        try:
            with beside.open("wb") as out:
                for name in names:
                    out.write(await self._engine.delivery.blobs.fetch(name, f"a part of artifact {file['path']}"))
            beside.chmod(file["mode"])
            beside.replace(target)
        finally:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)

    def _known(self, path: str) -> str | None:
        seen = self._in_place.get(path)
        return seen[0] if seen is not None and seen[1:] == _stamp(path) else None

    def _seen(self, path: str, sha256: str) -> None:
        stamp = _stamp(path)
        if stamp is not None:
            self._in_place[path] = (sha256, *stamp)


def _with_parts(files: list[Json], parts: list[str]) -> Iterator[tuple[Json, list[str]]]:
    left = iter(parts)
    for file in files:
        yield file, [next(left) for _ in range(file["parts"])]


def _told(file: Noted) -> Json:
    return {
        "path": file.path,
        "sha256": file.sha256,
        "size": file.size,
        "mode": file.mode,
        "parts": len(file.chunks),
    }


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns


def _is_there(file: Json) -> bool:
    """Whether the file has the content already."""
    stamp = _stamp(file["path"])
    if stamp is None or stamp[0] != file["size"]:
        return False
    whole = hashlib.sha256()
    try:
        for chunk in _chunks(file["path"]):
            whole.update(chunk)
    except OSError:
        return False
    return whole.hexdigest() == str(file["sha256"])
