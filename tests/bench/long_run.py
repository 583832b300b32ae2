"""How a run that grows restarts: journal alone, and with a snapshot every 1,000 steps.

    python -m tests.bench.long_run [--steps 1000 10000 100000] [--every 0 1000] [--state-bytes 1000]

Real processes on a SQLite journal, one step after the other, empty bodies, results of 1 KB. The first process is killed right
before `finished`, the second takes the run up and finishes it. An operator is played that takes an anchor each second and tells
it, so records before anchored snapshots are deleted while the run goes on.

    restart_ms  in the second process: claim, read, verify, replay, until it is live (as the attempt itself tells it)
    total_s     the whole second process, Python's start included
    live, back  peak memory of the first and of the second process, MB
    records     that are left in the journal
    store       bytes in use in the journal's file (pages that are free again not counted), MB
    live_s      the first process
    cpu_s       of the second process, whole; unlike the times it does not depend on what else the machine does

With --crossover N it also prints what a snapshot costs next to replaying a step, in CPU time on a journal in memory: over one
restart at a random place, snapshots every k steps cost less than replaying from the beginning if k is more than twice the steps
that one snapshot is worth.
"""

import argparse
import asyncio
import contextlib
import re
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

from everstep.errors import JournalUnavailable
from everstep.journal.told import anchor_field
from everstep.testing import MemoryRun
from tests.bench import agents
from tests.bench.taken_up import driver_of, kill_and_take_up
from tests.crash.driver import AgentProcess, Driver

TIMEOUT_S = 1800.0
ANCHOR_EVERY_S = 1.0


@dataclass(frozen=True)
class Point:
    """One length of run in one way."""

    steps: int
    every: int
    restart_ms: int
    total_s: float
    live_bytes: int
    back_bytes: int
    records: int
    store_bytes: int
    live_s: float
    cpu_s: float

    HEAD = (
        f"{'steps':>7} {'snapshots':>10} {'restart_ms':>10} {'total_s':>8} {'live MB':>8} {'back MB':>8} "
        f"{'records':>8} {'store MB':>9} {'live_s':>7} {'cpu_s':>6}"
    )

    def __str__(self) -> str:
        how = f"per {self.every:,}" if self.every else "none"
        return (
            f"{self.steps:>7,} {how:>10} {self.restart_ms:>10,} {self.total_s:>8.2f} {self.live_bytes / 1e6:>8.0f} "
            f"{self.back_bytes / 1e6:>8.0f} {self.records:>8,} {self.store_bytes / 1e6:>9.1f} {self.live_s:>7.1f} "
            f"{self.cpu_s:>6.2f}"
        )


def used_bytes(path: Path) -> int:
    """Of a SQLite file: its pages without the free ones."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        pages, free, size = (
            db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)


def peak_bytes(pid: int) -> int:
    """Peak memory of a live process; 0 if it is gone."""
    with contextlib.suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
        return int(found[1]) * 1024 if found else 0
    return 0


async def _anchor(driver: Driver, agent: AgentProcess) -> int:
    """Play the operator while the process lives; its peak memory."""
    peak = 0
    while agent.process.returncode is None:
        peak = max(peak, peak_bytes(agent.pid))
        with contextlib.suppress(JournalUnavailable):  # the writer is quick; at the next second then
            await driver.take_anchor()
            await driver.store.set_fields(driver.journal, anchor_field(driver.anchor))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(agent.process.wait(), ANCHOR_EVERY_S)
    return peak


async def measure(steps: int, every: int, state_bytes: int = 1000) -> Point:
    """Run, kill, take up."""
    inputs: dict[str, object] = {"steps": steps, "every": every, "state_bytes": state_bytes}
    async with driver_of("tests.bench.agents:endless", inputs) as driver:
        live, done = await kill_and_take_up(
            driver, lambda first: asyncio.wait_for(_anchor(driver, first), TIMEOUT_S), TIMEOUT_S
        )
        assert done.progress.recorded == steps, done.progress
        records = sum([1 async for _ in driver.store.read(driver.journal)])
        store_bytes = used_bytes(Path(driver.store_url.removeprefix("sqlite://")))
        return Point(
            steps,
            every,
            done.progress.replay_ms or 0,
            done.total_s,
            live,
            done.peak_bytes,
            records,
            store_bytes,
            done.live_s,
            done.cpu_s,
        )


def crossover(steps: int) -> None:
    """Print what a snapshot costs and what replaying a step costs, in CPU time: where the two models cost the same."""

    def spent(every: int, state_bytes: int) -> tuple[float, float]:
        run = MemoryRun[str](agents.endless, "bench", {"steps": steps, "every": every, "state_bytes": state_bytes})
        begin = time.process_time()
        run.attempt(crash_at="before_finished", compact=False)
        live = time.process_time()
        run.attempt(compact=False)
        return live - begin, time.process_time() - live

    spent(0, 0)  # warm
    live_s, back_s = spent(0, 0)
    _, bare_s = spent(steps - 1, 0)
    replayed_us = max(1.0, (back_s - bare_s) / steps * 1e6)
    print(
        f"\n{steps:,} steps in memory: a step costs {live_s / steps * 1e6:,.0f} us live and {replayed_us:,.0f} us at each replay"
    )
    print(f"{'state':>10} {'ms per snapshot':>16} {'= replayed steps':>17} {'worth it from one per':>22}")
    for state_bytes in (1_000, 10_000, 50_000, 200_000, 1_000_000):
        every = 10
        costs_ms = max(0.0, spent(every, state_bytes)[0] - live_s) / (steps / every) * 1e3
        as_steps = costs_ms * 1e3 / replayed_us
        print(f"{state_bytes:>10,} {costs_ms:>16.2f} {as_steps:>17,.0f} {2 * as_steps:>16,.0f} steps", flush=True)


def main() -> None:
    """Print one line per length and way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--every", type=int, nargs="+", default=[0, 1000])
    parser.add_argument("--state-bytes", type=int, default=1000)
    parser.add_argument("--crossover", type=int, default=0, metavar="STEPS")
    told = parser.parse_args()
    print(Point.HEAD)
    for every in told.every:
        for steps in told.steps:
            print(asyncio.run(measure(steps, every, told.state_bytes)), flush=True)
    if told.crossover:
        crossover(told.crossover)


if __name__ == "__main__":
    main()
