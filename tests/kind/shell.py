"""Running programs: every call is bounded in time and fails with the end of what the program said."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from tests.kind.errors import CommandFailed, KindToolError

DEFAULT_TIMEOUT_S = 60.0

# The words of a command while it is put together.
Argv: TypeAlias = list[str | Path]


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
    try:
        if log is not None:
            return _run_to_log(words, log, timeout_s=timeout_s, env=env, cwd=cwd, data=data)
        done = subprocess.run(
            words, input=data, stdin=None if data is not None else subprocess.DEVNULL, capture_output=True,
            timeout=timeout_s, env={**os.environ, **(env or {})}, cwd=cwd, check=False,
        )  # fmt: skip
    except FileNotFoundError as e:
        raise KindToolError(f"{words[0]} not found: {e}") from e
    except subprocess.TimeoutExpired as e:
        said = (e.stderr or b"") + (e.stdout or b"")
        raise CommandFailed(words, None, said.decode(errors="replace"), timeout_s=timeout_s) from e
    if done.returncode != 0:
        raise CommandFailed(words, done.returncode, (done.stderr or done.stdout).decode(errors="replace"))
    return done.stdout.decode(errors="replace")


def _run_to_log(
    words: list[str],
    log: Path,
    *,
    timeout_s: float,
    env: Mapping[str, str] | None,
    cwd: Path | None,
    data: bytes | None,
) -> str:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        try:
            done = subprocess.run(
                words, input=data, stdin=None if data is not None else subprocess.DEVNULL, stdout=out,
                stderr=subprocess.STDOUT, timeout=timeout_s, env={**os.environ, **(env or {})}, cwd=cwd, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as e:
            raise CommandFailed(words, None, _tail(log), timeout_s=timeout_s) from e
    if done.returncode != 0:
        raise CommandFailed(words, done.returncode, _tail(log))
    return ""


def _tail(log: Path) -> str:
    return log.read_bytes()[-4000:].decode(errors="replace") + f"\n(whole output: {log})"


def pipe(source: Sequence[str | Path], sink: Sequence[str | Path], *, timeout_s: float) -> str:
    """Run `source | sink` and return what `sink` printed. Raises CommandFailed for whichever failed, or after `timeout_s`."""
    left = [str(word) for word in source]
    right = [str(word) for word in sink]
    with subprocess.Popen(left, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stderr is not None
        try:
            second = subprocess.run(right, stdin=first.stdout, capture_output=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired as e:
            first.kill()
            raise CommandFailed([*left, "|", *right], None, "", timeout_s=timeout_s) from e
        first.stdout.close()
        complaint = first.stderr.read().decode(errors="replace")
    if second.returncode != 0:
        raise CommandFailed(right, second.returncode, second.stderr.decode(errors="replace"))
    if first.returncode != 0:
        raise CommandFailed(left, first.returncode, complaint)
    return second.stdout.decode(errors="replace")


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
