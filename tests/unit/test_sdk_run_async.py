"""`await everstep.run_async(…)`: many runs in one loop, none of which notices the others."""

import asyncio
import contextlib
import contextvars
import gc
import subprocess
import sys
import threading
from asyncio import all_tasks  # the name as it was before a loop of ours was made
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep import AgentFailed, BadCall, ConfigError
from everstep.local.locks import RunBusy
from everstep.run.lane import Lane

effects: list[str] = []
USER = contextvars.ContextVar("user", default="nobody")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    effects.clear()


@everstep.step(effect="idempotent")
async def act(what: str) -> str:
    await asyncio.sleep(0.001)
    effects.append(what)
    return what.upper()


@everstep.agent
async def fans_out(goal: str, n: int = 5) -> list[str]:
    found = await asyncio.gather(*(act(f"{goal}{i}") for i in range(n)))
    async with asyncio.TaskGroup() as group:
        more = [group.create_task(act(f"{goal}+{i}")) for i in range(2)]
    await everstep.sleep(0.001)
    return found + [task.result() for task in more]


@everstep.agent
def sync_work(goal: str) -> str:
    return act.sync(goal)


def expected(goal: str, n: int = 5) -> list[str]:
    return [f"{goal.upper()}{i}" for i in range(n)] + [f"{goal.upper()}+{i}" for i in range(2)]


async def test_many_runs_at_once_use_one_thread_and_each_effect_happens_once() -> None:
    before = threading.active_count()
    goals = [f"g{i:02}-" for i in range(20)]
    assert await asyncio.gather(*(everstep.run_async(fans_out, goal=g, run_id=f"r{g[1:3]}") for g in goals)) == [
        expected(g) for g in goals
    ]
    assert threading.active_count() <= before + 1
    assert sorted(effects) == sorted(name.lower() for g in goals for name in expected(g))


async def test_what_ran_among_others_is_resumed_alone_and_the_other_way_round() -> None:
    """The journal does not tell how a run was hosted: each replays under the other."""
    await asyncio.gather(*(everstep.run_async(fans_out, goal=g, run_id=g) for g in ("a", "b", "c")))
    done = list(effects)
    assert await asyncio.to_thread(everstep.run, fans_out, goal="b", run_id="b") == expected("b")
    assert await everstep.run_async(fans_out, goal="b", run_id="b") == expected("b")
    assert effects == done


async def test_sync_agents_and_failures_beside_others() -> None:
    @everstep.agent
    async def breaks(goal: str) -> None:
        await act("x")
        raise KeyError("missing")

    results = await asyncio.gather(
        everstep.run_async(sync_work, goal="s"),
        everstep.run_async(breaks),
        everstep.run_async(fans_out, goal="a"),
        return_exceptions=True,
    )
    assert results[0] == "S"
    assert isinstance(results[1], AgentFailed)
    assert isinstance(results[1].__cause__, KeyError)
    assert results[2] == expected("a")


async def test_an_agent_that_cancels_all_tasks_means_its_own() -> None:
    seen: list[int] = []

    @everstep.agent
    async def cancels(goal: str) -> str:
        mine = [asyncio.create_task(act(f"{goal}{i}")) for i in range(3)]
        await asyncio.sleep(0)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        seen.append(len(others))
        for task in others:
            task.cancel()
        await asyncio.wait(mine)
        return "cancelled"

    @everstep.agent
    async def goes_on(goal: str) -> str:
        return "".join([await act(f"{goal}{i}") for i in range(20)])

    first, *rest = await asyncio.gather(
        everstep.run_async(goes_on, goal="a"), *(everstep.run_async(cancels, goal=f"c{n}") for n in range(4))
    )
    assert first == "".join(f"A{i}" for i in range(20))
    assert rest == ["cancelled"] * 4
    assert seen == [3] * 4


async def one_disturbs_another(disturb: Callable[[asyncio.Event, "asyncio.Task[None]"], Any]) -> list[object]:
    """What came of an agent that waits for an event, and of one that does something to its event or task."""
    shared: list[Any] = []
    waits = threading.Event()

    @everstep.step(effect="read")
    async def until_it_waits() -> None:
        await asyncio.to_thread(waits.wait, 20)

    @everstep.agent
    async def waits_for_an_event(goal: str) -> str:
        shared.extend([asyncio.Event(), asyncio.create_task(asyncio.sleep(1))])
        waits.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(shared[0].wait(), 0.5)
        return "timed out"

    @everstep.agent
    async def disturbs(goal: str) -> str:
        await until_it_waits()
        if (wait := disturb(*shared)) is not None:
            await wait
        return "done"

    return await asyncio.gather(
        everstep.run_async(waits_for_an_event), everstep.run_async(disturbs), return_exceptions=True
    )


async def test_an_agent_cannot_wake_another() -> None:
    """What one agent learns of another is not in its journal."""
    first, second = await one_disturbs_another(lambda event, _task: event.set())
    assert second == "done"
    assert "woke agent code" in str(first)


async def test_an_agent_cannot_wait_for_another() -> None:
    first, second = await one_disturbs_another(lambda _event, task: task)
    assert first == "timed out"
    assert "waits for something that no step, timer or answer will ever bring" in str(second)


async def test_a_cancelled_caller_stops_the_run_in_good_order_and_it_resumes() -> None:
    begun, go_on = asyncio.Event(), threading.Event()
    here = asyncio.get_running_loop()

    @everstep.step(effect="idempotent")
    async def slow() -> str:
        here.call_soon_threadsafe(begun.set)
        await asyncio.to_thread(go_on.wait, 20)
        effects.append("slow")
        return "ok"

    @everstep.agent
    async def work(goal: str) -> list[str]:
        return [await slow(), await act("after")]

    running = asyncio.create_task(everstep.run_async(work, run_id="r"))
    await asyncio.wait_for(begun.wait(), 20)
    running.cancel()
    await asyncio.sleep(0)
    assert not running.done()  # the step in flight may end
    with pytest.raises(RunBusy):
        await everstep.run_async(work, run_id="r")
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert effects == ["slow"]
    assert await everstep.run_async(work, run_id="r") == ["ok", "AFTER"]
    assert effects == ["slow", "after"]


async def test_bodies_see_the_callers_context_variables() -> None:
    @everstep.step(effect="read")
    async def who() -> str:
        return USER.get()

    @everstep.agent
    async def asks(goal: str) -> str:
        return await who()

    async def call(name: str) -> str:
        USER.set(name)
        return await everstep.run_async(asks)

    assert await asyncio.gather(call("ann"), call("bob")) == ["ann", "bob"]


async def test_a_keyboard_interrupt_of_an_agents_own_does_not_end_the_others() -> None:
    @everstep.agent
    async def interrupts(goal: str) -> None:
        await act("x")
        raise KeyboardInterrupt

    first, second = await asyncio.gather(
        everstep.run_async(interrupts), everstep.run_async(fans_out, goal="a", n=30), return_exceptions=True
    )
    assert isinstance(first, AgentFailed)
    assert second == expected("a", 30)


async def test_runs_that_ended_leave_nothing_in_the_shared_loop() -> None:
    async def batch() -> int:
        await asyncio.gather(*(everstep.run_async(fans_out, goal="x") for _ in range(10)))
        gc.collect()
        return sum(isinstance(o, Lane) for o in gc.get_objects())

    await batch()
    assert await batch() <= await batch() + 1


async def test_wrong_uses_are_explained() -> None:
    with pytest.raises(ConfigError, match=r"everstep\.run_async needs an @everstep\.agent"):
        await everstep.run_async(act, goal="x")  # type: ignore[call-overload]  # wrong on purpose

    @everstep.agent
    async def nests(goal: str) -> str:
        return await everstep.run_async(sync_work, goal="x")

    with pytest.raises(AgentFailed, match="inside a run") as e:
        await everstep.run_async(nests)
    assert isinstance(e.value.__cause__, BadCall)


# --- what breaks a process that runs many ------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["a thread of its own", "an executor", "the sync agent's thread"])
async def test_the_locks_are_kept_until_a_body_that_was_left_behind_is_over(where: str) -> None:
    """Whoever gets the agent's lock takes the old process for dead, and may run an at_most_once step again."""
    begun, go_on = threading.Event(), threading.Event()

    def pay() -> str:
        begun.set()
        go_on.wait(30)
        effects.append("paid")
        return "paid"

    async def pay_async() -> str:
        return await asyncio.to_thread(pay)

    def look() -> everstep.Probed[str]:
        return everstep.Done("paid") if effects else everstep.NOT_DONE

    declare = everstep.step(effect="at_most_once", probe=look)
    pays, pays_async = declare(pay), declare(pay_async)

    async def in_a_thread(goal: str) -> str:
        return await pays.aio()

    async def in_an_executor(goal: str) -> str:
        return await pays_async()

    def on_the_agents_own(goal: str) -> str:
        return pays()

    work: Any = everstep.agent(
        {"a thread of its own": in_a_thread, "an executor": in_an_executor}.get(where, on_the_agents_own)
    )
    running = asyncio.create_task(everstep.run_async(work, run_id="r"))
    await asyncio.to_thread(begun.wait, 20)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    with pytest.raises(RunBusy, match="a step of it that was given up has not ended yet"):
        await everstep.run_async(work, run_id="r")
    go_on.set()
    while True:
        try:
            assert await everstep.run_async(work, run_id="r") == "paid"
            break
        except RunBusy:
            await asyncio.sleep(0.01)
    assert effects == ["paid"]


async def test_all_tasks_are_in_the_same_order_alone_and_among_others() -> None:
    orders: list[list[int]] = []

    @everstep.agent
    async def looks(goal: str) -> str:
        made = []
        for i in range(12):
            made.append(asyncio.create_task(asyncio.sleep(60)))
            for _ in range(i * 5 % 13):
                asyncio.get_running_loop().create_future()  # takes a number, as locks and sleeps do
        await act("x")
        others = all_tasks() - {asyncio.current_task()}
        orders.append([made.index(task) for task in others])
        return "done"

    await everstep.run_async(looks)
    await asyncio.gather(*(everstep.run_async(looks) for _ in range(20)))
    assert orders == [orders[0]] * 21


async def test_a_body_that_cancels_all_tasks_means_its_own() -> None:
    @everstep.step(effect="read")
    async def cancels() -> int:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        return len(others)

    @everstep.agent
    async def careless(goal: str) -> int:
        return await cancels()

    results = await asyncio.gather(everstep.run_async(fans_out, goal="a", n=30), everstep.run_async(careless))
    assert results == [expected("a", 30), 0]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("waits", [False, True])
async def test_a_body_that_raises_what_ends_a_process_fails_like_any_other(
    error: type[BaseException], waits: bool
) -> None:
    @everstep.step(effect="read")
    async def bad() -> None:
        if waits:
            await asyncio.sleep(0)
        raise error

    @everstep.agent
    async def work(goal: str) -> str:
        with pytest.raises(everstep.StepFailed, match=error.__name__):
            await bad()
        return await act("after")

    assert await asyncio.wait_for(everstep.run_async(work), 20) == "AFTER"


async def test_the_same_new_run_id_at_once() -> None:
    """One begins it, the others are told; the run is whole."""
    for n in range(10):
        barrier = threading.Barrier(3)

        def go(run_id: str, barrier: threading.Barrier = barrier) -> object:
            barrier.wait()
            try:
                return everstep.run(fans_out, goal="a", run_id=run_id)
            except RunBusy:
                return "busy"

        results = await asyncio.gather(*(asyncio.to_thread(go, f"r{n}") for _ in range(3)))
        assert all(result in (expected("a"), "busy") for result in results), results
        assert await everstep.run_async(fans_out, goal="a", run_id=f"r{n}") == expected("a")


async def test_a_run_within_a_body_is_a_run_of_its_own() -> None:
    """It neither acts on the outer step nor ends with it."""

    @everstep.agent
    async def inner(goal: str) -> str:
        with pytest.raises(BadCall):
            everstep.idempotency_key()
        return await act(goal)

    @everstep.step(effect="idempotent")
    async def nests() -> str:
        return await everstep.run_async(inner, goal="a", run_id="a")

    @everstep.step(effect="idempotent")
    def nests_sync() -> str:
        return everstep.run(inner, goal="b", run_id="b")

    @everstep.agent
    async def outer(goal: str) -> list[str]:
        return [await nests(), await nests_sync.aio()]

    assert await asyncio.wait_for(everstep.run_async(outer), 20) == ["A", "B"]


@pytest.mark.parametrize("method", ["stop", "shutdown_default_executor", "shutdown_asyncgens"])
async def test_a_body_cannot_do_to_the_loop_what_others_would_feel(method: str) -> None:
    @everstep.step(effect="read")
    async def meddles() -> None:
        done = getattr(asyncio.get_running_loop(), method)()
        if done is not None:
            await done

    @everstep.agent
    async def work(goal: str) -> None:
        await meddles()

    first, second = await asyncio.gather(
        everstep.run_async(work), everstep.run_async(fans_out, goal="a"), return_exceptions=True
    )
    assert f"a step's body cannot call loop.{method}" in str(first)
    assert second == expected("a")


async def test_tasks_that_finalizers_make_run_and_delay_nothing() -> None:
    """The garbage collector strikes anywhere, also while the engine makes a task of its own."""
    made: list[asyncio.Task[None]] = []

    class Client:
        def __init__(self) -> None:
            self.me = self  # for the collector to find

        def __del__(self) -> None:
            with contextlib.suppress(RuntimeError):
                made.append(asyncio.get_running_loop().create_task(self.close()))

        async def close(self) -> None:
            effects.append("closed")

    @everstep.step(effect="read")
    async def leaves() -> None:
        for _ in range(5):
            Client()
        await asyncio.sleep(0)

    @everstep.agent
    async def work(goal: str) -> None:
        for _ in range(60):
            await leaves()

    threshold = gc.get_threshold()
    gc.set_threshold(20)
    try:
        await asyncio.gather(*(everstep.run_async(work) for _ in range(4)))
    finally:
        gc.set_threshold(*threshold)
    await asyncio.sleep(0.1)
    assert made
    assert len(effects) + sum(task.cancelled() for task in made) == len(made)


def test_a_process_that_ends_stops_its_runs_in_good_order(tmp_path: Path) -> None:
    """Else a body that needs an executor fails while the interpreter shuts down, and the failure is recorded."""
    (tmp_path / "service.py").write_text(
        "import asyncio, sys, threading, time\nimport everstep\nbegun = threading.Event()\n"
        "@everstep.step(effect='read')\n"
        "async def call(n: int) -> int:\n    begun.set()\n    await asyncio.to_thread(time.sleep, 0.1)\n    return n\n"
        "@everstep.agent\n"
        "async def work(goal: str) -> int:\n    return sum([await call(n) for n in range(20)])\n"
        "async def main():\n    await everstep.run_async(work, run_id='r')\n"
        "if len(sys.argv) > 1:\n"
        "    threading.Thread(target=lambda: asyncio.run(main()), daemon=True).start()\n    assert begun.wait(60)\n"
        "else:\n    print(everstep.run(work, run_id='r'))\n"
    )
    subprocess.run([sys.executable, "service.py", "begin"], cwd=tmp_path, timeout=60, check=True, capture_output=True)
    again = subprocess.run(
        [sys.executable, "service.py"], check=False, cwd=tmp_path, timeout=60, capture_output=True, text=True
    )
    assert again.stdout == "190\n", again.stderr
