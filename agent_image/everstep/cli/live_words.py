"""How what steps say while they work is shown: `everstep local live` and `kubectl everstep live`."""

import json

import click

from everstep.cli import text
from everstep.journal.live import LiveEntry

from_option = click.option(
    "--from",
    "after",
    type=click.IntRange(min=0),
    default=0,
    metavar="OFFSET",
    help="Go on after this position (a line's `position` with -o json); 0 = from the beginning.",
)


class JsonLines:
    """One line each."""

    def show(self, entry: LiveEntry) -> None:
        click.echo(json.dumps(entry._asdict(), ensure_ascii=False))

    def end(self) -> None:
        return None


class Words:
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
