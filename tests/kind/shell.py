"""Running programs: every call is bounded in time and fails with the end of what the program said."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TypeAlias

from tests.kind.errors import CommandFailed, KindToolError

DEFAULT_TIMEOUT_S = 60.0

# The words of a command while it is put together.
Argv: TypeAlias = list[str | Path]


_children: set[subprocess.Popen[bytes]] = set()


def terminate_children() -> None:
    """End the programs that this process started and still waits for; for use when it is told to end itself."""
    for child in list(_children):
        with contextlib.suppress(ProcessLookupError):
            child.terminate()


@contextlib.contextmanager
def _child(
    words: list[str],
    *,
    stdin: int | IO[bytes],
    stdout: int | IO[bytes],
    stderr: int | IO[bytes],
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program; at the end of the block it is gone, by force if need be."""
    try:
        child = subprocess.Popen(
            words, stdin=stdin, stdout=stdout, stderr=stderr, env={**os.environ, **(env or {})}, cwd=cwd
        )
    except FileNotFoundError as e:
        raise KindToolError(f"{words[0]} not found: {e}") from e
    _children.add(child)
    try:
        with child:
            try:
                yield child
            except BaseException:
                child.kill()
                raise
    finally:
        _children.discard(child)


def run(
    argv: Sequence[str | Path],
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str | bytes | None = None,
    log: Path | None = None,
) -> str:
    """Run a program to its end and return its standard output.

    `env` is added to this process's environment. `log`: a file that gets all output instead (the return value is then empty).
    Raises CommandFailed on a non-zero exit code or after `timeout_s`, KindToolError if the program does not exist.
    """
    words = [str(word) for word in argv]
    data = stdin.encode() if isinstance(stdin, str) else stdin
    with contextlib.ExitStack() as stack:
        out: int | IO[bytes] = subprocess.PIPE
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            out = stack.enter_context(log.open("wb"))
        source = subprocess.DEVNULL if data is None else subprocess.PIPE
        errors = subprocess.PIPE if log is None else subprocess.STDOUT
        child = stack.enter_context(_child(words, stdin=source, stdout=out, stderr=errors, env=env, cwd=cwd))
        try:
            said, complaint = child.communicate(data, timeout=timeout_s)
        except subprocess.TimeoutExpired as e:
            child.kill()
            said, complaint = child.communicate()
            output = _tail(log) if log else ((complaint or b"") + (said or b"")).decode(errors="replace")
            raise CommandFailed(words, None, output, timeout_s=timeout_s) from e
    if child.returncode != 0:
        output = _tail(log) if log else (complaint or said).decode(errors="replace")
        raise CommandFailed(words, child.returncode, output)
    return (said or b"").decode(errors="replace")


def _tail(log: Path) -> str:
    return log.read_bytes()[-4000:].decode(errors="replace") + f"\n(whole output: {log})"


def pipe(source: Sequence[str | Path], sink: Sequence[str | Path], *, timeout_s: float) -> str:
    """Run `source | sink` and return what `sink` printed. Raises CommandFailed for whichever failed, or after `timeout_s`."""
    left = [str(word) for word in source]
    right = [str(word) for word in sink]
    pipe_, none = subprocess.PIPE, subprocess.DEVNULL
    with tempfile.TemporaryFile() as complaint:
        with _child(left, stdin=none, stdout=pipe_, stderr=complaint) as first:
            assert first.stdout is not None
            with _child(right, stdin=first.stdout, stdout=pipe_, stderr=pipe_) as second:
                first.stdout.close()  # so that the first learns when the second ends
                try:
                    said, refusal = second.communicate(timeout=timeout_s)
                except subprocess.TimeoutExpired as e:
                    raise CommandFailed([*left, "|", *right], None, "", timeout_s=timeout_s) from e
        if second.returncode != 0:
            raise CommandFailed(right, second.returncode, refusal.decode(errors="replace"))
        if first.returncode != 0:
            complaint.seek(0)
            raise CommandFailed(left, first.returncode, complaint.read().decode(errors="replace"))
    return said.decode(errors="replace")


def succeeds(argv: Sequence[str | Path], *, timeout_s: float = 10.0, env: Mapping[str, str] | None = None) -> bool:
    """Whether a program exists and ends with 0 in time; for probing, never for acting."""
    try:
        run(argv, timeout_s=timeout_s, env=env)
    except KindToolError:
        return False
    return True


def wait_until(what: str, check: Callable[[], bool], *, timeout_s: float, every_s: float = 0.5) -> float:
    """Poll `check` until it is true; return the seconds it took. Raises KindToolError naming `what` after `timeout_s`."""
    start = time.monotonic()
    while True:
        if check():
            return time.monotonic() - start
        if time.monotonic() - start > timeout_s:
            raise KindToolError(f"{what}: not so after {timeout_s:g} s")
        time.sleep(every_s)
