"""The beginning of a fork, written by the operator's pod for `kubectl everstep fork` into the journal of a run that waits for it.

The new run exists already, marked ANNOTATION_FORK = pending, so that nothing starts it before its journal is whole; its uid is
the journal's id. Asking again with the same words is safe: the records are the same, and what is there is not written twice.
"""

import argparse

from everstep.cli import inspect
from everstep.cli.forks import fork_document
from everstep.errors import ConfigError
from everstep.ids import JournalId, Owner
from everstep.journal import fork as forks
from everstep.journal.chain import Chain
from everstep.journal.store import Head, Store
from everstep.journal.verify import verify
from everstep_operator.journal_view import KEY_ID_FIELD
from everstep_operator.keyring import KeyRing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `fork` takes besides the source's run, journal and anchor."""
    parser.add_argument("--from-step", default="", help="with fork: the first step that is not kept")
    parser.add_argument("--target", default="", help="with fork: uid of the new AgentRun")
    parser.add_argument("--target-name", default="", help="with fork: its name")
    parser.add_argument("--entrypoint", default="", help="with fork: its agent")
    parser.add_argument("--goal-digest", default="", help="with fork: SHA-256 of its goal; absent = the source's")
    parser.add_argument("--inputs-digest", default="", help="with fork: SHA-256 of its canonical inputs")


async def write_fork(
    store: Store, source: Chain, ring: KeyRing, arguments: argparse.Namespace, anchor: Head | None
) -> inspect.Document:
    """Verify the source, write the new journal. Raises ConfigError, JournalTampered, JournalLost, JournalUnavailable."""
    target = JournalId(arguments.target)
    if not target or not arguments.inputs_digest:
        raise ConfigError("fork needs --target and --inputs-digest")
    report = await verify(store, source, source.journal_id, anchor=anchor, keep=True)
    planned = forks.plan(report, arguments.run, arguments.from_step)
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
    chain = ring.chain(target, key_id)
    fields = {"namespace": arguments.namespace, "name": arguments.target_name, KEY_ID_FIELD: key_id}
    owner = Owner(f"fork-of-{source.journal_id}")
    await forks.write(store, chain, owner, forks.seal(chain, records), fields)
    await forks.copy_blobs(store, source, chain, planned.blobs)
    return fork_document(planned, report, arguments.target_name, target)


def _other_inputs(planned: forks.Fork, digest: str) -> bool:
    first = planned.records[0]
    return first.kind == "run_started" and first.inputs != digest
