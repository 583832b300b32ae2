"""The beginning of a fork, written by the operator's pod for `kubectl everstep fork` into the journal of a run that waits for it.

The new run exists already, marked ANNOTATION_FORK = pending, so that nothing starts it before its journal is whole; its uid is
the journal's id. Asking again with the same words is safe: the records are the same, and what is there is not written twice.

The fork of an encrypted run is encrypted, under a data key of its own; where new runs are encrypted, every fork is. Its nonces
are made from the records by HMAC under that key, so that asking again gives the same bytes, and other records other nonces.
"""

import argparse
import contextlib
import hmac
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

from everstep.cli import inspect
from everstep.cli.forks import fork_document
from everstep.clock import SystemClock
from everstep.errors import ConfigError
from everstep.ids import JournalId, Owner
from everstep.journal import fork as forks
from everstep.journal.chain import Chain
from everstep.journal.datakeys import new_key
from everstep.journal.records import Record, encode
from everstep.journal.sealing import Sealer
from everstep.journal.store import Head, Store
from everstep.journal.verify import verify
from everstep_operator.journal_view import KEY_ID_FIELD
from everstep_operator.keyring import KeyRing
from everstep_operator.wrapping_keys import Wrapping


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `fork` takes besides the source's run, journal and anchor."""
    parser.add_argument("--from-step", default="", help="with fork: the first step that is not kept")
    parser.add_argument("--target", default="", help="with fork: uid of the new AgentRun")
    parser.add_argument("--target-name", default="", help="with fork: its name")
    parser.add_argument("--entrypoint", default="", help="with fork: its agent")
    parser.add_argument("--goal-digest", default="", help="with fork: SHA-256 of its goal; absent = the source's")
    parser.add_argument("--inputs-digest", default="", help="with fork: SHA-256 of its canonical inputs")


async def write_fork(
    store: Store,
    source: Chain,
    ring: KeyRing,
    wrapping: Wrapping | None,
    arguments: argparse.Namespace,
    anchor: Head | None,
) -> inspect.Document:
    """Verify the source, write the new journal; `wrapping` if that is to be encrypted. Raises ConfigError, JournalTampered,
    JournalLost, JournalUnavailable."""
    target = JournalId(arguments.target)
    if not target or not arguments.inputs_digest:
        raise ConfigError("fork needs --target and --inputs-digest")
    if source.sealer is not None and source.sealer.hidden is not None:
        raise ConfigError(
            f"run {arguments.run} was erased: what it recorded cannot be read, so nothing can begin with it"
        )
    report = await verify(store, source, source.journal_id, anchor=anchor, keep=True)
    planned = forks.plan(report, arguments.run, arguments.from_step, source.sealer)
    key_id = ring.current
    started = {
        "run": arguments.target_name,
        "namespace": arguments.namespace,
        "entrypoint": arguments.entrypoint,
        "inputs": arguments.inputs_digest,
        "key_id": key_id,
    } | ({"goal": arguments.goal_digest} if arguments.goal_digest else {})
    records = forks.begin(planned, started)
    if planned.segmented and _other_inputs(planned, arguments.inputs_digest):
        raise ConfigError(forks.SEGMENTED)
    fields = {"namespace": arguments.namespace, "name": arguments.target_name, KEY_ID_FIELD: key_id}
    owner = Owner(f"fork-of-{source.journal_id}")
    async with _sealing(store, wrapping, target, records) as (sealer, more):
        chain = replace(ring.chain(target, key_id), sealer=sealer)
        renamed = await forks.rename_blobs(store, source, chain, planned.blobs)
        await forks.write(store, chain, owner, forks.seal(chain, records, renamed), fields | more)
    await forks.copy_blobs(store, source, chain, planned.blobs)
    return fork_document(planned, report, arguments.target_name, target)


@contextlib.asynccontextmanager
async def _sealing(
    store: Store, wrapping: Wrapping | None, target: JournalId, records: Sequence[Record]
) -> AsyncIterator[tuple[Sealer | None, dict[str, str]]]:
    """What seals the fork, and the meta fields for the fence within, which begins its journal."""
    if wrapping is None:
        yield None, {}
        return
    async with wrapping.held(store) as ring:
        meta = await store.meta(target)
        more: dict[str, str] = {}
        if meta is not None:  # asked again
            sealer = await wrapping.sealer(target, meta.fields)
        else:
            sealer, more = new_key(ring, target, SystemClock().random_bytes)
        yield sealer and replace(sealer, random_bytes=_nonces(sealer, records)), more


def _nonces(sealer: Sealer, records: Sequence[Record]) -> Callable[[int], bytes]:
    """The same bytes in the same order for the same key and records."""
    _, key = max(sealer.keys.items())
    seed = hmac.digest(key, b"everstep/fork-nonces/1" + b"\n".join(encode(record) for record in records), "sha256")
    drawn = 0

    def draw(size_bytes: int) -> bytes:
        nonlocal drawn
        drawn += 1
        return hmac.digest(seed, str(drawn).encode(), "sha256")[:size_bytes]

    return draw


def _other_inputs(planned: forks.Fork, digest: str) -> bool:
    first = planned.records[0]
    return first.kind == "run_started" and first.inputs != digest
