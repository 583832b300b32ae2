"""A step whose tries are exhausted asks a person on a laptop, and their answer is taken up."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.local_runs import LocalRuns

AGENT = '''
"""Fails until there is a file `repaired`."""
import os
import everstep
from everstep import Retry

@everstep.step(effect="idempotent", retry=Retry(max_tries=2, backoff_s=0.01, on_exhausted="ask"))
async def fetch(n: int) -> str:
    fd = os.open(os.environ["SIDE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"fetch {n}\\n".encode())
    os.close(fd)
    if not os.path.exists("repaired"):
        raise ConnectionError("no route to the archive")
    return f"F-{n}"

@everstep.agent
async def run(goal: str) -> list[str]:
    try:
        return [await fetch(0)]
    except everstep.StepFailed as e:
        return [e.type, e.message]
'''
COMMAND = ("local", "run", "exhausting:run", "--goal", "Go", "--run-id", "monday")


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[LocalRuns]:
    local = LocalRuns(tmp_path)
    (tmp_path / "exhausting.py").write_text(AGENT)
    done = local.cli(*COMMAND)
    assert done.returncode == 3, done.stdout + done.stderr
    assert (
        "fetch #0 failed in all tries: all tries failed (max_tries is 2), the last one: ConnectionError" in done.stdout
    )
    assert "everstep local settle monday 0 --done VALUE | --again | --fail" in done.stdout
    assert local.count() == {"fetch 0": 2}
    yield local
    local.close()


def test_the_run_waits_and_says_so(runs: LocalRuns) -> None:
    assert runs.cli(*COMMAND).returncode == 3
    assert runs.count() == {"fetch 0": 2}, "nothing is tried while a person is asked"
    assert runs.json("local", "get", "monday")["summary"] == "Waiting"
    line = runs.cli("local", "steps", "monday").stdout.splitlines()[1]
    assert line.split()[:4] == ["0", "fetch", "2", "exhausted"]


@pytest.mark.parametrize(
    ("how", "tried", "result"),
    [
        (["--again"], 3, ["F-0"]),
        (["--done", "F-by-hand"], 2, ["F-by-hand"]),
        (
            ["--fail", "--reason", "it burnt down"],
            2,
            ["ConnectionError", "no route to the archive (it burnt down; {user})"],
        ),
    ],
)
def test_an_answer_is_taken_up(runs: LocalRuns, tmp_path: Path, how: list[str], tried: int, result: list[str]) -> None:
    (tmp_path / "repaired").touch()
    settled = runs.cli("local", "settle", "monday", "fetch", *how)
    assert settled.returncode == 0, settled.stderr
    user = settled.stdout.split(" by ")[1].split(";")[0]
    done = runs.cli(*COMMAND)
    assert done.returncode == 0, done.stdout + done.stderr
    assert runs.json("local", "result", "monday")["result"] == [word.replace("{user}", user) for word in result]
    assert runs.count() == {"fetch 0": tried}
    late = runs.cli("local", "settle", "monday", "0", "--again")
    assert late.returncode == 2
