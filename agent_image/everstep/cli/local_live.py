"""`everstep local live`: what the steps of a run say while they work."""

import contextlib
from pathlib import Path

import click

from everstep.cli.exits import EPILOG, run_async
from everstep.cli.live_words import JsonLines, Words, from_option
from everstep.cli.options import directory_option, local_store, need_run, output_option, run_argument
from everstep.journal.live import LiveStore, follow_live, read_live
from everstep.local.files import LocalDir
from everstep.local.locks import FileLock
from everstep.local.sealing import chain_of
from everstep.local.spec import RunSpec


@click.command(epilog=EPILOG)
@run_argument
@click.option("-f", "--follow", is_flag=True, help="Go on until the run is not being run any more; Ctrl-C ends it.")
@from_option
@directory_option
@output_option("json")
def live(run: str, follow: bool, after: int, directory: Path, output: str | None) -> None:
    """Print what the steps of a run say while they work, e.g. a model's words.

    It is not the journal: only the newest 10,000 pieces are kept, and what a lost or failed try has said is marked. With -o json
    each piece is one line with its position, step key, attempt, try and offset.
    """
    where = LocalDir(directory)
    spec = need_run(where, run)
    printer = JsonLines() if output == "json" else Words()
    with contextlib.suppress(KeyboardInterrupt):
        run_async(lambda: _print(where, spec, printer, follow, after))
    printer.end()


async def _print(where: LocalDir, spec: RunSpec, printer: Words | JsonLines, follow: bool, after: int) -> None:
    store = local_store(where)
    try:
        if not isinstance(store, LiveStore):
            return
        sealer = (await chain_of(where, spec, store)).sealer
        lock = FileLock(where.supervisor_lock(spec.run))
        entries = (
            follow_live(store, spec.journal, after, until=lambda: not lock.is_held())
            if follow
            else read_live(store, spec.journal, after)
        )
        async for entry in entries:
            printer.show(entry if sealer is None else entry._replace(text=sealer.open_text(entry.text)))
    finally:
        await store.aclose()
