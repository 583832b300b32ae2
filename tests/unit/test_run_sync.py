"""Sync agents: one thread, plain calls; the same journal, the same promises."""

import asyncio
import sqlite3
import threading
import time
from typing import Any

import pytest

import everstep
from everstep import Retry, StepFailed
from everstep.errors import Cancelled, Diverged, Terminated
from everstep.testing import MemoryRun, for_every_crash

effects: list[str] = []
threads: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    effects.clear()
    threads.clear()


@everstep.step(effect="idempotent")
def act(what: str) -> str:
    effects.append(what)
    threads.append(threading.current_thread().name)
    return what


@everstep.step(effect="idempotent")
async def act_async(what: str) -> str:
    await asyncio.sleep(0.5)
    effects.append(what)
    return what


@everstep.step(effect="read", timeout=0.2)
def slow(seconds: float) -> str:
    time.sleep(seconds)
    return "slept"


@everstep.step(effect="read", retry=Retry(max_tries=3, backoff_s=0.1))
def flaky() -> int:
    effects.append("try")
    if len(effects) < 3:
        raise ConnectionError("again")
    return len(effects)


@everstep.step(effect="at_most_once")
def once(what: str) -> str:
    effects.append(what)
    return what


@everstep.agent
def plain(goal: str, n: int = 3) -> list[str]:
    seen = [act(f"a{i}") for i in range(n)]
    seen.append(act_async.sync("b"))
    everstep.sleep(5)
    seen.append(everstep.now().isoformat()[:10])
    seen.append(f"{everstep.random():.1f}"[:2])
    everstep.sleep_until(everstep.now())
    return seen


def test_a_sync_agent_survives_a_crash_at_every_moment() -> None:
    whole: MemoryRun[list[str]] = MemoryRun(plain, "go")
    result = whole.run()
    assert result == ["a0", "a1", "a2", "b", "2026-01-01", "0."]
    assert whole.replay() == result
    for at, run, ended in for_every_crash(lambda: MemoryRun[list[str]](plain, "go"), every=3):
        assert (ended.kind, ended.value) == ("succeeded", result), at
        assert max(run.bodies.values()) <= 2, at


def test_sync_bodies_run_on_the_agents_own_thread() -> None:
    @everstep.agent
    def minds_its_thread(goal: str) -> int:
        db = sqlite3.connect(":memory:")  # refuses other threads
        box.append(db)
        return query(1) + query(2)

    box: list[sqlite3.Connection] = []

    @everstep.step(effect="read")
    def query(n: int) -> int:
        return int(box[-1].execute("select ?", (n,)).fetchone()[0])

    assert MemoryRun[int](minds_its_thread, "go").run() == 3


def test_a_sync_step_with_a_time_out_fails_in_time() -> None:
    @everstep.agent
    def hurried(goal: str) -> str:
        try:
            return slow(2)
        except StepFailed as e:
            return e.type

    assert MemoryRun[str](hurried, "go", real_time=True).run() == "TimeoutError"


def test_tries_of_sync_steps() -> None:
    @everstep.agent
    def tries(goal: str) -> int:
        return flaky()

    run: MemoryRun[int] = MemoryRun(tries, "go")
    assert run.run() == 3
    assert run.replay() == 3


def test_c16_an_uncertain_sync_step_asks() -> None:
    @everstep.agent
    def mail(goal: str) -> str:
        return once("mail")

    run: MemoryRun[str] = MemoryRun(mail, "go")
    run.attempt(crash_at="after_effect")
    assert run.attempt().kind == "parked"
    run.settle("0", "done", "by hand")
    assert run.run() == "by hand"
    assert effects == ["mail"]


def test_a_long_sleep_parks_and_resumes() -> None:
    @everstep.agent
    def patient(goal: str) -> str:
        act("before")
        everstep.sleep(3600)
        return act("after")

    run: MemoryRun[str] = MemoryRun(patient, "go")
    assert run.attempt().kind == "parked"
    assert run.run() == "after"
    assert effects == ["before", "after"]


def test_divergence_of_a_sync_agent() -> None:
    box = ["x"]

    @everstep.agent
    def fickle(goal: str) -> str:
        return act(box[0]) + act("y")

    run: MemoryRun[str] = MemoryRun(fickle, "go")
    run.attempt(crash_at="before_finished")
    box[0] = "z"
    assert isinstance(run.attempt().error, Diverged)


@pytest.mark.parametrize("where", ["step", "sleep", "async step"])
def test_c53_a_cancel_reaches_a_sync_agent_where_it_waits(where: str) -> None:
    seen: list[str] = []

    @everstep.agent
    def works(goal: str) -> str:
        try:
            if where == "step":
                for i in range(100):
                    act(f"{i}")
                    act_async.sync(f"{i}")
            elif where == "sleep":
                everstep.sleep(20)
            else:
                long_async.sync()
        except Exception:
            seen.append("swallowed")
        finally:
            seen.append(act("clean"))
        return "done"

    @everstep.step(effect="read")
    async def long_async() -> None:
        await asyncio.sleep(1000)

    run: MemoryRun[str] = MemoryRun(works, "go")
    run.cancel()
    ended = run.attempt()
    assert ended.kind == "cancelled"
    assert isinstance(ended.error, Cancelled)
    assert seen == ["clean"]
    assert run.attempt().kind == "cancelled"


def test_sigterm_in_a_sync_agent() -> None:
    run: MemoryRun[list[str]] = MemoryRun(plain, "go")
    ended = run.attempt(on_point=lambda p: run.terminate() if p == "after_result" and len(effects) == 2 else None)
    assert isinstance(ended.error, Terminated)
    assert run.run()[:3] == ["a0", "a1", "a2"]
    assert effects == ["a0", "a1", "a2", "b"]


def test_sync_steps_of_an_async_agent_run_side_by_side_in_threads() -> None:
    gate = threading.Barrier(3, timeout=20)

    @everstep.step(effect="read")
    def meet(n: int) -> int:
        gate.wait()
        return n

    @everstep.agent
    async def together(goal: str) -> list[int]:
        return await asyncio.gather(*(meet.aio(i) for i in range(3)))

    run: MemoryRun[list[int]] = MemoryRun(together, "go")
    assert run.run() == [0, 1, 2]
    assert run.replay() == [0, 1, 2]


def test_more_sync_steps_than_threads_wait_their_turn() -> None:
    @everstep.step(effect="read")
    def short(n: int) -> int:
        return n

    @everstep.agent
    async def many(goal: str) -> int:
        return sum(await asyncio.gather(*(short.aio(i) for i in range(20))))

    run: MemoryRun[Any] = MemoryRun(many, "go")
    assert run.attempt(max_threads=3).value == 190


def test_c1_a_second_thread_cannot_make_the_agents_calls() -> None:
    """A thread begun in a body has no scope of the agent, so it allocates no keys."""
    caught: list[BaseException] = []

    @everstep.step(effect="read")
    def begins_a_thread() -> None:
        def other() -> None:
            try:
                act("sneaky")
            except everstep.NotInRun as e:
                caught.append(e)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    @everstep.agent
    def run(goal: str) -> None:
        begins_a_thread()

    MemoryRun[None](run, "go").run()
    assert len(caught) == 1


def test_sigterm_while_a_step_waits_for_a_thread_leaves_it_unbegun() -> None:
    """More at_most_once steps than threads: those that wait have not begun, and nobody is asked about them."""
    gate = threading.Event()

    @everstep.step(effect="at_most_once")
    def holds(n: int) -> int:
        effects.append(f"{n}")
        gate.wait(10)
        return n

    @everstep.agent
    async def many(goal: str) -> int:
        return sum(await asyncio.gather(*(holds.aio(i) for i in range(4))))

    def stop_at_the_first(point: str) -> None:
        if point == "in_body" and not effects:
            run.terminate()
            asyncio.get_running_loop().call_later(0.2, gate.set)

    run: MemoryRun[int] = MemoryRun(many, "go", real_time=True)
    ended = run.attempt(max_threads=1, on_point=stop_at_the_first, grace_s=5)
    assert isinstance(ended.error, Terminated)
    assert len(effects) == 1
    assert run.run() == 6
    assert len(effects) == 4


@pytest.mark.parametrize("debug", ["", "1"])
def test_blobs_are_replayed_in_asyncios_debug_mode_too(debug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are loaded by the loop's thread, whoever asks for them."""
    monkeypatch.setenv("PYTHONASYNCIODEBUG", debug)

    @everstep.step(effect="read")
    async def large(n: int) -> str:
        return str(n) * 200_000

    @everstep.agent
    def work(goal: str) -> int:
        return sum(len(large.sync(n)) for n in range(3)) + len(act("end"))

    run = MemoryRun(work)
    assert run.attempt(crash_at="before_intent:4").kind == "crashed"
    assert run.run() == 600_003
