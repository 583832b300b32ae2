"""`everstep local replay`, `local run --always-replay` and debugging, as a person uses them."""

import json
from pathlib import Path

import pytest

from tests.support.local_runs import LocalRuns, kill


@pytest.fixture
def unfinished(tmp_path: Path) -> LocalRuns:
    """Killed in its third step."""
    local = LocalRuns(tmp_path, {"HOLD": "look 1"})
    supervisor = local.start("run", "--input", "count=2")
    local.until_held("look 1")
    agent = local.agent_pid(supervisor)
    kill(supervisor.pid)
    supervisor.wait()
    local.until_gone(agent)
    return local


@pytest.fixture
def finished(tmp_path: Path) -> LocalRuns:
    local = LocalRuns(tmp_path)
    assert local.run("run", "--input", "count=2").returncode == 0
    return local


def change(local: LocalRuns, old: str, new: str) -> None:
    path = local.home / "agents.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_run_replays_with_todays_code_and_nothing_happens(unfinished: LocalRuns) -> None:
    """What the agent had in hand is seen without doing any of it again."""
    effects, records = unfinished.effects(), unfinished.sql("SELECT count(*) FROM records")
    done = unfinished.cli("local", "replay", "monday")
    assert done.returncode == 0, done.stderr
    first, place = done.stdout.splitlines()[:2]
    assert first == "run monday: 2 steps replayed; the record ends; the agent waits for step look at '2'"
    assert "agents.py:" in place
    assert place.endswith("in run: await look(n)")
    assert unfinished.effects() == effects
    assert unfinished.sql("SELECT count(*) FROM records") == records


def test_it_stops_at_a_step(finished: LocalRuns) -> None:
    done = finished.cli("local", "replay", "monday", "--until", "file#1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "run monday: 1 step replayed; stopped at step file #1"
    assert done.stdout.splitlines()[1].endswith("in run: await file(n)")
    told = json.loads(finished.cli("local", "replay", "monday", "--until", "look", "-o", "json").stdout)
    assert told["stoppedAt"] == {"key": "0", "name": "look"}
    assert told["places"][0]["function"] == "run"
    whole = finished.cli("local", "replay", "monday")
    assert whole.stdout == "run monday: 4 steps replayed to its end\n"
    never = finished.cli("local", "replay", "monday", "--until", "send")
    assert never.returncode == 2
    assert "makes no call 'send'" in never.stderr
    assert "file#3" in never.stderr


def test_changed_code_is_told_and_a_step_beyond_the_end_does_not_run(finished: LocalRuns) -> None:
    effects = finished.effects()
    change(finished, 'return "triaged"', 'await look(77)\n    return "triaged"')
    done = finished.cli("local", "replay", "monday")
    assert done.returncode == 65
    assert "the run is finished, and the code goes on" in done.stderr
    assert "agents.py:" in done.stderr
    assert finished.effects() == effects
    change(finished, "await file(n)", "await file(n + 1)")
    told = finished.cli("local", "replay", "monday", "-o", "json")
    assert told.returncode == 65
    assert json.loads(told.stdout)["replays"] is False
    assert json.loads(told.stdout)["places"][0]["source"] == "await file(n + 1)"


def test_pdb_opens_at_the_agents_line_and_steps_through_it(finished: LocalRuns) -> None:
    done = finished.talk("p n\nn\nn\np ('now', n)\nc\n", "local", "replay", "monday", "--until", "file#3", "--pdb")
    assert done.returncode == 0, done.stderr
    assert "-> await file(n)" in done.stdout
    assert "(everstep) 1\n" in done.stdout
    assert "run monday: 4 steps replayed to its end" in done.stdout


def test_pdb_opens_where_the_record_ends(unfinished: LocalRuns) -> None:
    done = unfinished.talk("p ('n is', n)\nq\n", "local", "replay", "monday", "--pdb")
    assert done.returncode == 0, done.stderr
    assert "('n is', 1)" in done.stdout


def test_always_replay_starts_a_process_per_outcome_and_runs_each_body_once(tmp_path: Path) -> None:
    local = LocalRuns(tmp_path)
    done = local.run("run", "--input", "count=2", "--always-replay")
    assert done.returncode == 0, done.stdout + done.stderr
    assert local.json("local", "get", "monday")["attempt"] >= 4
    assert set(local.count().values()) == {1}
    wrong = local.run("run", "--input", "count=2", "--always-replay", "--no-supervise")
    assert wrong.returncode == 2


def test_always_replay_finds_an_order_that_hangs_on_the_process(tmp_path: Path) -> None:
    """C2: a set of text iterates otherwise in each process; undisturbed nobody would notice."""
    local = LocalRuns(tmp_path)
    change(local, "for n in range(count):", "for n in sorted(range(count), key=lambda n: hash(str(n))):")
    done = local.run("run", "--input", "count=8", "--always-replay")
    assert done.returncode == 65, done.stdout + done.stderr
    assert "other arguments" in done.stdout + done.stderr


def test_without_a_supervisor_nothing_is_timed_out(tmp_path: Path) -> None:
    local = LocalRuns(tmp_path)
    change(
        local,
        '@everstep.step(effect="read")\nasync def look',
        '@everstep.step(effect="read", timeout=0.2)\nasync def look',
    )
    timed_out = local.run("run", "--input", "count=1", PAUSE_S="1")
    assert timed_out.returncode == 1
    done = local.cli("local", "run", "agents:run", "--goal", "Triage", "--run-id", "tuesday", "--input", "count=1",
                     "--no-supervise", PAUSE_S="1")  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
