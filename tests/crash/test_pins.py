"""SIGKILL around the change of an image: the pin is written once, after the replay, and no recorded step runs again."""

import asyncio
import signal
from pathlib import Path

from everstep import contract
from everstep.contract import StopReason
from everstep.ids import JournalId
from everstep.journal.records import Finished, Pinned
from tests.crash.agents import AT_MOST_ONCE, SCRIPT_EFFECTS, SCRIPT_RESULT
from tests.crash.driver import Driver
from tests.crash.judge import check

OLD, NEW = "registry.example/agent:1", "registry.example/agent:2"
BEFORE = ("after_append:2", "in_body:3", "after_result:4")
AFTER = ("in_replay:1", "before_append:1", "after_append:1", "before_append:2", "after_append:3")


def told(image: str, named: str) -> dict[str, str]:
    return {contract.ENV_IMAGE: image, contract.ENV_IMAGE_NAMED: named}


async def _play(store_url: str, home: Path, run_key: bytes | None, before: str, after: str) -> None:
    name = f"{before}-{after}".replace(":", "-").replace("_", "-")
    async with Driver(store_url, JournalId(name), home / name, run_key=run_key, env=told(OLD, OLD)) as driver:
        await driver.fence()
        first = await driver.spawn(faults=f"{before}=kill")
        assert await first.wait() == -signal.SIGKILL, first.stderr()
        await driver.take_anchor()
        # nobody chose it: refused, and nothing is written
        driver.env = told(NEW, "")
        length = len(await driver.records())
        await driver.fence()
        refused = await driver.spawn()
        assert await refused.wait() == contract.ExitCode.JOURNAL_REFUSED, refused.stderr()
        said = refused.termination()
        assert said is not None
        assert said.reason is StopReason.DIVERGED
        assert OLD in said.message
        assert NEW in said.message
        assert len(await driver.records()) == length
        # chosen in the spec: it replays, pins and goes on, killed on the way
        driver.env = told(NEW, NEW)
        finished = await driver.finish(faults=f"{after}@3=kill")
        assert isinstance(finished, Finished)
        assert finished.value == SCRIPT_RESULT, f"{name}: {finished}"
        pins = [r for r in await driver.records() if isinstance(r, Pinned)]
        assert [(p.image, p.by) for p in pins] == [(NEW, "spec")], name
        await check(driver, SCRIPT_EFFECTS, AT_MOST_ONCE)


async def test_sigkill_around_a_change_of_the_image(store_url: str, run_key: bytes | None, tmp_path: Path) -> None:
    at_once = asyncio.Semaphore(2)

    async def one(before: str, after: str) -> None:
        async with at_once:
            await _play(store_url, tmp_path, run_key, before, after)

    pairs = [(BEFORE[i % len(BEFORE)], after) for i, after in enumerate(AFTER)]
    done = await asyncio.gather(*(one(*pair) for pair in pairs), return_exceptions=True)
    broken = [f"{pair}: {e!r}" for pair, e in zip(pairs, done, strict=True) if e is not None]
    assert not broken, "\n".join(broken)
