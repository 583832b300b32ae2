"""SIGKILL of `everstep local fork` at every point, and of a fork's attempts: a fork is there whole or not at all, the source is
never changed, and no effect before the cut happens again.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from everstep.ids import Attempt, JournalId, Owner
from everstep.journal import fork as forks
from everstep.journal.records import Intent, canonical
from everstep.journal.verify import verify
from everstep.run.values import digest
from everstep_operator.forking import add_arguments, write_fork
from everstep_operator.keyring import KeyRing
from tests.crash.agents import SCRIPT_RESULT
from tests.crash.driver import Driver
from tests.crash.judge import check_journal, stories
from tests.support.local_runs import LocalRuns

FORK = """
import sys
from everstep import faults
from everstep.cli.app import everstep
faults.arm(sys.argv[1], 1)
everstep(sys.argv[2:], prog_name="everstep")
"""


def fork(runs: LocalRuns, faults: str, *arguments: str) -> int:
    """`everstep local fork` with a fault armed; its exit code."""
    command = [sys.executable, "-c", FORK, faults, "local", "fork", *arguments]
    return subprocess.run(command, cwd=runs.home, env=runs.env, capture_output=True, timeout=60, check=False).returncode


@pytest.mark.timeout(240)
@pytest.mark.parametrize("point", ["before_fork", "in_fork", "after_fork"])
def test_a_fork_that_is_killed_is_not_there_and_can_be_made_again(point: str, tmp_path: Path) -> None:
    runs = LocalRuns(tmp_path)
    assert runs.run("run", "--input", "count=2").returncode == 0
    source = runs.sql("SELECT record FROM records ORDER BY place")
    before = runs.effects()
    assert fork(runs, f"{point}=kill", "monday", "--from-step", "2", "--run-id", "tuesday") == -signal.SIGKILL
    assert [d["run"] for d in runs.json("local", "list")] == ["monday"]
    assert runs.cli("local", "verify", "monday").returncode == 0
    assert fork(runs, "", "monday", "--from-step", "2", "--run-id", "tuesday") == 0
    assert runs.sql("SELECT record FROM records ORDER BY place")[: len(source)] == source
    done = runs.run("run", "--input", "count=2", run="tuesday")
    assert done.returncode == 0, done.stdout
    added = [line.split()[:2] for line in runs.effects()[len(before) :]]
    assert added == [["look", "1"], ["file", "1"]]


def test_the_name_of_a_killed_fork_is_free_for_a_run(tmp_path: Path) -> None:
    runs = LocalRuns(tmp_path)
    assert runs.run("run", "--input", "count=1").returncode == 0
    assert fork(runs, "after_fork=kill", "monday", "--from-step", "1", "--run-id", "tuesday") == -signal.SIGKILL
    done = runs.run("run", "--input", "count=1", run="tuesday")
    assert done.returncode == 0, done.stdout + done.stderr
    assert runs.count() == {"look 0": 2, "file 0": 2}, "another run, from its start"


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "spec", ["in_replay:2@2=kill", "after_intent:1@2=kill", "after_effect:1@2=kill", "before_append:1@2=kill"]
)
def test_a_fork_survives_as_any_run(spec: str, tmp_path: Path) -> None:
    """A run is killed with a step in flight and forked there: that step keeps its key, later ones are new."""
    runs = LocalRuns(tmp_path)
    held = runs.start("run", "--input", "count=2", HOLD="file 1")
    runs.until_held("file 1")
    held.kill()
    held.wait(30)
    keys = [line.split()[2] for line in runs.effects() if line.startswith("file 1")]
    before = len(runs.effects())
    assert fork(runs, "", "monday", "--from-step", "end", "--run-id", "tuesday") == 0
    done = runs.run("run", "--input", "count=2", run="tuesday", EVERSTEP_FAULTS=spec)
    assert done.returncode == 0, done.stdout
    assert "lost" in done.stdout, "the fault was reached"
    added = runs.effects()[before:]
    assert {line.split()[0] + line.split()[1] for line in added} == {"file1"}
    assert {line.split()[2] for line in added} == set(keys), "the step in flight at the cut keeps its recorded key"
    assert len(added) <= 2
    assert os.path.exists(runs.everstep / "runs" / "monday.json")


CUTS = {"2": "c, the first at_most_once step", "t1/0": "e, with d in flight", "3": "g", "4": "j, after the park"}
FAULTS = ("after_effect:1@2=kill", "before_append:1@2=kill;in_replay:1@3=kill", "after_intent:1@2=kill")


async def _fork(source: Driver, step: str, name: str) -> Driver:
    """A driver of a fork: same home, so the effects of both are in one file."""
    report = await verify(source.store, source.chain, source.journal, anchor=source.anchor, keep=True)
    made = forks.plan(report, "crash", step)
    driver = Driver(source.store_url, JournalId(name), source.home, run_key=source.run_key)
    sealed = forks.seal(driver.chain, forks.begin(made, {"run": "crash"}))
    driver.anchor = await forks.write(driver.store, driver.chain, Owner("fork"), sealed, {"name": "crash"})
    await forks.copy_blobs(driver.store, source.chain, driver.chain, made.blobs)
    driver.attempt = Attempt(forks.ATTEMPT)
    return driver


async def _play(source: Driver, step: str, spec: str) -> None:
    name = "".join(c if c.isalnum() else "-" for c in f"{step}-{spec}")
    async with await _fork(source, step, f"{source.journal}-{name}") as driver:
        kept = {r.idem for r in await driver.records() if isinstance(r, Intent)}
        finished = await driver.finish(faults=spec)
        assert finished.value == SCRIPT_RESULT, f"{step} {spec}: {finished}"
        assert driver.exits.count(-signal.SIGKILL) == spec.count("=kill"), driver.exits
        records = await driver.records()
        check_journal(records)
        for story in stories(records).values():
            done = [line for line in source.lines() if line["idem"] == story.idem]
            if story.idem in kept:
                assert len(done) == 1 or story.name == "flaky", f"{story.name} {story.key} happened again: {done}"
            else:
                assert 1 <= len(done) <= 1 + story.failed_tries + story.lost, f"{story.name} {story.key}: {done}"
                assert story.effect != "at_most_once" or len(done) == 1


@pytest.mark.timeout(240)
async def test_forks_of_a_finished_run_are_killed(store_url: str, run_key: bytes | None, tmp_path: Path) -> None:
    """On both stores, chain plain and keyed: effects before the cut happen no more, those after it once per fork."""
    async with Driver(store_url, JournalId("fork-source"), tmp_path, run_key=run_key) as source:
        assert (await source.finish()).value == SCRIPT_RESULT
        before = [r async for r in source.store.read(source.journal)]
        for spec in FAULTS:
            outcomes = await asyncio.gather(*(_play(source, step, spec) for step in CUTS), return_exceptions=True)
            broken = [f"{step} {spec}: {e!r}" for step, e in zip(CUTS, outcomes, strict=True) if e is not None]
            assert not broken, "\n".join(broken)
        assert [r async for r in source.store.read(source.journal)] == before, "the source is not touched"


@pytest.mark.parametrize("store_kind", ["redis"])
async def test_the_operator_writes_a_fork_that_an_attempt_goes_on_with(store_url: str, tmp_path: Path) -> None:
    """As `kubectl everstep fork` has it written: under the new run's own key, whole, and safe to ask for again."""
    ring = KeyRing({"k1": b"\x05" * 32})
    ids = JournalId("cluster-source"), JournalId("cluster-fork")
    keys = [ring.chain(journal, "k1").key for journal in ids]
    async with Driver(store_url, ids[0], tmp_path, run_key=keys[0]) as source:
        assert (await source.finish()).value == SCRIPT_RESULT
        told = digest(canonical({"effects": str(source.effects)}))
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        words = ["--from-step", "3", "--target", ids[1], "--target-name", "again", "--inputs-digest", told]
        arguments = parser.parse_args([*words, "--goal-digest", digest(b"go")])
        arguments.run, arguments.namespace = "crash", "default"
        first = await write_fork(source.store, source.chain, ring, None, arguments, source.anchor)
        assert await write_fork(source.store, source.chain, ring, None, arguments, source.anchor) == first
        assert first["lineage"]["step"] == "3"
        before = len(source.lines())
        async with Driver(store_url, ids[1], tmp_path, run_key=keys[1]) as driver:
            driver.attempt = Attempt(forks.ATTEMPT)  # the operator goes on from the number it finds in the journal
            assert (await driver.finish(faults="after_effect:1@2=kill")).value == SCRIPT_RESULT
            meta = await driver.store.meta(driver.journal)
            assert meta is not None
            assert (meta.fields["keyId"], meta.fields["name"]) == ("k1", "crash")
            names = {str(line["name"]) for line in source.lines()[before:]}
            assert names == {"g", "h-look", "h-put", "i-look", "i-put", "j", "k", "l"}
            pinned = [r for r in await driver.records() if r.kind == "pinned"]
            assert [r.by for r in pinned] == ["fork"]
