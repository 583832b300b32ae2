"""Files that a step made are where they were in whichever pod the run goes on: each attempt has a working directory of its own.

SIGKILL before and after they are kept, around the snapshots and segments that carry them, and while they are put back;
on SQLite and on Redis.
"""

import signal
from pathlib import Path

import pytest

from everstep.ids import JournalId
from everstep.journal.export import blob_names
from everstep.journal.verify import verify
from tests.crash.agents_artifacts import EDITIONS, SIZE
from tests.crash.driver import Driver
from tests.crash.judge import check_journal

SPECS = (
    "before_artifact@1=kill;after_artifact@2=kill",
    "after_result:2@1=kill;before_artifact:1@2=kill;before_finished@3=kill",
    "after_append:3@1=kill;after_artifact:1@2=kill;in_replay:2@3=kill",
)

OVER_SNAPSHOTS = (
    "after_snapshot:2@1=kill;in_restore:1@2=kill",
    "before_snapshot:2@1=kill;in_restore:2@2=kill;before_artifact@3=kill",
    "after_effect:3@1=kill;before_compact@2=kill;after_compact@3=kill;in_restore:2@4=kill",
    "after_append:7@1=kill;after_snapshot:1@2=kill;before_finished@3=kill",
)
OVER_SEGMENTS = (
    "before_segment:1@1=kill;in_restore:1@2=kill",
    "after_segment:1@1=kill;in_restore:2@2=kill;before_segment@3=kill",
    "after_segment:2@1=kill;before_compact@2=kill;after_compact@3=kill;in_restore:1@4=kill",
)


@pytest.mark.parametrize("spec", SPECS)
async def test_files_are_restored_in_a_fresh_pod(
    spec: str, store_url: str, run_key: bytes | None, tmp_path: Path
) -> None:
    journal = JournalId("files-" + "".join(c if c.isalnum() else "-" for c in spec))
    async with Driver(store_url, journal, tmp_path, "tests.crash.agents_artifacts:press", {}, run_key) as driver:
        finished = await driver.finish(faults=spec)
        assert driver.exits.count(-signal.SIGKILL) == spec.count("=kill"), driver.exits
        size, _, same, mode = finished.value
        assert (size, same, mode) == (SIZE, True, "0o640")
        records = await driver.records()
        check_journal(records)
        value = next(r.value for r in records if r.kind == "result" and r.name == "render")
        sizes = [len(await driver.store.blob_get(journal, name) or b"") for name in value["parts"]]
        assert sizes == [4 << 20, 4 << 20, SIZE - (8 << 20)]
        done = [line["name"] for line in driver.lines()]
        lost = spec.count("=kill")
        assert done.count("render") <= 1 + lost
        last = driver.home / f"process-{len(driver.exits)}"
        assert (last / "out/report.bin").stat().st_size == SIZE
        assert (last / "out/summary.txt").exists()
        assert list(last.glob("out/.*")) == [], "nothing half-written is left"


@pytest.mark.parametrize(
    ("agent", "spec"), [*(("editions", s) for s in OVER_SNAPSHOTS), *(("volumes", s) for s in OVER_SEGMENTS)]
)
async def test_files_of_before_a_snapshot_are_put_back_in_a_fresh_pod(
    agent: str, spec: str, store_url: str, run_key: bytes | None, tmp_path: Path
) -> None:
    """No result of before the snapshot is given to the agent, and its bodies find the files of before all the same."""
    journal = JournalId(f"{agent}-" + "".join(c if c.isalnum() else "-" for c in spec))
    async with Driver(store_url, journal, tmp_path, f"tests.crash.agents_artifacts:{agent}", {}, run_key) as driver:
        finished = await driver.finish(faults=spec)
        lost = spec.count("=kill")
        assert driver.exits.count(-signal.SIGKILL) == lost, driver.exits
        assert finished.value == EDITIONS
        check_journal(await driver.records())
        done = [line["name"] for line in driver.lines()]
        assert done.count("compose") == 1, "put back, not made again"
        report = await verify(driver.store, driver.chain, journal, anchor=driver.anchor, keep=True)
        assert report.whole, report.message
        named = {name for stored in report.records for name in blob_names(stored.record)}
        assert named <= set(await driver.store.blob_ids(journal)), "a blob that is named is gone"
        if "compact" in spec:
            assert report.records[0].seq > 1, "nothing was compacted"
        last = driver.home / f"process-{len(driver.exits)}"
        assert (last / "out/ground.bin").stat().st_size == SIZE // 6 * 6
        assert (last / "out/edition.txt").read_text(encoding="utf-8") == "012"
        assert list(last.glob("out/.*")) == [], "nothing half-written is left"
