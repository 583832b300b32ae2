"""kill -9 of the agent and of the supervisor of a local run, at many points; effects are counted in a side file."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep import faults
from tests.crash.test_every_point import ELSEWHERE
from tests.support.local_runs import LocalRuns, kill


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[LocalRuns]:
    local = LocalRuns(tmp_path)
    yield local
    local.close()


def whole(runs: LocalRuns, steps: int) -> None:
    """The journal is whole, has one outcome per step, and the result is there."""
    assert runs.cli("local", "verify", "monday").returncode == 0
    told = runs.json("local", "steps", "monday")["steps"]
    assert [s["state"] for s in told] == ["result"] * steps
    assert runs.json("local", "result", "monday")["result"] == "triaged"


NOT_REACHED = ("before_retry", "before_probe", "after_probe", "before_park", "after_park", *ELSEWHERE)
POINTS = [p for p in faults.POINTS if p not in NOT_REACHED]


@pytest.mark.parametrize("point", POINTS)
def test_the_agent_killed_at_a_fault_point_is_restarted_and_repeats_nothing_recorded(
    runs: LocalRuns, point: str
) -> None:
    nth, attempt = (1, 2) if point == "in_replay" else (2 if point in ("in_body", "before_append") else 1, 1)
    spec = f"{point}:{nth}@{attempt}=kill"
    if attempt == 2:
        spec = f"after_append:3@1=kill;{spec}"
    done = runs.run("run", EVERSTEP_FAULTS=spec)
    assert done.returncode == 0, done.stdout + done.stderr
    whole(runs, 10)
    counts = runs.count()
    assert set(counts) == {f"{name} {n}" for n in range(5) for name in ("look", "file")}
    assert sum(counts.values()) <= 11 + (attempt - 1), "only the step in flight may run again"
    keys: dict[str, set[str]] = {}
    for word, ticket, key in (line.split() for line in runs.effects() if line.startswith("file")):
        assert word == "file"
        keys.setdefault(ticket, set()).add(key)
    assert all(len(found) == 1 for found in keys.values()), "a step in flight runs again with the same key"


def test_kill_9_of_the_agent_over_and_over(runs: LocalRuns) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    process = runs.start("run", PAUSE_S="0.15")
    kills = 0
    while process.poll() is None and kills < 6:
        seen = len(runs.effects())
        runs.until_effects_or_end(seen + 1, process)
        if process.poll() is None and chance.random() < 0.8:
            try:
                kill(runs.agent_pid(process))
                kills += 1
            except (ProcessLookupError, TimeoutError):
                break
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    whole(runs, 10)
    assert sum(runs.count().values()) <= 10 + kills
    assert out.count("killed by SIGKILL · starting again") == kills


def test_kill_9_of_the_supervisor_takes_the_agent_with_it_and_the_same_command_goes_on(runs: LocalRuns) -> None:
    for word in ("look 0", "file 1", "look 3"):
        process = runs.start("run", HOLD=word)
        runs.until_held(word)
        agent = runs.agent_pid(process)
        kill(process.pid)
        process.wait()
        runs.until_gone(agent)
    done = runs.run()
    assert done.returncode == 0, done.stdout + done.stderr
    whole(runs, 10)
    counts = runs.count()
    assert {word for word, times in counts.items() if times > 1} == {"look 0", "file 1", "look 3"}
    assert sum(counts.values()) == 13, "each step in flight ran once more, no other"
    assert "steps replayed" in done.stdout
    assert "chain verified" in done.stdout
    assert "was in flight: running again" in done.stdout
    assert "attempt 4" in done.stdout


def test_kill_9_of_the_supervisor_while_the_agent_is_stopped(runs: LocalRuns) -> None:
    """A stopped agent cannot die by itself, nor flush; the kernel's signal ends it all the same."""
    import os
    import signal

    process = runs.start("run", HOLD="look 1")
    runs.until_held("look 1")
    agent = runs.agent_pid(process)
    os.kill(agent, signal.SIGSTOP)
    kill(process.pid)
    process.wait()
    runs.until_gone(agent)
    assert runs.run().returncode == 0
    whole(runs, 10)


def test_a_mail_in_flight_at_the_supervisors_death_is_never_sent_twice(runs: LocalRuns) -> None:
    process = runs.start("mail", HOLD="send 0")
    runs.until_held("send 0")
    kill(process.pid)
    process.wait()
    done = runs.run("mail")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "send #0 may have happened" in done.stdout
    assert runs.count() == {"send 0": 1}


@pytest.mark.parametrize("moment", ["spec", "anchor", "fence"])
def test_a_start_that_was_cut_short_is_taken_up(runs: LocalRuns, moment: str) -> None:
    """The supervisor killed between its first three writes leaves something the same command goes on with."""
    code = f"""
import os, signal, sys
import everstep.local.files as files, everstep.local.anchors as anchors, everstep.local.child as child
if {moment!r} == "spec":
    anchors.write_atomic = lambda *a: os.kill(os.getpid(), signal.SIGKILL)
elif {moment!r} == "anchor":
    from everstep.journal.sqlite_store import SqliteStore
    SqliteStore.fence = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)
else:
    child.prepare = lambda *a: os.kill(os.getpid(), signal.SIGKILL)
sys.argv = ["everstep", "local", "run", "agents:run", "--goal", "Triage", "--run-id", "monday"]
from everstep.cli import main
main()
"""
    import subprocess
    import sys

    cut = subprocess.run(
        [sys.executable, "-c", code], cwd=runs.home, env=runs.env, capture_output=True, timeout=60, check=False
    )
    assert cut.returncode == -9, cut.stderr
    assert runs.effects() == []
    assert runs.run().returncode == 0
    whole(runs, 10)
    assert set(runs.count().values()) == {1}
