"""Random programs under budgets, crashed and raised step by step, then forked at a random step (C14, C59).

EVERSTEP_SEED and EVERSTEP_BUDGET_PROGRAMS choose where to begin and how many; a failure names its seed.
"""

import os

import pytest

from tests.property import budgets, pool

FIRST = int(os.environ.get("EVERSTEP_SEED", "1"))
PROGRAMS = int(os.environ.get("EVERSTEP_BUDGET_PROGRAMS", "300"))
CHUNK = 25


@pytest.mark.timeout(1200)
def test_programs_under_budgets_and_their_forks(capsys: pytest.CaptureFixture[str]) -> None:
    seeds = range(FIRST, FIRST + PROGRAMS)
    chunks = [seeds[i : i + CHUNK] for i in range(0, PROGRAMS, CHUNK)]
    played = [p for chunk in pool.spread(budgets.play_all, chunks) for p in chunk]
    parks, forks = sum(p.parks for p in played), sum(p.forked for p in played)
    with capsys.disabled():
        print(f"\nseeds {FIRST} to {FIRST + PROGRAMS - 1}: {parks} parks at a budget, {forks} forks")
    broken = [f"seed {p.seed}: {p.message}" for p in played if p.message]
    assert not broken, "\n".join(broken)
    assert len(played) == PROGRAMS
    assert parks > PROGRAMS
    assert forks > PROGRAMS * 0.5
