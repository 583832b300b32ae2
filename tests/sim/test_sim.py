"""A run under chaos, by seed: safety after every event, an end once all has healed (promises 1-5; E6-E20, E29, C19-C31, C53).

`EVERSTEP_SIM_SEEDS=1,2,3` runs these seeds instead, `EVERSTEP_SIM_RUNS=500` more of them. A failure prints its seed and the
last events.
"""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from everstep.ids import EpochMs
from everstep_operator.decide import decide
from everstep_operator.decide.model import CreatePod, Decision, Fence, NodeView, Observed, Rules
from tests.sim.chaos import Ending, Simulation
from tests.sim.checks import Broken

FIRST_SEED = 20_260_301
CANARY_SEEDS = range(FIRST_SEED, FIRST_SEED + 150)


def seeds(share: int = 1) -> list[int]:
    given = os.environ.get("EVERSTEP_SIM_SEEDS")
    if given:
        return [int(s) for s in given.split(",")]
    return list(range(FIRST_SEED, FIRST_SEED + int(os.environ.get("EVERSTEP_SIM_RUNS", "60")) // share))


@pytest.mark.parametrize("seed", seeds())
def test_a_run_survives_whatever_happens_to_it(seed: int) -> None:
    print(f"seed {seed}")
    Simulation(seed).go()


@pytest.mark.parametrize("seed", seeds(2))
def test_two_operators_without_a_lease_do_no_harm(seed: int) -> None:
    """E21: at most one pod per attempt, stale status writes refused."""
    print(f"seed {seed}")
    Simulation(seed, operators=2).go()


@pytest.mark.parametrize("ending", ["cancel", "deadline"])
@pytest.mark.parametrize("seed", seeds(3))
def test_an_end_that_somebody_wished_comes_and_what_had_finished_stays(seed: int, ending: Ending) -> None:
    """C28, C53: a finished record wins over a cancel and a deadline, whenever it was written."""
    print(f"seed {seed}")
    Simulation(seed, ending=ending).go()


def test_the_chaos_reaches_what_it_is_meant_to_reach() -> None:
    """A simulation in which nothing happens proves nothing."""
    ends: Counter[str] = Counter()
    causes: Counter[str] = Counter()
    words: Counter[str] = Counter()

    def spy(seen: Observed, *, rules: Rules, now_epoch_ms: EpochMs) -> Decision:
        decision = decide(seen, rules=rules, now_epoch_ms=now_epoch_ms)
        words[f"{decision.summary}/{decision.reason}"] += 1
        return decision

    for seed in range(FIRST_SEED, FIRST_SEED + 40):
        world = Simulation(seed, decide=spy).go()
        assert world.run is not None
        for attempt in world.run["status"]["attempts"]:
            ends[attempt["reason"]] += 1
            causes[attempt["cause"]] += 1
    assert {"PodDeleted", "EvictionByEvictionAPI", "OOMKilled", "Killed", "Exited", "Suspended", "Parked"} <= set(
        ends
    ), ends
    assert {"NodeUnreachable", "OutOfcpu", "ContainerStatusUnknown"} <= set(ends), ends
    assert {"Lost", "TimerDue", "Answered", "Resumed"} <= set(causes), causes
    assert {"Blocked/QuotaExceeded", "Blocked/JournalUnreachable", "Uncertain/StepUncertain"} <= set(words), words


# --- canaries: planted faults that the checks must find


def trusts_every_death(decision: Decision) -> Decision:
    """Tells each attempt that its predecessor is dead: 'not done' then counts while a frozen process may still send."""
    return replace(
        decision,
        actions=tuple(replace(a, predecessor_dead=True) if isinstance(a, CreatePod) else a for a in decision.actions),
    )


def forgets_the_fence(decision: Decision) -> Decision:
    return replace(decision, actions=tuple(a for a in decision.actions if not isinstance(a, Fence)))


@pytest.mark.parametrize("fault", [trusts_every_death, forgets_the_fence], ids=lambda f: f.__name__)
def test_a_planted_fault_is_found(fault: Callable[[Decision], Decision]) -> None:
    def planted(seen: Observed, *, rules: Rules, now_epoch_ms: EpochMs) -> Decision:
        return fault(decide(seen, rules=rules, now_epoch_ms=now_epoch_ms))

    assert _found(planted), f"{fault.__name__} went unnoticed in {len(CANARY_SEEDS)} runs"


def test_an_operator_that_replaces_too_soon_is_found() -> None:
    def impatient(seen: Observed, *, rules: Rules, now_epoch_ms: EpochMs) -> Decision:
        lost = NodeView(ready=False, unreachable_since_epoch_ms=EpochMs(0))
        pods = tuple(replace(p, node_view=lost) if p.node_view and not p.node_view.ready else p for p in seen.pods)
        return decide(replace(seen, pods=pods), rules=rules, now_epoch_ms=now_epoch_ms)

    assert _found(impatient)


def _found(planted: Callable[..., Decision]) -> bool:
    for seed in CANARY_SEEDS:
        try:
            Simulation(seed, decide=planted).go()
        except Broken as e:
            print(str(e).splitlines()[0])
            return True
    return False
