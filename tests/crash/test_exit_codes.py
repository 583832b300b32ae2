"""Each exit code and termination message of the agent process, and what stays in the journal (everstep/contract.py)."""

import sqlite3
from pathlib import Path

import pytest

from everstep.contract import ExitCode, StopReason
from everstep.ids import JournalId
from everstep.journal.records import Finished
from tests.crash.driver import Driver

AGENTS = """
import asyncio, os
import everstep

@everstep.step(effect="read")
async def look(n: int) -> int:
    return n

@everstep.step(effect="read")
async def other(n: int) -> int:
    return n

@everstep.agent
async def fine(goal: str, n: int = 1) -> int:
    return await look(n)

@everstep.agent
async def breaks(goal: str) -> None:
    await look(1)
    raise RuntimeError("out of luck")

@everstep.agent
async def changed(goal: str) -> int:
    if os.environ.get("CHANGED"):
        return await other(1)
    await look(1)
    await asyncio.sleep(3600)
    return 1

def plain() -> None: ...
"""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "exits.py").write_text(AGENTS)
    (tmp_path / "code" / "broken.py").write_text("import no_such_module_at_all\n")
    (tmp_path / "code" / "bare.py").write_text("import everstep\n@everstep.step\nasync def undeclared(): ...\n")
    driver = Driver(f"sqlite://{tmp_path / 'journal.db'}", JournalId("exits"), tmp_path / "home", bare_inputs=True)
    driver.env["PYTHONPATH"] = f"{tmp_path / 'code'}:{Path(__file__).parents[2] / 'agent_image'}"
    return driver


async def once(driver: Driver, entrypoint: str) -> tuple[int, StopReason | None, str]:
    """One attempt: exit code, reason and message."""
    driver.entrypoint = entrypoint
    await driver.fence()
    agent = await driver.spawn()
    code = await agent.wait()
    said = agent.termination()
    if await driver.store.meta(driver.journal) is not None:
        await driver.take_anchor()
    return code, said.reason if said else None, said.message if said else agent.stderr()


async def test_finished(driver: Driver) -> None:
    code, reason, _ = await once(driver, "exits:fine")
    assert (code, reason) == (ExitCode.OK, StopReason.FINISHED)
    assert await once(driver, "exits:fine") == (ExitCode.OK, StopReason.FINISHED, "succeeded")


async def test_the_agent_failed(driver: Driver) -> None:
    for _ in range(2):
        code, reason, message = await once(driver, "exits:breaks")
        assert (code, reason, message) == (ExitCode.AGENT_FAILED, StopReason.AGENT_FAILED, "RuntimeError: out of luck")
    last = await driver.last()
    assert isinstance(last, Finished)
    assert last.outcome == "failed"


async def test_c8_diverged_stops_and_the_journal_stays_as_it_was(driver: Driver) -> None:
    code, reason, message = await once(driver, "exits:changed")
    assert (code, reason) == (ExitCode.OK, StopReason.PARKED)
    length = len(await driver.records())
    driver.env["CHANGED"] = "1"
    for _ in range(2):
        code, reason, message = await once(driver, "exits:changed")
        assert (code, reason) == (ExitCode.JOURNAL_REFUSED, StopReason.DIVERGED)
        assert "step look was called at '0'" in message
        assert "calls step other at '0'" in message
        assert len(await driver.records()) == length


@pytest.mark.parametrize(
    ("entrypoint", "reason", "message"),
    [
        ("exits", StopReason.BAD_ENTRYPOINT, "MODULE:FUNCTION"),
        ("nowhere:run", StopReason.BAD_ENTRYPOINT, "there is no module nowhere"),
        ("exits:fin", StopReason.BAD_ENTRYPOINT, "exits has the agents breaks, changed, fine. Did you mean fine?"),
        ("exits:plain", StopReason.BAD_ENTRYPOINT, "put @everstep.agent above it"),
        ("exits:look", StopReason.BAD_ENTRYPOINT, "look is no agent"),
        ("broken:run", StopReason.BAD_ENTRYPOINT, "no_such_module_at_all"),
        ("bare:run", StopReason.BAD_ENTRYPOINT, "does not say what it does to the outside"),
    ],
)
async def test_bad_entrypoints_say_what_is_there(
    driver: Driver, entrypoint: str, reason: StopReason, message: str
) -> None:
    code, said, text = await once(driver, entrypoint)
    assert (code, said) == (ExitCode.BAD_CONFIG, reason)
    assert message in text
    assert await driver.records() == []


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"n": "many"}, "input n does not fit its annotation"),
        ({"m": 1}, "takes no input m"),
    ],
)
async def test_bad_inputs_are_named(driver: Driver, inputs: dict[str, object], message: str) -> None:
    driver.inputs = inputs
    code, reason, text = await once(driver, "exits:fine")
    assert (code, reason) == (ExitCode.BAD_CONFIG, StopReason.BAD_INPUTS)
    assert message in text
    assert await driver.records() == []


async def test_a_store_that_is_not_there(driver: Driver, tmp_path: Path) -> None:
    await driver.fence()
    driver.store_url = "nosuch://x"
    agent = await driver.spawn()
    assert await agent.wait() == ExitCode.BAD_CONFIG
    said = agent.termination()
    assert said is not None
    assert said.reason is StopReason.BAD_CONFIG
    assert "nosuch://" in said.message


async def test_settings_that_are_missing_are_named(driver: Driver) -> None:
    await driver.fence()
    driver.env["EVERSTEP_ATTEMPT"] = "one"
    agent = await driver.spawn()
    assert await agent.wait() == ExitCode.BAD_CONFIG
    assert "EVERSTEP_ATTEMPT must be a whole number" in agent.stderr()


async def test_an_altered_record_stops_before_agent_code(driver: Driver, tmp_path: Path) -> None:
    await once(driver, "exits:changed")
    await driver.store.aclose()
    with sqlite3.connect(tmp_path / "journal.db") as db:
        rows = db.execute("select place, record from records").fetchall()
        place, record = next((place, record) for place, record in rows if b'"kind":"result"' in record)
        db.execute("update records set record = ? where place = ?", (record.replace(b'"value":1', b'"value":2'), place))
    code, reason, message = await once_without_anchor(driver)
    assert (code, reason) == (ExitCode.JOURNAL_REFUSED, StopReason.JOURNAL_TAMPERED)
    assert "changed" in message


async def once_without_anchor(driver: Driver) -> tuple[int, StopReason | None, str]:
    await driver.fence()
    agent = await driver.spawn()
    code = await agent.wait()
    said = agent.termination()
    assert said is not None
    assert said.bad_seq is not None
    return code, said.reason, said.message


async def test_a_module_that_starts_a_run_when_imported_is_refused(driver: Driver, tmp_path: Path) -> None:
    (tmp_path / "code" / "script.py").write_text(
        AGENTS + "\nprint(everstep.run(fine, goal='x'))\nraise SystemExit(0)\n", encoding="utf-8"
    )
    code, reason, message = await once(driver, "script:fine")
    assert (code, reason) == (ExitCode.BAD_CONFIG, StopReason.BAD_ENTRYPOINT)
    assert "__main__" in message
    assert await driver.records() == []
