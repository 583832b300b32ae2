"""`make demo-local`: the triage agent on this machine under `everstep local run`; its process and its supervisor are killed.

    python -m tests.demo.local [--keep DIRECTORY]

Real processes, real SIGKILL, the real command line; the model, the tracker and the mail gateway are a process of their own that
counts every request. Ends with the counts, and with exit code 1 if one of them is wrong.
"""

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.console import Console

from everstep.ids import JournalId
from everstep.journal.open import open_store
from everstep.journal.records import Record, decode
from tests.demo import history
from tests.demo.tally import EXAMPLES, Loss, Tally, expected
from tests.support.world.client import WorldClient, world_on_loopback

RUN = "demo"
GOAL = "Triage the support backlog"
STEP_TIMEOUT_S = 45.0
console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 110)


@dataclass
class Supervisor:
    """One `everstep local run` and what it prints."""

    directory: Path
    world: WorldClient
    process: "subprocess.Popen[str]" = field(init=False)

    def __post_init__(self) -> None:
        command = ["local", "run", "triage:run", "--goal", GOAL, "--run-id", RUN, "--dir", str(self.directory)]
        say(f"$ everstep {' '.join(command[:-2])}".replace(GOAL, f'"{GOAL}"'))
        env = {
            **os.environ,
            "OPENAI_BASE_URL": self.world.url + "/v1",
            "OPENAI_API_KEY": "not-needed-here",
            "TRACKER_URL": self.world.url,
            "MAIL_URL": self.world.url,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "everstep.cli", *command],
            cwd=EXAMPLES, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        threading.Thread(target=self._show, daemon=True).start()

    def _show(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            console.print(f"  │ {line.rstrip()}", markup=False)

    def agent_pid(self) -> int:
        """The process under it."""
        return wait_for("the agent process", lambda: next(iter(children(self.process.pid)), 0))


def say(text: str) -> None:
    """One line of the story."""
    console.print(text, style="bold", markup=False)


def wait_for(what: str, look: Callable[[], int], timeout_s: float = STEP_TIMEOUT_S) -> int:
    """Ask until the answer is not 0. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(0.02)
    return found


def children(pid: int) -> list[int]:
    """Child processes, by ps, which every Unix has."""
    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [tuple(map(int, line.split())) for line in listing.splitlines()]
    return [child for child, parent in pairs if parent == pid]


def kill(pid: int, what: str) -> Loss:
    """kill -9, noted."""
    loss = Loss(what, time.time_ns() // 1_000_000)
    os.kill(pid, signal.SIGKILL)
    say(f"✂ kill -9 {pid}: {what}")
    return loss


def steps_seen(world: WorldClient) -> int:
    """Different steps that reached the world so far."""
    return sum(int(total["keys"]) for kind, total in world.counts()["totals"].items() if kind != "probe")


def tell_the_story(directory: Path, world: WorldClient) -> list[Loss]:
    """Start the run and take things away until it is finished."""
    losses = []
    run = Supervisor(directory, world)
    try:
        wait_for("12 steps", lambda: steps_seen(world) >= 12)
        losses.append(kill(run.agent_pid(), "agent, at a random moment"))

        world.hold("ticket", ticket="T-1012", moment="after")
        world.wait_until_held(timeout_s=STEP_TIMEOUT_S)
        losses.append(kill(run.agent_pid(), "agent, ticket filed, reply not read"))
        world.release()

        world.hold("mail", ticket="T-1020", moment="after")
        world.wait_until_held(timeout_s=STEP_TIMEOUT_S)
        losses.append(kill(run.agent_pid(), "agent, mail sent, reply not read"))
        world.release()

        wait_for("62 steps", lambda: steps_seen(world) >= 62)
        losses.append(kill(run.process.pid, "supervisor, and with it the agent"))
        run.process.wait()
        say("The same command again:")
        run = Supervisor(directory, world)
        if code := run.process.wait(STEP_TIMEOUT_S):
            raise RuntimeError(f"everstep local run ended with exit code {code}")
    finally:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait()
    return losses


async def read_journal(directory: Path) -> list[Record]:
    """The run's records from its SQLite file."""
    store = open_store(f"sqlite:///{directory / 'journal.db'}", installation="local")
    try:
        (journal,) = await store.journals()
        return [decode(stored.record, stored.seq) async for stored in store.read(JournalId(journal))]
    finally:
        await store.aclose()


def everstep(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run one command and show it with what it prints."""
    say(f"$ everstep {' '.join(arguments)}")
    done = subprocess.run(
        [sys.executable, "-m", "everstep.cli", *arguments], capture_output=True, text=True, timeout=30, check=False
    )
    for line in (done.stdout + done.stderr).splitlines():
        console.print(f"  │ {line}", markup=False)
    return done


def show_tampering(directory: Path, problems: list[str]) -> None:
    """Alter one record of a copy; the journal must be refused, naming the record."""
    say("\nOne byte of record 33 is changed in a copy of the journal:")
    copy = directory.with_name("tampered")
    shutil.copytree(directory, copy)
    alter_record(copy / "journal.db", 33)
    checked = everstep("local", "verify", RUN, "--dir", str(copy))
    words = (checked.stdout + checked.stderr).lower()
    if checked.returncode == 0 or "tampered" not in words or "33" not in words:
        problems.append("a changed record was not refused by its number")
    whole = everstep("local", "verify", RUN, "--dir", str(directory))
    if whole.returncode != 0:
        problems.append("the untouched journal was refused")


def alter_record(path: Path, seq: int) -> None:
    """Change one digit of the stored bytes, as somebody with the file in hand could."""
    connection = sqlite3.connect(path)
    with connection:
        found = connection.execute("SELECT place, record FROM records").fetchall()
        ((place, raw),) = [(p, bytes(r)) for p, r in found if json.loads(r)["seq"] == seq]
        changed = raw.replace(b'"time":1', b'"time":2')
        connection.execute("UPDATE records SET record = ? WHERE place = ?", (changed, place))
    connection.close()


def tally(directory: Path, world: WorldClient, losses: list[Loss]) -> Tally:
    """Everything that is shown at the end."""
    records = asyncio.run(read_journal(directory))
    history.place_losses(losses, records)
    return Tally(
        expected=expected(),
        counts=world.counts(),
        losses=losses,
        steps_recorded=len(history.outcomes(records)),
        steps_replayed=history.replayed_by_the_last(records),
        attempts=records[-1].attempt,
        model_calls_saved=history.replayed(records, "classify"),
    ).check()


@click.command()
@click.option("--keep", type=click.Path(path_type=Path), help="Leave the journal in this directory.")
def main(keep: Path | None) -> None:
    """Kill an agent four times and count what the outside world saw."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="everstep-demo-") as scratch:
        directory = (keep or Path(scratch)).resolve() / ".everstep"
        with world_on_loopback(model_latency_ms=70, tool_latency_ms=20) as world:
            losses = tell_the_story(directory, world)
            result = tally(directory, world, losses)
        show_tampering(directory, result.problems)
        console.print()
        console.print(result.effects_table(), result.losses_table())
        console.print(result.summary())
        console.print(f"{time.monotonic() - began:.0f} s in all")
    for problem in result.problems:
        console.print(f"WRONG  {problem}", style="bold red", markup=False)
    if result.problems:
        sys.exit(1)
    console.print("Every effect happened once.", style="bold green")
    console.print(
        "Next: everstep local run hello:run in agent_image/examples, and kill it; or make demo, on a cluster."
    )


if __name__ == "__main__":
    main()
