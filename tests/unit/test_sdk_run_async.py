"""`await everstep.run_async(…)`: many runs in one loop, none of which notices the others."""

import asyncio
import contextvars
import gc
import threading
from pathlib import Path

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


async def test_agents_cannot_wake_or_await_each_other() -> None:
    """What one agent learns of another would not be in its journal."""
    events: list[asyncio.Event] = []
    tasks: list[asyncio.Task[None]] = []
    waits = threading.Event()

    @everstep.step(effect="read")
    async def until_it_waits() -> None:
        await asyncio.to_thread(waits.wait, 20)

    @everstep.agent
    async def waits_for_an_event(goal: str) -> None:
        events.append(asyncio.Event())
        tasks.append(asyncio.create_task(asyncio.sleep(60)))
        waits.set()
        await events[0].wait()

    @everstep.agent
    async def sets_it(goal: str) -> str:
        await until_it_waits()
        with pytest.raises((RuntimeError, ValueError), match="loop"):
            await tasks[0]
        events[0].set()
        return "done"

    first, second = await asyncio.gather(
        everstep.run_async(waits_for_an_event), everstep.run_async(sets_it), return_exceptions=True
    )
    assert second == "done"
    assert isinstance(first, AgentFailed)
    assert "woke agent code" in str(first)


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
