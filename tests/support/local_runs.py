"""Local runs as a person starts them: real processes, an agent that notes every effect in a side file, kills, tampering."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
WAIT_S = 40.0

AGENT = '''
"""Notes every effect in the file named by SIDE."""
import asyncio, os, signal, subprocess, sys
import everstep

PAUSE_S = float(os.environ.get("PAUSE_S", "0"))

def note(word):
    fd = os.open(os.environ["SIDE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, (word + "\\n").encode())
    os.close(fd)

async def pause(word):
    """PAUSE_S; the step named by HOLD stays until there is a file `go`."""
    await asyncio.sleep(PAUSE_S)
    while os.environ.get("HOLD") == word and not os.path.exists("go"):
        await asyncio.sleep(0.02)

@everstep.step(effect="read")
async def look(n: int) -> int:
    note(f"look {n}")
    await pause(f"look {n}")
    return n

@everstep.step(effect="idempotent")
async def file(n: int) -> str:
    note(f"file {n} {everstep.idempotency_key()}")
    await pause(f"file {n}")
    return f"T-{n}"

@everstep.step(effect="at_most_once")
async def send(n: int) -> str:
    note(f"send {n}")
    await pause(f"send {n}")
    return f"M-{n}"

@everstep.step(effect="read")
async def crash(how: str) -> str:
    note(f"crash {how}")
    if how == "exit":
        os._exit(1)
    if how == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
        await asyncio.sleep(10)
    if how == "raise":
        raise ValueError("no such ticket")
    return how

@everstep.step(effect="read")
async def spawn() -> int:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    note(f"spawn {child.pid}")
    await asyncio.sleep(PAUSE_S)
    return child.pid

@everstep.agent
async def run(goal: str, count: int = 5) -> str:
    for n in range(count):
        await look(n)
        await file(n)
    return "triaged"

@everstep.agent
async def mail(goal: str, count: int = 1) -> list[str]:
    return [await send(n) for n in range(count)]

@everstep.agent
async def crashing(goal: str, how: str) -> str:
    await look(0)
    await crash(how)
    return "survived"

@everstep.agent
async def napping(goal: str, seconds: float) -> str:
    await look(0)
    await asyncio.sleep(seconds)
    await look(1)
    return "rested"

@everstep.agent
async def spawning(goal: str) -> int:
    return await spawn()

@everstep.agent
async def cleaning(goal: str) -> str:
    try:
        await asyncio.sleep(3600)
    finally:
        await look(99)
    return "never"
'''


@dataclass
class LocalRuns:
    """One directory with an agent module, its side file and its `.everstep`."""

    home: Path
    env: dict[str, str] = field(default_factory=dict)
    started: "list[subprocess.Popen[str]]" = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.home / "agents.py").write_text(AGENT)
        self.side = self.home / "side"
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("EVERSTEP_")}
        sources = os.pathsep.join([str(REPOSITORY / "agent_image"), *filter(None, [inherited.get("PYTHONPATH")])])
        self.env = {**inherited, "SIDE": str(self.side), "PYTHONPATH": sources, "COLUMNS": "200", **self.env}

    # --- commands

    def talk(self, typed: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """`everstep ARGUMENTS` with a person at the keyboard."""
        return subprocess.run(
            [sys.executable, "-m", "everstep.cli", *arguments], cwd=self.home, env=self.env, input=typed,
            capture_output=True, text=True, timeout=WAIT_S, check=False,
        )  # fmt: skip

    def cli(self, *arguments: str, **env: str) -> "subprocess.CompletedProcess[str]":
        """`everstep ARGUMENTS`, to its end."""
        command = [sys.executable, "-m", "everstep.cli", *arguments]
        return subprocess.run(
            command,
            cwd=self.home,
            env={**self.env, **env},
            capture_output=True,
            text=True,
            timeout=WAIT_S * 2,
            check=False,
        )

    def run(
        self, agent: str = "run", *more: str, run: str = "monday", **env: str
    ) -> "subprocess.CompletedProcess[str]":
        """`everstep local run agents:AGENT`, to its end."""
        return self.cli("local", "run", f"agents:{agent}", "--goal", "Triage", "--run-id", run, *more, **env)

    def start(self, agent: str = "run", *more: str, run: str = "monday", **env: str) -> "subprocess.Popen[str]":
        """The same, in the background; `close` ends it."""
        arguments = ["local", "run", f"agents:{agent}", "--goal", "Triage", "--run-id", run, *more]
        process = subprocess.Popen(
            [sys.executable, "-m", "everstep.cli", *arguments],
            cwd=self.home, env={**self.env, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.started.append(process)
        return process

    def close(self) -> None:
        """End what was started here and is still there."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            if process.stdout is not None:
                process.stdout.close()
            process.wait(WAIT_S)

    # --- looking

    def effects(self) -> list[str]:
        """Every effect, in order."""
        return self.side.read_text().splitlines() if self.side.exists() else []

    def count(self) -> Counter[str]:
        """How often each effect happened, without idempotency keys."""
        return Counter(" ".join(line.split()[:2]) for line in self.effects())

    def until(self, what: str, look: Callable[[], Any]) -> Any:
        """Ask until the answer is true. Raises TimeoutError with what was seen."""
        deadline = time.monotonic() + WAIT_S
        while not (found := look()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {WAIT_S} s: {what}; effects so far: {self.effects()[-5:]}")
            time.sleep(0.02)
        return found

    def until_effects(self, number: int) -> None:
        """Wait for that many effects."""
        self.until(f"{number} effects", lambda: len(self.effects()) >= number)

    def until_held(self, word: str, times: int = 1) -> None:
        """Wait until the step named by HOLD has begun."""
        self.until(f"{word} to begin", lambda: self.count()[word] >= times)

    def go(self) -> None:
        """Let the step named by HOLD end."""
        (self.home / "go").touch()

    def until_effects_or_end(self, number: int, process: "subprocess.Popen[str]") -> None:
        """Wait for that many effects, or for the process to end."""
        self.until(f"{number} effects", lambda: len(self.effects()) >= number or process.poll() is not None)

    def until_gone(self, pid: int) -> None:
        """Wait for a process to end."""
        self.until(f"process {pid} to end", lambda: not lives(pid))

    def json(self, *arguments: str) -> Any:
        """A command's `-o json`."""
        done = self.cli(*arguments, "-o", "json")
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    @property
    def everstep(self) -> Path:
        return self.home / ".everstep"

    # --- taking away and tampering

    def agent_pid(self, supervisor: "subprocess.Popen[str]") -> int:
        """The agent process under a supervisor, once it is there."""
        return int(self.until("the agent process", lambda: next(iter(children(supervisor.pid)), 0)))

    def sql(self, statement: str, *values: Any) -> list[Any]:
        """One statement on the journal's file, as somebody with the file in hand could."""
        connection = sqlite3.connect(self.everstep / "journal.db")
        try:
            with connection:
                return connection.execute(statement, values).fetchall()
        finally:
            connection.close()

    def place(self, seq: int) -> int:
        """Row of a record of the only journal."""
        found = self.sql("SELECT place, record FROM records")
        (place,) = [p for p, r in found if json.loads(bytes(r))["seq"] == seq]
        return int(place)


def children(pid: int) -> list[int]:
    """Child processes of a process."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(word) for word in task.read_text().split()]
        except OSError:
            continue
    return found


def lives(pid: int) -> bool:
    """True while a process runs (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in ("Z", "X")


def kill(pid: int) -> None:
    """kill -9."""
    os.kill(pid, signal.SIGKILL)
