"""`everstep local accept|delete`: what a person does when a run cannot go on as it is."""

from pathlib import Path

import click

from everstep.cli import text
from everstep.cli.exits import EPILOG
from everstep.cli.options import directory_option, run_argument, with_store
from everstep.clock import SystemClock
from everstep.errors import ConfigError
from everstep.ids import Attempt
from everstep.journal.chain import Chain
from everstep.journal.store import Store
from everstep.journal.verify import verify
from everstep.local.anchors import AnchorFile
from everstep.local.files import LocalDir
from everstep.local.locks import FileLock, RunBusy
from everstep.local.removal import remove
from everstep.local.spec import RunSpec


@click.command(epilog=EPILOG)
@run_argument
@click.option("--reason", required=True, help="Why it may go on from here; kept beside the anchor.")
@directory_option
def accept(run: str, reason: str, directory: Path) -> None:
    """Take a journal as it is, after its end or its anchor was lost.

    Steps whose records are gone run again. Only for a journal whose remaining chain is whole: an altered one is never accepted.
    """
    where = LocalDir(directory)

    async def go(spec: RunSpec, store: Store) -> None:
        with await not_running(where, spec):
            report = await verify(store, Chain(spec.journal), spec.journal)
            if not report.whole:
                raise ConfigError(f"the journal of run {run} is not whole by itself: {report.message}; delete the run")
            path = where.anchor_path(spec.run)
            old = path.read_text(encoding="utf-8") if path.exists() else "none"
            meta = await store.meta(spec.journal)
            attempt = meta.attempt if meta else Attempt(0)
            now = SystemClock().now_epoch_ms()
            line = (
                f"{text.iso(now)} head {report.head.seq} {report.head.hash}, before: {old.strip()}, reason: {reason}\n"
            )
            _log(path.with_suffix(".accepted"), line)
            AnchorFile(path, spec.journal).replace(report.head, attempt, now)
            click.echo(f"run {run} goes on from record {report.head.seq}")

    with_store(where, run, go)


@click.command(epilog=EPILOG)
@run_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@directory_option
def delete(run: str, yes: bool, directory: Path) -> None:
    """Delete a run: its journal, anchor and files. What its steps did outside stays done."""
    where = LocalDir(directory)

    async def go(spec: RunSpec, store: Store) -> None:
        with await not_running(where, spec):
            if not yes:
                click.confirm(f"delete run {run} and its journal?", abort=True)
            await remove(where, spec, store)
            click.echo(f"run {run} deleted")

    with_store(where, run, go)


def _log(path: Path, line: str) -> None:
    with open(path, "a", encoding="utf-8") as log:
        log.write(line)


async def not_running(where: LocalDir, spec: RunSpec) -> FileLock:
    """The lock of a run that nobody supervises, held. Raises RunBusy."""
    lock = FileLock(where.supervisor_lock(spec.run))
    if not await lock.acquire():
        pid = lock.holder_pid()
        raise RunBusy(f"run {spec.run} is being run by process {pid}; stop it first: kill {pid}", pid)
    return lock
