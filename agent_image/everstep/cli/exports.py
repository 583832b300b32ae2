"""Exports on the command line: where they are written to, keys and anchors as people give them, what is said of a file."""

import base64
import binascii
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import click

from everstep.cli import show, text
from everstep.errors import ConfigError
from everstep.ids import RecordHash, Seq
from everstep.journal.exported import FileReport
from everstep.journal.store import Head

KEY_BYTES = 32

file_option = click.option(
    "-o",
    "--output",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file; default: standard output.",
)


@contextlib.contextmanager
def target(path: Path | None) -> Iterator[IO[bytes]]:
    """Where an export goes: standard output, or a file that appears whole or not at all, for its owner alone (journals hold
    prompts). Raises ConfigError."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        fd, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    except OSError as e:
        raise ConfigError(f"-o {path}: cannot be written: {e.strerror or e}") from e
    try:
        with open(fd, "wb") as f:
            yield f
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
    except OSError as e:
        raise ConfigError(f"-o {path}: cannot be written: {e.strerror or e}") from e
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def read_key(path: Path) -> bytes:
    """A chain key: 32 bytes as they are, in hexadecimal, or in base64. Raises ConfigError."""
    try:
        raw = path.read_bytes()
    except OSError as e:
        raise ConfigError(f"--key {path}: cannot be read: {e.strerror or e}") from e
    if len(raw) == KEY_BYTES:
        return raw
    words = raw.decode("ascii", errors="replace").strip()
    with contextlib.suppress(ValueError):
        if len(found := bytes.fromhex(words)) >= KEY_BYTES:
            return found
    with contextlib.suppress(binascii.Error, ValueError):
        if len(found := base64.b64decode(words, validate=True)) >= KEY_BYTES:
            return found
    raise ConfigError(f"--key {path}: holds no key: {KEY_BYTES} bytes, raw, in hexadecimal or in base64")


def read_anchor(words: str | None) -> Head | None:
    """`SEQ:HASH`. Raises ConfigError."""
    if words is None:
        return None
    seq, _, digest = words.partition(":")
    if not seq.isdigit() or len(digest) != 64:
        raise ConfigError(f"--anchor {words!r}: write SEQ:HASH, as in status.checkpoint of the AgentRun")
    return Head(Seq(int(seq)), RecordHash(digest))


def print_file_report(file: Path, report: FileReport, output: str) -> None:
    """`monday.jsonl: whole · run monday · 161 records · head 161 4f1c…a9 · proved by signature of 3f2a…`, or what is wrong."""
    if output == "json":
        show.as_json(_document(file, report))
        return
    head = report.head
    end = f"head {head.seq} {text.short_hash(head.hash)}".strip()
    if report.whole:
        by = ", ".join(f"signature of {report.signer}" if word == "signature" else word for word in report.proved_by)
        records = text.plural(report.records, "record")
        click.echo(f"{file}: whole · run {text.clean(report.run, 60)} · {records} · {end} · proved by {by}")
    else:
        where = (
            ""
            if report.bad_seq is None
            else " at the header"
            if report.bad_seq == 0
            else f" at record {report.bad_seq}"
        )
        click.echo(f"{file}: {report.judgement}{where} · {text.clean(report.message, 1000)} · it fits up to {end}")
    if output == "wide":
        for note in report.notes:
            click.echo(f"  {note}")


def _document(file: Path, report: FileReport) -> dict[str, Any]:  # Any: JSON data
    return {
        "file": str(file),
        "journal": report.journal,
        "run": report.run,
        "whole": report.whole,
        "verdict": report.judgement.value,
        "finding": report.finding,
        "badSeq": report.bad_seq,
        "message": report.message,
        "records": report.records,
        "head": {"seq": report.head.seq, "hash": report.head.hash},
        "signer": report.signer,
        "provedBy": list(report.proved_by),
        "notes": list(report.notes),
    }
