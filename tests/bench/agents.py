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


@everstep.agent
async def run(goal: str, steps: int) -> str:
    """`steps` steps, one after the other; the peak memory goes to stderr at the end of a live run and of a replay."""
    for n in range(steps):
        await work(n)
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"bench peak_bytes={peak_bytes} cpu_s={time.process_time():.3f} pid={os.getpid()}", file=sys.stderr)
    return "done"
