"""`everstep local list|get|steps|result|verify|settle|cancel|accept|delete`, and journals that were tampered with."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.local_runs import LocalRuns


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[LocalRuns]:
    local = LocalRuns(tmp_path)
    yield local
    local.close()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> LocalRuns:
    """A finished run, for tests that only look."""
    local = LocalRuns(tmp_path_factory.mktemp("finished"))
    done = local.run("run", "--input", "count=3")
    assert done.returncode == 0, done.stdout + done.stderr
    return local


@pytest.fixture
def copy(finished: LocalRuns, tmp_path: Path) -> LocalRuns:
    """A copy of the finished run, to be tampered with."""
    shutil.copytree(finished.everstep, tmp_path / ".everstep")
    return LocalRuns(tmp_path)


@pytest.fixture(scope="module")
def halfway(tmp_path_factory: pytest.TempPathFactory) -> LocalRuns:
    """A run that was killed halfway, for tests that refuse to go on with it."""
    local = LocalRuns(tmp_path_factory.mktemp("halfway"))
    process = local.start("run", HOLD="file 2")
    local.until_held("file 2")
    process.kill()
    local.close()
    return local


@pytest.fixture
def cut(halfway: LocalRuns, tmp_path: Path) -> LocalRuns:
    """A copy of the halfway run."""
    shutil.copytree(halfway.everstep, tmp_path / ".everstep")
    return LocalRuns(tmp_path)


def test_steps_shows_what_the_page_promises(finished: LocalRuns) -> None:
    lines = finished.cli("local", "steps", "monday").stdout.splitlines()
    assert lines[0].split() == ["KEY", "STEP", "TRY", "STATE", "EFFECT", "TOOK", "TOKENS"]
    assert lines[1].split()[:5] == ["0", "look", "1", "result", "read"]
    assert lines[2].split()[:5] == ["1", "file", "1", "result", "idempotent"]
    assert len(lines) == 7
    wide = finished.cli("local", "steps", "monday", "-o", "wide").stdout.splitlines()[0].split()
    assert wide[-3:] == ["ATTEMPT", "SEQ", "NOTE"]
    assert [s["key"] for s in finished.json("local", "steps", "monday")["steps"]] == list("012345")


def test_get_and_list_tell_state_and_attempts(finished: LocalRuns) -> None:
    """C60: state and not only an age."""
    assert finished.cli("local", "list").stdout.splitlines()[0].split() == [
        "NAME",
        "SUMMARY",
        "STEP",
        "ATTEMPT",
        "WAITING",
        "AGE",
    ]
    assert finished.cli("local", "list").stdout.splitlines()[1].split()[:4] == ["monday", "Succeeded", "6", "1"]
    shown = finished.cli("local", "get", "monday").stdout
    assert "Summary:" in shown
    assert "Entrypoint:  agents:run" in shown
    document = finished.json("local", "get", "monday")
    assert document["checkpoint"]["seq"] == document["records"]


def test_result_is_alone_on_standard_output(finished: LocalRuns) -> None:
    done = finished.cli("local", "result", "monday")
    assert (done.returncode, done.stdout, done.stderr) == (0, "triaged\n", "")
    assert finished.json("local", "result", "monday") == {"run": "monday", "outcome": "succeeded", "result": "triaged"}


def test_an_unknown_run_is_told_what_there_is(finished: LocalRuns) -> None:
    for verb in ("get", "steps", "result", "verify", "cancel"):
        done = finished.cli("local", verb, "tuesday")
        assert done.returncode == 2
        assert "run 'tuesday' does not exist in .everstep; there are: monday" in done.stderr


def test_looking_makes_no_files(runs: LocalRuns) -> None:
    assert runs.cli("local", "list").returncode == 0
    assert not runs.everstep.exists()


def test_verify_says_whole_with_count_and_head(finished: LocalRuns) -> None:
    done = finished.cli("local", "verify", "monday")
    assert done.returncode == 0
    document = finished.json("local", "verify", "monday")
    digest = document["head"]["hash"]
    count = document["records"]
    assert done.stdout == f"monday: whole · {count} records · head {count} {digest[:4]}…{digest[-2:]}\n"


# --- tampering: refused before anything runs, with the word and the seq


def refused(runs: LocalRuns, word: str, seq: int | None) -> None:
    """Both verify and run refuse, and no effect happens."""
    checked = runs.cli("local", "verify", "monday")
    assert checked.returncode == 65, checked.stdout + checked.stderr
    assert word in checked.stdout
    started = runs.run()
    assert started.returncode == 65, started.stdout + started.stderr
    assert word in started.stderr
    assert runs.effects() == []
    if seq is not None:
        assert f"record {seq}" in checked.stdout
        assert f"record {seq}" in started.stderr


def test_a_changed_record_is_refused_by_its_number(cut: LocalRuns) -> None:
    cut.sql("UPDATE records SET record = replace(record, 'file', 'pile') WHERE place = ?", cut.place(4))
    refused(cut, "tampered", 4)


def test_every_single_record_is_guarded(cut: LocalRuns) -> None:
    places = [place for (place,) in cut.sql("SELECT place FROM records ORDER BY place")]
    for seq, place in enumerate(places, 1):
        ((old,),) = cut.sql("SELECT record FROM records WHERE place = ?", place)
        cut.sql("UPDATE records SET record = ? WHERE place = ?", bytes(old).replace(b'"time":1', b'"time":2'), place)
        done = cut.cli("local", "verify", "monday") if seq % 4 == 0 else None
        if done is not None:
            assert (done.returncode, f"tampered at record {seq} " in done.stdout) == (65, True), done.stdout
        cut.sql("UPDATE records SET record = ? WHERE place = ?", old, place)
    assert cut.cli("local", "verify", "monday").returncode == 0


def test_a_dropped_record_is_refused(cut: LocalRuns) -> None:
    cut.sql("DELETE FROM records WHERE place = ?", cut.place(5))
    refused(cut, "tampered", 5)


def test_swapped_records_are_refused(cut: LocalRuns) -> None:
    a, b = cut.place(4), cut.place(6)
    for old, new in ((a, -1), (b, a), (-1, b)):
        cut.sql("UPDATE records SET place = ? WHERE place = ?", new, old)
    refused(cut, "tampered", 4)


def test_a_chain_recomputed_by_an_attacker_is_caught_by_the_anchor(copy: LocalRuns) -> None:
    """Plain hashes can be made by anybody: only the anchor, kept apart, tells."""
    from everstep.ids import JournalId
    from everstep.journal.chain import Chain

    ((journal,),) = copy.sql("SELECT id FROM journals")
    chain = Chain(JournalId(journal))
    head = chain.genesis()
    for place, raw in copy.sql("SELECT place, record FROM records ORDER BY place"):
        forged = bytes(raw).replace(b'"triaged"', b'"TRIAGED"')
        link = chain.link(head, forged)
        copy.sql("UPDATE records SET record = ?, prev_hash = ?, hash = ? WHERE place = ?", forged, head, link, place)
        head = link
    copy.sql("UPDATE journals SET hash = ?", head)
    assert copy.run("run", "--input", "count=3").returncode == 65
    done = copy.cli("local", "verify", "monday")
    assert done.returncode == 65
    assert "tampered" in done.stdout


def test_a_forged_result_is_never_printed(copy: LocalRuns) -> None:
    last = copy.json("local", "verify", "monday")["records"]
    copy.sql("UPDATE records SET record = replace(record, 'triaged', 'forged!') WHERE place = ?", copy.place(last))
    for output in ([], ["-o", "json"]):
        done = copy.cli("local", "result", "monday", *output)
        assert (done.returncode, done.stdout) == (65, "")
        assert f"journal tampered at record {last}: " in done.stderr
    steps = copy.cli("local", "steps", "monday")
    assert steps.returncode == 65
    assert len(steps.stdout.splitlines()) == 7, "the steps that are proved can still be read"
    assert f"tampered at record {last}" in steps.stderr
    assert "forged!" not in copy.cli("local", "get", "monday").stdout
    assert copy.json("local", "list")[0]["summary"] != "Succeeded"


def test_a_journal_that_was_cut_behind_its_anchor_is_lost(copy: LocalRuns) -> None:
    """Meta is cut to fit, as an old dump would."""
    last = copy.json("local", "verify", "monday")["records"]
    copy.sql("DELETE FROM records WHERE place >= ?", copy.place(last - 3))
    ((digest,),) = copy.sql("SELECT hash FROM records ORDER BY place DESC LIMIT 1")
    copy.sql("UPDATE journals SET seq = ?, hash = ?", last - 4, digest)
    done = copy.run("run", "--input", "count=3")
    assert done.returncode == 65
    assert f"journal lost after record {last - 4}" in done.stderr
    assert "everstep local accept monday --reason" in done.stderr
    verified = copy.cli("local", "verify", "monday")
    assert verified.returncode == 65
    assert f"lost at record {last - 3}" in verified.stdout


def test_a_journal_that_was_removed_is_lost(cut: LocalRuns) -> None:
    for path in cut.everstep.glob("journal.db*"):
        path.unlink()
    done = cut.run()
    assert done.returncode == 65
    assert "journal lost after record 0" in done.stderr
    assert cut.json("local", "list")[0]["summary"] == "Unreadable"


def test_a_missing_anchor_is_refused_until_a_person_accepts(cut: LocalRuns) -> None:
    """C56: each state has a command that moves the run."""
    (cut.everstep / "anchors" / "monday.json").unlink()
    done = cut.run()
    assert done.returncode == 65
    assert "everstep local accept monday --reason" in done.stderr
    accepted = cut.cli("local", "accept", "monday", "--reason", "moved the directory")
    assert accepted.returncode == 0, accepted.stderr
    assert cut.run().returncode == 0
    assert "moved the directory" in (cut.everstep / "anchors" / "monday.accepted").read_text()


def test_a_cut_journal_goes_on_once_a_person_accepts_it_and_a_changed_one_never(cut: LocalRuns) -> None:
    last = cut.json("local", "verify", "monday")["records"]
    cut.sql("DELETE FROM records WHERE place >= ?", cut.place(last))
    ((digest,),) = cut.sql("SELECT hash FROM records ORDER BY place DESC LIMIT 1")
    cut.sql("UPDATE journals SET seq = ?, hash = ?", last - 1, digest)
    (cut.everstep / "anchors" / "monday.json").write_text(
        json.dumps(json.loads((cut.everstep / "anchors" / "monday.json").read_text()) | {"seq": last})
    )
    assert cut.run().returncode == 65
    assert cut.cli("local", "accept", "monday", "--reason", "disk died").returncode == 0
    assert cut.run().returncode == 0
    cut.sql("UPDATE records SET record = replace(record, 'file', 'pile') WHERE place = ?", cut.place(4))
    refusal = cut.cli("local", "accept", "monday", "--reason", "please")
    assert refusal.returncode == 2
    assert "not whole by itself" in refusal.stderr


def test_another_file_in_the_journals_place_is_refused_with_what_to_do(cut: LocalRuns) -> None:
    """C56."""
    for path in cut.everstep.glob("journal.db-*"):
        path.unlink()
    (cut.everstep / "journal.db").write_bytes(b"no database\n" * 1000)
    for done in (cut.run(), cut.cli("local", "result", "monday"), cut.cli("local", "verify", "monday")):
        assert done.returncode == 65, done.stderr
        assert "file is not a database; restore it from a copy, or move it away" in done.stderr
    assert "Reason:      JournalUnreadable: " in cut.cli("local", "get", "monday").stdout


def test_what_is_wrong_with_a_journal_comes_with_the_ways_out(cut: LocalRuns) -> None:
    """C56: each refusal names the commands that move the run."""
    cut.sql("UPDATE records SET record = replace(record, 'file', 'pile') WHERE place = ?", cut.place(4))
    for done in (cut.run(), cut.cli("local", "result", "monday")):
        assert done.returncode == 65
        assert "journal tampered at record 4: " in done.stderr
        assert "everstep local delete monday, or another --run-id" in done.stderr
        assert "restore     journal.db from a copy" in done.stderr
        assert "local accept" not in done.stderr, "an altered journal is never accepted"
    assert "Reason:      JournalTampered: journal tampered at record 4" in cut.cli("local", "get", "monday").stdout


def test_a_stopped_run_says_why(cut: LocalRuns) -> None:
    shown = cut.cli("local", "get", "monday").stdout
    assert "Reason:      the last attempt was killed or crashed; the same command goes on" in shown
    source = (cut.home / "agents.py").read_text()
    (cut.home / "agents.py").write_text(source.replace("await look(n)\n        await file(n)", "await file(n)"))
    done = cut.run()
    assert done.returncode == 65, done.stdout + done.stderr
    document = cut.json("local", "get", "monday")
    assert (document["summary"], document["reason"]) == ("Stopped", "Diverged")
    assert "Reason:      Diverged: " in cut.cli("local", "get", "monday").stdout
    result = cut.cli("local", "result", "monday")
    assert result.returncode == 65
    assert "run monday has no result yet: it is Stopped (Diverged: " in result.stderr


# --- a person decides


def uncertain(runs: LocalRuns, count: int = 1) -> None:
    """A mail that may have been sent: its process was killed between effect and result."""
    done = runs.run("mail", "--input", f"count={count}", EVERSTEP_FAULTS="after_effect:1@1=kill")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "send #0 may have happened" in done.stdout
    assert "everstep local settle monday 0 --done VALUE | --again | --fail" in done.stdout
    assert runs.count() == {"send 0": 1}


def test_an_uncertain_step_parks_the_run_and_the_same_command_starts_no_process(runs: LocalRuns) -> None:
    uncertain(runs)
    attempt = runs.json("local", "get", "monday")["attempt"]
    again = runs.run("mail", "--input", "count=1")
    assert again.returncode == 3
    assert "may have happened" in again.stdout
    document = runs.json("local", "get", "monday")
    assert (document["summary"], document["attempt"]) == ("Uncertain", attempt)
    assert "everstep local settle monday 0" in runs.cli("local", "get", "monday").stdout


@pytest.mark.parametrize(
    ("how", "sent", "code", "result"),
    [(["--done", "M-by-hand"], 1, 0, ["M-by-hand"]), (["--again"], 2, 0, ["M-0"]), (["--fail"], 1, 1, None)],
)
def test_settle(runs: LocalRuns, how: list[str], sent: int, code: int, result: list[str] | None) -> None:
    uncertain(runs)
    settled = runs.cli("local", "settle", "monday", "#0", *how, "--reason", "looked into the outbox")
    assert settled.returncode == 0, settled.stderr
    assert "goes on with:\n  everstep local run agents:mail" in settled.stdout
    done = runs.run("mail", "--input", "count=1")
    assert done.returncode == code, done.stdout + done.stderr
    assert runs.count() == {"send 0": sent}, "again licenses exactly one more"
    if result is not None:
        assert runs.json("local", "result", "monday")["result"] == result
    assert "looked into the outbox" in runs.cli("local", "steps", "monday", "-o", "wide").stdout or "--again" in how


def test_settle_refuses_what_is_not_uncertain_and_lists_what_is(runs: LocalRuns) -> None:
    """C35, C41."""
    uncertain(runs)
    other = runs.cli("local", "settle", "monday", "7", "--again")
    assert other.returncode == 2
    assert "step '7' of run monday does not wait for a person; these do: send #0" in other.stderr
    assert runs.cli("local", "settle", "monday", "0", "--again", "--fail").returncode == 2
    assert runs.cli("local", "settle", "monday", "send", "--done", "x").returncode == 0
    twice = runs.cli("local", "settle", "monday", "0", "--again")
    assert twice.returncode == 2
    assert "was answered already" in twice.stderr
    runs.run("mail", "--input", "count=1")
    late = runs.cli("local", "settle", "monday", "0", "--again")
    assert late.returncode == 2
    assert "no step of run monday waits for a person" in late.stderr
    assert runs.count() == {"send 0": 1}


def test_a_waiting_run_goes_on_when_it_is_settled_elsewhere(runs: LocalRuns) -> None:
    """C42: an answer is taken up without a nudge."""
    process = runs.start("mail", "--wait", EVERSTEP_FAULTS="after_effect:1@1=kill")
    runs.until("the question", lambda: "Uncertain" in runs.cli("local", "list").stdout)
    assert process.poll() is None
    settled = runs.cli("local", "settle", "monday", "0", "--done", "seen")
    assert "the run goes on now" in settled.stdout
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    assert runs.json("local", "result", "monday")["result"] == ["seen"]


# --- cancel, delete


def test_cancel_lets_the_agent_clean_up(runs: LocalRuns) -> None:
    process = runs.start("cleaning", EVERSTEP_PARK_LINGER_S="3600")
    runs.until("a record", lambda: runs.everstep.exists() and runs.json("local", "list")[0]["records"] > 0)
    done = runs.cli("local", "cancel", "monday", "--reason", "wrong backlog")
    assert done.returncode == 0, done.stdout + done.stderr
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1, out
    assert runs.count() == {"look 99": 1}
    assert runs.json("local", "get", "monday")["summary"] == "Cancelled"
    assert runs.cli("local", "cancel", "monday").returncode == 2


def test_cancel_of_a_parked_run_starts_its_agent_for_the_clean_up(runs: LocalRuns) -> None:
    process = runs.start("cleaning", EVERSTEP_PARK_LINGER_S="0.1")
    runs.until("the park", lambda: runs.everstep.exists() and "Waiting" in runs.cli("local", "list").stdout)
    process.kill()
    process.wait()
    done = runs.cli("local", "cancel", "monday")
    assert done.returncode == 0, done.stdout + done.stderr
    assert runs.count() == {"look 99": 1}
    assert runs.json("local", "get", "monday")["summary"] == "Cancelled"


def test_delete_takes_one_run_and_leaves_the_others(runs: LocalRuns) -> None:
    runs.run("run", "--input", "count=1", run="a")
    runs.run("run", "--input", "count=1", run="b")
    assert runs.cli("local", "delete", "a", "--yes").returncode == 0
    assert [d["run"] for d in runs.json("local", "list")] == ["b"]
    assert runs.cli("local", "verify", "b").returncode == 0
    runs.run("run", "--input", "count=1", run="a")
    assert runs.count()["look 0"] == 3, "a new run under the old name begins anew"


def test_version_and_completion(runs: LocalRuns) -> None:
    assert runs.cli("--version").stdout.startswith("everstep ")
    for shell in ("bash", "zsh", "fish"):
        assert "_EVERSTEP_COMPLETE" in runs.cli("completion", shell).stdout
    runs.run("run", "--input", "count=1")
    words = runs.cli(_EVERSTEP_COMPLETE="bash_complete", COMP_WORDS="everstep local get mo", COMP_CWORD="3")
    assert words.stdout.strip() == "plain,monday", words.stdout + words.stderr


def test_the_directory_is_private_and_ignored_by_version_control(runs: LocalRuns) -> None:
    runs.run("run", "--input", "count=1")
    assert os.stat(runs.everstep).st_mode & 0o077 == 0
    assert (runs.everstep / ".gitignore").read_text() == "*\n"
