"""The keys that wrap the data keys of encrypted runs: a Secret beside the chain keys, made when the first such run begins.

    name  <name of the key Secret>-wrapping
    data  w1: <base64 of 32 bytes>     the newest id wraps; a rotation adds the next one, wraps all data keys anew, and only then
                                       removes the older ones

It is not in the key Secret, whose entries are all chain keys to operators of every version, and which nothing may change. No
pod of a run ever gets one: it gets its run's data key.

Who wraps does it within `held`, together with the fence that keeps the outcome: a rotation waits for those that may have begun
under an older key before it looks which journals there are. The locks are files of the operator's pod, where every command
of `everstep_operator.inspect` runs, too. Against one in another pod, a rotation looks again once the older keys are gone, and who
wrapped looks whether its key is still there.
"""

import asyncio
import base64
import contextlib
import fcntl
import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

from everstep.clock import Clock
from everstep.errors import ConfigError, JournalUnavailable
from everstep.ids import JournalId
from everstep.journal.datakeys import (
    WrappingKeys,
    erased_fields,
    named_keys,
    rewrapped_fields,
    sealer,
    wrapped_keys,
)
from everstep.journal.sealing import KEY_BYTES, Sealer
from everstep.journal.store import Store
from everstep_operator.cluster.api import Json
from everstep_operator.cluster.own import OwnSecrets, own_entries, own_secret
from everstep_operator.settings import Settings

SUFFIX: Final = "-wrapping"
INSTALLATION: Final = "everstep.dev/installation"
"""Annotation of the Secret: whose journals its keys wrap."""
LOCK_POLL_S: Final = 0.05
WRAP_PATIENCE_S: Final = 5.0
ROTATE_PATIENCE_S: Final = 60.0


def secret_name(key_secret: str) -> str:
    """Of the Secret with the key-encryption keys."""
    return key_secret + SUFFIX


def read_wrapping_keys(secret: Json, where: str) -> WrappingKeys:
    """The keys in a Secret. Raises ConfigError naming the one that cannot be used."""
    keys = own_entries(secret, where)
    for name, key in keys.items():
        if len(key) != KEY_BYTES:
            raise ConfigError(f"{where}: {name} holds {len(key)} bytes, {KEY_BYTES} are needed")
    if not keys:
        raise ConfigError(f"{where} holds no key; restore it from a backup")
    return WrappingKeys(keys)


class Wrapping:
    """The Secret, and what is done with it. Raises ConfigError, ClusterUnavailable, ClusterRefused."""

    def __init__(self, own: OwnSecrets, settings: Settings, clock: Clock) -> None:
        self._own, self._clock = own, clock
        self._name = secret_name(settings.key_secret)
        self._installation = settings.installation
        self._locks = Path(tempfile.gettempdir())
        self._lock_name = f"everstep-{settings.operator_namespace}-{settings.installation}"
        self._last = WrappingKeys({})
        """As last read: most readers need no newer one."""

    async def check(self) -> None:
        """See that the keys that are there can be used. The first one is made when the first run begins encrypted."""
        found = await self._own.get(self._name)
        if found is not None:
            self._ring(found)

    async def sealer(self, journal: JournalId, fields: Mapping[str, str]) -> Sealer | None:
        """As `everstep.journal.datakeys.sealer`, for a journal with these meta fields."""
        if not wrapped_keys(fields):
            return None
        try:
            return sealer(fields, self._last, journal, self._clock.random_bytes)
        except ConfigError:
            self._last = self._ring(await self._secret())
            return sealer(fields, self._last, journal, self._clock.random_bytes)

    @contextlib.asynccontextmanager
    async def held(self, store: Store) -> AsyncIterator[WrappingKeys]:
        """The keys as they are now, for a fence of this store that follows at once; the first one is made if there is none.
        Raises JournalUnavailable, also while a rotation begins."""
        async with self._lock("wrap", fcntl.LOCK_SH, WRAP_PATIENCE_S):
            found = await self._own.get(self._name) or await self._make(store)
            ring = self._ring(found)
            try:
                yield ring
            finally:
                await self._confirm(store, ring)

    async def _make(self, store: Store) -> Json:
        """Its number is above those that journals name: a Secret that was lost can be restored by adding what it held."""
        note = "Keys that wrap the data keys of encrypted runs. Back it up; without it no encrypted run can be read."
        newest = 0
        for journal in await store.journals():
            meta = await store.meta(journal)
            newest = max([newest, *(int(name[1:]) for name in named_keys(meta.fields if meta else {}))])
        key = base64.b64encode(self._clock.random_bytes(KEY_BYTES)).decode()
        data = {f"w{newest + 1}": key}
        marks = {INSTALLATION: self._installation}
        return await self._own.made_once(self._name, lambda: own_secret(self._name, "wrapping-keys", note, data, marks))

    def _ring(self, secret: Json) -> WrappingKeys:
        """Its keys, if they are this installation's: a rotation looks at the journals of its own alone, and would take the keys
        from another's."""
        where = self._own.where(self._name)
        owner = (secret["metadata"].get("annotations") or {}).get(INSTALLATION, self._installation)
        if owner != self._installation:
            raise ConfigError(
                f"{where} holds the wrapping keys of installation {owner}, and this is {self._installation}: give each release "
                "that encrypts a journal.keySecret of its own"
            )
        return read_wrapping_keys(secret, where)

    async def erase(self, store: Store, journal: JournalId) -> tuple[int, str]:
        """Destroy the data keys of a journal, and rotate: an older copy of the store cannot be opened by what is here from then
        on. Both may be repeated. The number of other data keys wrapped anew, and why the older keys had to stay, if they had
        to. Raises JournalUnavailable."""
        async with self._lock("rotate", fcntl.LOCK_EX, ROTATE_PATIENCE_S):
            meta = await store.meta(journal)
            if meta is not None and (fields := erased_fields(meta.fields, self._clock.now_epoch_ms())):
                await store.set_fields(journal, fields)
            try:
                return await self._rotate(store), ""
            except ConfigError as e:
                return 0, str(e)

    async def rotate(self, store: Store) -> int:
        """A new key, and every data key wrapped under it; their number. No record is touched. After a crash at any moment all
        keys that are named are there, and the same call completes it. Raises ConfigError naming journals whose data key cannot be
        unwrapped (the older keys then stay), JournalUnavailable."""
        async with self._lock("rotate", fcntl.LOCK_EX, ROTATE_PATIENCE_S):
            return await self._rotate(store)

    async def _rotate(self, store: Store) -> int:
        found = await self._secret()
        old = self._ring(found)
        new = base64.b64encode(self._clock.random_bytes(KEY_BYTES)).decode()
        added = [{"op": "add", "path": f"/data/w{old.newest + 1}", "value": new}]
        found = await self._own.patch(self._name, found["metadata"]["resourceVersion"], added)
        ring = self._ring(found)
        async with self._lock("wrap", fcntl.LOCK_EX, ROTATE_PATIENCE_S):
            pass  # whoever wraps under an older key has fenced by now, and its journal is listed
        count = await self._rewrap(store, ring)
        gone = [{"op": "remove", "path": f"/data/{name}"} for name in sorted(old.keys)]
        await self._own.patch(self._name, found["metadata"]["resourceVersion"], gone)
        # In another pod one may have fenced since; who fences from here on finds its key gone.
        return count + await self._rewrap(store, ring)

    async def _rewrap(self, store: Store, ring: WrappingKeys) -> int:
        """Every data key under the newest of these."""
        count, stuck = 0, []
        for journal in await store.journals():
            meta = await store.meta(journal)
            if meta is None:
                continue
            try:
                fields = rewrapped_fields(meta.fields, ring, journal, self._clock.random_bytes)
            except ConfigError as e:
                stuck.append(f"{meta.fields.get('namespace', '')}/{meta.fields.get('name', journal)}: {e}")
                continue
            if fields:
                await store.set_fields(journal, fields)
                count += len(fields)
        if stuck:
            raise ConfigError("data keys that could not be wrapped anew, so the old keys stay: " + "; ".join(stuck))
        return count

    async def _confirm(self, store: Store, ring: WrappingKeys) -> None:
        """What was wrapped under `ring`: a rotation in another pod may have removed that key meanwhile."""
        now = self._ring(await self._secret())
        if ring.current not in now.keys:
            await self._rewrap(store, WrappingKeys({**ring.keys, **now.keys}))

    async def _secret(self) -> Json:
        found = await self._own.get(self._name)
        if found is None:
            raise ConfigError(
                f"{self._own.where(self._name)} does not exist, so no encrypted run can be read or begun; "
                "restore it from a backup"
            )
        return found

    @contextlib.asynccontextmanager
    async def _lock(self, what: str, how: int, patience_s: float) -> AsyncIterator[None]:
        """A flock, which ends with its holder however that dies."""
        path = self._locks / f"{self._lock_name}-{what}.lock"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            for _ in range(int(patience_s / LOCK_POLL_S)):
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(fd, how | fcntl.LOCK_NB)
                    break
                await asyncio.sleep(LOCK_POLL_S)
            else:
                raise JournalUnavailable(
                    "another process of the operator is changing the keys of encrypted runs; try again"
                )
            yield
        finally:
            os.close(fd)
