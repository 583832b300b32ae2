"""Plain asyncio in an agent: each form runs, is killed after every moment, and replays to the same result."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

import everstep
from everstep.run.agents import Agent
from everstep.testing import MemoryRun, for_every_crash

delays = random.Random(1)


@everstep.step(effect="read")
async def double(n: int) -> int:
    await asyncio.sleep(delays.random())
    return 2 * n


@everstep.step(effect="read")
async def wait(n: int, seconds: float) -> int:
    await asyncio.sleep(seconds)
    return n


@everstep.step(effect="read")
async def broken(n: int) -> int:
    await asyncio.sleep(0.01)
    raise LookupError(f"no {n}")


@everstep.agent
async def gathered(goal: str) -> list[int]:
    return await asyncio.gather(*(double(i) for i in range(5)))


@everstep.agent
async def grouped(goal: str) -> list[int]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(double(i)) for i in range(3)]
    return [t.result() for t in tasks]


@everstep.agent
async def broken_group(goal: str) -> str:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(wait(1, 60))
            group.create_task(broken(2))
    except* everstep.StepFailed as e:
        failed = e.exceptions[0]
    assert isinstance(failed, everstep.StepFailed)
    return f"{failed.type}: {failed.message}"


@everstep.agent
async def as_they_finish(goal: str) -> list[int]:
    return sorted([await c for c in asyncio.as_completed([double(i) for i in range(4)])])


@everstep.agent
async def tasks_as_they_finish(goal: str) -> list[int]:
    tasks = [asyncio.create_task(double(i)) for i in range(4)]
    return sorted([await c for c in asyncio.as_completed(tasks)])


@everstep.agent
async def one_by_one(goal: str) -> list[int]:
    pending = {asyncio.ensure_future(double(i)) for i in range(4)}
    seen = 0
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            seen += await double(task.result())
    return [seen]


@everstep.agent
async def timed_out(goal: str) -> list[str]:
    seen = []
    try:
        async with asyncio.timeout(0.5):
            await wait(1, 60)
    except TimeoutError:
        seen.append("timeout")
    async with asyncio.timeout(5):
        seen.append(str(await wait(2, 0.5)))
    try:
        await asyncio.wait_for(wait(3, 60), 0.5)
    except TimeoutError:
        seen.append("late")
    seen.append(str(await asyncio.wait_for(wait(4, 0.1), 60)))
    return seen


@everstep.agent
async def slept(goal: str) -> float:
    began = asyncio.get_running_loop().time()
    await asyncio.sleep(3)
    await everstep.sleep(2)
    await everstep.sleep_until(everstep.now())
    return round(asyncio.get_running_loop().time() - began, 3)


@everstep.agent
async def cancelled_task(goal: str) -> list[object]:
    seen: list[object] = []

    async def inner() -> None:
        try:
            await wait(1, 60)
        except asyncio.CancelledError:
            seen.append(await double(21))
            raise

    task = asyncio.create_task(inner())
    await asyncio.sleep(1)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        seen.append("cancelled")
    return seen


@everstep.agent
async def nested(goal: str) -> list[list[int]]:
    async def branch(n: int) -> list[int]:
        return await asyncio.gather(*(asyncio.create_task(double(10 * n + i)) for i in range(2)))

    return [await asyncio.create_task(branch(n)) for n in range(2)]


@everstep.agent
async def coordinated(goal: str) -> list[int]:
    jobs: asyncio.Queue[int | None] = asyncio.Queue(maxsize=1)
    lock, ready, seen = asyncio.Lock(), asyncio.Event(), []

    async def work() -> None:
        await ready.wait()
        while (job := await jobs.get()) is not None:
            async with lock:
                seen.append(await double(job))

    workers = [asyncio.create_task(work()) for _ in range(2)]
    ready.set()
    for job in [1, 2, 3, None, None]:
        await jobs.put(job)
    await asyncio.gather(*workers)
    return sorted(seen)


@everstep.agent
async def caught(goal: str) -> list[str]:
    seen = []
    for n in range(2):
        try:
            await broken(n)
        except everstep.StepFailed as e:
            seen.append(f"{e.step} {e.type} {e.message}")
    results = await asyncio.gather(broken(7), double(8), return_exceptions=True)
    return [*seen, *(str(r) for r in results)]


FORMS: list[tuple[object, object]] = [
    (gathered, [0, 2, 4, 6, 8]),
    (grouped, [0, 2, 4]),
    (broken_group, "LookupError: no 2"),
    (as_they_finish, [0, 2, 4, 6]),
    (tasks_as_they_finish, [0, 2, 4, 6]),
    (one_by_one, [24]),
    (timed_out, ["timeout", "2", "late", "4"]),
    (slept, 5.0),
    (cancelled_task, [42, "cancelled"]),
    (nested, [[0, 2], [20, 22]]),
    (coordinated, [2, 4, 6]),
    (caught, ["broken LookupError no 0", "broken LookupError no 1", "broken failed: LookupError: no 7", "16"]),
]


@pytest.mark.parametrize(("agent", "result"), FORMS, ids=lambda v: getattr(v, "name", None))
def test_c1_each_form_survives_a_crash_at_every_moment(agent: Agent[..., object], result: object) -> None:
    def make() -> MemoryRun[object]:
        delays.seed(1)
        return MemoryRun(agent, "go", park_linger_s=1e9)

    whole = make()
    assert whole.run() == result
    assert whole.replay() == result
    for at, _run, ended in for_every_crash(make):
        assert (ended.kind, ended.value) == ("succeeded", result), at


def test_c1_keys_come_from_source_order_not_from_finishing_order() -> None:
    seen = set()
    for seed in range(20):
        delays.seed(seed)
        run: MemoryRun[list[int]] = MemoryRun(gathered, "go")
        run.run()
        seen.add(tuple(sorted((r.key, r.input) for r in run.records if r.kind == "intent")))
    assert len(seen) == 1


@everstep.agent
async def race(goal: str, first_s: float) -> int:
    tasks = [asyncio.create_task(wait(0, first_s)), asyncio.create_task(wait(1, 2.0 - first_s))]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    winner = done.pop().result()
    return await double(100 * winner)


def test_c3_the_winner_is_a_record_and_wins_again_when_it_would_be_slowest() -> None:
    run: MemoryRun[int] = MemoryRun(race, "go", {"first_s": 0.5})
    run.attempt(crash_at="after_result:2")  # the winner's result is written, what follows is not
    assert [r.key for r in run.records if r.kind == "result"] == ["t0/0"]
    plain = wait.fn

    async def reversed_(n: int, seconds: float) -> int:
        return int(await plain(n, 2.0 - seconds))

    wait.fn = reversed_
    try:
        assert run.run() == 0
    finally:
        wait.fn = plain


def test_c11_a_racing_step_starts_once_while_its_sibling_is_busy() -> None:
    run: MemoryRun[list[int]] = MemoryRun(one_by_one, "go")
    run.run()
    assert set(run.bodies.values()) == {1}


def test_c15_each_finished_tool_of_a_turn_is_kept() -> None:
    delays.seed(1)
    run: MemoryRun[list[int]] = MemoryRun(gathered, "go")
    run.attempt(crash_at="after_result:3")  # five tools in a turn; two results are durable, the third is queued
    told = {r.key for r in run.records if r.kind == "result"}
    assert len(told) == 2
    before = run.bodies.copy()
    run.run()
    assert all(run.bodies[k] == before[k] for k in told)
    assert all(n == 2 for k, n in run.bodies.items() if k not in told)


@everstep.agent
async def set_of_coroutines(goal: str) -> int:
    return sum([await c for c in asyncio.as_completed({double(i) for i in range(3)})])


def test_c2_a_set_of_coroutines_is_refused_with_its_cure() -> None:
    ended = MemoryRun[int](set_of_coroutines, "go").attempt()
    assert ended.kind == "failed"
    assert "Pass a list" in ended.message


@everstep.agent
async def reads_the_order_of_sets(goal: str) -> list[str]:
    tasks = {asyncio.create_task(double(i), name=f"n{i}") for i in range(40)}
    done, _ = await asyncio.wait(tasks)
    return [t.get_name() for t in tasks] + [t.get_name() for t in done]


def test_c2_sets_of_tasks_iterate_in_creation_order() -> None:
    assert MemoryRun[list[str]](reads_the_order_of_sets, "go").run()[:40] == [f"n{i}" for i in range(40)]


@everstep.agent
async def leaves_tasks_behind(goal: str) -> str:
    async def background() -> None:
        try:
            await wait(1, 1e6)
        finally:
            await double(5)

    asyncio.create_task(background())  # noqa: RUF006  # left behind on purpose
    await asyncio.sleep(0)
    return "done"


def test_tasks_left_behind_are_cancelled_as_asyncio_run_does() -> None:
    run: MemoryRun[str] = MemoryRun(leaves_tasks_behind, "go")
    assert run.run() == "done"
    assert [r.kind for r in run.records if r.key in ("t0/0", "t0/1")] == ["intent", "intent", "abandoned", "result"]
    run.replay()


@everstep.agent
async def waits_for_nothing(goal: str) -> None:
    await asyncio.Event().wait()


def test_an_agent_that_waits_for_nothing_fails_and_says_so() -> None:
    ended = MemoryRun[None](waits_for_nothing, "go").attempt()
    assert ended.kind == "failed"
    assert "will ever bring" in ended.message


@everstep.agent
async def cancels_all_tasks(goal: str) -> str:
    task = asyncio.create_task(wait(1, 100))
    await asyncio.sleep(1)
    for other in asyncio.all_tasks() - {asyncio.current_task()}:
        other.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return str(await double(4))


def test_all_tasks_are_the_agents_own() -> None:
    assert MemoryRun[str](cancels_all_tasks, "go").run() == "8"


def make_waker(how: Callable[["asyncio.Future[int]"], None]) -> Agent[..., Any]:
    box: list[asyncio.Future[int]] = []

    @everstep.step(effect="read")
    async def wakes() -> None:
        how(box[-1])

    @everstep.agent
    async def waker(goal: str) -> int:
        box.append(asyncio.get_running_loop().create_future())
        await wakes()
        return await box[-1]

    return waker


def test_a_body_that_wakes_agent_code_by_a_side_door_fails_the_run() -> None:
    ended = MemoryRun[object](make_waker(lambda f: f.set_result(1)), "go").attempt()
    assert ended.kind == "failed"
    assert "outside agent scope" in ended.message
    assert "Return the value from a step" in ended.message


def test_a_sequential_step_costs_one_durable_write() -> None:
    @everstep.agent
    async def sequential(goal: str) -> int:
        total = 0
        for n in range(20):
            async with asyncio.timeout(60):
                total += await double(n) + int(everstep.random())
        return total

    run: MemoryRun[int] = MemoryRun(sequential, "go")
    run.run()
    assert run.reached.count("before_append") == 22  # run_started with the first intent, 20 results, the end


def test_steps_side_by_side_are_announced_together() -> None:
    @everstep.agent
    async def wide(goal: str) -> int:
        return sum(await asyncio.gather(*(wait(n, 1.0) for n in range(100))))

    run: MemoryRun[int] = MemoryRun(wide, "go")
    assert run.run() == 4950
    assert run.reached.count("before_append") <= 2 + 2 + 4  # 64 records go in one append


def test_a_task_that_a_finalizer_makes_has_no_key() -> None:
    """HTTP clients close themselves in `__del__`, which the garbage collector calls in the middle of agent code, or not."""
    closed: list[int] = []

    class Client:
        def __del__(self) -> None:
            asyncio.get_running_loop().create_task(self._close(id(self)))

        @staticmethod
        async def _close(which: int) -> None:
            closed.append(which)

    drops = iter([True, False])

    @everstep.step(effect="read")
    async def look(n: int) -> int:
        return n

    @everstep.agent
    async def agent(goal: str) -> list[int]:
        client = everstep.per_attempt(Client) if next(drops) else None
        del client
        return list(await asyncio.gather(look(1), look(2)))

    run = MemoryRun[list[int]](agent)
    assert run.run() == [1, 2]
    assert len(closed) == 1
    run.replay()
    assert {r.key for r in run.records if r.kind == "intent"} == {"t0/0", "t1/0"}
