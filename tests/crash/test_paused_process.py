"""A process that is only paused: SIGSTOP at a fault point, a new attempt, SIGCONT. It must not write again, and must not make a
second at_most_once effect possible (failures E7, E11; C12, C13).

The old process may be anywhere in its body, so nothing but a proof of its death may turn "not done" into "run again".
"""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from everstep.contract import ExitCode, StopReason
from everstep.ids import JournalId
from everstep.journal.records import Finished, Park
from tests.crash.agents import AT_MOST_ONCE, SCRIPT_EFFECTS, SCRIPT_RESULT
from tests.crash.driver import AgentProcess, Driver
from tests.crash.judge import check, stories

STOPPED_AT = (
    "after_verify@1", "before_intent:1@1", "after_intent:3@1", "in_body:3@1", "after_effect:3@1", "after_result:3@1",
    "before_append:3@1", "after_append:3@1", "in_body:2@1", "before_park@1",
)  # fmt: skip


@asynccontextmanager
async def paused(driver: Driver, point: str) -> AsyncIterator[AgentProcess]:
    """Attempt 1, stopped at a point; continued and ended at the latest at exit."""
    await driver.fence()
    old = await driver.spawn(faults=f"{point}=stop")
    try:
        await old.wait_stopped()
        yield old
    finally:
        if old.process.returncode is None:
            old.process.kill()
            await old.process.wait()


async def _play(store_url: str, home: Path, point: str, run_key: bytes | None) -> None:
    journal = JournalId("paused-" + "".join(c if c.isalnum() else "-" for c in point))
    if store_url.startswith("sqlite"):
        # A file each: a process stopped in mid-transaction keeps SQLite's lock, and with it every other run of the file waits.
        store_url = f"sqlite://{home / f'{journal}.db'}"
    async with Driver(store_url, journal, home / journal, run_key=run_key) as driver, paused(driver, point) as old:
        await driver.fence()
        new = await driver.spawn(predecessor_dead=False)
        assert await new.wait() == ExitCode.OK, new.stderr()
        old.send(signal.SIGCONT)
        assert await old.wait() == ExitCode.SUPERSEDED, f"{point}: {old.stderr()}"
        termination = old.termination()
        assert termination is not None
        assert termination.reason is StopReason.FENCED
        await _answer_and_finish(driver)
        await check(driver, SCRIPT_EFFECTS, AT_MOST_ONCE)
        first = [r for r in await driver.records() if r.attempt == 1]
        assert not [r for r in first if r.seq > driver.anchor.seq], "the old attempt wrote after the new one"


async def _answer_and_finish(driver: Driver) -> None:
    """The old process is gone now: a person answers what is asked, and the run ends."""
    head = await driver.last()
    await driver.take_anchor()
    if isinstance(head, Park):
        for wait in head.waits:
            if wait.kind == "uncertain":
                await driver.settle(wait)
        if all(wait.kind == "timer" for wait in head.waits):
            await driver.sleep_until(head.wake)
        head = await driver.finish()
    assert isinstance(head, Finished)
    assert head.value == SCRIPT_RESULT


@pytest.mark.parametrize("half", [0, 1], ids=["first", "second"])
async def test_a_paused_process_that_was_replaced_never_writes_again(
    half: int, store_url: str, run_key: bytes | None, tmp_path: Path
) -> None:
    points = STOPPED_AT[half::2]
    outcomes = await asyncio.gather(*(_play(store_url, tmp_path, p, run_key) for p in points), return_exceptions=True)
    broken = [f"{point}: {e!r}" for point, e in zip(points, outcomes, strict=True) if e is not None]
    assert not broken, "\n".join(broken)


async def test_not_done_is_no_proof_while_the_old_process_may_live(
    store_url: str, run_key: bytes | None, tmp_path: Path
) -> None:
    """Stopped between intent and effect, the probe says "not done". Run again on that word, and the mail would go out twice as
    soon as the old process continues."""
    async with (
        Driver(store_url, JournalId("not-done"), tmp_path, run_key=run_key) as driver,
        paused(driver, "in_body:3@1") as old,
    ):
        await driver.fence()
        new = await driver.spawn(predecessor_dead=False)
        assert await new.wait() == ExitCode.OK, new.stderr()
        head = await driver.last()
        assert isinstance(head, Park)
        assert [(wait.kind, wait.name) for wait in head.waits] == [("uncertain", "tell")]
        assert [line["name"] for line in driver.lines()] == ["a", "b"], "not sent while it is uncertain"
        old.send(signal.SIGCONT)
        assert await old.wait() == ExitCode.SUPERSEDED, old.stderr()
        assert [line["name"] for line in driver.lines()] == ["a", "b", "c"], "the old process sent it when it woke up"
        await _answer_and_finish(driver)
        told = {story.name: story for story in stories(await driver.records()).values() if story.name == "tell"}
        assert told["tell"].outcomes == 1
        await check(driver, SCRIPT_EFFECTS, AT_MOST_ONCE)


async def test_not_done_and_proved_dead_runs_again(store_url: str, run_key: bytes | None, tmp_path: Path) -> None:
    """The other side: the same moment, but the process was seen to end."""
    async with Driver(store_url, JournalId("dead"), tmp_path, run_key=run_key) as driver:
        finished = await driver.finish(faults="in_body:3@1=kill")
        assert finished.value == SCRIPT_RESULT
        told = [story for story in stories(await driver.records()).values() if story.name == "tell"]
        assert [story.settled for story in told] in ([["again by probe"], []], [[], []])
        assert told[0].intents == 2
        await check(driver, SCRIPT_EFFECTS, AT_MOST_ONCE)


async def test_two_processes_of_one_attempt(store_url: str, run_key: bytes | None, tmp_path: Path) -> None:
    """A container that the kubelet starts again under the same attempt gets TAKEN and exits 75 (E13)."""
    async with (
        Driver(store_url, JournalId("twice"), tmp_path, run_key=run_key) as driver,
        paused(driver, "in_body:2@1") as first,
    ):
        second = await driver.spawn()
        assert await second.wait() == ExitCode.SUPERSEDED, second.stderr()
        assert [line["name"] for line in driver.lines()] == ["a"], "it ran nothing"
        first.send(signal.SIGCONT)
        assert await first.wait() == ExitCode.OK, first.stderr()
        await _answer_and_finish(driver)
        await check(driver, SCRIPT_EFFECTS, AT_MOST_ONCE)
