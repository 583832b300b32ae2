"""Encrypted local runs: `everstep local run --encrypt`, `erase`, `rotate-key`, and `everstep.run(..., encrypt=True)`."""

import json
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.local_runs import LocalRuns

WORDS = (b"triaged", b"T-0", b"T-1")
"""What the agent's steps and the agent itself return."""


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[LocalRuns]:
    local = LocalRuns(tmp_path)
    yield local
    local.close()


def stored(local: LocalRuns) -> bytes:
    """All bytes of all files of the store, its write-ahead log too."""
    return b"".join(path.read_bytes() for path in local.everstep.glob("journal.db*"))


def begin(local: LocalRuns, run: str = "monday", *more: str) -> None:
    done = local.run("run", "--input", "count=2", "--encrypt", *more, run=run)
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_is_readable_in_the_store_and_everything_by_the_commands(runs: LocalRuns) -> None:
    begin(runs)
    assert not [word for word in WORDS if word in stored(runs)]
    assert runs.cli("local", "result", "monday").stdout.strip() == "triaged"
    assert "idempotent" in runs.cli("local", "steps", "monday").stdout
    assert runs.cli("local", "verify", "monday").returncode == 0
    assert runs.run("run", "--input", "count=2").returncode == 0, (
        "the same command shows the result, with or without the flag"
    )
    key = runs.everstep / "keys" / "w1.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert not list(runs.everstep.glob("attempts/*/data-keys.json")), "an attempt's copy goes with it"
    plain = runs.run("run", "--input", "count=2", run="tuesday")
    assert plain.returncode == 0
    assert [word for word in WORDS if word in stored(runs)] == list(WORDS), "the search finds what is there"


def test_a_killed_run_goes_on(runs: LocalRuns) -> None:
    process = runs.start("run", "--input", "count=3", "--encrypt", HOLD="file 1")
    runs.until_held("file 1")
    process.kill()
    process.wait()
    runs.go()
    again = runs.run("run", "--input", "count=3")
    assert again.returncode == 0, again.stdout + again.stderr
    assert runs.count()["look 0"] == runs.count()["file 0"] == runs.count()["look 1"] == 1
    assert b"triaged" not in stored(runs)


def test_an_answer_of_a_person_reaches_it(runs: LocalRuns) -> None:
    process = runs.start("mail", "--encrypt", HOLD="send 0")
    runs.until_held("send 0")
    process.kill()
    process.wait()
    parked = runs.run("mail")
    assert parked.returncode == 3, parked.stdout
    assert (
        runs.cli("local", "settle", "monday", "0", "--done", "M-77", "--reason", "saw it in the outbox").returncode == 0
    )
    assert runs.run("mail").returncode == 0
    assert "M-77" in runs.cli("local", "result", "monday").stdout
    assert b"M-77" not in stored(runs)
    assert b"outbox" not in stored(runs)


def test_encryption_is_decided_when_a_run_begins(runs: LocalRuns) -> None:
    assert runs.run("run", "--input", "count=1").returncode == 0
    told = runs.run("run", "--input", "count=1", "--encrypt")
    assert told.returncode == 2
    assert "begun without encryption" in told.stderr
    told = runs.cli("local", "erase", "monday", "--yes")
    assert told.returncode == 2
    assert "is not encrypted" in told.stderr


def test_erased_it_is_unreadable_and_still_proved(runs: LocalRuns) -> None:
    begin(runs)
    begin(runs, "tuesday")
    shutil.copytree(runs.everstep, runs.home / "backup")
    asked = runs.cli("local", "erase", "monday")
    assert asked.returncode == 1, "without an answer nothing is erased"
    assert runs.cli("local", "result", "monday").stdout.strip() == "triaged"
    erased = runs.cli("local", "erase", "monday", "--yes")
    assert erased.returncode == 0, erased.stderr

    shown = json.loads(runs.cli("local", "get", "monday", "-o", "json").stdout)
    assert (shown["summary"], shown["goal"], shown["inputs"]) == ("Succeeded", "(erased)", {})
    assert runs.cli("local", "result", "monday").stdout.strip() == "(erased)"
    steps = runs.cli("local", "steps", "monday").stdout
    assert steps.count("file") == 2
    assert runs.cli("local", "verify", "monday").returncode == 0
    assert runs.cli("local", "export", "monday", "-o", "m.jsonl").returncode == 0
    assert runs.cli("verify", "m.jsonl").returncode == 0
    assert "Triage" not in "".join(
        p.read_text() for p in runs.everstep.rglob("*") if p.is_file() and "monday" in str(p)
    )
    again = runs.run("run", "--input", "count=2")
    assert again.returncode == 2
    assert "was erased" in again.stderr
    assert runs.cli("local", "erase", "monday", "--yes").returncode == 0, "may be repeated"

    assert runs.cli("local", "result", "tuesday").stdout.strip() == "triaged", "the others are as they were"
    for path in (runs.home / "backup").glob("journal.db*"):
        shutil.copy(path, runs.everstep / path.name)
    copy = runs.cli("local", "result", "monday")
    assert copy.returncode == 2
    assert "which is not here" in copy.stderr, "an older copy of the journal stays closed"


def test_rotation_touches_no_record(runs: LocalRuns) -> None:
    begin(runs)
    before = runs.cli("local", "verify", "monday").stdout
    told = runs.cli("local", "rotate-key")
    assert (told.returncode, told.stdout) == (0, "1 data key wrapped anew\n")
    assert [path.name for path in (runs.everstep / "keys").glob("w*")] == ["w2.key"]
    assert runs.cli("local", "verify", "monday").stdout == before
    assert runs.cli("local", "result", "monday").stdout.strip() == "triaged"


def test_a_rotation_that_was_cut_off_is_completed(runs: LocalRuns) -> None:
    """Killed between making the new key and wrapping: both keys are there, and every run can be read."""
    begin(runs)
    (runs.everstep / "keys" / "w2.key").write_text("ab" * 32)
    assert runs.cli("local", "result", "monday").stdout.strip() == "triaged"
    begin(runs, "tuesday")
    assert runs.cli("local", "rotate-key").stdout == "2 data keys wrapped anew\n"
    assert [path.name for path in (runs.everstep / "keys").glob("w*")] == ["w3.key"]
    for run in ("monday", "tuesday"):
        assert runs.cli("local", "result", run).stdout.strip() == "triaged"


def test_without_the_key_file_it_says_which_one_is_missing(runs: LocalRuns) -> None:
    begin(runs)
    (runs.everstep / "keys" / "w1.key").rename(runs.home / "w1.key")
    told = runs.cli("local", "steps", "monday")
    assert told.returncode == 2
    assert "wrapped under w1, which is not here" in told.stderr
    listed = json.loads(runs.cli("local", "list", "-o", "json").stdout)
    assert listed[0]["summary"] == "Unreadable"
    assert runs.cli("local", "verify", "monday").returncode == 0, "the chain needs no data key"


def test_a_run_taken_elsewhere_is_in_the_clear_and_replays(runs: LocalRuns) -> None:
    """`local history` is for one's own tests; an erased run has none."""
    begin(runs)
    assert runs.cli("local", "history", "monday", "-o", "h.jsonl").returncode == 0
    assert "triaged" in (runs.home / "h.jsonl").read_text()
    told = runs.cli("local", "repin", "monday")
    assert (told.returncode, "replay with agents:run" in told.stdout) == (0, True), told.stdout + told.stderr
    runs.cli("local", "erase", "monday", "--yes")
    told = runs.cli("local", "history", "monday")
    assert (told.returncode, "was erased" in told.stderr) == (2, True)


def test_a_fork_has_a_key_of_its_own(runs: LocalRuns) -> None:
    begin(runs)
    told = runs.cli("local", "fork", "monday", "--from-step", "file", "--run-id", "forked")
    assert told.returncode == 2, "file was called twice"
    told = runs.cli("local", "fork", "monday", "--from-step", "3", "--run-id", "forked")
    assert told.returncode == 0, told.stderr
    runs.cli("local", "erase", "monday", "--yes")
    assert runs.run("run", "--input", "count=2", run="forked").returncode == 0
    assert runs.cli("local", "result", "forked").stdout.strip() == "triaged"
    assert not [word for word in WORDS if word in stored(runs)]
    assert runs.count()["look 1"] == 1
    told = runs.cli("local", "fork", "monday", "--from-step", "end", "--run-id", "late")
    assert (told.returncode, "was erased" in told.stderr) == (2, True)


SAYING = """
import everstep

@everstep.step(effect="read")
async def speak(word: str) -> int:
    everstep.say(word)
    return len(word)

@everstep.agent
async def run(goal: str) -> int:
    return await speak("hush-hush")
"""


def test_what_steps_say_while_they_work_is_sealed_too(runs: LocalRuns) -> None:
    (runs.home / "saying.py").write_text(SAYING)
    for name, more in (("monday", ["--encrypt"]), ("tuesday", [])):
        assert runs.cli("local", "run", "saying:run", "--goal", "g", "--run-id", name, *more).returncode == 0
        assert "hush-hush" in runs.cli("local", "live", name).stdout
        assert (b"hush-hush" in stored(runs)) is (name == "tuesday")
    runs.cli("local", "erase", "monday", "--yes")
    shown = runs.cli("local", "live", "monday").stdout
    assert "hush-hush" not in shown
    assert "(erased)" in shown


SCRIPT = """
import sys
import everstep
from agents import run

if __name__ == "__main__":
    print(everstep.run(run, "Triage", run_id="monday", encrypt=True, count=2))
"""


def test_in_ones_own_process(runs: LocalRuns) -> None:
    (runs.home / "script.py").write_text(SCRIPT)
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "script.py"],
            cwd=runs.home,
            env=runs.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert done.stdout == "triaged\n"
    assert runs.count()["look 0"] == 1
    assert not [word for word in WORDS if word in stored(runs)]
    assert runs.cli("local", "result", "monday").stdout.strip() == "triaged"
