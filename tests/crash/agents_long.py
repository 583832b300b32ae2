"""Agents that go on for ever, a little shorter: snapshots in a loop, and segments with a snapshot in each."""

import asyncio

from pydantic import BaseModel

import everstep
from tests.crash.agents import flaky, look, put, put_in_thread, shout, tell


class Ledger(BaseModel):
    """What a restart begins with. `pad` makes it a blob."""

    round: int = 0
    out: list[str] = []
    pad: str = ""


@everstep.step(effect="read")
async def spend(name: str) -> str:
    """Reports usage, so that sums can be compared (C14)."""
    everstep.report_usage(input_tokens=7)
    return name


@everstep.agent
async def rounds(goal: str, effects: str, number: int = 3, pad: int = 0) -> list[str]:
    """Each round: a step of each class, two at the same time, a timer; then a snapshot."""
    state = everstep.restored(Ledger)
    if state is None:
        state = Ledger(out=[await put(effects, "setup")])
    while state.round < number:
        n = state.round
        state.out.append(await put(effects, f"{n}-put"))
        state.out += await asyncio.gather(tell(effects, f"{n}-tell"), spend(f"{n}-spent"))
        await asyncio.sleep(0.02)
        state.out.append(await shout(effects, f"{n}-shout"))
        state.round, state.pad = n + 1, "x" * pad
        everstep.snapshot(state)
    return state.out


@everstep.agent
def rounds_sync(goal: str, effects: str, number: int = 3, pad: int = 0) -> list[str]:
    """The same without tasks, on a thread."""
    state = everstep.restored(Ledger) or Ledger(pad="x" * pad)
    while state.round < number:
        n = state.round
        state.out.append(put_in_thread(effects, f"{n}-put"))
        everstep.sleep(0.02)
        state.out += [tell.sync(effects, f"{n}-tell"), spend.sync(f"{n}-spent"), shout.sync(effects, f"{n}-shout")]
        state.round = n + 1
        everstep.snapshot(state)
    return state.out


@everstep.agent
async def segments(goal: str, effects: str, number: int = 0, out: list[str] | None = None, pad: str = "") -> list[str]:
    """A segment per round, each with a snapshot in its middle, and clean-up on the way out."""
    state = everstep.restored(Ledger)
    if state is None:
        state = Ledger(out=[*(out or []), await put(effects, f"{number}-put"), await shout(effects, f"{number}-shout")])
        everstep.snapshot(state)
    tail = [
        await tell(effects, f"{number}-tell"),
        await flaky(effects, f"{number}-flaky"),
        await spend(f"{number}-spent"),
    ]
    if number == 2:
        return state.out + tail
    try:
        everstep.continue_as_new(effects=effects, number=number + 1, out=state.out + tail, pad=pad)
    finally:
        await look(effects, f"{number}-clean")


def rounds_result(number: int = 3, *, sync: bool = False) -> list[str]:
    """What `rounds` returns, however often it was killed."""
    each = [[f"{n}-Put" if sync else f"{n}-PUT", f"{n}-tell", f"{n}-spent", f"{n}-shout"] for n in range(number)]
    return [*([] if sync else ["SETUP"]), *(word for words in each for word in words)]


def rounds_effects(number: int = 3, *, sync: bool = False) -> tuple[str, ...]:
    """The names of its effects."""
    names = (f"{n}-{what}" for n in range(number) for what in ("put", "tell", "shout"))
    return (*(() if sync else ("setup",)), *names)


SEGMENTS_RESULT = [f"{n}-{what}" for n in range(3) for what in ("PUT", "shout", "tell", "flaky", "spent")]
SEGMENTS_EFFECTS = (
    *(f"{n}-{what}" for n in range(3) for what in ("put", "shout", "tell", "flaky")),
    *(f"{n}-clean" for n in range(2)),
)
