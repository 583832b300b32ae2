"""SIGKILL around every write of snapshots and segments, on SQLite and Redis: same result, each effect once, sums exact (C14)."""

import asyncio
import signal
from pathlib import Path

import pytest

from everstep.ids import JournalId
from everstep.journal.records import Record, Result, Segment, Snapshot
from everstep.journal.verify import verify
from everstep.run.compaction import digests_in
from tests.crash import agents_long
from tests.crash.driver import Driver
from tests.crash.judge import check

PLAN: dict[str, tuple[str, ...]] = {
    "before_snapshot": (
        "before_snapshot:1@1=kill",
        "before_snapshot:3@1=kill",
        "before_snapshot:1@1=kill;before_snapshot:1@3=kill",
    ),
    "after_snapshot": (
        "after_snapshot:1@1=kill",
        "after_snapshot:3@1=kill",
        "after_snapshot:2@1=kill;after_snapshot:1@3=kill",
    ),
    "before_segment": (
        "before_segment:1@1=kill",
        "before_segment:2@1=kill",
        "before_segment@1=kill;before_segment@2=kill",
    ),
    "after_segment": ("after_segment:1@1=kill", "after_segment:2@1=kill", "after_segment@1=kill;after_segment@2=kill"),
    "before_compact": ("before_append:9@1=kill;before_compact@2=kill", "before_append:13@1=kill;before_compact@2=kill"),
    "after_compact": ("before_append:9@1=kill;after_compact@2=kill", "before_append:13@1=kill;after_compact@2=kill"),
    "after_append": tuple(f"after_append:{n}@1=kill" for n in (2, 5, 8, 11)),
    "before_append": tuple(f"before_append:{n}@1=kill" for n in (2, 5, 8, 11)),
    "after_effect": ("after_effect:6@1=kill;after_effect:2@2=kill", "after_effect:3@1=kill;after_effect:3@2=kill"),
}
AGENTS = {
    "rounds": ({}, agents_long.rounds_result(), agents_long.rounds_effects()),
    "rounds-large": ({"pad": 100_000}, agents_long.rounds_result(), agents_long.rounds_effects()),
    "rounds_sync": ({}, agents_long.rounds_result(sync=True), agents_long.rounds_effects(sync=True)),
    "segments": ({"pad": "y" * 70_000}, agents_long.SEGMENTS_RESULT, agents_long.SEGMENTS_EFFECTS),
}


def sums(records: list[Record]) -> tuple[int, int]:
    """Steps with an outcome, and input tokens, as the newest snapshot or segment and what follows it tell."""
    at = max(i for i, r in enumerate(records) if isinstance(r, Snapshot | Segment))
    opened = records[at]
    assert isinstance(opened, Snapshot | Segment)
    results = [r for r in records[at:] if isinstance(r, Result)]
    return (
        opened.totals["steps"] + sum(r.OUTCOME and r.kind != "fired" for r in records[at:] if not _again(r)),
        opened.totals["spend"]["usage"].get("inputTokens", 0)
        + sum((r.usage or {}).get("inputTokens", 0) for r in results),
    )


def _again(record: Record) -> bool:
    return record.kind == "settled" and record.decision == "again"


async def _play(store_url: str, home: Path, name: str, spec: str, run_key: bytes | None) -> None:
    inputs, result, effects = AGENTS[name]
    journal = name + "-" + "".join(c if c.isalnum() else "-" for c in spec)
    entrypoint = f"tests.crash.agents_long:{name.partition('-')[0]}"
    at_most_once = {e for e in effects if e.endswith(("tell", "shout"))}
    async with Driver(store_url, JournalId(journal), home / journal, entrypoint, dict(inputs), run_key) as driver:
        finished = await driver.finish(faults=spec)
        kills = spec.count("=kill")
        assert driver.exits.count(-signal.SIGKILL) == kills, (
            f"{spec}: not every point was reached, exits {driver.exits}"
        )
        assert finished.value == result, f"{spec}: another result {finished}"
        await check(driver, effects, at_most_once)
        records = await driver.records()
        steps = len({r.key for r in records if r.kind == "intent"})
        assert sums(records) == (steps, 21), f"{spec}: the sums are not exact (C14)"
        if "compact" in spec:
            left = [r async for r in driver.store.read(driver.journal)]
            assert left[0].seq > 1, f"{spec}: nothing was compacted"
            report = await verify(driver.store, driver.chain, driver.journal, anchor=driver.anchor)
            assert report.whole, report.message
            named = {name for r in left for name in digests_in(r.record)}
            assert set(await driver.store.blob_ids(driver.journal)) <= named, (
                f"{spec}: a blob that nothing names is left"
            )
        keys = [r.key for r in records if r.kind == "intent" and r.tries == 1]
        assert len(keys) == len(set(keys)), "a key was used in two epochs"


def points_of(name: str) -> list[str]:
    """The specs of an agent: only `segments` has segments; the others' writes are those of `rounds`."""
    if name in ("rounds-large", "rounds_sync"):
        return [*PLAN["before_snapshot"], *PLAN["after_snapshot"], *PLAN["after_compact"]]
    return [spec for point, specs in PLAN.items() for spec in specs if name == "segments" or "segment" not in point]


@pytest.mark.parametrize("name", AGENTS)
async def test_sigkill(name: str, store_url: str, run_key: bytes | None, tmp_path: Path) -> None:
    """C14, and C40's half for what was answered before: every point around snapshots and segments."""
    specs = points_of(name)
    at_once = asyncio.Semaphore(3)

    async def play(spec: str) -> None:
        async with at_once:
            await _play(store_url, tmp_path, name, spec, run_key)

    outcomes = await asyncio.gather(*(play(spec) for spec in specs), return_exceptions=True)
    broken = [f"{spec}: {e!r}" for spec, e in zip(specs, outcomes, strict=True) if e is not None]
    assert not broken, "\n".join(broken)
