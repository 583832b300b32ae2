"""The agent that is measured: sequential steps with empty bodies and a result of 4 KB."""

import os
import resource
import sys
import time

import everstep

TEXT = "x" * 4000


@everstep.step(effect="idempotent")
async def work(n: int) -> str:
    """An empty body."""
    return TEXT


@everstep.step(effect="idempotent")
async def small(n: int) -> str:
    """An empty body with a result of 1 KB."""
    return TEXT[:1000]


@everstep.agent
async def endless(goal: str, steps: int, every: int = 0, state_bytes: int = 1000) -> str:
    """`steps` steps with a snapshot after each `every` (0 = none)."""
    state = everstep.restored() or {"n": 0, "pad": "x" * state_bytes}
    for n in range(state["n"], steps):
        await small(n)
        if every and (n + 1) % every == 0 and n + 1 < steps:
            everstep.snapshot({**state, "n": n + 1})
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"bench peak_bytes={peak_bytes} cpu_s={time.process_time():.3f} pid={os.getpid()}", file=sys.stderr)
    return "done"


@everstep.agent
async def run(goal: str, steps: int) -> str:
    """`steps` steps, one after the other; the peak memory goes to stderr at the end of a live run and of a replay."""
    for n in range(steps):
        await work(n)
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"bench peak_bytes={peak_bytes} cpu_s={time.process_time():.3f} pid={os.getpid()}", file=sys.stderr)
    return "done"
