"""The keys of encrypted runs in a directory: key-encryption keys in `.everstep/keys/w1.key` …, data keys wrapped in the journals.

A data key is made with its journal, in one fence; a lock keeps the key-encryption key in place until then. Rotation makes a new
key-encryption key, wraps every data key anew, and then removes the old ones: copies of a journal made before cannot be
opened by what the directory holds from then on, which is why erasing a run rotates, too.
"""

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from everstep import faults
from everstep.clock import Clock, SystemClock
from everstep.errors import ConfigError
from everstep.ids import EpochMs
from everstep.journal.chain import Chain
from everstep.journal.datakeys import WrappingKeys, erased_fields, new_key, rewrapped_fields, sealer, wrapped_keys
from everstep.journal.sealing import ERASED, KEY_BYTES
from everstep.journal.store import Store
from everstep.local import child
from everstep.local.files import LocalDir
from everstep.local.keyfiles import keep
from everstep.local.locks import FileLock, RunBusy
from everstep.local.spec import RunSpec, load

LOCK_PATIENCE_S = 10.0


async def chain_of(where: LocalDir, spec: RunSpec, store: Store) -> Chain:
    """The run's chain, which opens payloads where the run is encrypted, and shows them as (erased) where it was erased.
    Raises ConfigError for a key that is missing, JournalUnavailable."""
    if not spec.encrypt or not where.journal_path.exists():
        return Chain(spec.journal)
    meta = await store.meta(spec.journal)
    if meta is None:
        return Chain(spec.journal)
    found = sealer(meta.fields, _ring(where), spec.journal, SystemClock().random_bytes)
    if found is None:
        raise ConfigError(
            f"run {spec.run} was begun encrypted, but its journal names no data key: restore journal.db from a copy"
        )
    return Chain(spec.journal, sealer=found)


@contextlib.asynccontextmanager
async def keyed(
    where: LocalDir, spec: RunSpec, store: Store, clock: Clock
) -> AsyncIterator[tuple[Chain, dict[str, str]]]:
    """For a run that is to go on: its chain, and the meta fields that the fence within must set. Raises ConfigError for an erased
    run, RunBusy, JournalUnavailable."""
    if not spec.encrypt:
        yield Chain(spec.journal), {}
        return
    if await store.meta(spec.journal) is not None:
        chain = await chain_of(where, spec, store)
        if chain.sealer is not None and chain.sealer.hidden is not None:
            raise ConfigError(f"run {spec.run} was erased: what it recorded cannot be read, so it cannot go on")
        yield chain, {}
        return
    with await _lock(where):
        ring = _ring(where)
        if not ring.keys:
            ring = _add(where, ring, clock)
        made, fields = new_key(ring, spec.journal, clock.random_bytes)
        faults.reach("before_key")
        yield Chain(spec.journal, sealer=made), fields


async def erase(where: LocalDir, spec: RunSpec, store: Store, clock: Clock) -> None:
    """Make everything a run was told and has made unreadable, for ever; the chain still verifies. For a run that nobody
    supervises; may be repeated. Raises ConfigError, RunBusy, JournalUnavailable."""
    if not spec.encrypt:
        raise ConfigError(
            f"run {spec.run} is not encrypted, so its payloads are part of the chain; everstep local delete {spec.run} "
            f"removes it whole. Start runs with --encrypt to be able to erase them"
        )
    meta = await store.meta(spec.journal)
    now = clock.now_epoch_ms()
    if meta is not None and (fields := erased_fields(meta.fields, now)):
        await store.set_fields(spec.journal, fields)
    faults.reach("in_erase")
    child.forget(where, spec)
    _forget_words(where, spec, now)
    await rotate(where, store, clock)


def _forget_words(where: LocalDir, spec: RunSpec, now: EpochMs) -> None:
    """Goal and inputs stand in the run's spec, too."""
    replace(spec, goal=ERASED, inputs={}, erased=spec.erased or now).save(where.spec_path(spec.run))


async def rotate(where: LocalDir, store: Store, clock: Clock) -> int:
    """A new key-encryption key for every run; the number of data keys wrapped anew. After a crash at any moment all keys that are
    named are there, and the same call completes it. Raises ConfigError naming a run whose data key cannot be unwrapped (old
    keys then stay), RunBusy, JournalUnavailable."""
    with await _lock(where):
        old = _ring(where)
        ring = _add(where, old, clock)
        faults.reach("in_rotate")
        count = 0
        stuck = []
        for name in where.runs():
            spec = load(where.spec_path(name))
            meta = await store.meta(spec.journal) if spec is not None and spec.encrypt else None
            if spec is None or meta is None or not wrapped_keys(meta.fields):
                continue
            try:
                fields = rewrapped_fields(meta.fields, ring, spec.journal, clock.random_bytes)
            except ConfigError as e:
                stuck.append(f"{name}: {e}")
                continue
            if fields:
                await store.set_fields(spec.journal, fields)
                count += len(fields)
        if stuck:
            raise ConfigError("data keys that could not be wrapped anew, so the old keys stay: " + "; ".join(stuck))
        faults.reach("after_rotate")
        for key_id in old.keys:
            _path(where, key_id).unlink(missing_ok=True)
        return count


def _ring(where: LocalDir) -> WrappingKeys:
    keys = {}
    for path in where.keys_dir.glob("w*.key"):
        try:
            keys[path.stem] = bytes.fromhex(path.read_text(encoding="ascii").strip())
        except (OSError, ValueError) as e:
            raise ConfigError(f"{path}: the key cannot be read: {e}; restore it from a copy") from e
        if len(keys[path.stem]) != KEY_BYTES:
            raise ConfigError(
                f"{path}: holds {len(keys[path.stem])} bytes, {KEY_BYTES} are needed; restore it from a copy"
            )
    return WrappingKeys(keys)


def _add(where: LocalDir, ring: WrappingKeys, clock: Clock) -> WrappingKeys:
    keep(_path(where, f"w{ring.newest + 1}"), clock.random_bytes(KEY_BYTES).hex() + "\n")
    return _ring(where)


def _path(where: LocalDir, key_id: str) -> Path:
    return where.keys_dir / f"{key_id}.key"


async def _lock(where: LocalDir) -> FileLock:
    lock = FileLock(where.keys_lock)
    if not await lock.acquire(LOCK_PATIENCE_S):
        pid = lock.holder_pid()
        raise RunBusy(f"process {pid} is changing the keys in {where.keys_dir}; try again", pid)
    os.set_inheritable(lock.fd, False)
    return lock
