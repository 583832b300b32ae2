"""`everstep.testing.replay`: a recorded run meets today's code in a user's CI; no body runs, nothing is written."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep.errors import ConfigError, Diverged
from everstep.journal.records import encode
from everstep.run.agents import Agent
from everstep.testing import MemoryRun, RecordedRun, Replay, replay

ran: list[int] = []


@everstep.step(effect="read")
async def look(n: int) -> int:
    ran.append(n)
    return n


@everstep.step(effect="read")
async def large(size: int) -> str:
    ran.append(size)
    return "x" * size


@everstep.step(effect="read")
def look_there(n: int) -> int:
    ran.append(n)
    return n


def agent(last: int = 3, fails: bool = False) -> Agent[..., Any]:
    @everstep.agent
    async def looks(goal: str, first: int = 1) -> list[int]:
        out = [await look(first), len(await large(100_000))]
        await asyncio.sleep(60)
        if fails:
            raise KeyError(goal)
        return [*out, *await asyncio.gather(look(2), look(last)), everstep.now().year]

    return looks


def recorded(crash_at: str | None = None) -> RecordedRun:
    run: MemoryRun[Any] = MemoryRun(agent(), "go", {"first": 7}, park_linger_s=1e9)
    run.attempt(crash_at=crash_at)
    blobs = {digest: raw for (_, digest), raw in run.store.blobs.items()}
    ran.clear()
    return RecordedRun(run.raw_records, "go", run.inputs, "tests:looks", blobs, "0.1.0")


def saved(told: RecordedRun, path: Path) -> Path:
    path.write_text("".join(f"{line}\n" for line in told.lines()), encoding="utf-8")
    return path


def test_a_finished_run_replays_from_its_file(tmp_path: Path) -> None:
    path = saved(recorded(), tmp_path / "run.jsonl")
    done = replay(path, agent())
    assert (done.steps, done.finished) == (4, True)
    assert done.value[:4] == [7, 100_000, 2, 3]
    assert replay(str(path), agent()) == done
    assert ran == []
    assert RecordedRun.read(path) == recorded_again(path)


def recorded_again(path: Path) -> RecordedRun:
    return RecordedRun.parse(path.read_text(encoding="utf-8").splitlines(), path.name)


@pytest.mark.parametrize(
    ("crash_at", "steps"), [("in_body:1", 0), ("in_body:2", 1), ("in_body:3", 2), ("before_finished", 4)]
)
def test_an_unfinished_run_replays_to_the_end_of_its_record_and_no_further(crash_at: str, steps: int) -> None:
    assert replay(recorded(crash_at), agent()) == Replay(steps, finished=False)
    assert ran == []


def test_changed_code_is_told_from_both_sides() -> None:
    for crash_at in ("before_finished", None):
        with pytest.raises(Diverged, match=r"another way|other arguments"):
            replay(recorded(crash_at), agent(last=9))
    assert ran == []


def test_code_that_raises_where_the_record_goes_on_says_what() -> None:
    with pytest.raises(Diverged, match="the agent has raised KeyError"):
        replay(recorded("before_finished"), agent(fails=True))


def test_a_memory_run_is_a_history_and_stays_as_it_is() -> None:
    run: MemoryRun[Any] = MemoryRun(agent(), "go", {"first": 7}, park_linger_s=1e9)
    run.attempt(crash_at="in_body:3")
    before = run.raw_records
    ran.clear()
    assert replay(run, agent()).steps == 2
    with pytest.raises(Diverged):
        replay(run, agent(fails=True) and small())
    assert run.raw_records == before
    assert ran == []


def small() -> Agent[..., Any]:
    @everstep.agent
    async def small(goal: str, first: int = 1) -> int:
        return await look(first + 1)

    return small


def test_a_sync_agent() -> None:
    def syncs(n: int) -> Agent[..., Any]:
        @everstep.agent
        def syncs(goal: str) -> int:
            everstep.sleep(0)
            return look_there(1) + look_there(n)

        return syncs

    run: MemoryRun[int] = MemoryRun(syncs(2), "go", real_time=True)
    run.attempt(crash_at="in_body:2")
    ran.clear()
    told = RecordedRun(run.raw_records, "go", {})
    assert replay(told, syncs(2)) == Replay(1, finished=False)
    with pytest.raises(Diverged):
        replay(told, syncs(3))
    assert ran == []


def test_an_export_is_read_and_goal_and_inputs_are_given() -> None:
    told = recorded()
    lines = [json.dumps({"everstep": "export/1", "journal": "j"})]
    lines += [json.dumps({"n": n, "r": raw.decode()}) for n, raw in enumerate(told.records, 1)]
    lines += [*list(told.lines())[1 + len(told.records) :], json.dumps({"end": {}, "signature": None})]
    export = RecordedRun.parse(lines, "export.jsonl")
    assert export.records == list(told.records)
    with pytest.raises(ConfigError, match="does not tell goal and inputs"):
        replay(export, agent())
    assert replay(export, agent(), goal="go", inputs={"first": 7}).finished
    with pytest.raises(Diverged, match="another goal"):
        replay(export, agent(), goal="come", inputs={"first": 7})


def test_any_python_replays_it() -> None:
    told = recorded("in_body:3")
    other = [raw.replace(b'"python":"', b'"python":"3.99') for raw in told.records]
    assert b"3.99" in other[0]
    assert replay(RecordedRun(other, told.goal, told.inputs, blobs=told.blobs), agent()).steps == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "holds no record"),
        ("{}\n", "holds no record"),
        ("{}\nx\n", "h.jsonl:2"),
        ('{}\n{"a": 1}\n', "neither a record nor a blob"),
        ("[]\n", "h.jsonl:1"),
    ],
)
def test_a_file_that_is_none_names_the_line(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "h.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=told):
        replay(path, agent())
    with pytest.raises(ConfigError, match="cannot be read"):
        replay(tmp_path / "none.jsonl", agent())


def test_what_is_written_is_what_was_stored(tmp_path: Path) -> None:
    """Byte for byte: digests are over raw records."""
    told = recorded()
    path = saved(told, tmp_path / "run.jsonl")
    again = RecordedRun.read(path)
    assert list(again.records) == list(told.records)
    assert again.blobs == told.blobs
    run: MemoryRun[Any] = MemoryRun(agent(), "go", {"first": 7})
    run.load(again.records)
    assert [encode(r) for r in run.records] == list(told.records)


def test_a_compacted_journal_replays_from_its_snapshot() -> None:
    @everstep.agent
    async def long(goal: str) -> list[int]:
        seen = everstep.restored(list[int]) or []
        for n in range(len(seen), 6):
            seen = [*seen, await look(n)]
            if n % 2:
                everstep.snapshot(seen)
        return [*seen, await look(9)]

    run: MemoryRun[list[int]] = MemoryRun(long, "go")
    run.attempt(crash_at="in_body:6")
    newest = max(r.seq for r in run.records if r.kind == "snapshot")
    rest = [raw for raw, record in zip(run.raw_records, run.records, strict=True) if record.seq >= newest]
    assert len(rest) < len(run.records)
    ran.clear()
    assert replay(RecordedRun(rest, "go", {}), long) == Replay(1, finished=False)
    assert ran == []
