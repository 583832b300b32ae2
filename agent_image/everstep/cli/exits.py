"""Exit codes of both command lines, and how an error becomes one. The help of each command prints this table."""

import asyncio
import enum
from collections.abc import Callable, Coroutine
from typing import IO, Any, TypeVar

import click

from everstep.errors import (
    BadStore,
    ConfigError,
    EverstepError,
    JournalError,
    JournalLost,
    JournalTampered,
    JournalUnavailable,
)
from everstep.local.locks import RunBusy

T = TypeVar("T")


class Exit(enum.IntEnum):
    """What a shell script can tell apart."""

    OK = 0
    FAILED = 1
    USAGE = 2
    WAITING = 3
    REFUSED = 65
    UNREACHABLE = 69
    BUSY = 75
    INTERRUPTED = 130
    TERMINATED = 143


MEANINGS: dict[Exit, str] = {
    Exit.OK: "it succeeded; for a run: it finished well",
    Exit.FAILED: "the run failed, was cancelled, or was given up after crashing again and again",
    Exit.USAGE: "wrong command line, entrypoint, goal or input; no such run or step; nothing was changed",
    Exit.WAITING: "the run waits for a person (settle it), or has no result yet",
    Exit.REFUSED: "the journal was tampered with, is lost or unreadable, or the agent's code diverged from it",
    Exit.UNREACHABLE: "the journal cannot be reached",
    Exit.BUSY: "another process runs this run, or remains of it still live",
    Exit.INTERRUPTED: "stopped by Ctrl-C; the same command resumes (143: by SIGTERM)",
}
EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {code.value:<4} {text}" for code, text in MEANINGS.items())
"""For click's `epilog=`; the \\b keeps its lines as they are."""


class Refusal(click.ClickException):
    """Ends a command with a message on standard error and one of the exit codes."""

    def __init__(self, message: str, code: Exit) -> None:
        super().__init__(message)
        vars(self)["exit_code"] = int(code)  # click declares it on the class and reads it from the instance

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it; what comes from kubectl says `Error` itself. Any: click's own signature."""
        before = "" if self.message.lower().startswith("error") else "Error: "
        click.echo(f"{before}{self.message}", file=file, err=file is None)


def refusal(error: EverstepError, run: str = "") -> Refusal:
    """The message and exit code of an error. `run`: a local run, whose ways out are told."""
    out = _ways_out(error, run) if run else ""
    if isinstance(error, JournalTampered):
        return Refusal(f"journal tampered at record {error.bad_seq}: {error}. Nothing was run.{out}", Exit.REFUSED)
    if isinstance(error, JournalLost):
        return Refusal(f"journal lost after record {error.have}: {error}. Nothing was run.{out}", Exit.REFUSED)
    for kinds, before, code in _CODES:
        if isinstance(error, kinds):
            return Refusal(f"{before}{error}", code)
    return Refusal(f"{type(error).__name__}: {error}", Exit.FAILED)


def _ways_out(error: EverstepError, run: str) -> str:
    """What a person can do about a local journal that is refused; empty if the message itself says it."""
    if not isinstance(error, JournalTampered | JournalLost):
        return ""
    ways = ["restore     journal.db from a copy, but keep anchors/, which tells whether that copy is complete"]
    if isinstance(error, JournalLost) and error.have > 0:
        ways.append(
            f"go on       from record {error.have}: everstep local accept {run} --reason …; lost steps run again"
        )
    ways.append(f"start over  everstep local delete {run}, or another --run-id; what its steps did outside stays done")
    return "".join(f"\n  {way}" for way in ways)


_CODES: list[tuple[tuple[type[EverstepError], ...], str, Exit]] = [
    ((JournalError,), "", Exit.REFUSED),
    ((RunBusy,), "", Exit.BUSY),
    ((JournalUnavailable, BadStore), "the journal cannot be reached: ", Exit.UNREACHABLE),
    ((ConfigError,), "", Exit.USAGE),
]


def run_async(make: Callable[[], Coroutine[object, object, T]], run: str = "") -> T:
    """Run a command's coroutine; errors of the tree become refusals, with the ways out of a local `run`."""
    try:
        return asyncio.run(make())
    except EverstepError as e:
        raise refusal(e, run) from e
