"""A random program under a budget that is raised step by step, crashed meanwhile, then forked at a random step.

What must hold besides the checks of every program: no more step calls begin than the budget allows, every park at it can be left
by raising it, and a fork runs no body of a step that its prefix has an outcome for, ends, and replays. Nothing is compacted: the
checks look at whole journals.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from everstep import Budget
from everstep.journal.fork import END
from everstep.journal.records import Cancel, Intent
from everstep.testing import Ended
from tests.property import checks, crashes, trees
from tests.property.checks import Broken, Verdict
from tests.property.crashes import CrashRun

ATTEMPTS_MAX = 400
MOMENTS = 60


@dataclass(frozen=True)
class Played:
    """What came of one seed."""

    seed: int
    parks: int = 0
    """Parks at the budget."""
    forked: bool = False
    message: str = ""
    """Why it failed."""


def play_all(seeds: Sequence[int]) -> list[Played]:
    """In a process of its own: threads are replaced for good."""
    crashes.install()
    played = []
    for seed in seeds:
        try:
            played.append(play(seed))
        except Exception as e:
            played.append(Played(seed, message=f"{type(e).__name__}: {e}"))
    return played


def play(seed: int) -> Played:
    """Raises Broken."""
    rng = random.Random(f"budgets {seed}")
    crashes.forget_threads()
    linger_s = rng.choice([float("inf"), 2000.0])
    run = CrashRun(trees.program(seed), seed, fixed=rng.random() < 0.5, linger_s=linger_s, open_real=None)
    end, allowed, parks = _raised_step_by_step(run, rng)
    checks._check_end(run, allowed)
    checks._check_replay(run, end, Verdict())
    keys = [r.key for r in run.records if isinstance(r, Intent) and r.tries == 1]
    if not keys or any(isinstance(r, Cancel) for r in run.records):
        return Played(seed, parks)
    _forked(run, rng.choice([*keys, END]))
    return Played(seed, parks, forked=True)


def _raised_step_by_step(run: CrashRun, rng: random.Random) -> "tuple[Ended[Any], Counter[str], int]":
    cap = rng.randint(0, 4)
    budget = Budget(max_steps=cap)
    left, parks = rng.choice([0, 1, 2, 3]), 0
    allowed: Counter[str] = Counter()
    for _ in range(ATTEMPTS_MAX):
        before, told = Counter(run.bodies), checks._outcomes(run.records)
        end = run.attempt(crash_at=f"any:{rng.randint(1, MOMENTS)}" if left else None, budget=budget, compact=False)
        started = run.bodies - before
        if again := told & set(started):
            raise Broken(f"recorded steps ran again: {sorted(again)}")
        if end.kind == "parked" and any(wait.kind == "budget" for wait in end.waits):
            parks += 1
            if (steps := len({r.key for r in run.records if isinstance(r, Intent)})) > cap:
                raise Broken(f"{steps} step calls began, {cap} are allowed")
            cap += rng.randint(1, 3)
            run.answer(end.waits)
            run.set_budget({"maxSteps": cap})
        elif end.kind == "parked":
            checks._resume(run, end)
        elif end.kind == "crashed":
            left -= 1
            allowed.update(set(started) - checks._outcomes(run.records))
            run.after_crash()
        else:
            return checks._ended(run, end), allowed, parks
    raise Broken(f"not finished after {ATTEMPTS_MAX} attempts: {end}")


def _forked(run: CrashRun, step: str) -> None:
    fork = run.fork(step)
    assert isinstance(fork, CrashRun)
    fork.set_budget({"maxSteps": None})
    kept = checks._outcomes(fork.records)
    for _ in range(ATTEMPTS_MAX):
        end = fork.attempt(compact=False)
        if end.kind != "parked":
            break
        checks._resume(fork, end)
    checks._ended(fork, end)
    if again := kept & set(fork.bodies):
        raise Broken(f"the fork from {step} ran steps of its prefix again: {sorted(again)}")
    checks._check_replay(fork, end, Verdict())
