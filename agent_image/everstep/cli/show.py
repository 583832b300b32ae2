"""Output of lists and objects: a coloured table on a terminal, aligned plain text elsewhere, or JSON."""

import json
import sys
from collections.abc import Sequence

import click

STYLES = {
    "Succeeded": "green", "result": "green", "done": "green", "fired": "green", "Running": "cyan", "Replaying": "cyan",
    "Failed": "red", "failure": "red", "fail": "red", "Cancelled": "yellow", "abandoned": "yellow",
    "Uncertain": "yellow", "uncertain": "yellow", "exhausted": "yellow", "Waiting": "magenta",
    "Stopped": "yellow", "intent": "cyan",
}  # fmt: skip
"""Colours of state words; a word that is not here stays plain."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under their heads."""
    if sys.stdout.isatty():
        _rich_table(head, rows)
        return
    widths = [max(len(str(cell)) for cell in column) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        click.echo("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _rich_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for name in head:
        shown.add_column(name, overflow="fold")
    for row in rows:
        shown.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
    Console(highlight=False).print(shown)


def as_json(document: object) -> None:
    """Print a document as indented JSON."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def facts(pairs: Sequence[tuple[str, str]]) -> None:
    """Print `Name:  value` lines, aligned, as kubectl describe does; an empty value is left out."""
    kept = [(name, text) for name, text in pairs if text]
    width = max((len(name) for name, _ in kept), default=0) + 1
    for name, text in kept:
        click.echo(f"{name + ':':<{width}}  {text}")
