"""`everstep local live`: what the steps of a run say while they work."""

import contextlib
import json
from pathlib import Path

import click

from everstep.cli import text
from everstep.cli.exits import EPILOG, run_async
from everstep.cli.options import directory_option, local_store, need_run, output_option, run_argument
from everstep.journal.live import LiveEntry, LiveStore, follow_live, read_live
from everstep.local.files import LocalDir
from everstep.local.locks import FileLock
from everstep.local.sealing import chain_of
from everstep.local.spec import RunSpec


@click.command(epilog=EPILOG)
@run_argument
@click.option("-f", "--follow", is_flag=True, help="Go on until the run is not being run any more; Ctrl-C ends it.")
@click.option(
    "--from",
    "after",
    type=click.IntRange(min=0),
    default=0,
    metavar="OFFSET",
    help="Go on after this position (a line's `position` with -o json); 0 = from the beginning.",
)
@directory_option
@output_option("json")
def live(run: str, follow: bool, after: int, directory: Path, output: str | None) -> None:
    """Print what the steps of a run say while they work, e.g. a model's words.

    It is not the journal: only the newest 10,000 pieces are kept, and what a lost or failed try has said is marked. With -o json
    each piece is one line with its position, step key, attempt, try and offset.
    """
    where = LocalDir(directory)
    spec = need_run(where, run)
    printer = _Json() if output == "json" else _Text()
    with contextlib.suppress(KeyboardInterrupt):
        run_async(lambda: _print(where, spec, printer, follow, after))
    printer.end()


async def _print(where: LocalDir, spec: RunSpec, printer: "_Text | _Json", follow: bool, after: int) -> None:
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


class _Json:
    """One line each."""

    def show(self, entry: LiveEntry) -> None:
        click.echo(json.dumps(entry._asdict(), ensure_ascii=False))

    def end(self) -> None:
        return None


class _Text:
    """The words as they come, with a line where another try speaks, ends or is dead."""

    def __init__(self) -> None:
        self._speaking: tuple[str, int, int] | None = None
        self._heard: set[tuple[str, int, int]] = set()
        self._line_open = False

    def show(self, entry: LiveEntry) -> None:
        who = (entry.key, entry.attempt, entry.tries)
        if entry.kind == "text":
            if self._speaking != who:
                self._mark(f"{_who(entry)}{' goes on' if who in self._heard else ''}")
                self._speaking = who
            self._heard.add(who)
            shown = "".join(c if c in "\n\t" or c.isprintable() else "�" for c in entry.text)
            click.echo(shown, nl=False)
            self._line_open = not shown.endswith("\n")
        elif entry.kind == "abandoned" and (who in self._heard or entry.tries == 0):
            self._mark(f"{_who(entry)} is dead: what it said above does not count")
        elif entry.kind in ("dropped", "gap"):
            self._mark("some of it is missing here")

    def _mark(self, line: str) -> None:
        self.end()
        self._speaking = None
        click.echo(click.style(f"── {line} ──", dim=True))

    def end(self) -> None:
        if self._line_open:
            click.echo()
            self._line_open = False


def _who(entry: LiveEntry) -> str:
    tries = f", try {entry.tries}" if entry.tries > 1 else ""
    return f"{text.clean(entry.name, 40)} #{text.clean(entry.key, 40)} · attempt {entry.attempt}{tries}"
