"""Snapshots and continue_as_new: a restart begins at the newest, live and restarted code make the same calls, nothing is lost."""

import asyncio
import re
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from pydantic import BaseModel

import everstep
from everstep.errors import BadCall, Diverged, TooManySteps
from everstep.journal.records import Intent, Result, Segment, Snapshot
from everstep.run.agents import Agent
from everstep.testing import Ended, MemoryRun, for_every_crash

R = TypeVar("R")
ROUNDS = 4
done: list[str] = []


class WholeRun(MemoryRun[R]):
    """Keeps all records: these tests look at what a compaction would delete."""

    def attempt(self, **config: Any) -> Ended[R]:  # as MemoryRun's
        return super().attempt(**{"compact": False} | config)


class Ledger(BaseModel):
    """What the looping agent knows."""

    round: int = 0
    total: int = 0
    big: str = ""


@everstep.step(effect="idempotent")
async def work(what: str) -> int:
    done.append(everstep.idempotency_key())
    everstep.report_usage(input_tokens=3, cost_micro_usd=2)
    return len(what)


@everstep.step(effect="read")
def look(what: str) -> int:
    everstep.report_usage(input_tokens=3, cost_micro_usd=2)
    return len(what)


@everstep.agent
async def looping(goal: str, big: int = 0) -> int:
    state = everstep.restored(Ledger)
    if state is None:
        state = Ledger(total=await work("setup"))
    while state.round < ROUNDS:
        state.total += sum(await asyncio.gather(work(f"a{state.round}"), work(f"b{state.round}")))
        await asyncio.sleep(1)
        everstep.random()
        state.round += 1
        state.big = "x" * big
        everstep.snapshot(state)
    return state.total


@everstep.agent
def looping_sync(goal: str) -> int:
    state = everstep.restored() or {"round": 0, "total": 0}
    while state["round"] < ROUNDS:
        state["total"] += look(f"a{state['round']}")
        everstep.sleep(1)
        state["total"] += look(f"b{everstep.now().year - everstep.now().year}")
        state["round"] += 1
        everstep.snapshot(state)
    return int(state["total"])


@everstep.agent
async def chained(goal: str, number: int = 0, seen: list[int] | None = None, pad: str = "") -> list[int]:
    """A new segment per round; every second one takes a snapshot in its middle."""
    known = (
        [*(seen or []), await work(f"{number}")]
        if everstep.restored(list[int]) is None
        else everstep.restored(list[int])
    )
    assert known is not None
    if number % 2 and len(known) == number + 1:
        everstep.snapshot([*known, -1])
        known = [*known, -1]
    if number == ROUNDS:
        return known
    try:
        await asyncio.sleep(1)
        everstep.continue_as_new(number=number + 1, seen=[n for n in known if n >= 0], pad="y" * len(pad))
    finally:
        await work("clean-up")


@everstep.agent
def chained_sync(goal: str, number: int = 0) -> int:
    look(str(number))
    if number == ROUNDS:
        return number
    return everstep.continue_as_new(number=number + 1)


def agent_of(body: Callable[[], Any]) -> Agent[..., Any]:
    @everstep.agent
    async def some(goal: str) -> Any:
        return await body()

    return some


def results(run: MemoryRun[Any]) -> int:
    return sum(isinstance(r, Result) for r in run.records)


AGENTS: dict[str, tuple[Callable[[], MemoryRun[Any]], object, int]] = {
    "async": (lambda: WholeRun(looping, "g"), 5 + 4 * ROUNDS, 1 + 2 * ROUNDS),
    "large state": (lambda: WholeRun(looping, "g", {"big": 100_000}), 5 + 4 * ROUNDS, 1 + 2 * ROUNDS),
    "sync": (lambda: WholeRun(looping_sync, "g"), 4 * ROUNDS, 2 * ROUNDS),
    "segments": (lambda: WholeRun(chained, "g"), [1] * (ROUNDS + 1), 2 * ROUNDS + 1),
    "large inputs": (lambda: WholeRun(chained, "g", {"pad": "y" * 70_000}), [1] * (ROUNDS + 1), 2 * ROUNDS + 1),
}


@pytest.mark.parametrize("name", AGENTS)
def test_c14_every_crash_gives_the_same_end_and_totals(name: str) -> None:
    """Result, number of steps and usage, wherever the process is lost."""
    make, value, steps = AGENTS[name]
    moments = 0
    for at, run, ended in for_every_crash(make, every=5 if "large" in name else 1):
        moments += 1
        assert (ended.kind, ended.value) == ("succeeded", value), f"{at}: {ended}"
        last = next(r for r in reversed(run.records) if isinstance(r, Snapshot | Segment))
        tail = [r for r in run.records if r.seq > last.seq and isinstance(r, Result)]
        assert last.totals["steps"] + len(tail) == steps, at
        spent = last.totals["spend"]["usage"]["inputTokens"] + sum((r.usage or {})["inputTokens"] for r in tail)
        assert spent == 3 * steps, at
        keys = [r.key for r in run.records if isinstance(r, Intent) and r.tries == 1]
        assert len(keys) == len(set(keys)), at
        idems = [r.idem for r in run.records if isinstance(r, Intent) and r.tries == 1]
        assert len(idems) == len(set(idems)), at
    assert moments > 15


def test_sync_agents_continue_as_new() -> None:
    for at, run, ended in for_every_crash(lambda: WholeRun(chained_sync, "g", real_time=True)):
        assert (ended.kind, ended.value) == ("succeeded", ROUNDS), f"{at}: {ended}"
        assert sum(isinstance(r, Segment) for r in run.records) == ROUNDS


def test_live_and_restarted_code_make_the_same_calls() -> None:
    """Keys, digests, timers and idempotency keys of each epoch are those of a process that starts there."""
    whole: MemoryRun[int] = WholeRun(looping, "g")
    assert whole.run() == 5 + 4 * ROUNDS

    def calls(run: MemoryRun[int]) -> list[object]:
        return [
            (r.kind, r.key, getattr(r, "idem", ""), getattr(r, "due", 0))
            for r in run.records
            if r.kind in ("intent", "timer", "value")
        ]

    assert {c[1] for c in calls(whole)} >= {"t0/0", "@1/t0/0", "@1/~0", "@1/v0", "@3/t1/0"}
    for n in range(1, ROUNDS):
        again: MemoryRun[int] = WholeRun(looping, "g")
        again.attempt(crash_at=f"after_append:{3 * n}")
        again.attempt()
        assert calls(again) == calls(whole) or {c[1] for c in calls(again)} == {c[1] for c in calls(whole)}


def test_replay_begins_at_the_newest_snapshot() -> None:
    run: MemoryRun[int] = WholeRun(looping, "g")
    run.run()
    snapshots = [r for r in run.records if isinstance(r, Snapshot)]
    assert [s.epoch for s in snapshots] == list(range(1, ROUNDS + 1))
    replayed: list[str] = []
    twin = run.copy()
    twin.attempt(run_to_end=True, on_point=replayed.append)
    assert "in_replay" not in replayed, "nothing follows the last snapshot but the end"
    assert run.replay() == 5 + 4 * ROUNDS


def mistake_before(first: bool) -> Agent[..., Any]:
    async def body() -> int:
        if first:
            await work("setup")
        state = everstep.restored() or 0
        if not first:
            await work("setup")
        while state < 3:
            state += await work("abc")
            everstep.snapshot(state)
            await work("more")
        return int(state)

    return agent_of(body)


def test_steps_before_the_state_is_asked_for_are_refused_in_the_first_run() -> None:
    ended = WholeRun(mistake_before(first=True), "g").attempt()
    assert isinstance(ended.error, BadCall)
    assert "restored() must be asked before the first step" in str(ended.error)


def test_steps_before_the_loop_that_are_not_guarded_diverge_with_the_usual_mistake_told() -> None:
    run: MemoryRun[Any] = WholeRun(mistake_before(first=False), "g")
    run.attempt(crash_at="after_result:3")
    ended = run.attempt()
    assert isinstance(ended.error, Diverged), ended
    assert re.search(r"replay began at the snapshot of record \d+.*under `if state is None:`", str(ended.error), re.S)


def test_a_snapshot_without_restored_is_refused() -> None:
    async def body() -> None:
        everstep.snapshot({})

    ended = WholeRun(agent_of(body), "g").attempt()
    assert isinstance(ended.error, BadCall)
    assert "state = everstep.restored(State)" in str(ended.error)


def test_code_that_does_not_ask_for_the_state_any_more_diverges() -> None:
    run: MemoryRun[int] = WholeRun(looping, "g")
    run.attempt(crash_at="in_body:6")

    async def other() -> int:
        return await work("setup")

    run.agent = agent_of(other)
    ended = run.attempt()
    assert isinstance(ended.error, Diverged)
    assert "without asking for the state of the run" in str(ended.error)


async def _sleeper() -> None:
    await asyncio.sleep(100)


async def pending_task() -> None:
    everstep.restored()
    task = asyncio.create_task(_sleeper(), name="sleeper")
    await work("x")
    everstep.snapshot(1)
    task.cancel()


async def pending_step() -> None:
    everstep.restored()
    step = asyncio.ensure_future(work("x"))
    await asyncio.sleep(0)
    everstep.snapshot(1)
    await step


async def pending_timeout() -> None:
    everstep.restored()
    async with asyncio.timeout(5):
        await work("x")
        everstep.snapshot(1)


async def in_a_task() -> None:
    everstep.restored()

    async def inner() -> None:
        everstep.snapshot(1)

    await asyncio.create_task(inner())


async def leaving_with_a_task() -> None:
    task = asyncio.create_task(_sleeper(), name="sleeper")
    await work("x")
    try:
        everstep.continue_as_new()
    finally:
        task.cancel()


async def unknown_input() -> None:
    everstep.continue_as_new(nonsense=1)


async def swallowed() -> int:
    try:
        everstep.continue_as_new()
    except BaseException:
        return 1


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (pending_task, "pending: .*task sleeper"),
        (pending_step, "pending: step work"),
        (pending_timeout, "pending: a timer"),
        (in_a_task, "called in a task"),
        (leaving_with_a_task, "continue_as_new.*pending"),
        (unknown_input, "takes no input nonsense"),
        (swallowed, "swallowed it"),
    ],
)
def test_what_is_pending_is_named(body: Callable[[], Any], says: str) -> None:
    run: MemoryRun[Any] = WholeRun(agent_of(body), "g")
    ended = run.attempt()
    assert isinstance(ended.error, BadCall), ended
    assert re.search(says, str(ended.error)), ended.error
    assert not any(isinstance(r, Snapshot | Segment) for r in run.records)
    run.replay()


@everstep.step(effect="read")
async def slow(seconds: float) -> int:
    await asyncio.sleep(seconds)
    return 1


@everstep.step(effect="read")
async def stubborn(seconds: float) -> int:
    try:
        await asyncio.sleep(100)
    except asyncio.CancelledError:
        await asyncio.sleep(seconds)
        raise
    return 1


@everstep.agent
async def timing_out(goal: str) -> int:
    state = everstep.restored(int) or 0
    while state < 4:
        try:
            async with asyncio.timeout(1):
                await (stubborn(0.5) if state % 2 else slow(0.9))
        except TimeoutError:
            pass
        await work("after")
        state += 1
        everstep.snapshot(state)
    return state


def test_what_the_agent_cancelled_puts_a_snapshot_off_and_fails_nothing() -> None:
    for at, run, ended in for_every_crash(lambda: WholeRun(timing_out, "g")):
        assert (ended.kind, ended.value) == ("succeeded", 4), f"{at}: {ended}"
        told = [r.epoch for r in run.records if isinstance(r, Snapshot)]
        assert len(told) >= 2, at
        assert told == sorted(told)


def test_state_must_come_back_equal() -> None:
    async def tuple_state() -> None:
        everstep.restored()
        everstep.snapshot({"a": (1, 2)})

    ended = WholeRun(agent_of(tuple_state), "g").attempt()
    assert isinstance(ended.error, everstep.NotJSON)
    assert "needs its type: everstep.restored(State)" in str(ended.error)

    async def typed() -> object:
        state = everstep.restored(tuple[int, int])
        if state is None:
            everstep.snapshot((1, 2))
            state = (1, 2)
        await work("x")
        return [*state, type(state).__name__]

    run: MemoryRun[object] = WholeRun(agent_of(typed), "g")
    run.attempt(crash_at="in_body")
    assert run.attempt().value == [1, 2, "tuple"]


def test_what_was_given_back_is_a_copy() -> None:
    async def mutating() -> object:
        state = everstep.restored() or {"n": [0]}
        state["n"].append(1)
        everstep.snapshot({"n": [5]})
        again = everstep.restored()
        again["n"].append(2)
        return everstep.restored()

    assert WholeRun(agent_of(mutating), "g").attempt().value == {"n": [5]}


# --- people ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["async", "segments"])
def test_c40_a_cancel_survives_at_every_point(name: str) -> None:
    """It arrives at each moment in turn, with a loss right after it: the run is cancelled all the same."""
    make = AGENTS[name][0]
    moment = 0
    while True:
        moment += 1
        run = make()
        count = 0

        def tell(_point: str, run: MemoryRun[Any] = run, at: int = moment) -> None:
            nonlocal count
            count += 1
            if count == at:
                run.cancel(by="jane")

        ended = run.attempt(crash_at=f"any:{moment + 2}", on_point=tell, inbox_poll_s=0.01)
        if "before_finished" in run.reached[:moment] or ended.kind == "succeeded":
            break  # too late
        while ended.kind in ("crashed", "parked"):
            ended = run.attempt(inbox_poll_s=0.01)
        assert ended.kind == "cancelled", f"{moment}: {ended}"
        cancels = [r for r in run.records if r.kind == "cancel"]
        assert len(cancels) == 1, moment
    assert moment > 30


@everstep.step(effect="at_most_once")
async def mail(to: str) -> str:
    return to


@everstep.agent
async def mailing(goal: str, number: int = 0) -> int:
    """Each segment asks a person about its mail when it was lost in flight."""
    if everstep.restored() is None:
        await mail(f"m{number}")
        everstep.snapshot(number)
    await work("between")
    if number == 2:
        return number
    return everstep.continue_as_new(number=number + 1)


def test_c40_answers_survive_and_count_once() -> None:
    for _, run, first in for_every_crash(lambda: WholeRun(mailing, "g")):
        ended = first
        while ended.kind == "parked":
            asked = ended.waits[0]
            run.settle(asked.key, "again")
            ended = run.attempt(crash_at="after_append:2")
            ended = run.attempt() if ended.kind == "crashed" else ended
        assert (ended.kind, ended.value) == ("succeeded", 2), ended
        applied = [i for r in run.records if (i := getattr(r, "inbox", ""))]
        assert len(applied) == len(set(applied))
        last = next(r for r in reversed(run.records) if isinstance(r, Snapshot | Segment))
        assert set(applied) <= set(last.applied or []) | {
            r.inbox for r in run.records if r.seq > last.seq and r.kind == "settled"
        }


# --- limits ------------------------------------------------------------------------------------------------------


async def endless() -> None:
    while True:
        await work("x")


def test_the_bound_on_steps_warns_first_and_names_the_cure(caplog: pytest.LogCaptureFixture) -> None:
    run: MemoryRun[Any] = WholeRun(agent_of(endless), "g")
    ended = run.attempt(max_steps=50)
    assert isinstance(ended.error, TooManySteps)
    assert "50 step calls since it began" in str(ended.error)
    assert "everstep.snapshot(state)" in str(ended.error)
    warned = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(warned) == 1
    assert "40 of at most 50 step calls" in warned[0]


def test_the_bound_counts_from_the_newest_snapshot() -> None:
    assert WholeRun(looping, "g").attempt(max_steps=3).value == 5 + 4 * ROUNDS
    assert WholeRun(chained_sync, "g", real_time=True).attempt(max_steps=1).value == ROUNDS


def test_the_bound_on_bytes(caplog: pytest.LogCaptureFixture) -> None:
    run: MemoryRun[Any] = WholeRun(agent_of(endless), "g")
    ended = run.attempt(max_journal_bytes=20_000)
    assert isinstance(ended.error, TooManySteps)
    assert "the bound is 20000" in str(ended.error)
    assert "of journal since it began" in caplog.text
    again = run.copy()
    assert again.records[-1].kind == "finished"
    assert WholeRun(looping, "g").attempt(max_journal_bytes=4000).kind == "succeeded"
