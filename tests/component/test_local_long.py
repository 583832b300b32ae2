"""A run with snapshots under the supervisor: it shrinks while it goes on, is killed and taken up, and every command tells the
truth about what is left."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
AGENT = """
import os, signal
from pathlib import Path
import everstep

@everstep.step(effect="idempotent")
async def work(n: int) -> str:
    everstep.report_usage(input_tokens=2)
    if n == 150 and not Path("lost").exists():
        Path("lost").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if n % 10 == 0:
        import asyncio
        await asyncio.sleep(0.15)
    return "x" * 200

@everstep.agent
async def run(goal: str) -> int:
    state = everstep.restored(int) or 0
    while state < 250:
        await work(state)
        state += 1
        if state % 20 == 0:
            everstep.snapshot(state)
    return state
"""


def cli(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "PYTHONPATH": f"{REPOSITORY / 'agent_image'}:{folder}", "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, "-m", "everstep.cli", "local", *arguments],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that was killed once, in its 151st step."""
    where = tmp_path_factory.mktemp("long")
    (where / "looping.py").write_text(AGENT, encoding="utf-8")
    done = cli(where, "run", "looping:run", "--goal", "go", "--run-id", "loop")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "250 steps, 10 replayed, " in done.stderr + done.stdout
    return where


def document(folder: Path, *arguments: str) -> "dict[str, object]":
    done = cli(folder, *arguments, "-o", "json")
    assert done.returncode == 0, done.stderr
    told: dict[str, object] = json.loads(done.stdout)
    return told


def test_verify_says_from_where(folder: Path) -> None:
    told = document(folder, "verify", "loop")
    assert told["whole"]
    assert isinstance(told["first"], int)
    assert told["first"] > 100, "what was before an anchored snapshot is gone"
    line = cli(folder, "verify", "loop").stdout
    assert f"records {told['first']} to {told['records']}, compacted before" in line


def test_steps_and_totals_count_what_is_gone(folder: Path) -> None:
    steps = document(folder, "steps", "loop")
    before, listed = steps["before"], steps["steps"]
    assert isinstance(before, dict)
    assert isinstance(listed, list)
    assert before["steps"] + len(listed) == 250
    assert all(s["key"].startswith("@") for s in listed)
    assert "earlier steps not listed" in cli(folder, "steps", "loop").stderr
    got = document(folder, "get", "loop")
    counts = got["steps"]
    assert isinstance(counts, dict)
    assert counts["recorded"] == 250
    assert got["inputTokens"] == 500
    assert got["summary"] == "Succeeded"
    assert "what was before was compacted" in cli(folder, "get", "loop").stdout


def test_the_result_and_the_same_command_again(folder: Path) -> None:
    assert cli(folder, "result", "loop").stdout.strip() == "250"
    again = cli(folder, "run", "looping:run", "--goal", "go", "--run-id", "loop")
    assert again.returncode == 0, again.stderr
    assert "succeeded already" in again.stderr + again.stdout
