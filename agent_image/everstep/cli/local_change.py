"""`everstep local history|repin`: a run's journal as a test, and changed code under a run that is not over."""

import json
import os
import sys
from dataclasses import replace as changed
from pathlib import Path
from typing import NoReturn

import click

from everstep.cli import text
from everstep.cli.exits import EPILOG, Exit, Refusal, refusal
from everstep.cli.exports import file_option, target
from everstep.cli.options import anchor_file, anchor_head, directory_option, output_option, run_argument, with_store
from everstep.clock import SystemClock
from everstep.errors import ConfigError, Diverged, EverstepError
from everstep.ids import Attempt, Owner, Seq
from everstep.journal.export import blob_names
from everstep.journal.records import Pinned, Record
from everstep.journal.sealing import opened_journal
from everstep.journal.store import FenceAnswer, Head, Store
from everstep.journal.verify import verify
from everstep.journal.writer import JournalWriter
from everstep.local.files import LocalDir
from everstep.local.locks import FileLock, RunBusy
from everstep.local.sealing import chain_of
from everstep.local.spec import RunSpec, check_entrypoint
from everstep.run.attempt import SDK_VERSION
from everstep.run.history import History
from everstep.run.pins import BY_LOCAL, python_minor, recorded_pins
from everstep.testing.recorded import RecordedRun, Replay, decoded, replay


@click.command(epilog=EPILOG)
@run_argument
@file_option
@directory_option
def history(run: str, file: Path | None, directory: Path) -> None:
    """Write a run as a history: what `everstep.testing.replay` takes in your tests.

    It holds goal, inputs and every recorded result in the clear.
    """
    where = LocalDir(directory)

    async def go(spec: RunSpec, store: Store) -> None:
        _, told, _ = await recorded(where, spec, store)
        with target(file) as out:
            for line in told.lines():
                out.write(f"{line}\n".encode())
        click.echo(f"{run}: {text.plural(len(told.records), 'record')}" + (f" → {file}" if file else ""), err=True)

    with_store(where, run, go)


@click.command(epilog=EPILOG)
@run_argument
@click.option(
    "--agent", "entrypoint", metavar="MODULE:FUNCTION", help="Another agent to go on with; default: the run's own."
)
@click.option("--dry-run", is_flag=True, help="Only replay and report.")
@directory_option
@output_option("json")
def repin(run: str, entrypoint: str | None, dry_run: bool, directory: Path, output: str | None) -> None:
    """Replay a run with the code and the Python as they are now, and pin them if they tell the same story.

    No step runs. If the code takes another way than the journal, the difference is shown and nothing is written (exit 65).
    """
    where = LocalDir(directory.resolve())  # the agent is imported from the run's own directory
    spec, told, head = with_store(where, run, lambda spec, store: recorded(where, spec, store))
    with _not_running(where, spec):
        new = spec if entrypoint is None else changed(spec, entrypoint=_entrypoint(entrypoint))
        replayed = _replay(run, new, told, output)
        pinned = False
        if not dry_run and not replayed.finished:
            pinned = with_store(where, run, lambda spec, store: _pin(where, spec, store, head, decoded(told.records)))
            if new != spec:
                new.save(where.spec_path(spec.run))
    _report(run, new, replayed, output, pinned=pinned, kept=not dry_run and (pinned or new != spec))


def _entrypoint(given: str) -> str:
    try:
        return check_entrypoint(given)
    except ConfigError as e:
        raise refusal(e) from e


async def recorded(where: LocalDir, spec: RunSpec, store: Store) -> tuple[RunSpec, RecordedRun, Head]:
    """The journal, proved. Raises ConfigError, JournalError."""
    if not where.journal_path.exists() or await store.meta(spec.journal) is None:
        raise ConfigError(f"run {spec.run} has no journal yet: it was never started")
    chain = await chain_of(where, spec, store)
    report = await verify(store, chain, spec.journal, anchor=anchor_head(where, spec), keep=True)
    report.require_whole()
    if not report.records:
        raise ConfigError(f"run {spec.run} has no record yet")
    blobs: dict[str, bytes] = {}
    for digest in (name for stored in report.records for name in blob_names(stored.record)):
        raw = await store.blob_get(spec.journal, digest)
        if raw is not None:
            blobs[digest] = raw
    records = [stored.record for stored in report.records]
    if chain.sealer is not None:
        records, blobs = opened_journal(chain.sealer, report.records, blobs)
    told = RecordedRun(records, spec.goal, dict(spec.inputs), spec.entrypoint, blobs, SDK_VERSION)
    return spec, told, report.head


def _replay(run: str, spec: RunSpec, told: RecordedRun, output: str | None) -> Replay:
    """In the directory where the agent's process would run. Raises Refusal with the difference."""
    enter(spec)
    try:
        return replay(told, spec.entrypoint)
    except Diverged as e:
        _diverged(run, spec, e, output)
    except EverstepError as e:
        raise refusal(e, run) from e


def enter(spec: RunSpec) -> None:
    """Go where the agent's process would run; its module is looked for there."""
    os.chdir(spec.directory or ".")
    sys.path.insert(0, os.getcwd())


def _diverged(run: str, spec: RunSpec, e: Diverged, output: str | None) -> NoReturn:
    if output == "json":
        click.echo(
            json.dumps({"run": run, "agent": spec.entrypoint, "replays": False, "pinned": False, "message": str(e)})
        )
        raise click.exceptions.Exit(int(Exit.REFUSED)) from e
    raise Refusal(f"run {run} does not replay with {spec.entrypoint}; nothing was written.\n{e}", Exit.REFUSED) from e


async def _pin(where: LocalDir, spec: RunSpec, store: Store, head: Head, records: list[Record]) -> bool:
    """Write the pin, as an attempt of its own, if Python is another one than the run's. Whether it was written."""
    before = recorded_pins(History.of(records))
    if before.python == python_minor():
        return False
    clock, chain = SystemClock(), await chain_of(where, spec, store)
    meta = await store.meta(spec.journal)
    attempt = Attempt((meta.attempt if meta else 0) + 1)
    reply = await store.fence(spec.journal, attempt, head, {})
    if reply.answer is not FenceAnswer.OK:
        raise RunBusy(f"run {spec.run} is being run by another process (the fence answered {reply.answer})", 0)
    owner = Owner(f"repin-{os.getpid()}-{clock.nonce()}")
    await store.claim(spec.journal, attempt, owner)
    writer = JournalWriter(store, spec.journal, attempt, owner, chain, head=head, clock=clock)

    def make(seq: Seq) -> Pinned:
        return Pinned(
            seq=seq, attempt=attempt, time=clock.now_epoch_ms(), image=before.image, named=before.named,
            python=python_minor(), by=BY_LOCAL,
        )  # fmt: skip

    writer.put(make)
    await writer.drain()
    anchor_file(where, spec).grow(writer.confirmed, attempt, clock.now_epoch_ms())
    return True


def _report(run: str, spec: RunSpec, done: Replay, output: str | None, *, pinned: bool, kept: bool) -> None:
    what = f"{text.plural(done.steps, 'step')} replay with {spec.entrypoint} and Python {python_minor()}"
    if done.finished:
        rest = "the run is over, so nothing is pinned"
    elif kept:
        rest = "it goes on with them"
    else:
        rest = "nothing was changed"
    message = f"run {run}: {what}; {rest}"
    if output == "json":
        document = {
            "run": run,
            "agent": spec.entrypoint,
            "replays": True,
            "steps": done.steps,
            "finished": done.finished,
        }
        click.echo(json.dumps(document | {"pinned": pinned, "message": message}))
    else:
        click.echo(message)


def _not_running(where: LocalDir, spec: RunSpec) -> FileLock:
    lock = FileLock(where.supervisor_lock(spec.run))
    if not lock.try_acquire():
        pid = lock.holder_pid()
        raise refusal(RunBusy(f"run {spec.run} is being run by process {pid}; stop it first: kill {pid}", pid))
    return lock
