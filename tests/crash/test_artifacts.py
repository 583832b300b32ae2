"""Files that a step made are where they were in whichever pod the run goes on: each attempt has a working directory of its own.

SIGKILL before and after they are kept, and later; on SQLite and on Redis.
"""

import signal
from pathlib import Path

import pytest

from everstep.ids import JournalId
from tests.crash.agents_artifacts import SIZE
from tests.crash.driver import Driver
from tests.crash.judge import check_journal

SPECS = (
    "before_artifact@1=kill;after_artifact@2=kill",
    "after_result:2@1=kill;before_artifact:1@2=kill;before_finished@3=kill",
    "after_append:3@1=kill;after_artifact:1@2=kill;in_replay:2@3=kill",
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
