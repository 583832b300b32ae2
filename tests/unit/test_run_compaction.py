"""What a restart does not read any more is deleted: records before an anchored snapshot, and blobs that nothing names."""

import asyncio
import json
from typing import Any

import pytest

import everstep
from everstep.errors import BadStore
from everstep.ids import Attempt, JournalId, Owner, RecordHash, Seq
from everstep.journal.memory import MemoryStore
from everstep.journal.records import RunStarted, Segment, Snapshot
from everstep.journal.store import CompactAnswer, Head
from everstep.journal.told import anchor_field, read_anchor
from everstep.testing import MemoryRun, for_every_crash

BIG = 100_000


@everstep.step(effect="read")
async def load(n: int, size: int = BIG) -> str:
    everstep.report_usage(input_tokens=2)
    return chr(97 + n % 26) * size


@everstep.agent
async def reading(goal: str, rounds: int = 4, size: int = BIG) -> list[int]:
    """Each round's result is a blob; every second one is the same as two rounds ago; the state grows to a blob."""
    state = everstep.restored(dict[str, Any]) or {"round": 0, "sizes": [], "pad": ""}
    while state["round"] < rounds:
        state["sizes"].append(len(await load(state["round"] % 2, size)))
        await asyncio.sleep(3)
        state["round"] += 1
        state["pad"] = "z" * (size * (state["round"] % 2))
        everstep.snapshot(state)
    await load(25, size)
    return list(state["sizes"])


@everstep.agent
async def segmented(goal: str, number: int = 0, pad: str = "") -> int:
    """Its inputs are a blob that a snapshot in the same segment must not lose."""
    if everstep.restored() is None:
        await load(number)
        everstep.snapshot(number)
    await load(number + 10)
    if number == 2:
        return len(pad)
    return everstep.continue_as_new(number=number + 1, pad=chr(120 + number) * BIG)


def named(run: MemoryRun[Any]) -> set[str]:
    return {b["$blob"] for raw in run.raw_records for b in _references(json.loads(raw))}


def _references(data: object) -> list[dict[str, str]]:
    if isinstance(data, dict):
        return [data] if "$blob" in data else [b for v in data.values() for b in _references(v)]
    return [b for v in data for b in _references(v)] if isinstance(data, list) else []


def blobs(run: MemoryRun[Any]) -> set[str]:
    return {digest for _, digest in run.store.blobs}


def first(run: MemoryRun[Any]) -> Any:
    return run.records[0]


@pytest.mark.parametrize(("agent", "value"), [(reading, [BIG] * 4), (segmented, BIG)], ids=["snapshots", "segments"])
def test_every_crash_keeps_what_is_named_and_compacts_the_rest(agent: Any, value: object) -> None:
    compacted = 0
    for at, run, ended in for_every_crash(lambda: MemoryRun(agent, "g", key=b"k" * 32), every=2):
        assert (ended.kind, ended.value) == ("succeeded", value), f"{at}: {ended}"
        assert named(run) <= blobs(run), f"{at}: a blob that is named is gone"
        if not isinstance(first(run), RunStarted):
            compacted += 1
            assert isinstance(first(run), Snapshot | Segment), at
        final = run.attempt(run_to_end=False)
        assert final.value == value
    assert compacted > 5


def test_a_start_compacts_up_to_the_newest_snapshot_and_sweeps_what_a_crash_left() -> None:
    run: MemoryRun[Any] = MemoryRun(reading, "g")
    run.attempt(crash_at="before_append:7")
    opened = [r for r in run.records if isinstance(r, Snapshot)]
    assert len(opened) >= 2
    run.store.blobs[run.journal_id, "0" * 64] = b"left by a crash"
    run.attempt(crash_at="after_compact")
    assert first(run).kind == "snapshot"
    assert first(run).seq == opened[-1].seq
    assert blobs(run) == named(run)
    assert run.attempt().value == [BIG] * 4
    run.replay()


def test_a_park_after_the_snapshot_is_no_obstacle() -> None:
    run: MemoryRun[Any] = MemoryRun(reading, "g", park_linger_s=1.0)
    ended = run.attempt()
    while ended.kind == "parked":
        run.sleep(60)
        ended = run.attempt()
    assert ended.value == [BIG] * 4
    assert isinstance(first(run), Snapshot)
    assert blobs(run) >= named(run)


def test_nothing_is_deleted_without_an_anchor_behind_the_snapshot() -> None:
    run: MemoryRun[Any] = MemoryRun(reading, "g", {"size": 10})
    assert run.attempt().kind == "succeeded"
    assert isinstance(first(run), RunStarted), "the anchor was taken before the first snapshot"
    run.attempt()
    assert isinstance(first(run), RunStarted), "a finished run needs no attempt, and nothing more is written"


def test_a_told_anchor_lets_a_live_run_shrink() -> None:
    """The supervisor tells its newest anchor in meta; the run deletes what is before the snapshot, its blobs too."""
    run: MemoryRun[Any] = MemoryRun(reading, "g", {"rounds": 12})
    sizes: list[tuple[int, int]] = []

    def tell(point: str) -> None:
        journal = run.store.journals_by_id[run.journal_id]
        sizes.append((len(journal.records), len(run.store.blobs)))
        journal.fields.update(anchor_field(journal.head))

    assert run.attempt(on_point=tell).value == [BIG] * 12
    assert isinstance(first(run), Snapshot)
    assert first(run).seq > 30
    assert max(records for records, _ in sizes) < 30
    assert max(count for _, count in sizes) <= 6
    assert named(run) <= blobs(run)
    run.replay()


@pytest.mark.parametrize(
    "told", ["", "7", "x 00", "7 zz", f"{10**6} {'0' * 64}", f"20 {'0' * 64}", f"-1 {'0' * 64}", "٣ " + "0" * 64]
)
def test_a_lie_in_the_told_anchor_deletes_nothing(told: str) -> None:
    run: MemoryRun[Any] = MemoryRun(reading, "g", {"rounds": 8, "size": 10})

    def tell(_point: str) -> None:
        run.store.journals_by_id[run.journal_id].fields["anchor"] = told

    assert run.attempt(on_point=tell).kind == "succeeded"
    assert isinstance(first(run), RunStarted)


def test_the_told_anchor_reads_as_written() -> None:
    head = Head(Seq(7), RecordHash("a" * 64))
    assert read_anchor(anchor_field(head)["anchor"]) == head
    assert read_anchor("") is None


def test_a_store_that_may_not_delete_stops_no_run(caplog: pytest.LogCaptureFixture) -> None:
    """E.g. an ACL without XTRIM: the journal only grows, the run goes on, and the log says why."""

    class Grudging(MemoryStore):
        async def compact(self, *_arguments: Any, **_named: Any) -> CompactAnswer:
            raise BadStore("this user may not run XTRIM")

        def copy(self) -> "Grudging":
            return self

    run: MemoryRun[list[int]] = MemoryRun(reading, "g", store=Grudging())
    assert run.attempt(crash_at="before_finished").kind == "crashed"
    assert run.attempt().value == [BIG] * 4
    assert "XTRIM" in caplog.text
    assert run.records[0].kind == "run_started"


async def test_a_fenced_process_deletes_nothing() -> None:
    """Its view is old: what it takes for unnamed may be named by its successor."""
    run: MemoryRun[Any] = MemoryRun(reading, "g")
    journal = JournalId("memory-run")
    await asyncio.to_thread(run.attempt, crash_at="before_append:7")
    opened = [r for r in run.records if isinstance(r, Snapshot)][-1]
    head = run.store.journals_by_id[journal].head
    await run.store.fence(journal, Attempt(9), head, {})
    owner = run.store.journals_by_id[journal].owner
    assert owner is None
    answer = await run.store.compact(journal, Attempt(1), Owner("memory-1"), Seq(opened.seq), head, ["0" * 64])
    assert answer == "FENCED"
    assert isinstance(first(run), RunStarted)
