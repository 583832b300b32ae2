"""Artifacts over snapshots and segments: what was there is put back where a restart begins, and nothing more is kept."""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

import everstep
from everstep.errors import JournalTampered
from everstep.ids import Seq
from everstep.journal.chain import Chain
from everstep.journal.export import blob_names
from everstep.journal.records import Segment, Snapshot, decode, encode
from everstep.journal.sealing import Sealer
from everstep.journal.told import anchor_field
from everstep.run import artifacts
from everstep.testing import MemoryRun

OUT = Path("out")


@pytest.fixture(autouse=True)
def _there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@everstep.step(effect="read")
async def write(name: str, text: str) -> everstep.Artifact:
    path = OUT / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o640)
    return everstep.artifact(path)


@everstep.step(effect="idempotent")
async def remove(name: str) -> None:
    (OUT / name).unlink(missing_ok=True)


@everstep.step(effect="read")
async def read(name: str) -> str:
    """As the file is now: what an agent sees that goes on with its files."""
    return (OUT / name).read_text(encoding="utf-8")


@everstep.agent
async def rounds(goal: str, number: int = 4) -> list[str]:
    """`base` is written once, `log` in each round on the ground of what stands there, `scratch` is removed again."""
    state = everstep.restored(dict[str, Any])
    if state is None:
        await write("base", "ground")
        await write("log", "")
        state = {"round": 0}
        everstep.snapshot(state)
    while state["round"] < number:
        n = state["round"]
        await write("scratch", f"s{n}")
        await write("log", f"{await read('log')}{n}")
        await remove("scratch")
        await asyncio.sleep(3)
        state = {"round": n + 1}
        everstep.snapshot(state)
    return [await read("base"), await read("log")]


@everstep.agent
async def segments(goal: str, number: int = 0) -> list[str]:
    """As `rounds`, by continue_as_new, with a snapshot in the middle of each segment and clean-up on the way out."""
    if everstep.restored() is None:
        if number == 0:
            await write("base", "ground")
            await write("log", "")
        await write("log", f"{await read('log')}{number}")
        everstep.snapshot(number)
    if number == 3:
        return [await read("base"), await read("log")]
    try:
        everstep.continue_as_new(number=number + 1)
    finally:
        await write("left", f"by {number}")


RESULT = ["ground", "0123"]


def fresh_pod() -> None:
    shutil.rmtree(OUT, ignore_errors=True)


def tell_anchor(run: MemoryRun[Any]) -> None:
    """As the supervisor does: what lies before the newest snapshot may be deleted."""
    journal = run.store.journals_by_id[run.journal_id]
    journal.fields.update(anchor_field(journal.head))


def blobs(run: MemoryRun[Any]) -> set[str]:
    return {digest for _, digest in run.store.blobs}


def named(run: MemoryRun[Any]) -> set[str]:
    return {name for raw in run.raw_records for name in blob_names(raw)}


def opened(run: MemoryRun[Any]) -> list[Snapshot | Segment]:
    return [r for r in run.records if isinstance(r, Snapshot | Segment)]


@pytest.mark.parametrize("agent", [rounds, segments], ids=["snapshots", "segments"])
@pytest.mark.parametrize("encrypted", [False, True])
def test_a_loss_anywhere_and_a_fresh_pod(agent: Any, *, encrypted: bool) -> None:
    def make() -> MemoryRun[list[str]]:
        fresh_pod()
        run: MemoryRun[list[str]] = MemoryRun(agent)
        if encrypted:
            run.chain = Chain(run.journal_id, None, Sealer(run.journal_id, {"k1": b"k" * 32}, os.urandom))
        return run

    moment, compacted = 1, 0
    while (run := make()).attempt(crash_at=f"any:{moment}").kind == "crashed":
        fresh_pod()
        tell_anchor(run)
        ended = run.attempt(crash_at=f"any:{moment + 40}")  # a second loss, somewhere behind the first
        if ended.kind == "crashed":
            fresh_pod()
            ended = run.attempt()
        assert (ended.kind, ended.value) == ("succeeded", RESULT), f"any:{moment}: {ended}"
        assert named(run) <= blobs(run), f"any:{moment}: a blob that is named is gone"
        compacted += opened(run)[:1] == run.records[:1]
        fresh_pod()
        run.replay()
        assert (OUT / "log").stat().st_mode & 0o777 == 0o640
        moment += 7
    assert moment > 100
    assert compacted > 5


def test_of_each_path_the_newest_and_only_what_is_still_there() -> None:
    run: MemoryRun[list[str]] = MemoryRun(rounds)
    assert run.run(compact=False) == RESULT
    lists = [r.files for r in opened(run)]
    assert [len(files["parts"]) for files in lists] == [1, 2, 2, 2, 2], "of an empty file there is no part"
    texts = [[run.store.blobs[run.journal_id, name] for name in files["parts"]] for files in lists]
    assert texts == [[b"ground"], *([b"ground", b"0123"[: n + 1]] for n in range(4))]
    fresh_pod()
    run.replay()
    assert (OUT / "base").read_text(encoding="utf-8") == "ground"
    assert not (OUT / "scratch").exists()


def test_blobs_of_what_was_removed_or_replaced_go_with_compaction_and_no_others() -> None:
    run: MemoryRun[list[str]] = MemoryRun(rounds, "", {"number": 12})
    counts: list[int] = []

    def tell(_point: str) -> None:
        tell_anchor(run)
        counts.append(len(run.store.blobs))

    assert run.attempt(on_point=tell).value == ["ground", "01234567891011"]
    assert run.records[0].seq > 30
    assert max(counts) < 30, "twelve rounds with five blobs each would be more"
    assert {b"ground", b"01234567891011"} <= set(run.store.blobs.values())
    assert named(run) <= blobs(run)
    fresh_pod()
    run.replay()
    assert (OUT / "base").read_text(encoding="utf-8") == "ground"
    run.attempt(crash_at="before_finished")


def test_a_start_sweeps_what_a_crash_left_and_nothing_a_snapshot_lists() -> None:
    run: MemoryRun[list[str]] = MemoryRun(rounds)
    assert run.attempt(crash_at="before_finished").kind == "crashed"
    run.store.blobs[run.journal_id, "0" * 64] = b"left by a crash"
    fresh_pod()
    assert run.attempt().value == RESULT
    assert run.records[0].kind == "snapshot"
    assert blobs(run) == named(run)


def test_a_list_that_does_not_change_is_written_once() -> None:
    @everstep.agent
    async def agent(goal: str) -> int:
        n = everstep.restored(int)
        if n is None:
            await write("base", "ground")
            n = 0
        while n < 5:
            await read("base")
            n += 1
            everstep.snapshot(n)
        return n

    run: MemoryRun[int] = MemoryRun(agent)
    assert run.attempt(crash_at="in_body:5").kind == "crashed"
    fresh_pod()
    assert run.run(compact=False) == 5
    assert len({r.files["$blob"] for r in opened(run)}) == 1
    assert len(run.store.blobs) == 3, "the part, the step's own value, the list"


def test_what_is_put_back_is_proved() -> None:
    run: MemoryRun[list[str]] = MemoryRun(rounds)
    assert run.attempt(crash_at="before_finished").kind == "crashed"
    part = opened(run)[-1].files["parts"][0]
    kept = run.store.blobs[run.journal_id, part]
    run.store.blobs[run.journal_id, part] = b"gruond"
    fresh_pod()
    ended = run.attempt()
    assert isinstance(ended.error, JournalTampered)
    assert "out/base" in ended.message
    assert not (OUT / "base").exists()
    run.store.blobs[run.journal_id, part] = kept
    OUT.mkdir(exist_ok=True)
    (OUT / "base").mkdir()
    ended = run.attempt()
    assert isinstance(ended.error, everstep.ResourceFailed)
    assert "out/base cannot be put back" in ended.message
    (OUT / "base").rmdir()
    assert run.attempt().value == RESULT


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_fork_behind_a_snapshot_takes_its_files_along(*, encrypted: bool) -> None:
    run: MemoryRun[list[str]] = MemoryRun(rounds)
    if encrypted:
        run.chain = Chain(run.journal_id, None, Sealer(run.journal_id, {"k1": b"k" * 32}, os.urandom))
    assert run.attempt(crash_at="before_append:12").kind == "crashed"
    tell_anchor(run)
    fresh_pod()
    assert run.attempt(crash_at="before_finished").kind == "crashed"
    assert run.records[0].kind == "snapshot", "the beginning is compacted away"
    twin = run.fork("end")
    kept = list(twin.store.blobs.values())
    assert any(b"ground" in raw for raw in kept) is not encrypted
    fresh_pod()
    assert twin.run() == RESULT
    assert (OUT / "base").read_text(encoding="utf-8") == "ground"


@pytest.mark.parametrize("way", ["snapshot", "continue_as_new"])
def test_more_files_than_a_record_can_list_are_refused_with_the_cure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    monkeypatch.setattr(artifacts, "CARRIED_MAX_PARTS", 10)

    @everstep.agent
    async def agent(goal: str, n: int = 0) -> str:
        begun, said = everstep.restored(tuple[int, str]) or (0, "")
        for i in range(begun, 15):
            await write(f"{i}.txt", "x" * i)
            try:
                if way == "snapshot":
                    everstep.snapshot((i + 1, said))
                elif n == 0 and i == 12:
                    everstep.continue_as_new(n=1)
            except everstep.ValueTooLarge as e:
                said = str(e)
                for j in range(i):
                    await remove(f"{j}.txt")
                if way == "snapshot":
                    everstep.snapshot((i + 1, said))  # what was removed counts no more
        return said

    run: MemoryRun[str] = MemoryRun(agent)
    said = run.run(compact=False)
    assert "carries at most 10. Remove those that are not needed any more" in said
    assert (way == "snapshot") == ("carries 9 parts" in caplog.text), "before the wall"
    fresh_pod()
    run.replay()


def test_files_that_are_left_behind_on_the_way_out_of_a_segment_fail_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "CARRIED_MAX_PARTS", 2)

    @everstep.agent
    async def agent(goal: str, n: int = 0) -> str:
        if n:
            return "went on"
        try:
            everstep.continue_as_new(n=1)
        finally:
            for i in range(3):
                await write(f"{i}.txt", "x")

    ended = MemoryRun[str](agent).attempt()
    assert ended.kind == "failed"
    assert "carries at most 2" in ended.message


def test_a_sync_agent() -> None:
    @everstep.agent
    def agent(goal: str) -> str:
        n = everstep.restored(int)
        if n is None:
            write.sync("base", "ground")
            n = 0
        while n < 3:
            read.sync("base")
            n += 1
            everstep.snapshot(n)
        return read.sync("base")

    run: MemoryRun[str] = MemoryRun(agent)
    assert run.attempt(crash_at="in_body:4").kind == "crashed"
    fresh_pod()
    assert run.run() == "ground"


def test_a_journal_of_before_has_no_list_and_puts_nothing_back() -> None:
    """The field is optional: what an older SDK wrote still reads, byte for byte."""
    run: MemoryRun[list[str]] = MemoryRun(rounds)
    assert run.attempt(crash_at="before_finished").kind == "crashed"
    snapshot = opened(run)[-1]
    old = msgspec.structs.replace(snapshot, files=None)
    assert b"files" not in encode(old)
    assert decode(encode(old), Seq(old.seq)) == old


@everstep.agent
async def there_and_back(goal: str) -> str:
    """The same file is listed, not listed, and listed again."""
    state = everstep.restored(int) or 0
    if state == 0:
        await write("report", "same content")
        everstep.snapshot(state := 1)
    if state == 1:
        await remove("report")
        everstep.snapshot(state := 2)
    if state == 2:
        await asyncio.sleep(20)  # what only the first snapshot names is deleted meanwhile
        await write("report", "same content")
        everstep.snapshot(state := 3)
    return await read("report")


@pytest.mark.parametrize("crash_at", [f"after_append:{n}" for n in range(1, 9)])
def test_a_list_that_comes_back_is_stored_again(crash_at: str) -> None:
    run = MemoryRun(there_and_back, goal="g")

    def anchored(_point: str) -> None:
        journal = run.store.journals_by_id[run.journal_id]
        journal.fields.update(anchor_field(journal.head))

    run.attempt(on_point=anchored, crash_at=crash_at)
    shutil.rmtree(OUT, ignore_errors=True)
    ended = run.attempt(on_point=anchored)
    assert (ended.kind, ended.value) == ("succeeded", "same content"), ended
