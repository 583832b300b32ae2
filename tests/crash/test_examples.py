"""Each example is run, and killed: the agents a newcomer copies must survive what the README promises."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.ids import JournalId
from everstep.journal.records import Intent, Result
from tests.crash.driver import REPOSITORY, Driver
from tests.crash.judge import check_journal, stories
from tests.demo.tally import expected
from tests.support.world.client import WorldClient, world_on_loopback

EXAMPLES = REPOSITORY / "agent_image" / "examples"


def test_every_example_is_tested_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {
        "hello",
        "triage",
        "plain_loop",
    }  # the loops: test_plain_loop


@pytest.fixture(scope="module")
def world() -> Iterator[WorldClient]:
    with world_on_loopback() as client:
        yield client


def _driver(store_url: str, name: str, home: Path, entrypoint: str) -> Driver:
    driver = Driver(store_url, JournalId(name), home, entrypoint)
    driver.bare_inputs = True
    driver.env["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY / "agent_image"), str(EXAMPLES)])
    return driver


async def test_hello(store_url: str, tmp_path: Path) -> None:
    async with _driver(store_url, "hello", tmp_path, "hello:run") as driver:
        finished = await driver.finish(faults="after_effect:1@1=kill;in_replay:1@3=kill;after_intent:1@4=kill")
        assert str(finished.value).startswith("published under ")
        assert str(finished.value).endswith(": three facts about go")
        assert driver.exits.count(-signal.SIGKILL) == 3, driver.exits


def test_the_readme_shows_hello_as_it_is() -> None:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    shown = readme.split("<!-- example: agent_image/examples/hello.py -->\n```python\n", 1)[1].split("```", 1)[0]
    source = (EXAMPLES / "hello.py").read_text(encoding="utf-8")
    assert source.split('"""\n\n', 1)[1] == shown


@pytest.mark.timeout(180)
async def test_triage_killed_over_and_over(store_url: str, world: WorldClient, tmp_path: Path) -> None:
    """The whole backlog, with a loss in every kind of step and moment: the tracker files once, each mail goes out once."""
    world.reset()
    async with _driver(store_url, "triage", tmp_path, "triage:run") as driver:
        driver.env |= {
            "OPENAI_BASE_URL": f"{world.url}/v1",
            "OPENAI_API_KEY": "not-needed",
            "TRACKER_URL": world.url,
            "MAIL_URL": world.url,
        }
        faults = (
            "after_intent:8@1=kill;after_effect:9@2=kill;before_append:12@3=kill;in_body:15@4=kill;"
            "after_effect:3@5=kill;after_append:20@6=kill;in_replay:40@7=kill;before_finished@8=kill"
        )
        finished = await driver.finish(faults=faults, max_attempts=12)
        records = await driver.records()
    want, counts = expected(), world.counts()
    assert driver.exits.count(-signal.SIGKILL) == 8, driver.exits
    assert str(finished.value).startswith(f"{want.tickets} tickets triaged")
    assert str(finished.value).endswith(f"{want.mails} mails sent")
    assert (counts["tickets_filed"], counts["mails_sent"], counts["max_mails_per_key"]) == (want.filed, want.mails, 1)
    check_journal(records)
    told = stories(records)
    assert sum(story.outcomes for story in told.values()) == want.steps
    requests = Counter((r["kind"], r["ticket"]) for r in counts["requests"] if r["kind"] != "probe")
    extra = sum(requests.values()) - (want.steps - 1)
    assert 0 <= extra <= sum(story.lost for story in told.values())
    usage = sum((r.usage or {}).get("inputTokens", 0) for r in records if isinstance(r, Result))
    assert usage > 100 * want.tickets, "each ticket's tokens are in the journal, once (C14)"
    assert len({r.idem for r in records if isinstance(r, Intent)}) == want.steps


def test_examples_type_check() -> None:
    """An agent's author runs mypy --strict: the decorators must keep what their functions say."""
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        *(str(EXAMPLES / f"{name}.py") for name in ("hello", "triage")),
    ]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout
