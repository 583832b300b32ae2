"""Local mode on a real (pseudo) terminal: colours, Ctrl-C as the terminal sends it, tables that fit, no escapes elsewhere."""

import os
import pty
import re
import select
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator
from fcntl import ioctl
from pathlib import Path

import pytest

from tests.support.local_runs import WAIT_S, LocalRuns

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


class Terminal:
    """A command in a terminal of its own, 120 columns wide."""

    def __init__(self, runs: LocalRuns, *arguments: str, **env: str) -> None:
        self.text = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(runs.home)
            wanted = {k: v for k, v in runs.env.items() if k != "COLUMNS"} | {"TERM": "xterm-256color"} | env
            os.execve(sys.executable, [sys.executable, "-m", "everstep.cli", *arguments], wanted)
        ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))

    def until(self, seen: Callable[[str], bool]) -> str:
        """Read until the text satisfies, or the command ended; all text so far without escape codes."""
        deadline = time.monotonic() + WAIT_S
        while not seen(self.plain):
            if time.monotonic() > deadline:
                raise TimeoutError(self.plain)
            if select.select([self.fd], [], [], 0.2)[0]:
                try:
                    data = os.read(self.fd, 4096)
                except OSError:  # the other side is closed
                    break
                if not data:
                    break
                self.text += data.decode(errors="replace")
        return self.plain

    def press(self, keys: bytes) -> None:
        os.write(self.fd, keys)

    def end(self) -> int:
        """Read to the end; the exit code."""
        self.until(lambda _: False)
        os.close(self.fd)
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)

    @property
    def plain(self) -> str:
        return ESCAPES.sub("", self.text).replace("\r\n", "\n")


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[LocalRuns]:
    local = LocalRuns(tmp_path)
    yield local
    local.close()


def test_a_run_on_a_terminal_ctrl_c_and_resume(runs: LocalRuns) -> None:
    command = ("local", "run", "agents:run", "--goal", "Triage", "--run-id", "monday")
    first = Terminal(runs, *command, HOLD="look 1")
    runs.until_held("look 1")
    first.press(b"\x03")
    first.until(lambda text: "stopping" in text)
    runs.go()
    assert first.end() == 130
    assert "\x1b[" in first.text, "a terminal gets colours"
    assert "stopping · the step in flight has 10 s to finish" in first.plain
    assert "lost" not in first.plain, "a stop that was asked for is no loss"
    assert first.plain.rstrip().endswith("everstep local run agents:run --goal Triage --run-id monday")
    second = Terminal(runs, *command)
    assert second.end() == 0
    assert re.search(r"run monday · attempt 2 · \d steps replayed in \d+ ms, chain verified", second.plain)
    assert second.plain.rstrip().endswith("triaged")
    assert set(runs.count().values()) == {1}


def test_tables_fit_and_are_plain_without_a_terminal(runs: LocalRuns) -> None:
    runs.run("run", "--input", "count=2")
    shown = Terminal(runs, "local", "steps", "monday")
    assert shown.end() == 0
    lines = shown.plain.splitlines()
    assert lines[0].split() == ["KEY", "STEP", "TRY", "STATE", "EFFECT", "TOOK", "TOKENS"]
    assert max(map(len, lines)) <= 120
    piped = runs.cli("local", "steps", "monday").stdout
    assert "\x1b" not in piped
    assert [line.split() for line in piped.splitlines()] == [line.split() for line in lines]


def test_no_color_is_respected(runs: LocalRuns) -> None:
    shown = Terminal(runs, "local", "run", "agents:run", "--goal", "x", "--input", "count=1", NO_COLOR="1")
    assert shown.end() == 0
    assert not re.search(r"\x1b\[3[0-9]m", shown.text)
