"""Tries, time-outs and losses inside a step: what counts, what is recorded, and for how long one waits."""

import asyncio
import contextlib

import pytest

import everstep
from everstep import Retry, StepFailed
from everstep.ids import Attempt
from everstep.journal.records import Failure, Intent, Result, TryFailed
from everstep.testing import MemoryRun

calls: list[str] = []


@pytest.fixture(autouse=True)
def _no_calls_yet() -> None:
    calls.clear()


@everstep.step(effect="idempotent", retry=Retry(max_tries=4, backoff_s=1, factor=2, backoff_max_s=3, jitter=0))
async def flaky(fails: int) -> int:
    calls.append(everstep.idempotency_key())
    if len(calls) <= fails:
        raise ConnectionError("x" * 5000)
    return len(calls)


@everstep.agent
async def tries(goal: str, fails: int) -> str:
    began = asyncio.get_running_loop().time()
    try:
        value = str(await flaky(fails))
    except StepFailed as e:
        value = e.type
    return f"{value} after {asyncio.get_running_loop().time() - began:.0f} s"


def test_tries_follow_each_other_with_growing_waits_and_one_key() -> None:
    run: MemoryRun[str] = MemoryRun(tries, "go", {"fails": 3})
    assert run.run() == "4 after 6 s"  # 1 + 2 + 3
    assert len(set(calls)) == 1
    assert [r.tries for r in run.records if isinstance(r, Intent)] == [1, 2, 3, 4]
    assert run.replay() == "4 after 6 s"


def test_after_the_last_try_the_step_failed() -> None:
    assert MemoryRun[str](tries, "go", {"fails": 9}).run() == "ConnectionError after 6 s"
    assert len(calls) == 4


def test_c57_a_failed_try_is_bounded_in_the_journal() -> None:
    run: MemoryRun[str] = MemoryRun(tries, "go", {"fails": 3})
    run.run()
    assert all(len(r.message.encode()) <= 1024 for r in run.records if isinstance(r, TryFailed))


def test_c17_a_crash_inside_a_body_is_a_resume_and_uses_up_no_try() -> None:
    run: MemoryRun[str] = MemoryRun(tries, "go", {"fails": 0})
    for _ in range(6):  # more losses than tries
        assert run.attempt(crash_at="in_body").kind == "crashed"
    assert run.attempt().kind == "succeeded"


def test_a_crash_while_waiting_for_the_next_try_goes_on_with_it() -> None:
    run: MemoryRun[str] = MemoryRun(tries, "go", {"fails": 2})
    assert run.attempt(crash_at="before_retry:2").kind == "crashed"
    assert run.attempt().kind == "succeeded"
    assert len(calls) == 3


def test_only_the_named_exceptions_are_tried_again() -> None:
    @everstep.step(effect="read", retry=Retry(max_tries=5, retry_on=(OSError,)))
    async def picky() -> None:
        calls.append("x")
        raise KeyError("no")

    @everstep.agent
    async def run(goal: str) -> str:
        try:
            await picky()
        except StepFailed as e:
            return e.type
        return "?"

    assert MemoryRun[str](run, "go").run() == "KeyError"
    assert len(calls) == 1


@everstep.step(effect="read", timeout=1, retry=Retry(max_tries=2, backoff_s=0))
async def slow(seconds: float) -> str:
    calls.append("slow")
    try:
        await asyncio.sleep(seconds)
    finally:
        calls.append("tidied")
    return "done"


@everstep.agent
async def hurried(goal: str, seconds: float) -> str:
    try:
        return await slow(seconds)
    except StepFailed as e:
        return f"{e.type}: {e.message}"


def test_a_time_out_is_per_try_and_the_body_may_tidy_up() -> None:
    assert MemoryRun[str](hurried, "go", {"seconds": 5}).run() == "TimeoutError: no result within 1 s"
    assert calls == ["slow", "tidied"] * 2


def test_in_time_is_in_time() -> None:
    assert MemoryRun[str](hurried, "go", {"seconds": 0.5}).run() == "done"


def test_a_body_that_ignores_its_cancellation_is_left_behind_after_a_bound() -> None:
    @everstep.step(effect="read", timeout=1)
    async def stubborn() -> None:
        for _ in range(100):
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                calls.append("no")

    @everstep.agent
    async def run(goal: str) -> str:
        try:
            await stubborn()
        except StepFailed as e:
            return e.type
        return "?"

    there: MemoryRun[str] = MemoryRun(run, "go")
    assert there.attempt(body_cancel_s=5).value == "TimeoutError"
    assert there.clock.monotonic_s() < 10


def test_a_body_that_returns_in_spite_of_its_time_out_has_a_result() -> None:
    @everstep.step(effect="at_most_once", timeout=1)
    async def just_in_time() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(10)
        return "done all the same"

    @everstep.agent
    async def run(goal: str) -> str:
        return await just_in_time()

    assert MemoryRun[str](run, "go").run() == "done all the same"


@everstep.step(effect="read")
async def exits(how: str) -> None:
    if how == "exit":
        raise SystemExit(3)
    if how == "cancel":
        raise asyncio.CancelledError
    raise everstep.errors.Fenced("borrowed", Attempt(9))


@pytest.mark.parametrize(
    ("how", "type_"), [("exit", "SystemExit"), ("cancel", "CancelledError"), ("stop", "RuntimeError")]
)
def test_c37_a_body_cannot_end_the_process_or_borrow_a_signal(how: str, type_: str) -> None:
    @everstep.agent
    async def run(goal: str) -> str:
        try:
            await exits(how)
        except StepFailed as e:
            return e.type
        return "?"

    assert MemoryRun[str](run, "go").run() == type_


def test_c14_usage_is_recorded_with_the_result_and_counts_once_over_crashes() -> None:
    @everstep.step(effect="read")
    async def think(n: int) -> int:
        everstep.report_usage(input_tokens=100, output_tokens=n)
        everstep.report_usage(cost_micro_usd=7)
        return n

    @everstep.agent
    async def run(goal: str) -> int:
        return sum([await think(n) for n in range(3)])

    there: MemoryRun[int] = MemoryRun(run, "go")
    for point in ("after_effect:1", "after_result:2", "in_replay:2", "after_append:2"):
        there.attempt(crash_at=point)
    there.run()
    used = [r.usage for r in there.records if isinstance(r, Result)]
    assert used[2] == {"inputTokens": 100, "outputTokens": 2, "costMicroUSD": 7}
    told = there.store.journals_by_id[there.journal_id].progress
    assert told is not None
    assert b'"inputTokens":300' in told
    assert b'"costMicroUSD":21' in told


@pytest.mark.parametrize("amount", [-1, 1.5, True, "3"])
def test_usage_is_whole_and_not_negative(amount: object) -> None:
    @everstep.step(effect="read")
    async def think() -> None:
        everstep.report_usage(input_tokens=amount)  # type: ignore[arg-type]  # wrong on purpose

    @everstep.agent
    async def run(goal: str) -> None:
        await think()

    ended = MemoryRun[None](run, "go").attempt()
    assert "whole number" in ended.message


def test_c46_odd_exceptions_come_back_alike() -> None:
    class Odd(Exception):
        def __init__(self, a: int, b: int, *, c: str) -> None:
            super().__init__(a, b, c)
            self.data = {"code": a, "why": [c]}

        def __str__(self) -> str:
            return f"odd {self.args}"

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("cannot be shown")

    @everstep.step(effect="read")
    async def breaks(how: str) -> None:
        if how == "odd":
            raise Odd(1, 2, c="x")
        if how == "mute":
            raise Mute
        if how == "unjournaled":
            error = ValueError("with data")
            error.data = object()  # type: ignore[attr-defined]  # data that cannot be journaled
            raise error
        raise ExceptionGroup("several", [ValueError("a")])

    @everstep.agent
    async def run(goal: str) -> list[object]:
        seen: list[object] = []
        for how in ("odd", "mute", "unjournaled", "group"):
            try:
                await breaks(how)
            except StepFailed as e:
                seen.append([e.type, e.message, e.data, e.step, e.key])
        return seen

    there: MemoryRun[list[object]] = MemoryRun(run, "go")
    first = there.run()
    assert first == there.replay()
    assert first[0] == ["Odd", "odd (1, 2, 'x')", {"code": 1, "why": ["x"]}, "breaks", "0"]
    assert first[1] == ["Mute", "(its message cannot be shown: RuntimeError)", None, "breaks", "1"]
    assert first[2] == ["ValueError", "with data", None, "breaks", "2"]
    assert first[3][0] == "ExceptionGroup"  # type: ignore[index]  # a list, see above
    assert len([r for r in there.records if isinstance(r, Failure)]) == 4


def test_too_many_steps_is_an_error_before_anything_is_written() -> None:
    @everstep.step(effect="read")
    async def tick() -> None: ...

    @everstep.agent
    async def run(goal: str) -> str:
        while True:
            try:
                await tick()
            except everstep.TooManySteps as e:
                return str(e)

    there: MemoryRun[str] = MemoryRun(run, "go")
    ended = there.attempt(max_steps=5)
    assert "5 step calls" in str(ended.value)
    assert there.kinds().count("run_started") + sum(k.startswith("intent") for k in there.kinds()) == 6
