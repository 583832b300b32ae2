"""SIGTERM: flush and leave with 143. It makes a loss cheaper, and nothing depends on it (failures C20, C27, C34)."""

import asyncio
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from everstep import contract
from everstep.contract import ExitCode
from everstep.ids import JournalId
from everstep.journal.records import Finished, Result
from tests.crash.driver import AgentProcess, Driver, until
from tests.crash.judge import check, lost_tries, stories


async def _until_effects(driver: Driver, count: int, agent: AgentProcess) -> None:
    await until(lambda: len(driver.lines()) >= count, f"{count} effects", detail=agent.stderr)


async def test_the_step_in_flight_may_finish_and_no_new_one_begins(
    store_url: str, run_key: bytes | None, tmp_path: Path
) -> None:
    inputs: dict[str, object] = {"seconds": 0.5}
    agent_name = "tests.crash.agents:two_slow_steps"
    async with Driver(store_url, JournalId("term"), tmp_path, agent_name, inputs, run_key) as driver:
        await driver.fence()
        agent = await driver.spawn()
        await _until_effects(driver, 1, agent)
        agent.send(signal.SIGTERM)
        assert await agent.wait() == ExitCode.TERMINATED, agent.stderr()
        kinds = [(r.kind, r.name) for r in await driver.records() if r.kind in ("intent", "result")]
        assert kinds == [("intent", "slow"), ("result", "slow")]
        await driver.take_anchor()
        finished = await driver.finish()
        assert finished.value == "firstsecond"
        await check(driver, ("first", "second"), set())
        assert lost_tries(await driver.records()) == 0, "nothing was lost, nothing ran twice"


async def test_a_body_that_outlasts_the_grace_time_is_left_behind(
    store_url: str, run_key: bytes | None, tmp_path: Path
) -> None:
    """C34: the exit does not wait for ever, and the journal is as good as after a kill."""
    inputs: dict[str, object] = {"seconds": 3600}
    agent_name = "tests.crash.agents:two_slow_steps"
    async with Driver(store_url, JournalId("grace"), tmp_path, agent_name, inputs, run_key) as driver:
        driver.env[contract.ENV_GRACE_S] = "0.5"
        await driver.fence()
        agent = await driver.spawn()
        await _until_effects(driver, 1, agent)
        began = time.monotonic()
        agent.send(signal.SIGTERM)
        assert await agent.wait() == ExitCode.TERMINATED, agent.stderr()
        assert 0.4 < time.monotonic() - began < 5
        assert not any(isinstance(r, Result) for r in await driver.records())
        driver.inputs["seconds"] = 3600  # inputs are pinned by the run: the step must be answered by what is recorded
        await driver.take_anchor()
        await driver.fence()
        again = await driver.spawn(predecessor_dead=True)
        await _until_effects(driver, 2, again)
        again.send(signal.SIGKILL)
        assert await again.wait() == -signal.SIGKILL
        (story,) = stories(await driver.records()).values()
        assert (story.intents, story.outcomes) == (2, 0)


async def test_a_process_that_does_not_listen_loses_one_step_only(
    store_url: str, run_key: bytes | None, tmp_path: Path
) -> None:
    """C34 with a grace period of 0, C12: a body that blocks its process starts once per attempt, and SIGKILL follows."""
    async with Driver(store_url, JournalId("deaf"), tmp_path, "tests.crash.agents:deaf_agent", {}, run_key) as driver:
        await driver.fence()
        agent = await driver.spawn()
        await _until_effects(driver, 1, agent)
        agent.send(signal.SIGTERM)
        await asyncio.sleep(0.3)
        assert agent.process.returncode is None, "it is deaf"
        agent.send(signal.SIGKILL)
        assert await agent.wait() == -signal.SIGKILL
        await driver.take_anchor()
        finished = await driver.finish()
        assert finished.value == "firstsecond"
        await check(driver, ("first", "second"), set())


async def test_exit_0_is_no_success(store_url: str, run_key: bytes | None, tmp_path: Path) -> None:
    """C27: a tool takes SIGTERM over and leaves with 0. There is no `finished` record, so the run goes on."""
    async with Driver(
        store_url, JournalId("polite"), tmp_path, "tests.crash.agents:polite_agent", {}, run_key
    ) as driver:
        await driver.fence()
        agent = await driver.spawn()
        await _until_effects(driver, 1, agent)
        await asyncio.sleep(0.2)  # the handler is installed right after the effect
        agent.send(signal.SIGTERM)
        assert await agent.wait() == 0, agent.stderr()
        head = await driver.last()
        assert not isinstance(head, Finished)
        await driver.take_anchor()
        finished = await driver.finish()
        assert finished.value == "firstsecond"
        await check(driver, ("first", "second"), set())


@pytest.mark.parametrize("store_kind", ["sqlite"])
async def test_no_claim_after_sigterm(store_url: str, tmp_path: Path) -> None:
    """C20: told to stop while its claim waits for the store, a process leaves without having taken the run. (A claim that a
    Redis server has already received may still be carried out; then the owner is dead and the next attempt replaces it.)"""
    async with Driver(
        store_url, JournalId("claim"), tmp_path, "tests.crash.agents:two_slow_steps", {"seconds": 0.1}
    ) as driver:
        await driver.fence()
        lock = sqlite3.connect(store_url.removeprefix("sqlite://"), isolation_level=None)
        try:
            lock.execute("BEGIN IMMEDIATE")
            agent = await driver.spawn()
            await until(lambda: _waits_in_python(agent), "the process has started", detail=agent.stderr)
            agent.send(signal.SIGTERM)
            code = await agent.wait(10)
        finally:
            lock.execute("ROLLBACK")
            lock.close()
        assert code in (ExitCode.TERMINATED, -signal.SIGTERM), agent.stderr()
        meta = await driver.store.meta(driver.journal)
        assert meta is not None
        assert meta.owner is None
        assert driver.lines() == []
        finished = await driver.finish()
        assert finished.value == "firstsecond"


@pytest.mark.parametrize("point", ["after_claim", "after_verify", "before_intent"])
async def test_no_step_begins_after_sigterm(point: str, store_url: str, run_key: bytes | None, tmp_path: Path) -> None:
    """C20: SIGTERM that arrives while the process starts: it leaves, and the next attempt has the run for itself."""
    journal = JournalId(f"start-{point}")
    async with Driver(
        store_url, journal, tmp_path, "tests.crash.agents:two_slow_steps", {"seconds": 0.1}, run_key
    ) as driver:
        await driver.fence()
        agent = await driver.spawn(faults=f"{point}=stop")
        await agent.wait_stopped()
        agent.send(signal.SIGTERM)
        agent.send(signal.SIGCONT)
        assert await agent.wait() == ExitCode.TERMINATED, agent.stderr()
        assert driver.lines() == [], "a step began after SIGTERM"
        await driver.take_anchor()
        finished = await driver.finish()
        assert finished.value == "firstsecond"


def _waits_in_python(agent: AgentProcess) -> bool:
    """Whether the journal's file is open in the process: it has imported the SDK and waits for the lock."""
    links = list(Path(f"/proc/{agent.pid}/fd").iterdir())
    return any(str(link.readlink()).endswith("journal.db") for link in links if link.is_symlink())
