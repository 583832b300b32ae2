"""`everstep.run(agent, goal=…)` in this very process: a script, pytest, a notebook; resumed by its run id."""

import asyncio
import os
import signal
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep import AgentFailed, BadCall, ConfigError, Diverged, Parked
from everstep.errors import JournalLost
from everstep.local.locks import RunBusy

effects: list[str] = []


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    effects.clear()


@everstep.step(effect="idempotent")
async def act(what: str) -> str:
    effects.append(what)
    return what.upper()


@everstep.step(effect="at_most_once", timeout=0.1)
async def hangs() -> str:
    effects.append("sent")
    await asyncio.sleep(60)
    return "never"


@everstep.agent
async def work(goal: str, names: list[str]) -> list[str]:
    return [await act(n) for n in names]


@everstep.agent
def sync_work(goal: str, n: int = 2) -> str:
    return f"{goal} {n} {act.sync('x')}"


def test_a_run_gives_the_agents_result_and_keeps_its_journal_here(tmp_path: Path) -> None:
    assert everstep.run(work, goal="go", names=["a", "b"]) == ["A", "B"]
    assert (tmp_path / ".everstep" / "journal.db").exists()
    assert everstep.run(sync_work, goal="go", n=3) == "go 3 X"


def test_the_same_run_id_gives_the_recorded_result_and_runs_nothing() -> None:
    for _ in range(2):
        assert everstep.run(work, goal="go", names=["a"], run_id="monday") == ["A"]
    assert effects == ["a"]
    with pytest.raises(ConfigError, match=r"input names: was .*, now .*Take another run_id"):
        everstep.run(work, goal="go", names=["b"], run_id="monday")
    with pytest.raises(ConfigError, match="run id"):
        everstep.run(work, goal="go", names=["b"], run_id="../monday")


async def test_in_a_notebook_where_a_loop_runs_already() -> None:
    assert everstep.run(work, goal="go", names=["a"]) == ["A"]


def test_another_directory(tmp_path: Path) -> None:
    everstep.run(work, goal="go", names=[], directory=str(tmp_path / "there"))
    assert (tmp_path / "there" / "journal.db").exists()
    assert not (tmp_path / ".everstep").exists()


def test_a_failed_agent_raises_its_cause_the_first_time_and_the_record_ever_after() -> None:
    @everstep.agent
    async def breaks(goal: str) -> None:
        await act("x")
        raise KeyError("missing")

    with pytest.raises(AgentFailed, match="KeyError: 'missing'") as first:
        everstep.run(breaks, run_id="r")
    assert isinstance(first.value.__cause__, KeyError)
    with pytest.raises(AgentFailed, match="KeyError: 'missing'") as again:
        everstep.run(breaks, run_id="r")
    assert again.value.__cause__ is None
    assert effects == ["x"]


def test_an_uncertain_step_says_how_to_answer() -> None:
    @everstep.agent
    async def mails(goal: str) -> str:
        return await hangs()

    for _ in range(2):
        with pytest.raises(Parked, match="everstep local settle r KEY"):
            everstep.run(mails, run_id="r")
    assert effects == ["sent"]


def test_wrong_uses_are_explained() -> None:
    with pytest.raises(ConfigError, match=r"needs an @everstep\.agent"):
        everstep.run(act, goal="x")  # type: ignore[call-overload]  # wrong on purpose
    with pytest.raises(ConfigError, match="needs the input names"):
        everstep.run(work, goal="go")

    @everstep.agent
    async def nests(goal: str) -> Any:
        return everstep.run(sync_work, goal="x")

    with pytest.raises(AgentFailed, match="inside a run") as e:
        everstep.run(nests)
    assert isinstance(e.value.__cause__, BadCall)


def test_two_processes_cannot_run_one_run() -> None:
    inside, go_on = threading.Event(), threading.Event()

    @everstep.step(effect="read")
    def waits() -> None:
        inside.set()
        go_on.wait(20)

    @everstep.agent
    def slow(goal: str) -> None:
        waits()

    first = threading.Thread(target=lambda: everstep.run(slow, run_id="r"))
    first.start()
    assert inside.wait(20)
    with pytest.raises(RunBusy, match="by this process"):
        everstep.run(slow, run_id="r")
    go_on.set()
    first.join(20)


def test_ctrl_c_lets_the_step_finish_and_the_run_resumes() -> None:
    @everstep.step(effect="idempotent")
    async def interrupted() -> str:
        effects.append("begun")
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0.3)
        effects.append("ended")
        return "ok"

    @everstep.agent
    async def twice(goal: str) -> list[str]:
        return [await interrupted(), await act("after")]

    with pytest.raises(KeyboardInterrupt):
        everstep.run(twice, run_id="r")
    assert effects == ["begun", "ended"]
    assert everstep.run(twice, run_id="r") == ["ok", "AFTER"]
    assert effects == ["begun", "ended", "after"]


def test_changed_code_diverges() -> None:
    box = ["a"]

    @everstep.agent
    async def fickle(goal: str) -> None:
        await act(box[0])
        await hangs()

    with pytest.raises(Parked):
        everstep.run(fickle, run_id="r")
    box[0] = "b"
    with pytest.raises(Diverged, match="other arguments"):
        everstep.run(fickle, run_id="r")


def test_a_cut_journal_is_noticed_by_its_anchor(tmp_path: Path) -> None:
    everstep.run(work, goal="go", names=["a", "b"], run_id="r")
    db = sqlite3.connect(tmp_path / ".everstep" / "journal.db")
    with db:
        db.execute("delete from records where place = (select max(place) from records)")
        db.execute("update journals set seq = seq - 1, hash = (select hash from records order by place desc limit 1)")
    db.close()
    with pytest.raises(JournalLost, match="behind the anchor"):
        everstep.run(work, goal="go", names=["a", "b"], run_id="r")
