"""`everstep local live`: what the steps of a run say, seen from another process, over a kill. C55, by command."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.local_runs import LocalRuns

TALK = """
import asyncio, os, pathlib
import everstep

@everstep.step(effect="read")
async def talk(words: str) -> int:
    for word in words.split():
        everstep.say(word + " ")
        await asyncio.sleep(0.06)
        while (gate := os.environ.get("GATE")) and word == "three" and not pathlib.Path(gate).exists():
            await asyncio.sleep(0.02)
    return len(words)

@everstep.step(effect="read")
async def silent() -> int:
    return 1

@everstep.agent
async def run(goal: str) -> int:
    await silent()
    first = await talk("one two three \\x1b[31mfour")
    return first + await talk("five six")
"""


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[LocalRuns]:
    local = LocalRuns(tmp_path)
    (tmp_path / "talk.py").write_text(TALK, encoding="utf-8")
    yield local
    local.close()


def play(runs: LocalRuns, **env: str) -> None:
    done = runs.cli("local", "run", "talk:run", "--goal", "x", "--run-id", "monday", **env)
    assert done.returncode == 0, done.stdout + done.stderr


def background(runs: LocalRuns, *arguments: str, **env: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-m", "everstep.cli", "local", *arguments],
        cwd=runs.home,
        env={**runs.env, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    runs.started.append(process)
    return process


def test_the_words_of_a_lost_try_are_marked_and_any_position_can_be_gone_on_from(runs: LocalRuns) -> None:
    play(runs, EVERSTEP_FAULTS="after_live:2@1=kill")
    shown = runs.cli("local", "live", "monday")
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[0] == "── talk #1 · attempt 1 ──"
    assert "── talk #1 · attempt 1 is dead: what it said above does not count ──" in lines
    again = lines.index("── talk #1 · attempt 2, try 2 ──")
    assert lines[again + 1] == "one two three �[31mfour ", "nothing reaches the terminal but text"
    assert lines[-1] == "five six "
    entries = [json.loads(line) for line in runs.cli("local", "live", "monday", "-o", "json").stdout.splitlines()]
    assert [e["position"] for e in entries] == list(range(1, len(entries) + 1))
    rest = runs.cli("local", "live", "monday", "-o", "json", "--from", "4", "--follow").stdout.splitlines()
    assert [json.loads(line) for line in rest] == entries[4:], "a run that is over ends the following"
    said = "".join(e["text"] for e in entries if e["key"] == "1" and e["attempt"] == 2)
    assert said == "one two three \x1b[31mfour "


def test_following_a_run_while_it_works(runs: LocalRuns, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    process = background(runs, "run", "talk:run", "--goal", "x", "--run-id", "monday", GATE=str(gate))
    runs.until("the first words", lambda: "three" in runs.cli("local", "live", "monday").stdout)
    watcher = background(runs, "live", "monday", "--follow")
    gate.touch()
    out, _ = watcher.communicate(timeout=60)
    assert "one two three" in out
    assert "five six" in out
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_run_that_says_nothing_or_is_not_there(runs: LocalRuns) -> None:
    assert runs.run().returncode == 0
    assert runs.cli("local", "live", "monday").stdout == ""
    missing = runs.cli("local", "live", "tuesday")
    assert missing.returncode != 0
    assert "tuesday" in missing.stderr
