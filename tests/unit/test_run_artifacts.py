"""Artifacts: kept with the result, restored where they were, and told apart from what a user returns."""

import os
import shutil
from pathlib import Path

import pytest

import everstep
from everstep.journal.chain import Chain
from everstep.journal.export import blob_names
from everstep.journal.sealing import Sealer
from everstep.testing import MemoryRun


@pytest.fixture(autouse=True)
def _there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def put(name: str, text: str) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text, encoding="utf-8")


@everstep.step(effect="read")
async def write(name: str, text: str) -> everstep.Artifact:
    put(name, text)
    return everstep.artifact(name)


@everstep.step(effect="read")
async def note(text: str) -> str:
    return text


@everstep.agent
async def two_versions(goal: str) -> str:
    """The same file, changed by a second step."""
    first = await write("out/a.txt", "one")
    seen = everstep.per_attempt(Path(first).read_text)
    await write("out/a.txt", "two")
    return await note(seen + "/" + everstep.per_attempt(Path(first).read_text))


def test_the_file_is_as_it_was_at_each_place_of_a_replay() -> None:
    run = MemoryRun[str](two_versions)
    assert run.run() == "one/two"
    shutil.rmtree("out")
    run.replay()
    assert Path("out/a.txt").read_text(encoding="utf-8") == "two"
    Path("out/a.txt").write_text("???", encoding="utf-8")
    run.replay()
    assert Path("out/a.txt").read_text(encoding="utf-8") == "two"


def test_a_crash_anywhere() -> None:
    def make() -> MemoryRun[str]:
        return MemoryRun[str](two_versions)

    moment = 1
    while (run := make()).attempt(crash_at=f"any:{moment}").kind == "crashed":
        shutil.rmtree("out", ignore_errors=True)
        assert run.run() == "one/two", moment
        moment += 1
    assert moment > 10


def test_what_was_kept_is_proved_when_it_is_restored() -> None:
    run = MemoryRun[str](two_versions)
    run.run()
    value = next(r.value for r in run.records if r.kind == "result")
    name = value["parts"][0]
    assert name in {n for raw in run.raw_records for n in blob_names(raw)}, "an export takes it along"
    shutil.rmtree("out")
    run.store.blobs[run.journal_id, name] = b"xne"
    ended = run.attempt(run_to_end=True)
    assert isinstance(ended.error, everstep.JournalError)
    assert "out/a.txt" in ended.message
    del run.store.blobs[run.journal_id, name]
    assert "is missing" in run.attempt(run_to_end=True).message


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_fork_takes_files_along_and_an_encrypted_run_hides_them(encrypted: bool) -> None:
    run = MemoryRun[str](two_versions)
    if encrypted:
        run.chain = Chain(run.journal_id, None, Sealer(run.journal_id, {"k1": b"k" * 32}, os.urandom))
    assert run.run() == "one/two"
    kept = [*run.raw_records, *run.store.blobs.values()]
    assert any(raw == b"one" or b"out/a.txt" in raw for raw in kept) is not encrypted
    shutil.rmtree("out")
    run.replay()
    shutil.rmtree("out")
    twin = run.fork("2")
    assert twin.run() == "one/two"
    shutil.rmtree("out")
    twin.replay()
    assert Path("out/a.txt").read_text(encoding="utf-8") == "two"


def test_a_file_that_is_changed_before_the_step_is_over_fails_it() -> None:
    @everstep.step(effect="read")
    async def careless() -> None:
        put("a.txt", "one")
        everstep.artifact("a.txt")
        put("a.txt", "two")

    @everstep.agent
    async def agent(goal: str) -> str:
        try:
            await careless()
        except everstep.StepFailed as e:
            return e.type
        return "kept"

    assert MemoryRun[str](agent).run() == "ArtifactChanged"


def test_bounds_and_places() -> None:
    @everstep.step(effect="read")
    async def large() -> list[everstep.Artifact]:
        put("a.txt", "x" * 100)
        with pytest.raises(everstep.ValueTooLarge, match="100 bytes; the bound is 99"):
            everstep.artifact("a.txt", max_bytes=99)
        with pytest.raises(FileNotFoundError):
            everstep.artifact("b.txt")
        put("empty", "")
        return [everstep.artifact("a.txt", max_bytes=100), everstep.artifact(Path("empty"))]

    @everstep.agent
    async def agent(goal: str) -> list[int]:
        return [a.size for a in await large()]

    run = MemoryRun[list[int]](agent)
    assert run.run() == [100, 0]
    Path("a.txt").unlink()
    Path("empty").unlink()
    run.replay()
    assert Path("empty").read_bytes() == b""
    with pytest.raises(everstep.BadCall):
        everstep.artifact("a.txt")


def test_a_value_that_looks_like_one_is_the_users_own() -> None:
    @everstep.step(effect="read")
    async def odd() -> dict[str, object]:
        return {"$blob": "0" * 64, "bytes": 1, "parts": ["1" * 64]}

    @everstep.agent
    async def agent(goal: str) -> dict[str, object]:
        return await odd()

    run = MemoryRun[dict[str, object]](agent)
    assert run.run() == {"$blob": "0" * 64, "bytes": 1, "parts": ["1" * 64]}
    run.replay()
