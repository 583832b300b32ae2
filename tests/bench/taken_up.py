"""A run that is killed right before its end and taken up by a fresh process: what both measures of a restart do."""

import re
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from everstep.ids import JournalId
from everstep.journal.progress import Progress
from everstep.journal.records import Finished
from tests.crash.driver import AgentProcess, Driver

T = TypeVar("T")


@dataclass(frozen=True)
class TakenUp:
    """How both processes did."""

    live_s: float
    """The first process."""
    total_s: float
    """The whole second process, Python's start included."""
    progress: Progress
    """What the second process told last."""
    peak_bytes: int
    cpu_s: float


@asynccontextmanager
async def driver_of(entrypoint: str, inputs: dict[str, object]) -> AsyncIterator[Driver]:
    """A run on a SQLite journal in a folder below the working directory, fenced for its first attempt."""
    with tempfile.TemporaryDirectory(prefix="everstep-bench-", dir=Path.cwd()) as folder:
        home = Path(folder)
        driver = Driver(
            f"sqlite://{home}/journal.db",
            JournalId("bench"),
            home / "run",
            entrypoint=entrypoint,
            inputs=inputs,
            run_key=b"k" * 32,
            bare_inputs=True,
        )
        async with driver:
            await driver.fence()
            yield driver


async def kill_and_take_up(
    driver: Driver, until_killed: Callable[[AgentProcess], Awaitable[T]], timeout_s: float
) -> tuple[T, TakenUp]:
    """Run, kill, take up. `until_killed` is awaited with the first process; what it gives is handed on."""
    begin = time.perf_counter()
    first = await driver.spawn(faults="before_finished@1=kill")
    seen = await until_killed(first)
    live_s = time.perf_counter() - begin
    await driver.take_anchor()
    await driver.fence()
    begin = time.perf_counter()
    second = await driver.spawn(predecessor_dead=True)
    code = await second.wait(timeout_s)
    total_s = time.perf_counter() - begin
    assert code == 0, second.stderr()
    assert isinstance(await driver.last(), Finished)
    meta = await driver.store.meta(driver.journal)
    assert meta is not None
    progress = Progress.from_bytes(meta.progress or b"")
    assert progress is not None
    told = re.search(r"peak_bytes=(\d+) cpu_s=([\d.]+)", second.stderr())
    assert told, second.stderr()
    return seen, TakenUp(live_s, total_s, progress, int(told[1]), float(told[2]))
