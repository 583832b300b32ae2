"""How fast a lost run gets back to work: kill -9 after n steps, then a fresh process claims, verifies, replays and goes on.

    python -m tests.bench.replay [--steps 1000 10000]

Real processes on a SQLite journal: the first is killed right before `finished`, the second replays all steps, the agent running,
and finishes. `replay_ms` is what the attempt itself tells (verification and replay); `total_s` is the whole second process,
Python start included.
"""

import argparse
import asyncio
from dataclasses import dataclass

from tests.bench.taken_up import driver_of, kill_and_take_up

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
    async with driver_of("tests.bench.agents:run", {"steps": steps}) as driver:
        _, done = await kill_and_take_up(driver, lambda first: first.wait(STEP_TIMEOUT_S), STEP_TIMEOUT_S)
        assert done.progress.replayed == steps, done.progress
        return Replay(steps, done.live_s, done.total_s, done.progress.replay_ms or 0, done.peak_bytes)


def main() -> None:
    """Print one line per length."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, nargs="+", default=[1000, 10_000])
    for steps in parser.parse_args().steps:
        print(asyncio.run(measure(steps)), flush=True)


if __name__ == "__main__":
    main()
