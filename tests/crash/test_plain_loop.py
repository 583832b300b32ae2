"""A plain loop with the openai client and MCP tools becomes durable with at most five changed lines.

The lines are counted, and the program is killed: real processes, a model service on loopback, an MCP server over stdio.
"""

import difflib
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from everstep.ids import JournalId
from tests.crash.driver import REPOSITORY, Driver
from tests.crash.judge import check_journal
from tests.support.mcp_tools import effects
from tests.support.models import Json, ModelServer, Reply

EXAMPLES = REPOSITORY / "agent_image" / "examples"
ANSWER = "Filed and paid."
DONE = Counter({("look", "backlog"): 1, ("file_ticket", "fire"): 1, ("pay", "3"): 1})
STEPS = ["list_tools", "chat.completions", "look", "chat.completions", "file_ticket", "pay", "chat.completions"]


def think(body: Json, _number: int) -> Reply:
    """What the model wants next depends on what it was told."""
    told = sum(message["role"] == "tool" for message in body["messages"])
    if told == 0:
        return Reply("", tools=(("look", {"what": "backlog"}),))
    if told == 1:
        return Reply("", tools=(("file_ticket", {"title": "fire"}), ("pay", {"amount": 3})))
    return Reply(ANSWER)


def test_five_lines_differ() -> None:
    before, after = (
        (EXAMPLES / name).read_text(encoding="utf-8").splitlines() for name in ("before/plain_loop.py", "plain_loop.py")
    )
    changes = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
    added = [line for line in changes if line[0] == "+" and line[1:].strip()]
    removed = [line for line in changes if line[0] == "-" and line[1:].strip()]
    assert len(added) == 5, added
    assert len(removed) == 4, "three of the five stand for these, and an import is not needed any more"


def environment(model: ModelServer, done: Path) -> dict[str, str]:
    return {
        "OPENAI_BASE_URL": model.url,
        "OPENAI_API_KEY": "not-needed",
        "TOOLS_COMMAND": f"{sys.executable} -m tests.support.mcp_tools {done}",
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "agent_image"), str(EXAMPLES), str(REPOSITORY)]),
    }


def play(name: str, model: ModelServer, home: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(EXAMPLES / name), "Sort out the backlog"],
        env={**os.environ, **environment(model, home / "done")},
        cwd=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_it_does_what_the_plain_program_does(tmp_path: Path) -> None:
    with ModelServer(think) as model:
        for number, name in enumerate(("before/plain_loop.py", "plain_loop.py"), 1):
            process = play(name, model, tmp_path)
            out, err = process.communicate(timeout=60)
            assert out.strip() == ANSWER, err
            assert len(model.requests) == 3 * number
            assert Counter(effects(tmp_path / "done")) == Counter(dict.fromkeys(DONE, number))
        bodies = [re.sub(r"call-\d+", "call", json.dumps(body, sort_keys=True)) for _, body in model.requests]
        assert bodies[:3] == bodies[3:], "the model is asked the very same"


@pytest.mark.parametrize("killed_at", [0, 2])
def test_the_program_killed_while_the_model_answers_and_started_again(killed_at: int, tmp_path: Path) -> None:
    processes: list[subprocess.Popen[str]] = []

    def kill_once(body: Json, number: int) -> Reply:
        if number == killed_at:
            processes[0].send_signal(signal.SIGKILL)
        return think(body, number)

    with ModelServer(kill_once) as model:
        processes.append(play("plain_loop.py", model, tmp_path))
        _, err = processes[0].communicate(timeout=60)
        assert processes[0].returncode == -signal.SIGKILL, err
        processes.append(play("plain_loop.py", model, tmp_path))
        out, err = processes[1].communicate(timeout=60)
        assert out.strip() == ANSWER, err
        assert len(model.requests) == 4, "only the request in flight was made again"
        assert Counter(effects(tmp_path / "done")) == DONE
        if killed_at == 0:
            return
        processes.append(play("plain_loop.py", model, tmp_path))
        out, err = processes[2].communicate(timeout=60)
        assert out.strip() == ANSWER, err
        assert len(model.requests) == 4, "a finished run is not run again"


SPECS = (
    "after_effect:2@1=kill;after_effect:1@2=kill;before_append:2@3=kill",
    "after_effect:5@1=kill;before_intent:1@2=kill;before_finished@3=kill",
)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("spec", SPECS)
async def test_killed_at_fault_points(spec: str, store_url: str, run_key: bytes | None, tmp_path: Path) -> None:
    """As a pod would be: nothing recorded runs again, what was in flight at most once more, the payment once."""
    with ModelServer(think) as model:
        journal = JournalId("loop-" + "".join(c if c.isalnum() else "-" for c in spec))
        async with Driver(store_url, journal, tmp_path / "run", "plain_loop:run", {}, run_key) as driver:
            driver.bare_inputs = True
            driver.env |= environment(model, tmp_path / "done")
            finished = await driver.finish(faults=spec)
            records = await driver.records()
        kills = driver.exits.count(-signal.SIGKILL)
        assert kills == 3, driver.exits
        assert finished.value == ANSWER
        check_journal(records)
        assert [r.name.split(".", 1)[1] for r in records if r.kind == "result"] == STEPS
        done = Counter(effects(tmp_path / "done"))
        assert done[("pay", "3")] == 1
        again = sum(done.values()) - 3 + len(model.requests) - 3
        intents = Counter(r.key for r in records if r.kind == "intent")
        assert again <= sum(intents.values()) - len(STEPS) <= kills
