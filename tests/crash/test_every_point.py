"""SIGKILL at every named fault point, at its first and at later occurrences, on SQLite and on Redis.

The run must end with the same result, no recorded step may run again, and each effect may have happened once plus once per loss
that caught that very step in flight; an at_most_once effect exactly once (settled by probe, or by a person after a park).
Covers failures C13, C14, C15 and E20's counterpart in the agent.
"""

import asyncio
import signal
from pathlib import Path

import pytest

from everstep.faults import POINTS
from everstep.ids import JournalId
from tests.crash.agents import AT_MOST_ONCE, SCRIPT_EFFECTS, SCRIPT_RESULT
from tests.crash.driver import Driver
from tests.crash.judge import check, stories

# Attempt 1 of the script runs steps a to i and parks at its long timer; attempt 2 replays them and runs j, k and l. The third
# intent is c, the sixth f: the at_most_once steps with a probe. In attempt 2 the second is k, which has none.
PLAN: dict[str, tuple[str, ...]] = {
    "after_claim": ("after_claim@1=kill", "after_claim@1=kill;after_claim@2=kill", "after_claim@2=kill"),
    "after_verify": ("after_verify@1=kill", "after_verify@2=kill", "after_verify@1=kill;after_verify@2=kill"),
    "before_intent": tuple(f"before_intent:{n}=kill" for n in ("1@1", "3@1", "5@1", "9@1", "1@2", "2@2")),
    "after_intent": tuple(f"after_intent:{n}=kill" for n in ("1@1", "3@1", "6@1", "8@1", "2@2", "3@2")),
    "in_body": tuple(f"in_body:{n}=kill" for n in ("1@1", "3@1", "4@1", "6@1", "2@2")),
    "after_effect": tuple(f"after_effect:{n}=kill" for n in ("1@1", "3@1", "6@1", "8@1", "1@2", "2@2")),
    "after_result": tuple(f"after_result:{n}=kill" for n in ("1@1", "3@1", "6@1", "2@2", "3@2")),
    "before_append": tuple(f"before_append:{n}=kill" for n in ("1@1", "2@1", "4@1", "7@1", "1@2", "3@2")),
    "after_append": tuple(f"after_append:{n}=kill" for n in ("1@1", "2@1", "4@1", "7@1", "1@2", "3@2")),
    "before_retry": ("before_retry:1@1=kill", "before_retry:2@1=kill", "before_retry:1@1=kill;before_retry:1@2=kill"),
    "before_probe": (
        "after_intent:3@1=kill;before_probe@2=kill",
        "after_effect:3@1=kill;before_probe@2=kill;before_probe@3=kill",
        "after_intent:6@1=kill;before_probe@2=kill",
    ),
    "after_probe": (
        "after_intent:3@1=kill;after_probe@2=kill",
        "after_effect:3@1=kill;after_probe@2=kill;after_probe@3=kill",
        "after_intent:6@1=kill;after_probe@2=kill",
    ),
    "before_park": ("before_park@1=kill", "after_effect:2@2=kill;before_park@3=kill"),
    "after_park": ("after_park@1=kill", "after_effect:2@2=kill;after_park@3=kill"),
    "in_replay": ("in_replay:1@2=kill", "in_replay:4@2=kill", "in_replay:9@2=kill;in_replay:2@3=kill"),
    "before_finished": ("before_finished@2=kill", "before_finished@2=kill;before_finished@3=kill"),
    "after_finished": ("after_finished@2=kill",),
}


ELSEWHERE: dict[str, str] = {
    "after_held": "test_budgets",
    "after_raised": "test_budgets",
    "before_heartbeat": "test_steps",
    "after_heartbeat": "test_steps",
    "before_question": "test_steps",
    "after_question": "test_steps",
    "before_snapshot": "test_long_runs",
    "after_snapshot": "test_long_runs",
    "before_segment": "test_long_runs",
    "after_segment": "test_long_runs",
    "in_stream": "test_streams",
    "before_artifact": "test_artifacts",
    "after_artifact": "test_artifacts",
    "in_restore": "test_artifacts",
    "after_live": "test_streams",
    "before_fork": "test_forks",
    "in_fork": "test_forks",
    "after_fork": "test_forks",
    "before_key": "test_integrity",
    "in_erase": "test_integrity",
    "in_rotate": "test_integrity",
    "after_rotate": "test_integrity",
    "before_compact": "test_long_runs",
    "after_compact": "test_long_runs",
}
"""Points that the script does not reach, and the module of this tier that kills there."""


def test_every_point_of_the_registry_is_planned() -> None:
    assert set(PLAN) | set(ELSEWHERE) == set(POINTS)
    for point, module in ELSEWHERE.items():
        assert f"{point}" in (Path(__file__).parent / f"{module}.py").read_text(encoding="utf-8")
    for point, specs in PLAN.items():
        assert all(point in spec for spec in specs)


async def _play(store_url: str, home: Path, spec: str, run_key: bytes | None) -> None:
    journal = "".join(c if c.isalnum() else "-" for c in spec)
    async with Driver(store_url, JournalId(journal), home / journal, run_key=run_key) as driver:
        finished = await driver.finish(faults=spec)
        kills = spec.count("=kill")
        assert driver.exits.count(-signal.SIGKILL) == kills, (
            f"{spec}: not every point was reached, exits {driver.exits}"
        )
        assert finished.outcome == "succeeded", finished
        assert finished.value == SCRIPT_RESULT, f"{spec}: another result {finished.value}"
        assert len(driver.exits) == driver.attempt
        await check(driver, SCRIPT_EFFECTS, AT_MOST_ONCE)


@pytest.mark.parametrize("point", PLAN)
async def test_sigkill_at(point: str, store_url: str, run_key: bytes | None, tmp_path: Path) -> None:
    outcomes = await asyncio.gather(
        *(_play(store_url, tmp_path, spec, run_key) for spec in PLAN[point]), return_exceptions=True
    )
    broken = [f"{spec}: {e!r}" for spec, e in zip(PLAN[point], outcomes, strict=True) if e is not None]
    assert not broken, "\n".join(broken)


async def test_without_a_loss_every_effect_happens_once(store_url: str, run_key: bytes | None, tmp_path: Path) -> None:
    async with Driver(store_url, JournalId("clean"), tmp_path, run_key=run_key) as driver:
        finished = await driver.finish()
        assert finished.value == SCRIPT_RESULT
        assert driver.exits == [0, 0], "one park at the long timer, one end"
        await check(driver, SCRIPT_EFFECTS, AT_MOST_ONCE)
        told = stories(await driver.records())
        assert all(story.lost == 0 and story.uncertain == 0 for story in told.values())
        assert len(driver.lines()) == len(SCRIPT_EFFECTS) + 2, "only the flaky step was called three times"


async def test_the_judge_sees_a_second_effect(store_url: str, run_key: bytes | None, tmp_path: Path) -> None:
    """The canary: a probe that lies makes an at_most_once effect happen twice. The checks of this tier must then fail."""
    async with Driver(store_url, JournalId("canary"), tmp_path, "tests.crash.agents:canary", {}, run_key) as driver:
        await driver.finish(faults="after_effect@1=kill")
        assert [line["name"] for line in driver.lines()] == ["a", "a"]
        with pytest.raises(AssertionError, match="2 effects of at_most_once"):
            await check(driver, ("a",), {"a"})


APPENDS_MAX = 40
AT_ONCE = 3


@pytest.mark.timeout(240)
@pytest.mark.parametrize("store_kind", ["sqlite"])
@pytest.mark.parametrize("point", ["before_append", "after_append"])
async def test_sigkill_around_every_single_write(point: str, store_url: str, tmp_path: Path) -> None:
    """Each write of the first attempt, one run per write, until a run gets through without reaching the fault."""
    numbers, reached = iter(range(1, APPENDS_MAX + 1)), []
    through = asyncio.Event()

    async def sweep() -> None:
        while not through.is_set() and (number := next(numbers, 0)):
            name = f"sweep-{point}-{number}"
            async with Driver(store_url, JournalId(name), tmp_path / name) as driver:
                finished = await driver.finish(faults=f"{point}:{number}@1=kill")
                assert finished.value == SCRIPT_RESULT, f"{point}:{number}: {finished}"
                await check(driver, SCRIPT_EFFECTS, AT_MOST_ONCE)
                if driver.exits[0] == -signal.SIGKILL:
                    reached.append(number)
                else:
                    through.set()

    async with asyncio.TaskGroup() as sweeps:
        for _ in range(AT_ONCE):
            sweeps.create_task(sweep())
    assert len(reached) >= 8, f"only writes {reached} were reached"
    assert through.is_set(), f"more than {APPENDS_MAX} writes"
