"""`everstep local export`, `everstep verify`, `everstep local public-key` as a person runs them (C44)."""

import json
import shutil
import sqlite3
import stat
from pathlib import Path

import pytest

from tests.support.local_runs import LocalRuns


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> LocalRuns:
    """A finished run with its export `monday.jsonl` and its public key `auditors.pem`."""
    local = LocalRuns(tmp_path_factory.mktemp("finished"))
    done = local.run("run", "--input", "count=3")
    assert done.returncode == 0, done.stdout + done.stderr
    exported = local.cli("local", "export", "monday", "-o", "monday.jsonl")
    assert exported.returncode == 0, exported.stderr
    assert "records exported, signed by " in exported.stderr
    (local.home / "auditors.pem").write_text(local.cli("local", "public-key").stdout)
    return local


@pytest.fixture
def away(finished: LocalRuns, tmp_path: Path) -> LocalRuns:
    """Another directory that has the file and the public key, and nothing else."""
    for name in ("monday.jsonl", "auditors.pem"):
        shutil.copy(finished.home / name, tmp_path / name)
    return LocalRuns(tmp_path)


def test_an_auditor_proves_it_without_the_key(away: LocalRuns) -> None:
    told = away.cli("verify", "monday.jsonl", "--public-key", "auditors.pem")
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.startswith("monday.jsonl: whole · run monday · ")
    assert "proved by signature of " in told.stdout
    document = json.loads(away.cli("verify", "monday.jsonl", "--public-key", "auditors.pem", "-o", "json").stdout)
    assert (document["whole"], document["verdict"], document["badSeq"], document["provedBy"]) == (
        True,
        "whole",
        None,
        ["signature"],
    )
    alone = away.cli("verify", "monday.jsonl")
    assert alone.returncode == 1
    assert alone.stdout.startswith("monday.jsonl: unproved · ")


def test_its_own_directory_recognises_it(finished: LocalRuns) -> None:
    assert finished.cli("verify", "monday.jsonl").returncode == 0
    streamed = finished.cli("local", "export", "monday")
    (finished.home / "streamed.jsonl").write_text(streamed.stdout)
    assert finished.cli("verify", "streamed.jsonl").returncode == 0
    assert finished.cli("verify", "streamed.jsonl", "-o", "wide").stdout.count("no anchor was given") == 1


def test_an_altered_file_is_named_with_its_record(away: LocalRuns) -> None:
    path = away.home / "monday.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    lines[4] = lines[4].replace('\\"attempt\\":1', '\\"attempt\\":2')
    path.write_text("".join(lines))
    told = away.cli("verify", "monday.jsonl", "--public-key", "auditors.pem")
    assert told.returncode == 1
    assert "altered at record 4" in told.stdout
    path.write_text("".join(lines[:3]))
    told = away.cli("verify", "monday.jsonl", "--public-key", "auditors.pem")
    assert (told.returncode, "cut at record 3" in told.stdout) == (1, True)


def test_an_older_export_is_rolled_back_against_a_newer_anchor(away: LocalRuns) -> None:
    anchor = f"999:{'0' * 64}"
    told = away.cli("verify", "monday.jsonl", "--public-key", "auditors.pem", "--anchor", anchor)
    assert (told.returncode, "rolled back" in told.stdout) == (1, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.jsonl"], "cannot be read"),
        (["auditors.pem"], "no export"),
        (["monday.jsonl", "--public-key", "monday.jsonl"], "holds no public key"),
        (["monday.jsonl", "--key", "auditors.pem"], "holds no key"),
        (["monday.jsonl", "--anchor", "7"], "SEQ:HASH"),
    ],
)
def test_what_cannot_be_read_is_exit_2(away: LocalRuns, words: list[str], said: str) -> None:
    told = away.cli("verify", *words)
    assert told.returncode == 2
    assert said in told.stderr.replace("no header", "no export")


def test_the_signing_key_is_private_made_once_and_rotated(away: LocalRuns) -> None:
    first = away.cli("local", "public-key").stdout
    key = away.everstep / "keys" / "s1.pem"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert away.cli("local", "public-key").stdout == first
    both = away.cli("local", "public-key", "--new").stdout
    assert both.startswith(first)
    assert both.count("BEGIN PUBLIC KEY") == 2
    assert "PRIVATE" not in both


def test_exports_signed_before_a_rotation_keep_verifying(finished: LocalRuns) -> None:
    finished.cli("local", "public-key", "--new")
    assert finished.cli("verify", "monday.jsonl").returncode == 0
    finished.cli("local", "export", "monday", "-o", "newer.jsonl")
    assert finished.cli("verify", "newer.jsonl").returncode == 0
    old_keys = finished.cli("verify", "newer.jsonl", "--public-key", "auditors.pem")
    assert (old_keys.returncode, "forged" in old_keys.stdout) == (1, True)


def test_a_broken_journal_is_refused_and_leaves_no_file(finished: LocalRuns, tmp_path: Path) -> None:
    shutil.copytree(finished.everstep, tmp_path / ".everstep")
    local = LocalRuns(tmp_path)
    db = sqlite3.connect(local.everstep / "journal.db")
    with db:
        db.execute("UPDATE records SET record = replace(record, 'look', 'took') WHERE place % 4294967296 = 3")
    db.close()
    told = local.cli("local", "export", "monday", "-o", "broken.jsonl")
    assert told.returncode == 65
    assert "at record 3" in told.stderr
    assert not [path for path in tmp_path.iterdir() if "broken" in path.name]
    assert local.cli("local", "export", "tuesday", "-o", "x").returncode == 2
