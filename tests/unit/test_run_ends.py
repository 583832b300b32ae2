"""How attempts end: parked, cancelled, terminated, finished; and what agent code sees of it, which is mostly nothing."""

import asyncio
from typing import Any

import pytest

import everstep
from everstep.errors import JournalUnavailable, Terminated
from everstep.journal.records import Finished, Park
from everstep.testing import MemoryRun, for_every_crash

unwound: list[str] = []
effects: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    unwound.clear()
    effects.clear()


@everstep.step(effect="idempotent")
async def act(what: str, seconds: float = 0.0) -> str:
    effects.append(what)
    await asyncio.sleep(seconds)
    return what


@everstep.step(effect="at_most_once")
async def once(what: str) -> str:
    effects.append(what)
    return what


# --- parking -----------------------------------------------------------------------------------------------------------


@everstep.agent
async def patient(goal: str) -> str:
    try:
        async with asyncio.TaskGroup() as group:
            long = group.create_task(asyncio.sleep(3600, "slept"))
            async with asyncio.timeout(7200):
                await asyncio.sleep(3000)
                await act("between")
        return long.result()
    finally:
        unwound.append("finally")


def test_c54_c37_parking_in_a_task_group_and_under_a_timeout_unwinds_nothing() -> None:
    run: MemoryRun[str] = MemoryRun(patient, "go")
    ended = run.attempt()
    assert ended.kind == "parked"
    assert unwound == []
    assert [(w.kind, w.key) for w in ended.waits] == [("timer", "~0"), ("timer", "~1"), ("timer", "t0/~0")]
    assert ended.wake_epoch_ms == run.clock.now_epoch_ms() + 3_000_000
    run.sleep(3000)
    assert run.attempt().kind == "parked"
    assert effects == ["between"]
    run.sleep(600)
    assert run.attempt().value == "slept"
    assert unwound == ["finally"]
    run.replay()


@everstep.agent
async def swallows_everything(goal: str) -> str:
    try:
        await once("mail")
    except BaseException:
        unwound.append("swallowed")
        return "swallowed"
    return "sent"


def test_c37_a_broad_except_cannot_swallow_a_park() -> None:
    run: MemoryRun[str] = MemoryRun(swallows_everything, "go")
    run.attempt(crash_at="after_effect")
    assert run.attempt().kind == "parked"
    assert unwound == []
    run.settle("0", "done", "sent")
    assert run.run() == "sent"


def test_a_short_timer_is_waited_for_in_the_process() -> None:
    @everstep.agent
    async def naps(goal: str) -> str:
        await asyncio.sleep(29)
        return "rested"

    run: MemoryRun[str] = MemoryRun(naps, "go")
    assert run.attempt().value == "rested"
    assert not [r for r in run.records if isinstance(r, Park)]


def test_a_run_does_not_park_while_a_body_runs() -> None:
    @everstep.agent
    async def busy(goal: str) -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(3600))
            work = group.create_task(act("work", 600))
        return work.result()

    run: MemoryRun[str] = MemoryRun(busy, "go")
    ended = run.attempt()
    assert ended.kind == "parked"
    assert run.clock.monotonic_s() >= 600
    assert run.kinds()[-2:] == ["result t1/0", "park"]


def test_a_timer_that_fell_due_meanwhile_fires_at_once() -> None:
    @everstep.agent
    async def sleeps(goal: str) -> float:
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(100)
        return asyncio.get_running_loop().time() - began

    run: MemoryRun[float] = MemoryRun(sleeps, "go")
    run.attempt()
    run.sleep(5000)
    before = run.clock.monotonic_s()
    assert run.attempt().value == pytest.approx(5000, abs=1)
    assert run.clock.monotonic_s() - before < 1


# --- cancel ------------------------------------------------------------------------------------------------------------


@everstep.agent
async def cleans_up(goal: str) -> str:
    try:
        await act("begin")
        await asyncio.sleep(20)
        await act("never")
    finally:
        await act("clean")
    return "done"


def test_c53_a_cancel_is_recorded_then_unwinds_and_clean_up_steps_run() -> None:
    run: MemoryRun[str] = MemoryRun(cleans_up, "go")
    run.cancel(by="jane", reason="wrong backlog")
    ended = run.attempt()
    assert ended.kind == "cancelled"
    assert effects[-1] == "clean"
    assert "never" not in effects
    finished = run.records[-1]
    assert isinstance(finished, Finished)
    assert finished.outcome == "cancelled"
    assert run.attempt().kind == "cancelled"


def test_c53_a_cancel_while_the_run_sleeps_is_seen_within_a_poll() -> None:
    run: MemoryRun[str] = MemoryRun(cleans_up, "go")

    def later(point: str) -> None:
        if point == "after_result":
            asyncio.get_running_loop().call_later(5, run.cancel)

    ended = run.attempt(on_point=later)
    assert ended.kind == "cancelled"
    assert effects == ["begin", "clean"]
    assert run.clock.monotonic_s() < 8


def test_c53_a_cancel_at_every_moment_and_a_crash_in_the_clean_up() -> None:
    def make() -> MemoryRun[str]:
        effects.clear()
        run: MemoryRun[str] = MemoryRun(cleans_up, "go")
        run.cancel()
        return run

    for at, run, ended in for_every_crash(make):
        assert ended.kind == "cancelled", at
        assert run.kinds().count("cancel") == 1, at
        assert effects.count("clean") in (1, 2), at


def test_c53_a_clean_up_that_hangs_is_bounded() -> None:
    @everstep.agent
    async def hangs(goal: str) -> None:
        try:
            await asyncio.sleep(10)
        finally:
            await asyncio.sleep(1e6)

    run: MemoryRun[None] = MemoryRun(hangs, "go", park_linger_s=1e9)
    run.cancel()
    ended = run.attempt(cancel_grace_s=30)
    assert ended.kind == "cancelled"
    assert "did not end within 30 s" in ended.message
    assert run.clock.monotonic_s() < 45


def test_a_cancel_in_a_step_in_flight_cancels_its_body() -> None:
    @everstep.agent
    async def works(goal: str) -> str:
        return await act("long", 100)

    run: MemoryRun[str] = MemoryRun(works, "go")
    run.cancel()
    assert run.attempt().kind == "cancelled"
    assert run.kinds() == ["run_started", "intent 0", "cancel", "abandoned 0", "finished"]


def test_a_cancelled_run_does_not_wait_for_an_answer() -> None:
    run: MemoryRun[str] = MemoryRun(swallows_everything, "go")
    run.attempt(crash_at="after_effect")
    run.attempt()
    run.cancel()
    assert run.attempt().kind == "cancelled"
    assert effects == ["mail"]


# --- SIGTERM -----------------------------------------------------------------------------------------------------------


@everstep.agent
async def two_steps(goal: str) -> list[str]:
    try:
        return [await act("one", 3), await act("two", 3)]
    finally:
        unwound.append("finally")


def test_sigterm_lets_the_body_in_flight_finish_and_begins_no_other() -> None:
    run: MemoryRun[list[str]] = MemoryRun(two_steps, "go")

    def soon(point: str) -> None:
        if point == "in_body":
            asyncio.get_running_loop().call_later(1, run.terminate)

    ended = run.attempt(on_point=soon, grace_s=10)
    assert isinstance(ended.error, Terminated)
    assert run.kinds() == ["run_started", "intent 0", "result 0"]
    assert effects == ["one"]
    assert unwound == []
    assert run.run() == ["one", "two"]
    assert effects == ["one", "two"]


def test_sigterm_does_not_wait_longer_than_the_grace_time() -> None:
    run: MemoryRun[list[str]] = MemoryRun(two_steps, "go")
    ended = run.attempt(on_point=lambda p: run.terminate() if p == "in_body" else None, grace_s=1)
    assert isinstance(ended.error, Terminated)
    assert run.kinds() == ["run_started", "intent 0"]
    assert run.clock.monotonic_s() < 2


def test_sigterm_at_every_moment_loses_nothing() -> None:
    moment = 1
    while True:
        effects.clear()
        run: MemoryRun[list[str]] = MemoryRun(two_steps, "go")
        seen = 0

        def at_moment(_point: str, run: MemoryRun[list[str]] = run, moment: int = moment) -> None:
            nonlocal seen
            seen += 1
            if seen == moment:
                run.terminate()

        ended = run.attempt(on_point=at_moment)
        if ended.kind == "succeeded" and seen < moment:
            return
        assert run.run() == ["one", "two"], moment
        assert effects == ["one", "two"], moment
        moment += 1


# --- finished ----------------------------------------------------------------------------------------------------------


def test_a_finished_run_is_not_run_again() -> None:
    run: MemoryRun[list[str]] = MemoryRun(two_steps, "go")
    assert run.run() == ["one", "two"]
    unwound.clear()
    assert run.attempt().value == ["one", "two"]
    assert unwound == []


def test_a_failed_agent_is_a_finished_run_with_its_error() -> None:
    @everstep.agent
    async def breaks(goal: str) -> None:
        await act("one")
        raise KeyError("missing")

    run: MemoryRun[None] = MemoryRun(breaks, "go")
    ended = run.attempt()
    assert ended.kind == "failed"
    assert isinstance(ended.error, KeyError)
    again = run.attempt()
    assert (again.kind, again.message) == ("failed", "'missing'")
    run.replay()


def test_an_agent_that_exits_has_failed() -> None:
    @everstep.agent
    async def leaves(goal: str) -> None:
        await act("one")
        raise SystemExit(5)

    ended = MemoryRun[None](leaves, "go").attempt()
    assert (ended.kind, ended.message) == ("failed", "5")


def test_a_result_that_cannot_be_journaled_is_a_failure_that_says_so() -> None:
    @everstep.agent
    async def returns_a_lock(goal: str) -> Any:
        return asyncio.Lock()

    ended = MemoryRun[Any](returns_a_lock, "go").attempt()
    assert ended.kind == "failed"
    assert "agent returns_a_lock: result: Lock is not JSON" in ended.message


def test_an_agent_whose_end_changed_is_told_by_replay() -> None:
    box = [1]

    @everstep.agent
    async def fickle(goal: str) -> int:
        await act("x")
        return box[0]

    run: MemoryRun[int] = MemoryRun(fickle, "go")
    run.run()
    box[0] = 2
    with pytest.raises(everstep.Diverged, match="ended in another way"):
        run.replay()


# --- a store that is away ----------------------------------------------------------------------------------------------


def away_between(run: MemoryRun[Any], first_s: float, last_s: float) -> None:
    """The store answers nothing between two moments of virtual time."""
    append = run.store.append

    async def sometimes(*args: Any, **kwargs: Any) -> Any:
        if first_s <= run.clock.monotonic_s() < last_s:
            raise JournalUnavailable("no answer")
        return await append(*args, **kwargs)

    run.store.append = sometimes  # type: ignore[method-assign]  # the fault


def test_e26_while_the_store_is_away_no_effect_begins_and_nothing_is_lost() -> None:
    run: MemoryRun[list[str]] = MemoryRun(two_steps, "go")
    away_between(run, 1, 40)
    assert run.run() == ["one", "two"]
    assert effects == ["one", "two"]
    assert run.clock.monotonic_s() >= 43
    assert [r.kind for r in run.records] == ["run_started", "intent", "result", "intent", "result", "finished"]


def test_e28_a_store_that_stays_away_ends_the_attempt_in_bounded_time_and_another_goes_on() -> None:
    run: MemoryRun[list[str]] = MemoryRun(two_steps, "go")
    away_between(run, 1, 100)
    ended = run.attempt()
    assert isinstance(ended.error, JournalUnavailable)
    assert run.clock.monotonic_s() < 80
    assert unwound == []
    run.sleep(100)
    assert run.run() == ["one", "two"]
    assert effects == ["one", "one", "two"]  # the first result could not be written


def test_nothing_follows_the_last_record() -> None:
    """A cancel that arrives while `finished` is being written is too late, and is not written."""
    run: MemoryRun[list[str]] = MemoryRun(two_steps, "go")

    def late(point: str) -> None:
        if point == "before_finished":
            run.cancel()

    away_between(run, 6, 20)
    assert run.attempt(on_point=late).kind == "succeeded"
    assert run.kinds()[-1] == "finished"
    assert run.clock.monotonic_s() >= 20
