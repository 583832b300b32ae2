"""Values above 64 KiB, kept beside the journal under their digest. Whole, and checked when they are read."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from everstep.errors import JournalTampered, JournalUnavailable
from everstep.ids import Seq
from everstep.journal.blobnames import value_in
from everstep.journal.chain import Chain
from everstep.journal.records import Json
from everstep.journal.store import Store
from everstep.run.artifacts import Artifacts
from everstep.run.values import digest

if TYPE_CHECKING:
    from everstep.journal.sealing import Sealer
    from everstep.run.engine import Engine

T = TypeVar("T")
WAIT_FIRST_S = 0.05
WAIT_MAX_S = 2.0
UNREACHABLE_AFTER_S = 60.0
"""As the writer's: one store, one patience."""


class Blobs:
    """Of one attempt. Holds what is about to be delivered, no more."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._held: dict[str, bytes] = {}
        self.sealer: Sealer | None = None
        """Where the run is encrypted."""
        self.artifacts = Artifacts(engine)

    def look_up(self, data: Json) -> tuple[bool, Json]:
        """The value a record stands for, if it is here, and its files are. (False, _): `load` it first."""
        if not (isinstance(data, dict) and "$blob" in data):
            return True, data
        raw = self._held.pop(data["$blob"], None)
        if raw is None:
            return False, None
        kept = json.loads(raw)
        if "parts" in data and not self.artifacts.in_place(kept["files"]):
            self._held[data["$blob"]] = raw
            return False, None
        if "parts" in data:
            self.artifacts.given(kept["files"], data["parts"])
        return True, value_in(data, kept)

    def seal(self, raw: bytes) -> tuple[str, bytes]:
        """The name of a blob, and the bytes to store under it."""
        kept = raw if self.sealer is None else self.sealer.seal_blob(raw)
        return digest(kept), kept

    async def put(self, raw: bytes) -> str:
        """Store a blob, and hold it for its delivery; its name."""
        name, kept = self.seal(raw)
        await self.store(name, kept)
        self._held[name] = raw
        return name

    async def store(self, name: str, kept: bytes) -> None:
        """Store a blob that agent code has already, as `seal` gave it."""
        async with self._engine.compaction.lock:
            self._engine.compaction.stored(name)
            await self._patiently(lambda: self._engine.store.blob_put(self._engine.config.journal_id, name, kept))

    async def load(self, data: Json) -> None:
        """Fetch one, and put its files in place. Raises JournalTampered if it is missing or another one."""
        name = data["$blob"]
        if name not in self._held:
            self._held[name] = await self.fetch(name, "the value")
        if "parts" in data:
            await self.artifacts.restore(json.loads(self._held[name])["files"], data["parts"])

    async def put_back(self, data: Json) -> None:
        """The files that the snapshot or segment lists at which this attempt begins. Raises as `load`, and ResourceFailed."""
        files = json.loads(await self.fetch(data["$blob"], "the list of files"))["files"]
        await self.artifacts.restore(files, data["parts"])
        self.artifacts.given(files, data["parts"])

    async def fetch(self, name: str, what: str) -> bytes:
        """One blob's own bytes, proved. Raises JournalTampered."""
        raw = await self._patiently(lambda: self._engine.store.blob_get(self._engine.config.journal_id, name))
        seq = Seq(self._engine.history.last_seq)
        if raw is None or digest(raw) != name:
            found = "is missing" if raw is None else "was changed"
            raise JournalTampered(f"{what} kept as blob {name[:12]}… {found}", seq)
        return raw if self.sealer is None else self.sealer.open_blob(raw, seq)

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        clock = self._engine.clock
        until = clock.monotonic_s() + UNREACHABLE_AFTER_S
        wait_s = WAIT_FIRST_S
        while True:
            try:
                return await call()
            except JournalUnavailable:
                if clock.monotonic_s() > until:
                    raise
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, WAIT_MAX_S)


async def read_value(store: Store, chain: Chain, data: Json) -> Json:
    """The value a record stands for, whole. Raises JournalTampered if its blob is missing or another one."""
    if not (isinstance(data, dict) and "$blob" in data):
        return data
    raw = await store.blob_get(chain.journal_id, data["$blob"])
    if raw is None or digest(raw) != data["$blob"]:
        raise JournalTampered(f"the value kept as blob {data['$blob'][:12]}… is missing or was changed", Seq(1))
    kept = json.loads(raw if chain.sealer is None else chain.sealer.open_blob(raw, Seq(1)))
    return value_in(data, kept)
