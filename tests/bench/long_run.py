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

With --crossover N it also measures what snapshots cost while the run lives: steps per second for several intervals and states.
"""

import argparse
import asyncio
import contextlib
import re
import sqlite3
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from everstep.errors import JournalUnavailable
from everstep.ids import JournalId
from everstep.journal.progress import Progress
from everstep.journal.records import Finished
from everstep.journal.told import anchor_field
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

    HEAD = f"{'steps':>7} {'snapshots':>10} {'restart_ms':>10} {'total_s':>8} {'live MB':>8} {'back MB':>8} {'records':>8} {'store MB':>9} {'live_s':>7}"  # noqa: E501 - one line of a table

    def __str__(self) -> str:
        how = f"per {self.every:,}" if self.every else "none"
        return (
            f"{self.steps:>7,} {how:>10} {self.restart_ms:>10,} {self.total_s:>8.2f} {self.live_bytes / 1e6:>8.0f} "
            f"{self.back_bytes / 1e6:>8.0f} {self.records:>8,} {self.store_bytes / 1e6:>9.1f} {self.live_s:>7.1f}"
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
    with tempfile.TemporaryDirectory(prefix="everstep-long-", dir=Path.cwd()) as folder:
        home = Path(folder)
        driver = Driver(
            f"sqlite://{home}/journal.db",
            JournalId("bench"),
            home / "run",
            entrypoint="tests.bench.agents:endless",
            inputs={"steps": steps, "every": every, "state_bytes": state_bytes},
            run_key=b"k" * 32,
            bare_inputs=True,
        )
        async with driver:
            await driver.fence()
            begin = time.perf_counter()
            first = await driver.spawn(faults="before_finished@1=kill")
            live = await asyncio.wait_for(_anchor(driver, first), TIMEOUT_S)
            live_s = time.perf_counter() - begin
            await driver.take_anchor()
            await driver.fence()
            begin = time.perf_counter()
            second = await driver.spawn(predecessor_dead=True)
            code = await second.wait(TIMEOUT_S)
            total_s = time.perf_counter() - begin
            assert code == 0, second.stderr()
            assert isinstance(await driver.last(), Finished)
            meta = await driver.store.meta(driver.journal)
            assert meta is not None
            told = Progress.from_bytes(meta.progress or b"")
            assert told is not None
            assert told.recorded == steps, told
            peak = re.search(r"peak_bytes=(\d+)", second.stderr())
            assert peak, second.stderr()
            records = sum([1 async for _ in driver.store.read(driver.journal)])
            return Point(
                steps,
                every,
                told.replay_ms or 0,
                total_s,
                live,
                int(peak[1]),
                records,
                used_bytes(home / "journal.db"),
                live_s,
            )


async def crossover(steps: int) -> None:
    """Print steps per second of a live run for intervals and sizes of state."""
    print(f"\n{steps:,} steps, one process, steps per second while it lives")
    print(f"{'state':>10} {'none':>8} {'per 1,000':>10} {'per 100':>10} {'per 10':>10} {'per 1':>10}")
    for state_bytes in (1_000, 50_000, 1_000_000):
        row = []
        for every in (0, 1000, 100, 10, 1):
            if state_bytes * (steps // every if every else 0) > 4_000_000_000:
                row.append("-")
                continue
            row.append(f"{steps / (await measure(steps, every, state_bytes)).live_s:,.0f}")
        print(f"{state_bytes:>10,} {row[0]:>8} " + " ".join(f"{r:>10}" for r in row[1:]), flush=True)


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
        asyncio.run(crossover(told.crossover))


if __name__ == "__main__":
    main()
