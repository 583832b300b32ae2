"""SIGKILL at the points that bounds, heartbeats, retries and questions add, on SQLite and on Redis (C16, C17, C57)."""

import asyncio
import signal
from pathlib import Path

import pytest

from everstep.ids import JournalId
from tests.crash.agents_steps import SCRIPT_EFFECTS, SCRIPT_RESULT, STEPS_ENTRYPOINT
from tests.crash.driver import Driver
from tests.crash.judge import check, stories

# Without a loss: attempt 1 parks while b waits for its next try, attempt 2 while a person is asked about c, attempt 3 ends.
APPENDS = ("2@1", "3@1", "4@1", "5@1", "1@2", "3@2", "1@3", "2@3", "4@3", "6@3")
PLAN: dict[str, tuple[str, ...]] = {
    "before_heartbeat": tuple(f"before_heartbeat:{n}@1=kill" for n in (1, 2)),
    "after_heartbeat": (
        "after_heartbeat:1@1=kill",
        "after_heartbeat:2@1=kill",
        "after_heartbeat:1@1=kill;after_heartbeat:1@2=kill",
    ),
    "before_question": ("before_question@2=kill", "before_question@2=kill;before_append:1@3=kill"),
    "after_question": ("after_question@2=kill", "after_question@2=kill;after_append:2@3=kill"),
    "before_intent": ("before_intent:5@3=kill", "before_intent:6@3=kill"),
    "after_result": tuple(f"after_result:{n}@3=kill" for n in (3, 4, 6)),
    "in_replay": ("in_replay:2@3=kill", "after_result:4@3=kill;in_replay:3@4=kill"),
    "before_retry": tuple(f"before_retry:{n}=kill" for n in ("1@1", "2@1", "1@2")),
    "in_body": tuple(f"in_body:{n}=kill" for n in ("1@1", "2@1", "3@1", "1@2", "3@2", "1@3", "4@3", "7@3")),
    "after_effect": tuple(f"after_effect:{n}=kill" for n in ("1@1", "2@1", "2@2", "3@2", "1@3", "4@3", "6@3")),
    "before_append": tuple(
        f"before_append:{n}=kill" for n in ("2@1", "3@1", "4@1", "5@1", "1@2", "3@2", "1@3", "2@3", "4@3", "6@3")
    ),
    "after_append": tuple(
        f"after_append:{n}=kill" for n in ("2@1", "3@1", "4@1", "5@1", "1@2", "3@2", "1@3", "2@3", "4@3", "6@3")
    ),
    "before_park": ("before_park@1=kill", "before_park@2=kill"),
    "after_park": ("after_park@1=kill", "after_park@2=kill"),
}


async def _play(store_url: str, home: Path, spec: str, run_key: bytes | None) -> None:
    journal = "steps-" + "".join(c if c.isalnum() else "-" for c in spec)
    async with Driver(store_url, JournalId(journal), home / journal, STEPS_ENTRYPOINT, run_key=run_key) as driver:
        finished = await driver.finish(faults=spec, max_attempts=12)
        assert driver.exits.count(-signal.SIGKILL) == spec.count("=kill"), (
            f"not every point was reached: {driver.exits}"
        )
        assert finished.outcome == "succeeded", finished
        assert finished.value == SCRIPT_RESULT, f"{spec}: another result {finished.value}"
        await check(driver, SCRIPT_EFFECTS, set())


@pytest.mark.parametrize("point", PLAN)
async def test_sigkill_at(point: str, store_url: str, run_key: bytes | None, tmp_path: Path) -> None:
    outcomes = await asyncio.gather(
        *(_play(store_url, tmp_path, spec, run_key) for spec in PLAN[point]), return_exceptions=True
    )
    broken = [f"{spec}: {e!r}" for spec, e in zip(PLAN[point], outcomes, strict=True) if e is not None]
    assert not broken, "\n".join(broken)


async def test_without_a_loss(store_url: str, run_key: bytes | None, tmp_path: Path) -> None:
    async with Driver(store_url, JournalId("steps"), tmp_path, STEPS_ENTRYPOINT, run_key=run_key) as driver:
        finished = await driver.finish()
        assert finished.value == SCRIPT_RESULT
        assert driver.exits == [0, 0, 0], "it parks for a long wait and for a person"
        await check(driver, SCRIPT_EFFECTS, set())
        records = await driver.records()
        told = stories(records)
        assert all(story.lost == 0 for story in told.values())
        assert [w.kind for r in records if r.kind == "park" for w in r.waits] == ["timer", "exhausted"]
        assert told["0"].failed_tries == 1, "it fell silent once"
        assert told["2"].settled == ["again by test"]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("store_kind", ["sqlite"])
async def test_c57_ten_thousand_failing_tries(store_url: str, tmp_path: Path) -> None:
    """Tries without end, each with details and a long message, and a loss in the middle: at most 600 bytes each."""
    entrypoint = "tests.crash.agents_steps:ten_thousand"
    async with Driver(store_url, JournalId("c57"), tmp_path, entrypoint) as driver:
        finished = await driver.finish(faults="in_body:5000@1=kill")
        assert finished.value == "ConnectionError"
        size, kinds = 0, []
        async for stored in driver.store.read(driver.journal):
            size += len(stored.record)
            kinds.append(stored.record)
        assert sum(b'"kind":"intent"' in raw for raw in kinds) == 10_001, "the lost try does not count"
        assert sum(b'"kind":"heartbeat"' in raw for raw in kinds) <= 4
        assert size <= 10_000 * 600, size
