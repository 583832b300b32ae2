"""`everstep local run` as a person sees it: start, resume, results, refusals, crashes, waits. Real processes, real SQLite."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.local_runs import LocalRuns, children, lives


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[LocalRuns]:
    local = LocalRuns(tmp_path)
    yield local
    local.close()


def test_a_run_prints_its_steps_its_end_and_its_result(runs: LocalRuns) -> None:
    done = runs.run("run", "--input", "count=2")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "run monday · attempt 1 · journal .everstep/journal.db"
    assert [line.split()[:3] for line in lines[1:5]] == [
        ["1", "look", "#0"],
        ["2", "file", "#1"],
        ["3", "look", "#2"],
        ["4", "file", "#3"],
    ]
    assert lines[5] == "run monday · succeeded · 4 steps, 0 replayed, 4 run · 1 attempt"
    assert lines[6:] == ["triaged"]


def test_the_same_command_on_a_finished_run_prints_its_result_and_runs_nothing(runs: LocalRuns) -> None:
    runs.run()
    before = runs.effects()
    again = runs.run()
    assert again.returncode == 0
    assert again.stdout.splitlines()[-1] == "triaged"
    assert runs.effects() == before
    assert runs.json("local", "get", "monday")["attempt"] == 1, "a finished run needs no attempt"


def test_json_is_alone_on_standard_output(runs: LocalRuns) -> None:
    done = runs.run("run", "-o", "json")
    document = json.loads(done.stdout)
    assert (document["outcome"], document["result"], document["attempts"]) == ("succeeded", "triaged", 1)
    assert document["steps"] == {"recorded": 10, "replayed": 0}
    assert "attempt 1" in done.stderr


def test_goal_and_inputs_come_from_files_too(runs: LocalRuns) -> None:
    (runs.home / "goal.txt").write_text("Triage")
    (runs.home / "inputs.json").write_text('{"count": 1}')
    done = runs.cli(
        "local", "run", "agents:run", "--goal-file", "goal.txt", "--inputs-file", "inputs.json", "--run-id", "m"
    )
    assert done.returncode == 0, done.stderr
    assert runs.run("run", "--input", "count=1", run="m").returncode == 0, "the same goal and inputs, said otherwise"


def test_a_run_without_a_name_gets_a_fresh_one_each_time(runs: LocalRuns) -> None:
    for _ in range(2):
        assert runs.cli("local", "run", "agents:run", "--goal", "x", "--input", "count=1").returncode == 0
    assert len(runs.json("local", "list")) == 2
    assert runs.count()["look 0"] == 2


def test_two_runs_of_one_name_in_two_directories_have_different_idempotency_keys(runs: LocalRuns) -> None:
    """Else the outside would take the second run's effects for repetitions of the first."""
    runs.run("run", "--input", "count=1")
    runs.run("run", "--input", "count=1", "--dir", "other")
    keys = [line.split()[2] for line in runs.effects() if line.startswith("file")]
    assert len(set(keys)) == 2


# --- refusals


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["agents:run"], "give the goal either by --goal TEXT or by --goal-file FILE"),
        (["agents:run", "--goal", "x", "--goal-file", "agents.py"], "give the goal either by"),
        (["agents.py:run", "--goal", "x"], "entrypoint 'agents.py:run': write MODULE:FUNCTION, for example agents:run"),
        (["agents:run", "--goal", "x", "--run-id", "a/b"], "run id 'a/b': use letters"),
        (["agents:run", "--goal", "x", "--input", "count"], "--input 'count': write NAME=VALUE"),
        (["agents:run", "--goal", "x", "--inputs-file", "agents.py"], "--inputs-file agents.py: not JSON"),
        (["agents:run", "--goal", "x", "--dir", "agents.py/x"], "--dir"),
    ],
)
def test_bad_input_is_named_and_nothing_is_started(runs: LocalRuns, arguments: list[str], told: str) -> None:
    done = runs.cli("local", "run", *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert runs.effects() == []


@pytest.mark.parametrize(
    ("entrypoint", "told"), [("nowhere:run", "nowhere"), ("agents:nothing", "nothing"), ("agents:look", "look")]
)
def test_an_entrypoint_that_is_no_agent_stops_at_once(runs: LocalRuns, entrypoint: str, told: str) -> None:
    done = runs.cli("local", "run", entrypoint, "--goal", "x", "--run-id", "m")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "attempt 2" not in done.stdout, "another attempt would fail alike"
    assert told in done.stdout + done.stderr


@pytest.mark.parametrize("typo", [["agents:nope", "--goal", "Triage"], ["agents:run", "--goal", "x", "--input", "n=1"]])
def test_a_typo_does_not_use_up_the_name_of_the_run(runs: LocalRuns, typo: list[str]) -> None:
    """Nothing of it happened, so the corrected command is a new run."""
    assert runs.cli("local", "run", *typo, "--run-id", "monday").returncode == 2
    done = runs.run("run", "--input", "count=1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "attempt 1" in done.stdout
    assert runs.count() == {"look 0": 1, "file 0": 1}
    assert runs.cli("local", "run", *typo, "--run-id", "monday").returncode == 2, "a run that began keeps its name"
    assert runs.json("local", "result", "monday")["result"] == "triaged"


def test_other_goal_inputs_or_entrypoint_for_a_run_are_refused_by_name(runs: LocalRuns) -> None:
    runs.run("run", "--input", "count=1")
    done = runs.cli("local", "run", "agents:mail", "--goal", "Else", "--input", "count=2", "--run-id", "monday")
    assert done.returncode == 2
    assert "entrypoint: was agents:run, now agents:mail" in done.stderr
    assert "goal: was 'Triage', now 'Else'" in done.stderr
    assert "input count: was '1', now '2'" in done.stderr
    assert "choose another --run-id" in done.stderr


def test_a_run_that_is_being_run_is_refused_and_goes_on_undisturbed(runs: LocalRuns) -> None:
    first = runs.start("run", HOLD="look 1")
    runs.until_held("look 1")
    second = runs.run()
    assert second.returncode == 75
    assert f"being run by process {first.pid}" in second.stderr
    runs.go()
    assert first.wait(60) == 0
    assert set(runs.count().values()) == {1}


# --- losses


def test_a_crash_that_repeats_is_given_up_and_says_so(runs: LocalRuns) -> None:
    done = runs.run("crashing", "--input", "how=exit")
    assert done.returncode == 1
    assert runs.count() == {"look 0": 1, "crash exit": 4}
    assert "attempt 1 lost · exit 1 · starting again in 1 s (crash 1 of at most 3 without progress)" in done.stdout
    assert "given up" in done.stdout


def test_a_segmentation_fault_counts_as_the_agents_own_doing(runs: LocalRuns) -> None:
    process = runs.start("crashing", "--input", "how=segv")
    runs.until_effects(3)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert "killed by SIGSEGV · starting again in 1 s (crash 1" in out
    assert process.returncode == 143


def test_an_exception_of_the_agent_fails_the_run_once(runs: LocalRuns) -> None:
    done = runs.run("crashing", "--input", "how=raise")
    assert done.returncode == 1
    assert runs.count()["crash raise"] == 1
    assert "run monday · failed · " in done.stdout
    assert 'raise ValueError("no such ticket")' in done.stderr, "the author sees the line of the body that raised"
    assert f'{runs.home / "agents.py"}", line ' in done.stderr
    assert "no such ticket" in done.stdout
    again = runs.run("crashing", "--input", "how=raise")
    assert again.returncode == 1
    assert "failed already" in again.stdout
    assert "start over: everstep local delete monday, or another --run-id" in again.stdout
    assert "start over" not in done.stdout
    assert "Reason:      AgentFailed: " in runs.cli("local", "get", "monday").stdout
    shown = runs.cli("local", "result", "monday")
    assert shown.returncode == 1
    assert shown.stdout == ""
    assert "no such ticket" in shown.stderr


def test_ctrl_c_lets_the_step_finish_and_says_how_to_go_on(runs: LocalRuns) -> None:
    process = runs.start("run", HOLD="look 1")
    runs.until_held("look 1")
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    out = ""
    while "stopping · the step in flight has 10 s to finish" not in out:
        line = process.stdout.readline()
        assert line, out
        out += line
    runs.go()
    out += process.stdout.read()
    assert process.wait(30) == 130, out
    assert "go on with\n  everstep local run agents:run --goal Triage --run-id monday" in out
    assert len(runs.effects()) == 3, "no new step began"
    assert runs.json("local", "get", "monday")["summary"] == "Stopped"
    done = runs.run()
    assert done.returncode == 0
    assert "3 steps replayed" in done.stdout
    assert runs.count() == {f"{name} {n}": 1 for n in range(5) for name in ("look", "file")}, "nothing ran twice"


def test_a_second_ctrl_c_ends_the_step_at_once(runs: LocalRuns) -> None:
    process = runs.start("run", HOLD="look 0")
    runs.until_effects(1)
    agent = runs.agent_pid(process)
    process.send_signal(signal.SIGINT)
    runs.until("the stop to arrive", lambda: "stopping" in (process.stdout.readline() if process.stdout else ""))
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert not lives(agent)


def test_progress_resets_the_count_of_crashes(runs: LocalRuns) -> None:
    """Killed again and again but always after progress: never given up, restarted at once each time."""
    done = runs.run("run", EVERSTEP_FAULTS="after_append:4=kill")
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("killed by SIGKILL · starting again\n") >= 3
    assert all(count <= 2 for count in runs.count().values())


# --- waits


def test_a_long_timer_is_waited_for_without_a_process(runs: LocalRuns) -> None:
    process = runs.start("napping", "--input", "seconds=4", EVERSTEP_PARK_LINGER_S="0.5")
    runs.until("the agent process to go", lambda: runs.effects() and not children(process.pid))
    assert process.poll() is None
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    assert "waiting · " in out
    assert out.splitlines()[-1] == "rested"
    assert runs.count() == {"look 0": 1, "look 1": 1}
    assert runs.json("local", "get", "monday")["attempt"] == 2


def test_what_a_step_left_behind_is_ended_before_the_next_attempt(runs: LocalRuns) -> None:
    """A subprocess outlives the agent's SIGKILL; while it lives, effects may still happen."""
    process = runs.start("spawning", PAUSE_S="30")
    runs.until_effects(1)
    left = int(runs.effects()[0].split()[1])
    os.kill(runs.agent_pid(process), signal.SIGKILL)
    runs.until_effects(2)
    assert not lives(left)
    process.kill()


def test_no_supervise_runs_one_attempt_in_the_very_process(runs: LocalRuns) -> None:
    process = runs.start("run", "--no-supervise", HOLD="look 1")
    runs.until_held("look 1")
    assert children(process.pid) == []
    assert runs.run().returncode == 75, "it holds the locks"
    runs.go()
    assert process.wait(60) == 0
    assert runs.run().stdout.splitlines()[-1] == "triaged"
    assert set(runs.count().values()) == {1}
