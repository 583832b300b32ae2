"""Killed under the old code, taken up by the new code, killed again there: no recorded step runs again, no branch is mixed."""

import asyncio
import signal
from pathlib import Path

import pytest

from everstep.ids import JournalId
from everstep.journal.records import Finished, Value
from tests.crash.driver import Driver
from tests.crash.judge import check

OLD = [f"{point}:{n}" for point in ("after_append", "in_body") for n in (1, 2, 3, 5, 7)]
NEW = ("before_append:1", "after_append:1", "in_replay:1", "after_effect:1", "before_append:3")


async def _play(store_url: str, home: Path, run_key: bytes | None, old: str, new: str) -> bool:
    """Whether any place took the new way."""
    name = f"{old}-{new}".replace(":", "-").replace("_", "-")
    async with Driver(
        store_url, JournalId(name), home / name, "tests.crash.agents_patches:before", {}, run_key
    ) as driver:
        await driver.fence()
        first = await driver.spawn(faults=f"{old}=kill")
        assert await first.wait() == -signal.SIGKILL, f"{name}: {old} was not reached\n{first.stderr()}"
        await driver.take_anchor()
        driver.entrypoint = "tests.crash.agents_patches:after"
        finished = await driver.finish(faults=f"{new}@2=kill")
        assert isinstance(finished, Finished)
        assert finished.outcome == "succeeded", f"{name}: {finished}"
        taken = {r.name.removeprefix("patched:") for r in await driver.records() if isinstance(r, Value)}
        assert isinstance(finished.value, list)
        told = {"b": finished.value[1], "c": finished.value[2], "d": finished.value[3]}
        effects = {"a", "c-put", "d-put", "e"}
        for place, value in told.items():
            assert value == (place.upper() if place in taken else f"1{place}-told"), (
                f"{name}: {finished.value}, {taken}"
            )
            effects |= {place} if place in taken else {place, f"{place}-told"}
        at_most_once = {f"{place}-told" for place in told if place not in taken}
        await check(driver, tuple(effects), at_most_once)
        return bool(taken)


async def test_sigkill_before_and_after_the_change(store_url: str, run_key: bytes | None, tmp_path: Path) -> None:
    at_once = asyncio.Semaphore(3)

    async def one(old: str, new: str) -> bool:
        async with at_once:
            return await _play(store_url, tmp_path, run_key, old, new)

    pairs = [(old, NEW[i % len(NEW)]) for i, old in enumerate(OLD)]
    took = await asyncio.gather(*(one(old, new) for old, new in pairs), return_exceptions=True)
    broken = [f"{pair}: {e!r}" for pair, e in zip(pairs, took, strict=True) if isinstance(e, BaseException)]
    assert not broken, "\n".join(broken)
    assert True in took


@pytest.mark.parametrize("store_kind", ["sqlite"])
async def test_every_write_of_the_new_code(store_url: str, tmp_path: Path) -> None:
    """The marker is a write like any other: killed before and after each."""
    for point in ("before_append", "after_append"):
        for n in range(1, 7):
            assert await _play(store_url, tmp_path, None, "in_body:1", f"{point}:{n}"), f"{point}:{n}"
