"""A long run leaves nothing behind per step that only the garbage collector could free: it would have to look through all that
the process holds, again and again, and what the steps held would stay until then."""

import gc
from collections import Counter
from pathlib import Path

import pytest

import everstep
from everstep.run.agents import Agent

STEPS = 200


@everstep.step(effect="read")
async def look(n: int, note: str) -> dict[str, int]:
    return {"n": n}


@everstep.step(effect="read")
def look_sync(n: int, note: str) -> dict[str, int]:
    return {"n": n}


@everstep.agent
async def one_after_the_other(goal: str) -> int:
    return sum([(await look(n, "x"))["n"] for n in range(STEPS)])


@everstep.agent
def one_after_the_other_sync(goal: str) -> int:
    return sum(look_sync(n, "x")["n"] for n in range(STEPS))


@pytest.mark.parametrize("agent", [one_after_the_other, one_after_the_other_sync], ids=["async", "sync"])
def test_steps_leave_no_cycles(agent: Agent[..., int], tmp_path: Path) -> None:
    gc.collect()
    gc.disable()
    try:
        assert everstep.run(agent, goal="g", run_id="garbage", directory=str(tmp_path)) == sum(range(STEPS))
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = Counter(f"{type(o).__module__}.{type(o).__qualname__}" for o in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not [kind for kind, count in left.items() if count >= STEPS / 2], left.most_common(10)
