"""A run under chaos, by seed: safety after every event, an end once all has healed (design promises 1-5; E6-E20, E29, C19-C31).

`EVERSTEP_SIM_SEEDS=1,2,3` runs these seeds instead, `EVERSTEP_SIM_RUNS=500` more of them. A failure prints its seed.
"""

import os

import pytest

from tests.sim.chaos import Simulation

FIRST_SEED = 20_260_301


def seeds() -> list[int]:
    given = os.environ.get("EVERSTEP_SIM_SEEDS")
    if given:
        return [int(s) for s in given.split(",")]
    return list(range(FIRST_SEED, FIRST_SEED + int(os.environ.get("EVERSTEP_SIM_RUNS", "40"))))


@pytest.mark.parametrize("seed", seeds())
def test_a_run_survives_whatever_happens_to_it(seed: int) -> None:
    print(f"seed {seed}")
    Simulation(seed).go()


@pytest.mark.parametrize("seed", [s + 1_000_000 for s in seeds()][: max(1, len(seeds()) // 2)])
def test_two_operators_without_a_lease_do_no_harm(seed: int) -> None:
    """E21: at most one pod per attempt, stale status writes refused."""
    print(f"seed {seed}")
    Simulation(seed, operators=2).go()
