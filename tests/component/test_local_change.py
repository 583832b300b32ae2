"""`everstep local history` and `everstep local repin` as a person runs them: changed code under a run that is not over."""

import json
from pathlib import Path

import pytest

from everstep import testing
from tests.support.local_runs import LocalRuns, kill

PRETEND = """
import os
if os.environ.get("PRETEND_PYTHON"):
    import everstep.run.pins
    everstep.run.pins.python_minor = lambda: os.environ["PRETEND_PYTHON"]
"""


@pytest.fixture
def unfinished(tmp_path: Path) -> LocalRuns:
    """Killed in its third step."""
    local = LocalRuns(tmp_path, {"HOLD": "look 1"})
    pretend = tmp_path / "pretend"
    pretend.mkdir()
    (pretend / "sitecustomize.py").write_text(PRETEND)
    local.env["PYTHONPATH"] = f"{pretend}:{local.env['PYTHONPATH']}"
    supervisor = local.start("run", "--input", "count=2")
    local.until_held("look 1")
    agent = local.agent_pid(supervisor)
    kill(supervisor.pid)
    supervisor.wait()
    local.until_gone(agent)
    return local


def change(local: LocalRuns, old: str, new: str) -> None:
    path = local.home / "agents.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_history_replays_in_a_test_and_tells_changed_code(
    unfinished: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = unfinished.cli("local", "history", "monday", "-o", "monday.jsonl")
    assert done.returncode == 0, done.stderr
    assert "monday.jsonl" in done.stderr
    assert unfinished.cli("local", "history", "monday").stdout == (unfinished.home / "monday.jsonl").read_text()
    head = json.loads((unfinished.home / "monday.jsonl").read_text().splitlines()[0])
    assert (head["agent"], head["goal"], head["inputs"]) == ("agents:run", "Triage", {"count": 2})
    code = "import everstep.testing as t; print(t.replay('monday.jsonl', 'agents:run'))"
    (unfinished.home / "check.py").write_text(code)
    assert "steps=2, finished=False" in unfinished_python(unfinished, "check.py")[1]
    change(unfinished, "await file(n)", "await file(n + 1)")
    code, told = unfinished_python(unfinished, "check.py")
    assert code != 0
    assert "step file was called with other arguments" in told
    assert "agents.py:" in told
    with pytest.raises(testing.recorded.ConfigError):
        testing.RecordedRun.read(unfinished.home / "none.jsonl")


def unfinished_python(local: LocalRuns, script: str) -> tuple[int, str]:
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, script], cwd=local.home, env=local.env, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_code_that_replays_goes_on_and_nothing_is_written_where_it_does_not(unfinished: LocalRuns) -> None:
    before = unfinished.effects()
    records = unfinished.sql("SELECT count(*) FROM records")
    change(unfinished, "await file(n)", "await file(n + 1)")
    done = unfinished.cli("local", "repin", "monday")
    assert done.returncode == 65
    assert "run monday does not replay with agents:run; nothing was written" in done.stderr
    assert "step file was called with other arguments" in done.stderr
    told = unfinished.cli("local", "repin", "monday", "-o", "json")
    assert told.returncode == 65
    assert json.loads(told.stdout)["replays"] is False
    change(unfinished, "await file(n + 1)", "await file(n)")
    done = unfinished.cli("local", "repin", "monday")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("run monday: 2 steps replay with agents:run and Python 3.")
    assert done.stdout.endswith("nothing was changed\n")
    assert done.stderr == ""
    assert unfinished.sql("SELECT count(*) FROM records") == records
    assert unfinished.effects() == before


def test_another_python_is_refused_until_it_is_pinned(unfinished: LocalRuns) -> None:
    unfinished.go()
    refused = unfinished.run("run", "--input", "count=2", PRETEND_PYTHON="3.99")
    assert refused.returncode == 65
    assert "begun with another Python" in refused.stdout
    assert "everstep local repin" in refused.stdout
    dry = unfinished.cli("local", "repin", "monday", "--dry-run", PRETEND_PYTHON="3.99")
    assert dry.returncode == 0
    assert dry.stdout.endswith("nothing was changed\n")
    pinned = unfinished.cli("local", "repin", "monday", "-o", "json", PRETEND_PYTHON="3.99")
    assert pinned.returncode == 0, pinned.stderr
    assert json.loads(pinned.stdout)["pinned"] is True
    assert unfinished.cli("local", "verify", "monday").returncode == 0
    back = unfinished.run("run", "--input", "count=2")
    assert back.returncode == 65
    done = unfinished.run("run", "--input", "count=2", PRETEND_PYTHON="3.99")
    assert done.returncode == 0, done.stdout
    assert unfinished.count()["file 0"] == 1
    over = unfinished.cli("local", "repin", "monday")
    assert over.returncode == 0, over.stderr
    assert "the run is over, so nothing is pinned" in over.stdout


def test_another_agent_takes_a_run_over_if_it_tells_the_same_story(unfinished: LocalRuns) -> None:
    unfinished.go()
    text = (unfinished.home / "agents.py").read_text()
    (unfinished.home / "moved.py").write_text(
        text.replace("async def run(", "async def better(").replace('return "triaged"', 'return "better"')
    )
    assert unfinished.cli("local", "repin", "monday", "--agent", "moved").returncode == 2
    wrong = unfinished.cli("local", "repin", "monday", "--agent", "moved:napping")
    assert wrong.returncode == 2
    assert "inputs" in wrong.stderr or "input" in wrong.stderr
    done = unfinished.cli("local", "repin", "monday", "--agent", "moved:better")
    assert done.returncode == 0, done.stderr
    assert "it goes on with them" in done.stdout
    ended = unfinished.cli(
        "local", "run", "moved:better", "--goal", "Triage", "--run-id", "monday", "--input", "count=2"
    )
    assert ended.returncode == 0, ended.stdout
    assert unfinished.json("local", "result", "monday")["result"] == "better"
    assert unfinished.count()["file 0"] == 1


def test_what_it_refuses(unfinished: LocalRuns) -> None:
    missing = unfinished.cli("local", "repin", "tuesday")
    assert missing.returncode == 2
    assert "run 'tuesday' does not exist" in missing.stderr
    running = unfinished.start("run", "--input", "count=2")
    unfinished.until_held("look 1", 2)
    busy = unfinished.cli("local", "repin", "monday")
    assert busy.returncode == 75
    assert "stop it first" in busy.stderr
    assert running.poll() is None
