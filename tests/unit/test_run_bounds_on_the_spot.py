"""total_timeout and heartbeat_timeout of what is declared on the spot, by run_step and wrap: as of a declared step."""

import asyncio
import threading
import time

import pytest

import everstep
from everstep import BadStep, Retry, StepFailed
from everstep.journal.records import Intent
from everstep.run.agents import Agent
from everstep.testing import MemoryRun

calls: list[object] = []


@pytest.fixture(autouse=True)
def _no_calls_yet() -> None:
    calls.clear()


class Mill:
    """Grinds sacks of 5 s each; the first try hangs at the fourth."""

    async def grind(self, sacks: int) -> list[object]:
        first = everstep.heartbeat_details(int) or 0
        calls.append(first)
        for sack in range(first, sacks):
            if sack == 3 and len(calls) == 1:
                await asyncio.sleep(1000)
            await asyncio.sleep(5)
            everstep.heartbeat(sack + 1)
        return list(calls)

    async def refuse(self, takes_s: float) -> str:
        calls.append(takes_s)
        await asyncio.sleep(takes_s)
        raise ConnectionError("no")

    def turn(self) -> str:
        calls.append("try")
        if len(calls) == 1:
            threading.Event().wait(30)
        for _ in range(4):
            time.sleep(0.1)
            everstep.heartbeat()
        return "turned"


MILL = Mill()
AGAIN = Retry(max_tries=3, backoff_s=0)
FOR_EVER = Retry(max_tries=None, backoff_s=1, jitter=0, factor=1)


@everstep.agent
async def on_the_spot(goal: str, sacks: int) -> object:
    return await everstep.run_step("grind", MILL.grind, sacks, effect="idempotent", heartbeat_timeout=10, retry=AGAIN)


@everstep.agent
async def wrapped_function(goal: str, sacks: int) -> object:
    return await everstep.wrap(MILL.grind, effect="idempotent", heartbeat_timeout=10, retry=AGAIN)(sacks)


@everstep.agent
async def wrapped_object(goal: str, sacks: int) -> object:
    return await everstep.wrap(MILL, effects={"grind": "read"}, heartbeat_timeout=10, retry=AGAIN).grind(sacks)


@pytest.mark.parametrize("agent", [on_the_spot, wrapped_function, wrapped_object])
def test_a_silent_body_declared_on_the_spot_ends_and_its_details_reach_the_next_try(
    agent: "Agent[..., object]",
) -> None:
    run: MemoryRun[object] = MemoryRun(agent, "go", {"sacks": 6})
    assert run.run() == [0, 3]
    assert "no heartbeat within 10 s" in next(r.message for r in run.records if r.kind == "try_failed")
    assert run.replay() == [0, 3]


@pytest.mark.parametrize("agent", [on_the_spot, wrapped_function, wrapped_object])
def test_details_of_a_body_declared_on_the_spot_reach_the_next_process(agent: "Agent[..., object]") -> None:
    run: MemoryRun[object] = MemoryRun(agent, "go", {"sacks": 3})
    assert run.attempt(crash_at="after_append:2").kind == "crashed"
    assert run.run() == [0, 1]


@everstep.agent
async def impatient(goal: str, way: str) -> str:
    bounds = {"timeout": 4, "total_timeout": 10, "retry": FOR_EVER}
    ways = {
        "run_step": lambda: everstep.run_step("refuse", MILL.refuse, 1, effect="read", **bounds),
        "function": lambda: everstep.wrap(MILL.refuse, effect="read", **bounds)(1),
        "object": lambda: everstep.wrap(MILL, effect="read", effects={"turn": None}, **bounds).refuse(1),
    }
    try:
        return await ways[way]()
    except StepFailed as e:
        return f"{e.type}: {e.message}"


@pytest.mark.parametrize("way", ["run_step", "function", "object"])
def test_total_timeout_of_a_body_declared_on_the_spot_counts_over_crashes(way: str) -> None:
    run: MemoryRun[str] = MemoryRun(impatient, "go", {"way": way})
    assert run.attempt(crash_at="before_retry:2").kind == "crashed"  # at 3 s
    run.sleep(5)
    assert run.run() == "ConnectionError: no"
    assert len(calls) == 3
    assert run.clock.monotonic_s() == pytest.approx(9, abs=0.1)
    assert run.replay() == "ConnectionError: no"


@everstep.agent
def sync_mill(goal: str) -> str:
    return everstep.run_step("turn", MILL.turn, effect="read", heartbeat_timeout=0.2, retry=AGAIN)


@everstep.agent
async def async_mill(goal: str) -> str:
    return await everstep.run_step.aio("turn", MILL.turn, effect="read", heartbeat_timeout=0.2, retry=AGAIN)


@everstep.agent
def sync_wrapped_mill(goal: str) -> str:
    return everstep.wrap(MILL, effects={"turn": "read"}, heartbeat_timeout=0.2, retry=AGAIN).turn()


@pytest.mark.parametrize("agent", [sync_mill, async_mill, sync_wrapped_mill])
def test_a_silent_thread_declared_on_the_spot_has_timed_out(agent: "Agent[..., str]") -> None:
    assert MemoryRun[str](agent, "go", real_time=True).run() == "turned"
    assert calls == ["try", "try"]


WRONG: list[tuple[dict[str, object], str]] = [
    ({"total_timeout": 0}, "total_timeout must be more than 0"),
    ({"heartbeat_timeout": -1}, "heartbeat_timeout must be more than 0"),
    ({"timeout": 5, "total_timeout": 3}, "timeout of 5 s is longer than total_timeout of 3 s"),
    ({"timeout": 5, "heartbeat_timeout": 9}, "heartbeat_timeout of 9 s is longer than timeout"),
    ({"retry": Retry(max_tries=None)}, "tries for ever"),
]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        *WRONG,
        ({"on_uncertain": "fail"}, 'are for effect="at_most_once"'),
        ({"reserve": 3}, "must be an everstep.Reserve"),
    ],
)
def test_wrong_bounds_on_the_spot_are_refused_before_anything_is_recorded(wrong: dict[str, object], says: str) -> None:
    @everstep.agent
    async def agent(goal: str) -> object:
        return await everstep.run_step("grind", MILL.grind, 1, effect="read", **wrong)  # type: ignore[call-overload]  # wrong on purpose

    run: MemoryRun[object] = MemoryRun(agent, "go")
    ended = run.attempt()
    assert ended.kind == "failed"
    assert f"step grind: {says}" in ended.message or says in ended.message
    assert calls == []
    assert not any(isinstance(record, Intent) for record in run.records)


@pytest.mark.parametrize(("wrong", "says"), WRONG)
def test_wrong_bounds_of_what_is_wrapped_are_refused_where_it_is_wrapped(wrong: dict[str, object], says: str) -> None:
    for x, effects in ((MILL.grind, None), (MILL, {"grind": "read"}), (everstep.resource(Mill), {"grind": "read"})):
        with pytest.raises(BadStep, match=says):
            everstep.wrap(x, effect="read", effects=effects, **wrong)  # type: ignore[arg-type]  # wrong on purpose
