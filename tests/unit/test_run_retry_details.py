"""Retry in detail: predicates, limits per error, Retry-After, long waits without a process, and what exhausted tries do."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest

import everstep
from everstep import BadStep, NotDone, Retry, RetryAfter, StepFailed
from everstep.ids import EpochMs
from everstep.journal.records import Intent, Settled, TryFailed, Uncertain
from everstep.run.retry_after import asked_wait_s
from everstep.testing import MemoryRun, for_every_crash

calls: list[object] = []
script: list[BaseException | str] = []
"""What the step does, call by call; the last goes on for ever."""


@pytest.fixture(autouse=True)
def _fresh() -> None:
    calls.clear()
    script.clear()


def play() -> str:
    now = script[min(len(calls), len(script) - 1)]
    calls.append(now)
    if isinstance(now, BaseException):
        raise now
    return now


def run_with(retry: Retry, *scripted: BaseException | str, effect: str = "idempotent") -> MemoryRun[str]:
    script[:] = scripted

    @everstep.step(effect=effect, retry=retry, name="work")  # type: ignore[arg-type]  # one of the three
    async def work() -> str:
        return play()

    @everstep.agent
    async def run(goal: str) -> str:
        try:
            return await work()
        except StepFailed as e:
            return f"{e.type}: {e.message}"

    return MemoryRun(run, "go")


class Busy(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"status {code}")
        self.code = code


# --- predicate and limits per error ------------------------------------------------------------------------------


def test_the_predicate_decides_after_the_class() -> None:
    retry = Retry(max_tries=5, backoff_s=0, retry_on=(Busy,), retry_if=lambda e: isinstance(e, Busy) and e.code >= 500)
    assert run_with(retry, Busy(503), Busy(500), "ok").run() == "ok"
    calls.clear()
    assert run_with(retry, Busy(503), Busy(404), "ok").run() == "Busy: status 404"
    calls.clear()
    assert run_with(retry, KeyError("x"), "ok").run().startswith("KeyError")


def test_a_predicate_that_fails_does_not_hide_the_error(caplog: pytest.LogCaptureFixture) -> None:
    retry = Retry(max_tries=5, backoff_s=0, retry_if=lambda e: e.code > 1)  # type: ignore[attr-defined]  # wrong on purpose
    assert run_with(retry, KeyError("x"), "ok").run().startswith("KeyError")
    assert "retry_if of step work failed" in caplog.text


LIMITED = Retry(max_tries=6, backoff_s=1, jitter=0, max_tries_by={TimeoutError: 2, OSError: 3})


def test_limits_per_error_count_each_kind_apart() -> None:
    # TimeoutError is an OSError too; the first entry that fits counts it.
    run = run_with(LIMITED, OSError("a"), TimeoutError("b"), OSError("c"), TimeoutError("d"), "ok")
    assert run.run() == "TimeoutError: d"
    assert len(calls) == 4
    assert [r.limit for r in run.records if isinstance(r, TryFailed)] == ["OSError", "TimeoutError", "OSError"]
    run.replay()


def test_limits_per_error_hold_over_crashes() -> None:
    run = run_with(LIMITED, OSError("a"), TimeoutError("b"), OSError("c"), TimeoutError("d"), "ok")
    for nth in (3, 1, 2):
        assert run.attempt(crash_at=f"in_body:{nth}").kind == "crashed"
    assert run.run() == "TimeoutError: d"
    assert len(calls) == 4


# --- Retry-After --------------------------------------------------------------------------------------------------


@dataclass
class Response:
    headers: Mapping[str, str] = field(default_factory=dict)


class HttpError(Exception):
    def __init__(self, headers: Mapping[str, str]) -> None:
        super().__init__("429")
        self.response = Response(headers)


NOW = EpochMs(1_767_225_600_000)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "17"}, 17.0),
        ({"Retry-After": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after": format_datetime(datetime.fromtimestamp(NOW / 1000 + 90, UTC), usegmt=True)}, 90.0),
        ({"retry-after": format_datetime(datetime.fromtimestamp(NOW / 1000 - 90, UTC), usegmt=True)}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({}, None),
    ],
)
def test_what_headers_ask_for(headers: dict[str, str], seconds: float | None) -> None:
    assert asked_wait_s(HttpError(headers), NOW) == seconds
    outer = NotDone("busy")
    outer.__cause__ = HttpError(headers)
    assert asked_wait_s(outer, NOW) == seconds


def test_what_exceptions_ask_for() -> None:
    class Rude(Exception):
        @property
        def response(self) -> object:
            raise RuntimeError("no")

    assert asked_wait_s(RetryAfter(3), NOW) == 3
    assert asked_wait_s(Rude(), NOW) is None
    assert asked_wait_s(KeyError("x"), NOW) is None


def test_no_try_comes_before_the_time_the_other_side_named() -> None:
    run = run_with(Retry(backoff_s=1, jitter=0), HttpError({"retry-after": "20"}), RetryAfter(5), "ok")
    assert run.run() == "ok"
    assert run.clock.monotonic_s() == pytest.approx(25, abs=0.1)


def test_backoff_holds_where_it_is_longer_and_the_bound_where_it_is_shorter() -> None:
    run = run_with(
        Retry(backoff_s=30, factor=1, jitter=0, retry_after_max_s=25, max_tries=4, backoff_max_s=30),
        RetryAfter(2),
        "ok",
    )
    run.run()
    assert run.clock.monotonic_s() == pytest.approx(30, abs=0.1)
    calls.clear()
    capped = run_with(Retry(backoff_s=1, jitter=0, retry_after_max_s=25), RetryAfter(1e9), "ok")
    capped.run()
    assert capped.clock.monotonic_s() == pytest.approx(25, abs=0.1)


def test_a_long_wait_for_the_next_try_needs_no_process() -> None:
    run = run_with(Retry(backoff_s=1, jitter=0), RetryAfter(600), "ok")
    ended = run.attempt()
    assert ended.kind == "parked"
    assert [(w.kind, w.key, w.name) for w in ended.waits] == [("timer", "0", "work")]
    assert ended.waits[0].reason.startswith("try 1 failed: RetryAfter")
    run.sleep(300)
    assert run.attempt().kind == "parked", "woken too early, it waits on"
    assert len(calls) == 1
    assert run.run() == "ok"
    assert run.clock.monotonic_s() == pytest.approx(600, abs=31)
    run.replay()


def test_a_sync_agent_waits_for_the_next_try_without_a_process_too() -> None:
    script[:] = [RetryAfter(600), "ok"]

    @everstep.step(effect="read", retry=Retry())
    def work() -> str:
        return play()

    @everstep.agent
    def run(goal: str) -> str:
        return work()

    there: MemoryRun[str] = MemoryRun(run, "go")
    assert there.attempt().kind == "parked"
    there.sleep(600)
    assert there.run() == "ok"
    there.replay()


def test_a_wait_survives_a_crash() -> None:
    run = run_with(Retry(backoff_s=1, jitter=0), RetryAfter(20), "ok")
    assert run.attempt(crash_at="after_append:2").kind == "crashed"  # the failed try is written
    run.sleep(5)
    assert run.run() == "ok"
    assert run.clock.monotonic_s() == pytest.approx(20, abs=0.1)


def test_a_long_wait_that_the_agent_gives_up_is_abandoned() -> None:
    script[:] = [RetryAfter(600)]

    @everstep.step(effect="read", retry=Retry())
    async def work() -> str:
        return play()

    @everstep.agent
    async def run(goal: str) -> str:
        try:
            async with asyncio.timeout(100):
                return await work()
        except TimeoutError:
            return "gave up"

    there: MemoryRun[str] = MemoryRun(run, "go")
    assert there.run() == "gave up"
    assert there.kinds().count("abandoned 0") == 1
    there.replay()


# --- exhausted ----------------------------------------------------------------------------------------------------

ASKS = Retry(max_tries=2, backoff_s=1, jitter=0, on_exhausted="ask")


def exhausted(run: MemoryRun[str]) -> None:
    ended = run.attempt()
    assert [w.kind for w in ended.waits] == ["exhausted"], ended
    assert "all tries failed (max_tries is 2)" in ended.waits[0].reason


def test_exhausted_tries_park_for_a_person_who_lets_them_begin_anew() -> None:
    run = run_with(ASKS, *[ConnectionError(str(n)) for n in range(3)], "ok")
    exhausted(run)
    exhausted(run)
    run.settle("0", "again")
    assert run.run() == "ok"
    assert [r.tries for r in run.records if isinstance(r, Intent)] == [1, 2, 3, 4]
    assert run.replay() == "ok"


def test_again_gives_all_tries_anew_over_crashes_and_then_asks_again() -> None:
    run = run_with(ASKS, ConnectionError("no"))
    exhausted(run)
    run.settle("0", "again")
    assert run.attempt(crash_at="in_body:2").kind == "crashed"
    exhausted(run)
    assert len(calls) == 4
    assert run.kinds().count("uncertain 0") == 2
    run.settle("0", "done", "by hand")
    assert run.run() == "by hand"
    run.replay()


def test_fail_gives_the_agent_the_error_of_the_last_try() -> None:
    run = run_with(ASKS, ConnectionError("no route"))
    exhausted(run)
    run.settle("0", "fail", reason="it is gone")
    assert run.run() == "ConnectionError: no route (it is gone; tester)"
    assert run.replay() == "ConnectionError: no route (it is gone; tester)"
    settled = next(r for r in run.records if isinstance(r, Settled))
    assert (settled.type, settled.message, settled.inbox) == ("ConnectionError", "no route", "entry-1")


def test_an_error_that_is_not_worth_another_try_asks_nobody() -> None:
    run = run_with(Retry(max_tries=3, retry_on=(OSError,), on_exhausted="ask"), KeyError("x"))
    assert run.run().startswith("KeyError")


def test_at_most_once_that_is_surely_not_done_asks_when_its_tries_are_used_up() -> None:
    run = run_with(ASKS, NotDone("busy"), effect="at_most_once")
    exhausted(run)
    assert run.attempt().kind == "parked", "known to have failed, so nothing is probed"
    run.settle("0", "again")
    exhausted(run)
    assert len(calls) == 4


def test_out_of_total_time_asks_and_again_gives_the_time_anew() -> None:
    @everstep.step(
        effect="read", total_timeout=10, retry=Retry(max_tries=None, backoff_s=1, jitter=0, on_exhausted="ask")
    )
    async def work() -> str:
        calls.append("work")
        if len(calls) < 6:
            raise ConnectionError("no")
        return "ok"

    @everstep.agent
    async def run(goal: str) -> str:
        return await work()

    there: MemoryRun[str] = MemoryRun(run, "go")
    ended = there.attempt()
    assert "total_timeout of 10 s leaves no time" in ended.waits[0].reason
    assert len(calls) == 4
    there.sleep(3600)
    there.settle("0", "again")
    assert there.run() == "ok"
    there.replay()


def test_the_agent_may_stop_waiting_for_the_person() -> None:
    script[:] = [ConnectionError("no")]

    @everstep.step(effect="read", retry=Retry(max_tries=1, on_exhausted="ask"))
    async def work() -> str:
        return play()

    @everstep.agent
    async def run(goal: str) -> str:
        try:
            async with asyncio.timeout(3600):
                return await work()
        except TimeoutError:
            return "nobody answered"

    there: MemoryRun[str] = MemoryRun(run, "go")
    assert there.attempt().kind == "parked"
    assert there.run() == "nobody answered"
    assert there.kinds().count("abandoned 0") == 1
    assert there.replay() == "nobody answered"


def test_a_cancel_while_a_person_is_asked_unwinds_the_agent() -> None:
    run = run_with(ASKS, ConnectionError("no"))
    exhausted(run)
    run.cancel()
    assert run.attempt().kind == "cancelled"


@pytest.mark.parametrize("effect", ["read", "at_most_once"])
def test_every_crash_on_the_way_to_a_person_and_back(effect: str) -> None:
    error: BaseException = NotDone("no") if effect == "at_most_once" else ConnectionError("no")

    def make() -> MemoryRun[str]:
        calls.clear()
        return run_with(ASKS, error, error, "ok", effect=effect)

    moments = []
    for at, run, ended in for_every_crash(make):
        moments.append(at)
        for _ in range(3):
            if ended.kind != "parked":
                break
            run.settle("0", "again")
            ended = run.attempt()  # noqa: PLW2901 - the run goes on
        assert ended.value == "ok", at
        run.replay()
        asked = [r for r in run.records if isinstance(r, Uncertain)]
        assert 0 < len(asked) <= 2 or effect == "read"
    assert any("before_question" in at for at in moments)
    assert any("after_question" in at for at in moments)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"retry_if": 3}, "must be a function"),
        ({"max_tries_by": {TimeoutError: 0}}, "at least 1"),
        ({"max_tries_by": {"TimeoutError": 1}}, "exception classes"),
        ({"on_exhausted": "cry"}, '"fail" or "ask"'),
        ({"retry_after_max_s": -1}, "must not be negative"),
    ],
)
def test_wrong_retries_are_refused_at_import(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(BadStep, match=says):
        Retry(**wrong)  # type: ignore[arg-type]  # wrong on purpose
