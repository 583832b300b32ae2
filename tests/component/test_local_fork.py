"""`everstep local fork`: a new run out of the proved steps of another, shown by get, list and verify."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.local_runs import LocalRuns


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[LocalRuns]:
    local = LocalRuns(tmp_path)
    yield local
    local.close()


def test_a_fork_keeps_what_comes_before_the_step(runs: LocalRuns) -> None:
    assert runs.run("run", "--input", "count=2").returncode == 0
    before = runs.effects()
    made = runs.cli("local", "fork", "monday", "--from-step", "2", "--input", "count=3", "--run-id", "tuesday")
    assert made.returncode == 0, made.stderr
    assert "run tuesday · forked from monday before step #2 · 5 records kept" in made.stdout
    assert "everstep local run agents:run --goal Triage --input count=3 --run-id tuesday" in made.stdout
    assert runs.effects() == before, "a fork runs nothing"
    shown = runs.cli("local", "get", "tuesday").stdout
    assert "Forked from:  monday before step #2, its record 5" in shown
    assert "monday #2" in runs.cli("local", "list", "-o", "wide").stdout
    assert "forked from monday before step #2" in runs.cli("local", "verify", "tuesday").stdout
    assert runs.json("local", "get", "tuesday")["summary"] == "Stopped"

    done = runs.run("run", "--input", "count=3", run="tuesday")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "triaged")
    added = runs.effects()[len(before) :]
    assert [line.split()[:2] for line in added] == [["look", "1"], ["file", "1"], ["look", "2"], ["file", "2"]]
    old = next(line for line in before if line.startswith("file 1"))
    assert old not in added, "effects after the cut have new keys"
    assert runs.cli("local", "verify", "tuesday").returncode == 0
    assert runs.cli("local", "result", "monday").stdout.strip() == "triaged"


def test_other_code_a_default_name_and_a_budget(runs: LocalRuns) -> None:
    runs.run("run", "--input", "count=2")
    made = runs.json("local", "fork", "monday", "--from-step", "end", "--max-steps", "5")
    assert made["run"] == "monday-2"
    done = runs.run("run", "--input", "count=2", run="monday-2")
    assert done.returncode == 0, done.stdout
    assert runs.json("local", "get", "monday-2")["budget"]["spent"]["maxSteps"] == 4
    assert runs.json("local", "fork", "monday", "--from-step", "1")["run"] == "monday-3"
    made = runs.json("local", "fork", "monday", "--from-step", "1", "--agent", "agents:mail", "--input", "count=1")
    refused = runs.cli("local", "run", "agents:mail", "--goal", "Triage", "--input", "count=1", "--run-id", made["run"])
    assert refused.returncode == 65, refused.stdout
    assert "the code took another way" in refused.stdout


def test_a_tampered_run_can_be_forked_before_the_bad_record(runs: LocalRuns) -> None:
    runs.run("run", "--input", "count=3")
    place = runs.place(9)
    ((record,),) = runs.sql("SELECT record FROM records WHERE place = ?", place)
    runs.sql("UPDATE records SET record = ? WHERE place = ?", bytes(record).replace(b"T-1", b"T-9"), place)
    assert runs.cli("local", "verify", "monday").returncode == 65
    refused = runs.cli("local", "fork", "monday", "--from-step", "4", "--run-id", "later")
    assert refused.returncode == 65, refused.stdout
    assert runs.cli("local", "get", "later").returncode != 0
    made = runs.cli("local", "fork", "monday", "--from-step", "3", "--run-id", "earlier")
    assert made.returncode == 0, made.stderr
    assert "only proved records were used" in made.stderr
    before = len(runs.effects())
    assert runs.run("run", "--input", "count=3", run="earlier").returncode == 0
    assert [line.split()[:2] for line in runs.effects()[before:]] == [["file", "1"], ["look", "2"], ["file", "2"]]


def test_what_cannot_be_forked_is_refused(runs: LocalRuns) -> None:
    runs.run("run", "--input", "count=2")
    for arguments, said in (
        (("nobody", "--from-step", "1"), "run 'nobody' does not exist"),
        (("monday", "--from-step", "9"), "has no step 9"),
        (("monday", "--from-step", "look"), "more than once; name one call by its key: #0, #2"),
        (("monday", "--from-step", "1", "--run-id", "monday"), "run monday exists; choose another --run-id"),
    ):
        refused = runs.cli("local", "fork", *arguments)
        assert refused.returncode == 2, refused.stderr
        assert said in refused.stderr
    assert len(runs.json("local", "list")) == 1
