"""total_timeout and heartbeat_timeout: what counts, over crashes and with people, and what a try leaves to the next one."""

import asyncio
import math
import threading
import time
from dataclasses import dataclass

import pytest

import everstep
from everstep import BadStep, NotDone, Retry, StepFailed, ValueTooLarge
from everstep.journal.records import Heartbeat, Intent
from everstep.run.agents import Agent
from everstep.testing import MemoryRun, for_every_crash

calls: list[object] = []
TRIES = 1_000
"""The crash tier does it with 10,000."""


@pytest.fixture(autouse=True)
def _no_calls_yet() -> None:
    calls.clear()


def steps_of(run: MemoryRun[str], key: str = "0") -> int:
    return sum(isinstance(r, Intent) and r.key == key for r in run.records)


# --- total_timeout ------------------------------------------------------------------------------------------------


@everstep.step(
    effect="idempotent", timeout=4, total_timeout=10, retry=Retry(max_tries=None, backoff_s=1, jitter=0, factor=1)
)
async def persistent(takes_s: float) -> str:
    calls.append(takes_s)
    await asyncio.sleep(takes_s)
    raise ConnectionError("no")


@everstep.agent
async def patient(goal: str, takes_s: float) -> str:
    try:
        return await persistent(takes_s)
    except StepFailed as e:
        return f"{e.type}: {e.message}"


def test_total_timeout_bounds_tries_and_waits() -> None:
    run: MemoryRun[str] = MemoryRun(patient, "go", {"takes_s": 1})
    assert run.run() == "ConnectionError: no"  # 5 tries of 1 s with 4 waits of 1 s; a fifth wait would end at 10 s
    assert len(calls) == 5
    assert run.clock.monotonic_s() == pytest.approx(9, abs=0.1)
    assert run.replay() == "ConnectionError: no"


def test_total_timeout_ends_the_try_in_flight() -> None:
    run: MemoryRun[str] = MemoryRun(patient, "go", {"takes_s": 60})
    assert run.run() == "TimeoutError: no result within 4 s"
    assert run.clock.monotonic_s() <= 10.1
    assert len(calls) == 2  # 4 s, a wait, 4 s; the wait after that leaves nothing


def test_total_timeout_counts_from_the_first_intent_over_crashes_and_time_without_a_process() -> None:
    run: MemoryRun[str] = MemoryRun(patient, "go", {"takes_s": 1})
    assert run.attempt(crash_at="before_retry:2").kind == "crashed"  # at 3 s
    run.sleep(5)
    assert run.run() == "ConnectionError: no"
    assert len(calls) == 3
    assert run.clock.monotonic_s() == pytest.approx(9, abs=0.1)


def test_when_all_the_time_passed_without_a_process_no_body_starts() -> None:
    run: MemoryRun[str] = MemoryRun(patient, "go", {"takes_s": 1})
    assert run.attempt(crash_at="in_body").kind == "crashed"
    run.sleep(11)
    assert run.run() == "TimeoutError: no result within 10 s, the step's total_timeout"
    assert calls == []


@everstep.step(effect="at_most_once", total_timeout=10, retry=Retry(max_tries=None, backoff_s=1, jitter=0))
async def pay(takes_s: float) -> str:
    calls.append("pay")
    if takes_s == 0:
        raise NotDone("busy")
    await asyncio.sleep(takes_s)
    return "paid"


@everstep.agent
async def payer(goal: str, takes_s: float) -> str:
    try:
        return await pay(takes_s)
    except StepFailed as e:
        return f"{e.type}: {e.message}"


def test_an_at_most_once_body_cut_off_by_total_timeout_is_uncertain() -> None:
    run: MemoryRun[str] = MemoryRun(payer, "go", {"takes_s": 60})
    ended = run.attempt()
    assert ended.waits[0].kind == "uncertain"
    assert "total_timeout" in ended.waits[0].reason
    run.sleep(3600)  # a person's time does not count
    run.settle("0", "again")
    again = run.attempt()
    assert again.waits[0].kind == "uncertain"
    assert calls == ["pay", "pay"]
    run.settle("0", "done", "paid by hand")
    assert run.run() == "paid by hand"
    run.replay()


def test_not_done_within_total_timeout_is_a_failure() -> None:
    run: MemoryRun[str] = MemoryRun(payer, "go", {"takes_s": 0})
    assert run.run() == "NotDone: busy"
    assert len(calls) == 4  # at 0, 1, 3 and 7 s


# --- heartbeats ---------------------------------------------------------------------------------------------------


@everstep.step(effect="idempotent", heartbeat_timeout=10, retry=Retry(max_tries=3, backoff_s=0))
async def copy_rows(rows: int, hangs_at: int) -> list[object]:
    first = everstep.heartbeat_details(int) or 0
    calls.append(first)
    for row in range(first, rows):
        if row == hangs_at and len(calls) == 1:
            await asyncio.sleep(1000)
        await asyncio.sleep(5)
        everstep.heartbeat(row + 1)
    return list(calls)


@everstep.agent
async def copier(goal: str, rows: int, hangs_at: int = -1) -> object:
    try:
        return await copy_rows(rows, hangs_at)
    except StepFailed as e:
        return f"{e.type}: {e.message}"


def test_a_body_that_beats_may_take_as_long_as_it_likes() -> None:
    run: MemoryRun[object] = MemoryRun(copier, "go", {"rows": 100})
    assert run.run() == [0]
    assert run.clock.monotonic_s() >= 500


def test_a_silent_body_has_timed_out_and_the_next_try_goes_on_where_it_was() -> None:
    run: MemoryRun[object] = MemoryRun(copier, "go", {"rows": 6, "hangs_at": 4})
    assert run.run() == [0, 4]
    assert "no heartbeat within 10 s" in next(r.message for r in run.records if r.kind == "try_failed")
    assert run.replay() == [0, 4]


def test_details_reach_the_next_process() -> None:
    run: MemoryRun[object] = MemoryRun(copier, "go", {"rows": 6})
    assert run.attempt(crash_at="after_append:4").kind == "crashed"
    recorded = [r.details for r in run.records if isinstance(r, Heartbeat)]
    assert recorded == [1, 2, 4]  # at 5, 13 and 21 s: 0.8 x heartbeat_timeout apart
    assert run.run() == [0, 4]


def test_sigterm_leaves_nothing_of_the_way_behind() -> None:
    run: MemoryRun[object] = MemoryRun(copier, "go", {"rows": 6})

    def at_17_s(point: str) -> None:
        if point == "in_body":
            asyncio.get_running_loop().call_later(17, run.terminate)

    assert run.attempt(on_point=at_17_s, grace_s=1).kind == "stopped"
    recorded = [r.details for r in run.records if isinstance(r, Heartbeat)]
    assert recorded == [1, 2, 3], "the third beat at 15 s was not due before 21 s"
    assert run.run() == [0, 3]


def test_every_crash_with_heartbeats_goes_on_and_replays() -> None:
    moments = [at for at, _, ended in for_every_crash(lambda: fresh(copier, rows=4)) if ended.kind == "succeeded"]
    assert len(moments) > 20
    assert any("before_heartbeat" in at for at in moments)
    assert any("after_heartbeat" in at for at in moments)


def fresh(agent: "Agent[..., object]", **inputs: object) -> MemoryRun[object]:
    calls.clear()
    return MemoryRun(agent, "go", inputs)


def test_c57_a_long_step_writes_few_records_however_often_it_beats() -> None:
    @everstep.step(effect="read", heartbeat_timeout=100)
    async def long(hours: int) -> int:
        for i in range(hours * 60):
            await asyncio.sleep(60)
            everstep.heartbeat({"at": i})
        return hours

    @everstep.agent
    async def run(goal: str, hours: int) -> int:
        return await long(hours)

    counts = []
    for hours in (1, 24):
        there: MemoryRun[int] = MemoryRun(run, "go", {"hours": hours})
        there.run(inbox_poll_s=3600, report_every_s=3600)
        counts.append(sum(isinstance(r, Heartbeat) for r in there.records))
    # 80 s apart, from 64 times that on a 64th of the running time: 64 + 64·ln(86400 / 5120) in a day
    assert counts[0] <= 3600 / 80 + 1
    assert counts[1] <= 64 + 64 * math.log(86_400 / 5_120) + 2, counts


def test_c57_failing_tries_with_details_cost_a_bounded_record_each() -> None:
    @everstep.step(effect="read", retry=Retry(max_tries=TRIES, backoff_s=0))
    async def fails() -> None:
        calls.append(0)
        everstep.heartbeat({"try": len(calls), "more": "x" * 5000})
        raise ConnectionError("y" * 5000)

    @everstep.agent
    async def run(goal: str) -> str:
        try:
            await fails()
        except StepFailed as e:
            return e.type
        return "?"

    there: MemoryRun[str] = MemoryRun(run, "go")
    assert there.run() == "ConnectionError"
    assert len(calls) == TRIES
    size = sum(len(raw) for raw in there.raw_records)
    assert size < TRIES * 750 + 40_000, size
    assert sum(isinstance(r, Heartbeat) for r in there.records) <= 2


def test_unchanged_details_are_written_once() -> None:
    @everstep.step(effect="read", heartbeat_timeout=5)
    async def same() -> None:
        for _ in range(50):
            await asyncio.sleep(4)
            everstep.heartbeat("still here")

    @everstep.agent
    async def run(goal: str) -> None:
        await same()

    there: MemoryRun[None] = MemoryRun(run, "go")
    there.run()
    assert sum(isinstance(r, Heartbeat) for r in there.records) == 1


@dataclass
class Cursor:
    page: int
    seen: tuple[str, ...]


def test_details_are_typed_and_bounded() -> None:
    @everstep.step(effect="read", retry=Retry(max_tries=2, backoff_s=0))
    async def pages() -> list[object]:
        found = everstep.heartbeat_details(Cursor)
        if found is None:
            with pytest.raises(ValueTooLarge, match="8192"):
                everstep.heartbeat("x" * 9000)
            with pytest.raises(everstep.NotJSON):
                everstep.heartbeat({"a": object()})
            everstep.heartbeat(Cursor(3, ("a", "b")))
            raise ConnectionError
        assert found == Cursor(3, ("a", "b"))
        return [everstep.heartbeat_details()]

    @everstep.agent
    async def run(goal: str) -> list[object]:
        return await pages()

    assert MemoryRun[list[object]](run, "go").run() == [{"page": 3, "seen": ["a", "b"]}]


def test_a_thread_that_nobody_waits_for_learns_it_from_its_heartbeat() -> None:
    ended = threading.Event()

    @everstep.step(effect="read", timeout=0.2, retry=Retry(max_tries=2, backoff_s=0))
    def threaded() -> str:
        calls.append(everstep.heartbeat_details())
        if len(calls) == 2:
            return "second"
        try:
            while True:
                time.sleep(0.01)
                everstep.heartbeat("on my way")
        finally:
            ended.set()

    @everstep.agent
    async def run(goal: str) -> str:
        return await threaded.aio()

    assert MemoryRun[str](run, "go", real_time=True).run() == "second"
    assert calls == [None, "on my way"]
    assert ended.wait(5)


def test_a_silent_thread_has_timed_out_in_a_sync_agent() -> None:
    @everstep.step(effect="read", heartbeat_timeout=0.2, retry=Retry(max_tries=2, backoff_s=0))
    def threaded() -> str:
        calls.append("try")
        if len(calls) == 1:
            threading.Event().wait(30)
        for _ in range(6):
            time.sleep(0.1)
            everstep.heartbeat()
        return "alive"

    @everstep.agent
    def run(goal: str) -> str:
        return threaded()

    assert MemoryRun[str](run, "go", real_time=True).run() == "alive"
    assert calls == ["try", "try"]


def test_a_silent_at_most_once_body_is_uncertain_and_keeps_its_details() -> None:
    @everstep.step(effect="at_most_once", heartbeat_timeout=5)
    async def upload() -> str:
        found = everstep.heartbeat_details(int)
        if found is not None:
            return f"went on at {found}"
        for part in range(1, 4):
            await asyncio.sleep(1)
            everstep.heartbeat(part)
        await asyncio.sleep(1000)
        return "?"

    @everstep.agent
    async def run(goal: str) -> str:
        return await upload()

    there: MemoryRun[str] = MemoryRun(run, "go")
    ended = there.attempt()
    assert "no heartbeat within 5 s" in ended.waits[0].reason
    there.settle("0", "again")
    assert there.run() == "went on at 3"  # told, though it was not yet due to be written
    there.replay()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"total_timeout": 0}, "total_timeout must be more than 0"),
        ({"heartbeat_timeout": -1}, "heartbeat_timeout must be more than 0"),
        ({"timeout": 5, "total_timeout": 3}, "timeout of 5 s is longer than total_timeout of 3 s"),
        ({"timeout": 5, "heartbeat_timeout": 9}, "heartbeat_timeout of 9 s is longer than timeout"),
        ({"retry": Retry(max_tries=None)}, "tries for ever"),
    ],
)
def test_wrong_bounds_are_refused_at_import(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(BadStep, match=says):
        everstep.step(effect="read", **wrong)  # type: ignore[arg-type]  # wrong on purpose


def test_heartbeat_belongs_into_a_body() -> None:
    with pytest.raises(everstep.BadCall, match="belongs into a step's body"):
        everstep.heartbeat()
