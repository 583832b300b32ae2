"""What local mode stands on, with real files and processes: anchors that only grow, locks that end with their holder, remains."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from everstep.errors import ConfigError, JournalTampered
from everstep.ids import Attempt, EpochMs, JournalId, RecordHash, RunName, Seq
from everstep.journal.store import Head
from everstep.local import stragglers
from everstep.local.anchors import AnchorFile
from everstep.local.files import LocalDir, write_atomic
from everstep.local.locks import FileLock
from everstep.local.spec import RunSpec, load
from tests.support.local_runs import LocalRuns, lives

A, B = RecordHash("a" * 64), RecordHash("b" * 64)


def head(seq: int, digest: RecordHash = A) -> Head:
    return Head(Seq(seq), digest)


def test_an_anchor_only_grows(tmp_path: Path) -> None:
    anchor = AnchorFile(tmp_path / "m.json", JournalId("m.1"))
    assert anchor.read() is None
    assert anchor.grow(head(0), Attempt(0), EpochMs(1))
    assert anchor.grow(head(7), Attempt(1), EpochMs(2))
    assert not anchor.grow(head(5), Attempt(2), EpochMs(3)), "an older head changes nothing"
    assert not anchor.grow(head(7), Attempt(1), EpochMs(4)), "the same head is not written again"
    kept = anchor.read()
    assert kept is not None
    assert (kept.head, kept.attempt, kept.time_epoch_ms) == (head(7), 1, 2)
    with pytest.raises(JournalTampered, match="record 7 is not the one that was anchored"):
        anchor.grow(head(7, B), Attempt(2), EpochMs(5))
    assert list(tmp_path.iterdir()) == [tmp_path / "m.json"], "no temporary file stays"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"seq": 1}', '{"journal": "m.1", "seq": "x", "hash": "", "attempt": 1, "time": 1}']
)
def test_an_anchor_that_cannot_be_read_is_never_taken_for_none(tmp_path: Path, content: str) -> None:
    anchor = AnchorFile(tmp_path / "m.json", JournalId("m.1"))
    anchor.path.write_text(content)
    with pytest.raises(ConfigError, match="cannot be read"):
        anchor.read()
    with pytest.raises(ConfigError):
        anchor.grow(head(9), Attempt(1), EpochMs(1))


def test_an_anchor_of_another_journal_is_refused(tmp_path: Path) -> None:
    AnchorFile(tmp_path / "m.json", JournalId("m.1")).grow(head(3), Attempt(1), EpochMs(1))
    with pytest.raises(ConfigError, match=r"belongs to journal m\.1, not to m\.2"):
        AnchorFile(tmp_path / "m.json", JournalId("m.2")).read()


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_atomic(path, "old")
    code = f"""
import os, signal
from pathlib import Path
from everstep.local import files
os.replace = lambda *a: os.kill(os.getpid(), signal.SIGKILL)
files.write_atomic(Path({str(path)!r}), "new")
"""
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == -9
    assert path.read_text() == "old"


def test_a_spec_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert load(tmp_path / "none.json") is None
    (tmp_path / "m.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"m\.json cannot be read"):
        load(tmp_path / "m.json")
    spec = RunSpec(RunName("m"), JournalId("m.1"), "a:b", "gö\nal", {"x": [1, None]}, "/tmp", EpochMs(5))
    spec.save(tmp_path / "m.json")
    assert load(tmp_path / "m.json") == spec


HOLD = """
import sys, time
from pathlib import Path
from everstep.local.locks import FileLock
lock = FileLock(Path(sys.argv[1]))
assert lock.try_acquire()
print("held", flush=True)
time.sleep(60)
"""


def test_a_lock_ends_with_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not FileLock(path).is_held()
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        ours = FileLock(path)
        assert ours.is_held()
        assert not ours.try_acquire()
        assert ours.holder_pid() == holder.pid
        holder.kill()
        holder.wait()
        assert not ours.is_held()
        assert asyncio.run(ours.acquire())
        ours.close()
    finally:
        holder.kill()
        holder.wait()
        if holder.stdout:
            holder.stdout.close()


def test_a_lock_that_was_handed_on_is_held_by_whoever_has_it(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock")
    assert lock.try_acquire()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], pass_fds=(lock.fd,))
    try:
        lock.close()
        assert lock.is_held()
    finally:
        child.kill()
        child.wait()
    assert not lock.is_held()


def test_remains_are_found_by_their_mark_and_ended_and_nobody_else(tmp_path: Path) -> None:
    marked = dict(os.environ) | {stragglers.ENV_MARK: "mark-of-this-test"}
    nap = [sys.executable, "-c", "import time; time.sleep(60)"]
    ours = subprocess.Popen(nap, env=marked, start_new_session=True)
    other = subprocess.Popen(nap, env=marked | {stragglers.ENV_MARK: "mark-of-this-test-too"})
    try:
        LocalRuns(tmp_path).until("the process to be seen", lambda: stragglers.find("mark-of-this-test") == [ours.pid])
        assert stragglers.end("mark-of-this-test") == 1
        assert ours.wait(10) == -9
        assert stragglers.find("mark-of-this-test") == []
        assert lives(other.pid)
    finally:
        for process in (ours, other):
            process.kill()
            process.wait()


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--dir .*file/x: cannot be used"):
        LocalDir(tmp_path / "file" / "x").create()
