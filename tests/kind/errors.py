"""The errors of the cluster tool: each says what failed and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence


class KindToolError(Exception):
    """Something the tool needs is missing or did not work. The message names it and says what to do."""


class CommandFailed(KindToolError):
    """A program ended with a non-zero code or ran out of its time.

    `argv` is what was run, `code` its exit code (None when it was stopped at its time limit), `output` the end of what it said.
    """

    def __init__(self, argv: Sequence[str], code: int | None, output: str, *, timeout_s: float | None = None) -> None:
        self.argv = list(argv)
        self.code = code
        self.output = output
        how = f"did not end within {timeout_s:g} s" if code is None else f"ended with exit code {code}"
        tail = "\n".join(output.strip().splitlines()[-20:])
        super().__init__(f"{' '.join(self.argv)[:400]} {how}" + (f":\n{tail}" if tail else ""))
