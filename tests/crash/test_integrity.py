"""Encrypted runs and their keys, killed at every point: no record without its key, no key without its record, no half erasure."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.local_runs import LocalRuns

ARMED = """
import sys
from everstep import faults
from everstep.cli.app import everstep
faults.arm(sys.argv[1], 1)
everstep(sys.argv[2:], prog_name="everstep")
"""
KILLED = -signal.SIGKILL


def armed(runs: LocalRuns, faults: str, *arguments: str) -> int:
    """`everstep …` with a fault armed in the command itself; its exit code."""
    command = [sys.executable, "-c", ARMED, faults, *arguments]
    return subprocess.run(command, cwd=runs.home, env=runs.env, capture_output=True, timeout=60, check=False).returncode


def stored(runs: LocalRuns) -> bytes:
    return b"".join(path.read_bytes() for path in runs.everstep.glob("journal.db*"))


RUN = ("local", "run", "agents:run", "--goal", "Triage", "--run-id", "monday", "--input", "count=2")


@pytest.mark.timeout(240)
def test_killed_before_its_key_is_kept(tmp_path: Path) -> None:
    """The key dies with the process, before anything was sealed with it: the next command makes another."""
    runs = LocalRuns(tmp_path)
    assert armed(runs, "before_key=kill", *RUN, "--encrypt") == KILLED
    assert runs.cli(*RUN).returncode == 0, "the run is encrypted, as it was begun"
    assert b"triaged" not in stored(runs)
    assert runs.cli("local", "result", "monday").stdout.strip() == "triaged"
    assert max(runs.count().values()) == 1


POINTS = [
    "after_claim",
    "after_intent:2",
    "after_effect:2",
    "before_append:3",
    "after_append:3",
    "after_result:3",
    "in_replay:1",
]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("point", [*POINTS, "before_finished", "after_finished"])
def test_an_encrypted_run_survives_as_any_other(point: str, tmp_path: Path) -> None:
    runs = LocalRuns(tmp_path)
    spec = "after_effect:3@1=kill;in_replay:1@2=kill" if point == "in_replay:1" else f"{point}@1=kill"
    done = runs.cli(*RUN, "--encrypt", EVERSTEP_FAULTS=spec)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "lost" in done.stdout or point == "after_finished", "the fault was reached"
    assert runs.cli("local", "result", "monday").stdout.strip() == "triaged"
    assert runs.cli("local", "verify", "monday").returncode == 0
    assert sum(runs.count().values()) <= 5, "one step at most was repeated"
    assert b"triaged" not in stored(runs)
    assert not list(runs.everstep.glob("attempts/*/data-keys.json"))


@pytest.mark.timeout(240)
@pytest.mark.parametrize("point", ["in_erase", "in_rotate", "after_rotate"])
def test_an_erasure_that_is_killed_is_completed_by_the_same_command(point: str, tmp_path: Path) -> None:
    runs = LocalRuns(tmp_path)
    for run in ("monday", "tuesday"):
        assert runs.run("run", "--input", "count=1", "--encrypt", run=run).returncode == 0
    assert armed(runs, f"{point}=kill", "local", "erase", "monday", "--yes") == KILLED
    assert runs.cli("local", "result", "monday").stdout.strip() == "(erased)", "the first write is the one that counts"
    assert runs.cli("local", "result", "tuesday").stdout.strip() == "triaged"
    assert runs.cli("local", "erase", "monday", "--yes").returncode == 0
    assert len(list(runs.everstep.glob("keys/w*"))) == 1
    assert runs.json("local", "get", "monday")["goal"] == "(erased)"
    for run in ("monday", "tuesday"):
        assert runs.cli("local", "verify", run).returncode == 0
    assert runs.cli("local", "result", "tuesday").stdout.strip() == "triaged"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("point", ["in_rotate", "after_rotate"])
def test_a_rotation_that_is_killed_loses_no_key(point: str, tmp_path: Path) -> None:
    runs = LocalRuns(tmp_path)
    assert runs.run("run", "--input", "count=1", "--encrypt").returncode == 0
    assert armed(runs, f"{point}=kill", "local", "rotate-key") == KILLED
    assert runs.cli("local", "result", "monday").stdout.strip() == "triaged"
    assert runs.run("run", "--input", "count=1", "--encrypt", run="tuesday").returncode == 0
    assert runs.cli("local", "rotate-key").returncode == 0
    assert len(list(runs.everstep.glob("keys/w*"))) == 1
    for run in ("monday", "tuesday"):
        assert runs.cli("local", "result", run).stdout.strip() == "triaged"
