"""Several steps at once: maps whose keys are those of the items, and the first of several: the one the journal names."""

import asyncio
import threading
import time

import pytest

import everstep
from everstep import BadCall, NotInRun, NotJSON, StepFailed
from everstep.journal.records import Abandoned, Intent
from everstep.run.agents import Agent
from everstep.testing import Ended, MemoryRun, for_every_crash

running: list[int] = []
most: list[int] = []
started: list[str] = []
latency: dict[str, float] = {}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    for seen in (running, most, started, latency):
        seen.clear()


@everstep.step(effect="idempotent")
async def work(name: str, times: int = 1) -> str:
    started.append(name)
    running.append(1)
    most.append(len(running))
    try:
        await asyncio.sleep(latency.get(name, 1.0))
    finally:
        running.pop()
    if name.startswith("bad"):
        raise ValueError(name)
    return name * times


def intents(run: MemoryRun[object]) -> dict[str, str]:
    return {r.key: r.input for r in run.records if isinstance(r, Intent)}


# --- map ----------------------------------------------------------------------------------------------------------


@everstep.agent
async def maps(goal: str, names: list[str], concurrency: int = 3) -> list[str]:
    return await work.map(names, concurrency=concurrency, common={"times": 2})


NAMES = [f"n{i}" for i in range(10)]


def test_results_come_in_the_order_of_the_items_and_few_run_at_once() -> None:
    latency.update({name: 10.0 - i for i, name in enumerate(NAMES)})
    run: MemoryRun[object] = MemoryRun(maps, "go", {"names": NAMES})
    assert run.run() == [name * 2 for name in NAMES]
    assert max(most) == 3
    assert started == NAMES
    assert sorted(intents(run)) == sorted(f"m0/{i}" for i in range(10))
    assert run.replay() == [name * 2 for name in NAMES]


@pytest.mark.parametrize("concurrency", [1, 2, 5, 100])
def test_c1_keys_are_those_of_the_items_whatever_the_latencies_and_the_concurrency(concurrency: int) -> None:
    slow: MemoryRun[object] = MemoryRun(maps, "go", {"names": NAMES, "concurrency": concurrency})
    latency.update({name: (i * 7) % 5 + 1.0 for i, name in enumerate(NAMES)})
    slow.run()
    fast: MemoryRun[object] = MemoryRun(maps, "go", {"names": NAMES, "concurrency": 1})
    fast.run()
    assert intents(slow) == intents(fast)
    assert max(most) <= concurrency


def test_nothing_runs_for_no_items() -> None:
    run: MemoryRun[object] = MemoryRun(maps, "go", {"names": []})
    assert run.run() == []


def test_the_first_failure_cancels_what_is_in_flight_and_begins_nothing_more() -> None:
    latency.update(n0=5, bad=2, n2=50)

    @everstep.agent
    async def run(goal: str) -> str:
        try:
            await work.map(["n0", "bad", "n2", "n3", "n4"], concurrency=3)
        except StepFailed as e:
            return e.message
        return "?"

    there: MemoryRun[object] = MemoryRun(run, "go")
    assert there.run() == "bad"
    assert started == ["n0", "bad", "n2"]
    assert running == [], "they were cancelled and waited for before the run was finished"
    assert sorted(r.key for r in there.records if isinstance(r, Abandoned)) == ["m0/0", "m0/2"]
    assert there.replay() == "bad"


def test_failures_may_stand_among_the_results() -> None:
    @everstep.agent
    async def run(goal: str) -> list[str]:
        found = await work.map(["a", "bad", "c"], return_exceptions=True)
        return [x if isinstance(x, str) else x.type for x in found]

    there: MemoryRun[object] = MemoryRun(run, "go")
    assert there.run() == ["a", "ValueError", "c"]
    assert there.replay() == ["a", "ValueError", "c"]


def test_a_map_that_is_cancelled_cancels_its_items() -> None:
    @everstep.agent
    async def run(goal: str) -> str:
        try:
            async with asyncio.timeout(5):
                await work.map(NAMES, concurrency=2)
        except TimeoutError:
            return await work("after")
        return "?"

    latency.update(dict.fromkeys(NAMES, 100.0))
    there: MemoryRun[object] = MemoryRun(run, "go")
    assert there.run() == "after"
    assert started == ["n0", "n1", "after"]
    there.replay()


def test_maps_in_tasks_and_after_each_other_have_keys_of_their_own() -> None:
    @everstep.agent
    async def run(goal: str) -> object:
        both = await asyncio.gather(work.map(["a", "b"]), work.map(["c"]))
        return [*both, await work.map(["d"]), await work("e"), await work.map(["f"])]

    there: MemoryRun[object] = MemoryRun(run, "go")
    assert there.run() == [["a", "b"], ["c"], ["d"], "e", ["f"]]
    assert sorted(intents(there)) == ["0", "m0/0", "m1/0", "t0/m0/0", "t0/m0/1", "t1/m0/0"]


def test_every_crash_of_a_map_goes_on_with_one_outcome_per_item() -> None:
    def make() -> MemoryRun[object]:
        latency.update({"n0": 3.0, "n1": 1.0, "n2": 2.0, "bad": 0.5})
        return MemoryRun(mapped_with_failures, "go")

    ends: list[tuple[str, Ended[object]]] = [(at, ended) for at, _, ended in for_every_crash(make)]
    assert len(ends) > 20
    assert all(ended.value == ["n0", "n1", "ValueError", "n2"] for _, ended in ends), ends


@everstep.agent
async def mapped_with_failures(goal: str) -> list[str]:
    found = await work.map(["n0", "n1", "bad", "n2"], concurrency=2, return_exceptions=True)
    return [x if isinstance(x, str) else x.type for x in found]


def test_items_are_checked_before_the_first_begins() -> None:
    @everstep.agent
    async def run(goal: str) -> list[str]:
        said = []
        for items, concurrency in (([1, 2], 0), ({"a", "b"}, 2), (["a", object()], 2)):
            try:
                await work.map(items, concurrency=concurrency)  # type: ignore[arg-type]  # wrong on purpose
            except (BadCall, NotJSON) as e:
                said.append(str(e))
        return said

    said = MemoryRun[list[str]](run, "go").run()
    assert "at least 1" in said[0]
    assert "set" in said[1]
    assert "argument name" in said[2]
    assert started == []


# --- map in sync agents -------------------------------------------------------------------------------------------


@everstep.step(effect="idempotent")
def threaded(name: str) -> str:
    started.append(name)
    running.append(1)
    most.append(len(running))
    time.sleep(latency.get(name, 0.05))
    running.pop()
    if name.startswith("bad"):
        raise ValueError(name)
    return name.upper()


@everstep.agent
def sync_maps(goal: str, names: list[str]) -> list[str]:
    first = threaded("alone")
    found = threaded.map(names, concurrency=3, return_exceptions=True)
    more = work.map_sync(["x", "y"])
    return [first, *(x if isinstance(x, str) else x.type for x in found), *more]


def test_a_sync_agent_maps_over_threads() -> None:
    latency.update(x=0.01, y=0.01)
    run: MemoryRun[object] = MemoryRun(sync_maps, "go", {"names": ["a", "b", "bad", "c", "d"]}, real_time=True)
    wanted = ["ALONE", "A", "B", "ValueError", "C", "D", "x", "y"]
    assert run.run() == wanted
    assert 1 < max(most) <= 3
    assert sorted(intents(run)) == ["0", "m0/0", "m0/1", "m0/2", "m0/3", "m0/4", "m1/0", "m1/1"]
    assert run.replay() == wanted


def test_every_crash_of_a_sync_map() -> None:
    def make() -> MemoryRun[object]:
        latency.update(a=0.001, b=0.002, x=0.001, y=0.001)
        return MemoryRun(sync_maps, "go", {"names": ["a", "b"]}, real_time=True)

    ends = [(at, ended) for at, _, ended in for_every_crash(make, every=3)]
    assert len(ends) > 8
    assert all(ended.value == ["ALONE", "A", "B", "x", "y"] for _, ended in ends), ends


def test_a_failure_in_a_sync_map_is_raised() -> None:
    @everstep.agent
    def run(goal: str) -> str:
        try:
            threaded.map(["a", "bad", "c", "d"], concurrency=1)
        except StepFailed as e:
            return e.message
        return "?"

    assert MemoryRun[str](run, "go", real_time=True).run() == "bad"
    assert started == ["a", "bad"]


def test_a_cancel_interrupts_a_sync_map() -> None:
    hung = threading.Event()

    @everstep.step(effect="read")
    def hangs(n: int) -> int:
        started.append(str(n))
        hung.wait(10)
        return n

    @everstep.agent
    def run(goal: str) -> list[int]:
        return hangs.map([1, 2, 3], concurrency=2)

    there: MemoryRun[list[int]] = MemoryRun(run, "go", real_time=True)

    def cancel(point: str) -> None:
        if point == "in_body" and len(there.reached) and there.reached.count("in_body") == 2:
            there.cancel()

    try:
        assert there.attempt(on_point=cancel, inbox_poll_s=0.05, body_cancel_s=0.1).kind == "cancelled"
    finally:
        hung.set()
    assert len(started) == 2


@pytest.mark.parametrize("colour", ["async", "sync"])
def test_the_wrong_colour_says_what_to_write(colour: str) -> None:
    @everstep.agent
    async def async_run(goal: str) -> None:
        threaded.map(["a"])

    @everstep.agent
    def sync_run(goal: str) -> None:
        work.map(["a"])

    agent: Agent[..., object] = async_run if colour == "async" else sync_run
    ended = MemoryRun[object](agent, "go", real_time=colour == "sync").attempt()
    wanted = "write await threaded.map_aio(…)" if colour == "async" else "write work.map_sync(…)"
    assert wanted in ended.message


# --- first --------------------------------------------------------------------------------------------------------


@everstep.agent
async def race(goal: str, names: list[str], ignore_failures: bool = False) -> list[object]:
    try:
        which, value = await everstep.first(*(work(name) for name in names), ignore_failures=ignore_failures)
    except StepFailed as e:
        return ["failed", e.message, await work("after")]
    return [which, value, await work("after")]


def test_c3_the_winner_stays_the_winner_when_it_is_the_slowest_on_replay() -> None:
    """C3: whoever came first is a record."""
    latency.update(a=5, b=1, c=3)
    run: MemoryRun[object] = MemoryRun(race, "go", {"names": ["a", "b", "c"]})
    assert (
        run.attempt(crash_at="in_body:4").kind == "crashed"
    )  # b has won, which is written before the next body begins
    latency.update(a=1, b=50, c=1)
    assert run.run() == [1, "b", "after"]
    assert run.replay() == [1, "b", "after"]
    assert started.count("b") == 1


def test_losers_are_cancelled_and_awaited() -> None:
    latency.update(a=5, b=1, c=3)
    ends: list[str] = []

    async def tidy(name: str) -> str:
        try:
            return await work(name)
        finally:
            ends.append(await work(f"tidy-{name}"))

    @everstep.agent
    async def run(goal: str) -> object:
        winner = await everstep.first(tidy("a"), work("b"), tidy("c"))
        return [*winner, *ends]

    there: MemoryRun[object] = MemoryRun(run, "go")
    assert there.run() == [1, "b", "tidy-a", "tidy-c"]
    ends.clear()
    assert there.replay() == [1, "b", "tidy-a", "tidy-c"]


def test_a_failure_is_an_end_unless_it_is_to_be_passed_over() -> None:
    latency.update(bad=1, a=2, bad2=3)
    names = ["bad", "a", "bad2"]
    assert MemoryRun[object](race, "go", {"names": names}).run() == ["failed", "bad", "after"]
    run: MemoryRun[object] = MemoryRun(race, "go", {"names": names, "ignore_failures": True})
    assert run.run() == [1, "a", "after"]
    all_bad: MemoryRun[object] = MemoryRun(race, "go", {"names": ["bad2", "bad"], "ignore_failures": True})
    assert all_bad.run() == ["failed", "bad", "after"]
    assert all_bad.replay() == ["failed", "bad", "after"]


def test_first_with_a_sleep_is_a_time_limit() -> None:
    latency["a"] = 100

    @everstep.agent
    async def run(goal: str) -> int:
        which, _ = await everstep.first(work("a"), everstep.sleep(10))
        return which

    there: MemoryRun[object] = MemoryRun(run, "go")
    assert there.run() == 1
    assert there.replay() == 1


def test_every_crash_of_a_race() -> None:
    def make() -> MemoryRun[object]:
        latency.update(a=5, b=1, c=3, after=1)
        return MemoryRun(race, "go", {"names": ["a", "b", "c"]})

    ends = [(at, ended) for at, _, ended in for_every_crash(make)]
    assert len(ends) > 15
    assert all(ended.value == [1, "b", "after"] for _, ended in ends), ends


def test_first_belongs_into_an_async_agent() -> None:
    @everstep.agent
    def sync_run(goal: str) -> None:
        everstep.first()

    with pytest.raises(BadCall, match="needs something"):
        everstep.first()
    with pytest.raises(NotInRun, match=r"everstep\.first"):
        everstep.first(asyncio.sleep(0))

    @everstep.agent
    def in_sync(goal: str) -> None:
        everstep.first(asyncio.sleep(0))

    assert "async agents" in MemoryRun[object](in_sync, "go", real_time=True).attempt().message
