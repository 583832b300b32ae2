"""Journals of every release replay with today's code, in any process; a changed agent is refused."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep import testing
from everstep.errors import Diverged
from everstep.journal.records import KINDS, Finished, RunStarted, Snapshot
from everstep.testing import MemoryRun
from tests.histories import agents

HERE = Path(__file__).parent
FILES = sorted(HERE.glob("*.jsonl"))
PYTHON = ".".join(platform.python_version_tuple()[:2])


def load(path: Path, agent: str = "") -> MemoryRun[Any]:
    head, *records = path.read_text(encoding="utf-8").splitlines()
    told = json.loads(head)
    run: MemoryRun[Any] = MemoryRun(getattr(agents, agent or told["agent"]), told["goal"], told["inputs"])
    run.load([record.encode() for record in records])
    return run


@pytest.fixture(autouse=True)
def _any_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run pins Python's minor version; these journals are replayed on each one that is supported."""
    monkeypatch.setattr("everstep.run.pins.python_minor", lambda: "3.11")


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_c10_a_recorded_journal_replays(path: Path) -> None:
    run = load(path)
    assert isinstance(run.records[0], Snapshot if "compacted" in path.stem else RunStarted)
    finished = run.records[-1]
    if isinstance(finished, Finished):
        assert finished.outcome in ("succeeded", "cancelled"), finished
        run.replay()
        return
    before = run.raw_records
    assert run.run(compact=False)[0] == "history"
    assert run.raw_records[: len(before)] == before
    run.replay()


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_c10_users_replay_histories_the_same_way(path: Path) -> None:
    """`everstep.testing.replay`, as in the CI of whoever keeps such files."""
    told = testing.RecordedRun.read(path)
    done = testing.replay(path, getattr(agents, told.agent))
    assert done.finished == ("unfinished" not in path.stem)
    assert done.steps > 0 or "epochs" in path.stem  # that one begins at its last snapshot


@pytest.mark.parametrize("path", [p for p in FILES if "everything" in p.stem], ids=lambda p: p.stem)
def test_c10_a_changed_agent_is_refused(path: Path) -> None:
    run = load(path, agent="renamed")
    with pytest.raises(Diverged, match="the code took another way"):
        run.replay()


def test_every_kind_of_record_is_in_the_histories() -> None:
    """A new kind needs a history: record.py writes one."""
    kinds = {record.kind for path in FILES for record in load(path).records}
    assert kinds == set(KINDS)


REPLAY = """
import sys
from pathlib import Path
import everstep.run.pins
everstep.run.pins.python_minor = lambda: "3.11"
from tests.histories.test_histories import load
for path in sys.argv[1:]:
    print(load(Path(path)).replay())
"""


@pytest.mark.parametrize("seed", range(6))
def test_c2_fresh_processes_replay_one_journal_alike(seed: int) -> None:
    """Addresses and hash seeds differ in each process; sets of tasks must not notice."""
    repository = HERE.parents[1]
    paths = [str(p) for p in FILES if "unfinished" not in p.stem] * 3
    out = subprocess.run(
        [sys.executable, "-c", REPLAY, *paths],
        capture_output=True,
        text=True,
        cwd=repository,
        env={**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": f"{repository}:{repository / 'agent_image'}"},
        check=False,
    )
    assert out.returncode == 0, out.stderr
    assert len(out.stdout.splitlines()) == len(paths)


def test_the_python_version_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everstep.run.pins.python_minor", lambda: "3.99")
    with pytest.raises(everstep.Diverged, match="another Python"):
        load(FILES[0]).replay()


@pytest.mark.parametrize(("file", "agent", "replays"), [
    ("patched_old", "patched_new", True), ("patched_new", "patched_new", True), ("patched_new", "patched_last", True),
    ("patched_old", "patched_last", False), ("patched_new", "patched_old", False),
])  # fmt: skip
def test_a_guarded_change_replays_and_an_unguarded_one_is_refused(file: str, agent: str, replays: bool) -> None:
    for path in [p for p in FILES if p.stem.endswith(file)]:
        run = load(path, agent)
        if replays:
            assert run.replay()[0] == 2
        else:
            with pytest.raises(Diverged):
                run.replay()
