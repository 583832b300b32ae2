"""`everstep local run --max-…` and `everstep local budget`: a run parks at its cap, shows why and what lets it go on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.local_runs import LocalRuns

AGENT = '''
"""Asks a model that reports what it used."""
import os
import everstep
from everstep import Reserve

@everstep.step(effect="read", reserve=Reserve(tokens=30, model="small-1"))
async def think(n: int) -> int:
    with open(os.environ["SIDE"], "a") as side:
        side.write(f"think {n}\\\\n")
    everstep.report_usage(input_tokens=15, output_tokens=5, model="small-1")
    return n

@everstep.agent
async def run(goal: str, count: int = 5) -> int:
    return sum([await think(n) for n in range(count)])
'''.replace("\\\\", "\\")


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[LocalRuns]:
    local = LocalRuns(tmp_path)
    (tmp_path / "agents.py").write_text(AGENT)
    yield local
    local.close()


def test_a_run_parks_at_its_cap_says_so_and_goes_on_when_raised(runs: LocalRuns) -> None:
    """C59, C60."""
    parked = runs.run("run", "--max-tokens", "60", "--max-steps", "50")
    assert parked.returncode == 3, parked.stdout + parked.stderr
    assert (
        "waiting · think #2 · with step think the run would use more than its budget: 40 tokens spent" in parked.stdout
    )
    assert "raise it    everstep local budget monday --max-tokens N" in parked.stdout
    shown = runs.cli("local", "get", "monday").stdout
    assert "Budget:      2 of 50 steps, 40 of 60 tokens" in shown
    assert "everstep local budget monday --max-tokens N" in shown
    document = runs.json("local", "get", "monday")
    assert document["summary"] == "Waiting"
    assert [w["kind"] for w in document["waiting"]] == ["budget"]
    assert document["budget"]["spent"]["maxTokens"] == 40
    assert runs.run("run").returncode == 3, "the same command keeps the budget"

    said = runs.cli("local", "budget", "monday", "--max-tokens", "90", "--reason", "half more")
    assert said.returncode == 0, said.stderr
    assert runs.run("run").returncode == 3
    assert runs.json("local", "get", "monday")["budget"]["limits"]["maxTokens"] == 90
    assert runs.cli("local", "budget", "monday", "--max-tokens", "none").returncode == 0
    done = runs.run("run")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "10")
    assert runs.effects() == [f"think {n}" for n in range(5)]
    assert "is over already" in runs.cli("local", "budget", "monday", "--max-tokens", "9").stderr


def test_money_needs_a_price(runs: LocalRuns) -> None:
    parked = runs.run("run", "--max-cost-usd", "0.01", "--input", "count=2")
    assert parked.returncode == 3, parked.stdout + parked.stderr
    assert "model 'small-1' has no price" in parked.stdout
    assert "everstep local budget monday --price MODEL=IN/OUT" in parked.stdout
    assert runs.effects() == []
    done = runs.run("run", "--max-cost-usd", "0.01", "--price", "small-*=100/200", "--input", "count=2")
    assert done.returncode == 0, done.stdout
    assert "$0.005 of $0.01" in runs.cli("local", "get", "monday").stdout


def test_on_exceeded_fail_ends_the_run(runs: LocalRuns) -> None:
    failed = runs.run("run", "--max-steps", "2", "--on-exceeded", "fail")
    assert failed.returncode == 1, failed.stdout
    assert "BudgetExceeded" in failed.stdout


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--max-steps", "2.5", "--max-steps '2.5': give a number"),
        ("--max-tokens", "many", "--max-tokens 'many': give a number"),
        ("--price", "gpt", "--price 'gpt': write MODEL=IN/OUT"),
    ],
)
def test_wrong_limits_are_refused_by_name(runs: LocalRuns, option: str, value: str, said: str) -> None:
    refused = runs.run("run", option, value)
    assert refused.returncode == 2, refused.stderr
    assert said in refused.stderr
    assert not runs.effects()
