"""`python -m everstep_operator.inspect VERB …`: about a run's journal, on standard output.

Verbs: result, steps, live, verify, export, public-key, fork, budget, erase, rotate-key. One JSON document; for `export` the lines
of `everstep.journal.export`, for `live` those of `everstep_operator.watching`.

Run by `kubectl everstep` through `kubectl exec`, since only the operator's pod reaches the journal and its keys; the right to it
is `create pods/exec` in the operator's namespace. `fork` writes the journal of a run that waits for it, `budget` an inbox
entry, `erase` and `rotate-key` the wrapped data keys in the meta of encrypted runs; the others read and never write, and no verb
writes into a journal that an attempt may own. What goes wrong is a document, too: {"error": message, "exit": code for the
person's terminal}. The payloads of an encrypted run are opened for the verbs that show or copy them, OPENING.
"""

import argparse
import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from everstep.cli import inspect
from everstep.cli.exits import Exit, Refusal, refusal
from everstep.clock import SystemClock
from everstep.errors import ConfigError, EverstepError
from everstep.ids import JournalId, RecordHash, Seq
from everstep.journal.chain import Chain
from everstep.journal.datakeys import wrapped_keys
from everstep.journal.export import About, Write, export
from everstep.journal.open import open_store
from everstep.journal.sealing import Sealer
from everstep.journal.signing import SigningRing
from everstep.journal.store import Head, Store
from everstep.run.attempt import SDK_VERSION
from everstep_operator import budgeting, erasing, forking, watching
from everstep_operator.cluster.api import Json, KubeApi, TokenBucket, load_client
from everstep_operator.cluster.client import Cluster
from everstep_operator.cluster.own import OwnSecrets
from everstep_operator.journal_view import KEY_ID_FIELD
from everstep_operator.keyring import KeyRing, read_keys
from everstep_operator.settings import Settings
from everstep_operator.signing_keys import read_signing_keys, secret_name
from everstep_operator.wrapping_keys import Wrapping

EXPORT_MAX_S = 3600.0
"""A journal of gigabytes through a slow link, or the data keys of all runs; then whoever asked has gone."""
OPENING = ("result", "steps", "fork", "budget")
ABOUT_KEYS = ("erase", "rotate-key")


def main(argv: Sequence[str] | None = None) -> None:
    """Print the document."""
    arguments = _parser().parse_args(argv)
    try:
        settings = Settings.from_env(os.environ)
        if arguments.verb == "export":
            asyncio.run(write_export(arguments, settings, sys.stdout.buffer.write))
            sys.stdout.flush()
            return
        if arguments.verb == "live":
            with contextlib.suppress(BrokenPipeError):  # nobody reads any more
                asyncio.run(write_live(arguments, settings, _write_now))
            return
        document = asyncio.run(answer(arguments, settings))
    except Refusal as e:
        document = {"error": e.message, "exit": e.exit_code}
    except EverstepError as e:
        said = refusal(e)
        document = {"error": said.message, "exit": said.exit_code}
    json.dump(document, sys.stdout)
    sys.stdout.write("\n")


async def answer(arguments: argparse.Namespace, settings: Settings) -> inspect.Document:
    """The document that was asked for. Raises Refusal, EverstepError."""
    store = open_store(settings.store_url, installation=settings.installation, ca_path=settings.store_ca_file or None)
    try:
        bound_s = EXPORT_MAX_S if arguments.verb in ABOUT_KEYS else max(30.0, settings.store_timeout_s)
        async with asyncio.timeout(bound_s):
            if arguments.verb in ABOUT_KEYS:
                return await _change_keys(arguments, settings, store)
            return await _answer(arguments, settings, store)
    except TimeoutError as e:
        raise Refusal("the journal store did not answer in time", Exit.UNREACHABLE) from e
    finally:
        await store.aclose()


async def write_export(arguments: argparse.Namespace, settings: Settings, write: Write) -> None:
    """The lines of an export. Raises Refusal, EverstepError: lines before them are worth nothing without an end line."""
    store = open_store(settings.store_url, installation=settings.installation, ca_path=settings.store_ca_file or None)
    try:
        async with asyncio.timeout(EXPORT_MAX_S):
            journal, run, anchor = JournalId(arguments.journal), str(arguments.run), _anchor(arguments.anchor)
            await inspect.need_journal(store, journal, run, anchor)
            chain, key_id = await _chain(store, journal, anchor, await _keys(settings))
            signer = (await _signing_keys(settings)).current
            about = About(run, arguments.namespace, key_id, SDK_VERSION, SystemClock().now_epoch_ms())
            await export(store, chain, about, write, anchor=anchor, signer=signer)
    except TimeoutError as e:
        raise Refusal("the journal store did not answer in time", Exit.UNREACHABLE) from e
    finally:
        await store.aclose()


async def write_live(arguments: argparse.Namespace, settings: Settings, write: Write) -> None:
    """The lines of a live stream. Raises Refusal, EverstepError."""
    store = open_store(settings.store_url, installation=settings.installation, ca_path=settings.store_ca_file or None)

    async def sealer() -> Sealer | None:
        return (await _opened(store, Chain(JournalId(arguments.journal)), settings)).sealer

    try:
        await watching.write_live(store, sealer, arguments, _anchor(arguments.anchor), write, SystemClock())
    finally:
        await store.aclose()


def _write_now(raw: bytes) -> None:
    """Past Python's own buffer, which would be written once more at exit, when nobody reads it."""
    while raw:
        raw = raw[os.write(sys.stdout.fileno(), raw) :]


async def _answer(arguments: argparse.Namespace, settings: Settings, store: Store) -> inspect.Document:
    journal, run = JournalId(arguments.journal), str(arguments.run)
    anchor = _anchor(arguments.anchor)
    if arguments.verb == "public-key":
        return {"publicKeys": (await _signing_keys(settings)).public_text()}
    if arguments.verb != "verify":
        await inspect.need_journal(store, journal, run, anchor)
    chain, _ = await _chain(store, journal, anchor, await _keys(settings))
    if arguments.verb in OPENING:
        chain = await _opened(store, chain, settings)
    if arguments.verb == "fork":
        async with _api(settings) as api:
            wrapping = _wrapping(api, settings) if settings.encrypt or chain.sealer is not None else None
            return await forking.write_fork(store, chain, await _keys(settings), wrapping, arguments, anchor)
    if arguments.verb == "budget":
        return await budgeting.add_entry(store, chain, arguments, anchor)
    if arguments.verb == "verify":
        return await inspect.verify_document(store, chain, run, anchor)
    if arguments.verb == "steps":
        history, wrong = await inspect.read_proved(store, chain, run, anchor)
        return inspect.steps_document(run, history, timers=arguments.timers, problem=wrong)
    history = await inspect.read_history(store, chain, run, anchor)
    return await inspect.result_document(store, chain, run, history)


async def _change_keys(arguments: argparse.Namespace, settings: Settings, store: Store) -> inspect.Document:
    async with _api(settings) as api:
        wrapping = _wrapping(api, settings)
        if arguments.verb == "rotate-key":
            return await erasing.rotate(store, wrapping)
        ref = erasing.ref_of(arguments.namespace, arguments.run, arguments.journal)
        await inspect.need_journal(store, ref.uid, ref.name, None)
        return await erasing.erase(store, Cluster(api), wrapping, ref)


async def _opened(store: Store, chain: Chain, settings: Settings) -> Chain:
    """The chain with what opens the payloads of an encrypted run; they show as (erased) where it was erased."""
    meta = await store.meta(chain.journal_id)
    if meta is None or not wrapped_keys(meta.fields):
        return chain
    async with _api(settings) as api:
        return replace(chain, sealer=await _wrapping(api, settings).sealer(chain.journal_id, meta.fields))


async def _keys(settings: Settings) -> KeyRing:
    secret, where = await _secret(settings, settings.key_secret)
    if secret is None:
        raise ConfigError(f"{where} does not exist, so no journal can be verified; restore it from a backup")
    return read_keys(secret, where)


async def _signing_keys(settings: Settings) -> SigningRing:
    secret, where = await _secret(settings, secret_name(settings.key_secret))
    if secret is None:
        raise ConfigError(
            f"{where} does not exist, so nothing can be signed: the operator's log says why it was not made"
        )
    return read_signing_keys(secret, where)


async def _secret(settings: Settings, name: str) -> tuple[Json | None, str]:
    """A Secret of the operator's namespace, and its name for messages."""
    async with _api(settings) as api:
        own = OwnSecrets(api, settings.operator_namespace)
        return await own.get(name), own.where(name)


@contextlib.asynccontextmanager
async def _api(settings: Settings) -> AsyncIterator[KubeApi]:
    client = await load_client(settings.api_timeout_s)
    bucket = TokenBucket(settings.api_qps, settings.api_burst, SystemClock().monotonic_s)
    api = KubeApi(client, bucket, timeout_s=settings.api_timeout_s)
    try:
        yield api
    finally:
        await api.aclose()


def _wrapping(api: KubeApi, settings: Settings) -> Wrapping:
    return Wrapping(OwnSecrets(api, settings.operator_namespace), settings, SystemClock())


async def _chain(store: Store, journal: JournalId, anchor: Head | None, ring: KeyRing) -> tuple[Chain, str]:
    """The journal's chain, and the id of the operator key it is under."""
    meta = await store.meta(journal)
    named = meta.fields.get(KEY_ID_FIELD, "") if meta else ""
    key_id = named or ring.key_id_for_anchor(journal, anchor)
    try:
        return ring.chain(journal, key_id), key_id
    except KeyError as e:
        raise ConfigError(f"the journal was made with operator key {key_id}, which is not in the key Secret") from e


def _anchor(given: str | None) -> Head | None:
    if not given:
        return None
    seq, _, digest = given.partition(":")
    if not seq.isdigit() or len(digest) != 64:
        raise ConfigError(f"--anchor {given!r}: write SEQ:HASH as in status.checkpoint")
    return Head(Seq(int(seq)), RecordHash(digest))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m everstep_operator.inspect", description=__doc__)
    verbs = ["result", "steps", "live", "verify", "export", "public-key", "fork", "budget", *ABOUT_KEYS]
    parser.add_argument("verb", choices=verbs)
    parser.add_argument("--run", default="", help="name of the run, for messages")
    parser.add_argument("--namespace", default="", help="its namespace")
    parser.add_argument("--journal", default="", help="uid of the AgentRun")
    parser.add_argument("--anchor", help="SEQ:HASH of status.checkpoint")
    parser.add_argument("--timers", action="store_true", help="with steps: also durable timers")
    parser.add_argument("--from", dest="after", type=int, default=0, help="with live: go on after this position")
    parser.add_argument("--follow", action="store_true", help="with live: go on until the run is over")
    forking.add_arguments(parser)
    budgeting.add_arguments(parser)
    return parser


if __name__ == "__main__":
    main()
