"""How fast a lost run gets back to work: kill -9 after n steps, then a fresh process claims, verifies, replays and goes on.

    python -m tests.bench.replay [--steps 1000 10000]

Real processes on a SQLite journal: the first is killed right before `finished`, the second replays all steps, the agent running,
and finishes. `replay_ms` is what the attempt itself tells (verification and replay); `total_s` is the whole second process,
Python start included.
"""

import argparse
import asyncio
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from everstep.ids import JournalId
from everstep.journal.progress import Progress
from everstep.journal.records import Finished
from tests.crash.driver import Driver

STEP_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Replay:
    """One length of run."""

    steps: int
    live_s: float
    total_s: float
    replay_ms: int
    peak_bytes: int

    @property
    def steps_per_s(self) -> float:
        """Steps replayed per second, verification included."""
        return self.steps / max(self.replay_ms / 1000, 1e-9)

    def __str__(self) -> str:
        return (
            f"{self.steps:6} steps  live {self.live_s:6.2f} s  verify and replay {self.replay_ms:6} ms "
            f"({self.steps_per_s:8.0f} steps/s)  fresh process to end {self.total_s:5.2f} s  peak {self.peak_bytes / 1e6:.0f} MB"
        )


async def measure(steps: int) -> Replay:
    """Run, kill, replay."""
    with tempfile.TemporaryDirectory(prefix="everstep-bench-", dir=Path.cwd()) as folder:
        home = Path(folder)
        driver = Driver(
            f"sqlite://{home}/journal.db",
            JournalId("bench"),
            home / "run",
            entrypoint="tests.bench.agents:run",
            inputs={"steps": steps},
            run_key=b"k" * 32,
            bare_inputs=True,
        )
        async with driver:
            await driver.fence()
            begin = time.perf_counter()
            first = await driver.spawn(faults="before_finished@1=kill")
            await first.wait(STEP_TIMEOUT_S)
            live_s = time.perf_counter() - begin
            await driver.take_anchor()
            await driver.fence()
            begin = time.perf_counter()
            second = await driver.spawn(predecessor_dead=True)
            code = await second.wait(STEP_TIMEOUT_S)
            total_s = time.perf_counter() - begin
            assert code == 0, second.stderr()
            assert isinstance(await driver.last(), Finished)
            meta = await driver.store.meta(driver.journal)
            assert meta is not None
            progress = Progress.from_bytes(meta.progress or b"")
            assert progress is not None
            assert progress.replayed == steps, progress
            peak = re.search(r"peak_bytes=(\d+)", second.stderr())
            assert peak, second.stderr()
            return Replay(steps, live_s, total_s, progress.replay_ms or 0, int(peak[1]))


def main() -> None:
    """Print one line per length."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, nargs="+", default=[1000, 10_000])
    for steps in parser.parse_args().steps:
        print(asyncio.run(measure(steps)), flush=True)


if __name__ == "__main__":
    main()
