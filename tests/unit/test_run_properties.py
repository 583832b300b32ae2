"""Random asyncio programs, crashed anywhere and resumed under other latencies: nothing recorded runs again, nothing changes.

EVERSTEP_SEED and EVERSTEP_PROGRAMS choose where to begin and how many; every failure names its seed.
"""

import json
import os
import random
from collections import Counter
from collections.abc import Iterator

import pytest
from tests.support import run_programs
from tests.support.run_programs import World, program

from everstep.errors import Terminated
from everstep.journal.records import Intent, Record
from everstep.testing import Ended, MemoryRun

FIRST = int(os.environ.get("EVERSTEP_SEED", "1"))
PROGRAMS = int(os.environ.get("EVERSTEP_PROGRAMS", "40"))
BATCH = 20
Run = MemoryRun[list[object]]


def fresh(seed: int) -> tuple[Run, World]:
    run_programs.world = World()
    return MemoryRun(program, "any", {"seed": seed}, seed=seed, park_linger_s=1e9), run_programs.world


def outcomes(records: list[Record]) -> set[str]:
    return {r.key for r in records if r.OUTCOME and not (r.kind == "settled" and r.decision == "again")}


def raw(run: Run) -> list[bytes]:
    return [s.record for s in run.store.journals_by_id[run.journal_id].records]


def to_the_end(run: Run, world: World) -> Ended[list[object]]:
    """Attempts without disturbance; a person who can look into the world answers what is asked."""
    ended = run.attempt()
    while ended.kind == "parked":
        answer(run, world, ended)
        ended = run.attempt()
    return ended


def answer(run: Run, world: World, ended: Ended[list[object]]) -> None:
    """Done with what the world has, else failed: a step that the agent cancelled cannot run again."""
    idem = {r.key: r.idem for r in run.records if isinstance(r, Intent)}
    assert ended.waits, "parked without a question"
    for wait in ended.waits:
        assert wait.kind == "uncertain", wait
        done = world.done.get(idem[wait.key])
        run.settle(wait.key, "fail" if done is None else "done", done)


def crash_until_done(run: Run, world: World, rng: random.Random, seed: int) -> tuple[Ended[list[object]], int]:
    """Up to three crashes at random moments, then to the end. Checks what each attempt may not do."""
    crashes = 0
    before: list[bytes] = []
    while True:
        world.latency = random.Random(rng.random())
        told, started = outcomes(run.records), Counter(run.bodies)
        ended = run.attempt(crash_at=f"any:{rng.randint(1, 80)}" if crashes < 3 else None)
        if ended.kind == "parked":
            answer(run, world, ended)
            before = raw(run)
            continue
        after = raw(run)
        assert after[: len(before)] == before, f"seed {seed}: written records changed"
        again = {k: n - started[k] for k, n in run.bodies.items() if k in told and n > started[k]}
        assert not again, f"seed {seed}: recorded steps ran again: {again}"
        if ended.kind != "crashed":
            return ended, crashes
        crashes += 1
        before = after


@pytest.mark.parametrize("first", range(FIRST, FIRST + PROGRAMS, BATCH))
def test_c1_c2_c3_c11_crashed_anywhere_resumes_exactly(first: int) -> None:
    for seed in range(first, first + BATCH):
        rng = random.Random(seed)
        run, world = fresh(seed)
        ended, crashes = crash_until_done(run, world, rng, seed)
        assert ended.kind == "succeeded", f"seed {seed}: {ended}"
        assert run.replay() == ended.value, f"seed {seed}"
        check_counts(run, world, crashes, seed)


def check_counts(run: Run, world: World, crashes: int, seed: int) -> None:
    tries = Counter(r.key for r in run.records if r.kind == "try_failed")
    for key, starts in run.bodies.items():
        assert starts <= 1 + crashes + tries[key], (
            f"seed {seed}: step {key} started {starts} times in {crashes} crashes"
        )
    twice = {k: n for k, n in world.at_most_once.items() if n > 1 and world.effects[k] > 1}
    assert not twice, f"seed {seed}: at_most_once effects happened twice: {twice}"
    effects = {r.idem: r.effect for r in run.records if isinstance(r, Intent)}
    for idem, count in world.effects.items():
        if effects.get(idem) == "at_most_once":
            assert count <= 1, f"seed {seed}: an at_most_once effect happened {count} times"
    ends = Counter(r.key for r in run.records if r.OUTCOME and not (r.kind == "settled" and r.decision == "again"))
    assert all(n == 1 for k, n in ends.items() if k), f"seed {seed}: more than one outcome: {ends}"


@pytest.mark.parametrize("first", range(FIRST, FIRST + PROGRAMS, BATCH))
def test_c2_any_prefix_replays_under_other_latencies(first: int) -> None:
    """The journal cut after any record: a run goes on from there without divergence, and the prefix stays as it was."""
    for seed in range(first, first + BATCH):
        rng = random.Random(-seed)
        run, world = fresh(seed)
        world.latency = random.Random(seed)
        assert to_the_end(run, world).kind == "succeeded", f"seed {seed}"
        full = raw(run)
        for cut in sorted(rng.sample(range(1, len(full)), min(4, len(full) - 1))):
            twin = run.copy()
            twin.cut(cut)
            world.latency = random.Random(rng.random())
            told = outcomes(twin.records)
            ended = to_the_end(twin, world)
            assert ended.kind == "succeeded", f"seed {seed}, cut {cut}: {ended}"
            assert raw(twin)[:cut] == full[:cut], f"seed {seed}, cut {cut}"
            assert not told & set(twin.bodies), f"seed {seed}, cut {cut}: ran again: {told & set(twin.bodies)}"
            assert json.dumps(twin.replay()) == json.dumps(ended.value), f"seed {seed}, cut {cut}"


@pytest.mark.parametrize("first", range(FIRST, FIRST + PROGRAMS, BATCH))
def test_c53_cancelled_and_terminated_at_random_it_still_ends_and_replays(first: int) -> None:
    """SIGTERM at random moments, then a cancel at another one, with crashes between: the run ends, and its journal replays."""
    for seed in range(first, first + BATCH):
        rng = random.Random(seed)
        run, world = fresh(seed)
        ended = disturbed(run, world, rng, seed)
        assert ended.kind in ("cancelled", "succeeded"), f"seed {seed}: {ended}"
        assert run.kinds()[-1] == "finished"
        assert run.kinds().count("cancel") <= 1
        run.replay()
        check_counts(run, world, crashes=6, seed=seed)


def disturbed(run: Run, world: World, rng: random.Random, seed: int) -> Ended[list[object]]:
    for attempt in range(16):
        world.latency = random.Random(rng.random())
        moments = iter(range(10**6))
        what, when = rng.choice(["crash", "terminate", "cancel"]), rng.randint(1, 60)

        def disturb(_point: str, what: str = what, when: int = when, moments: Iterator[int] = moments) -> None:
            if next(moments) == when:
                if what == "terminate":
                    run.terminate()
                elif what == "cancel":
                    run.cancel()

        calm = attempt > 5
        crash_at = f"any:{when}" if what == "crash" and not calm else None
        ended = run.attempt(crash_at=crash_at, on_point=None if calm else disturb, grace_s=rng.choice([0, 0.01, 1]))
        if ended.kind == "parked":
            answer(run, world, ended)
            continue
        if ended.kind not in ("crashed", "stopped"):
            return ended
        assert ended.kind == "crashed" or isinstance(ended.error, Terminated), f"seed {seed}: {ended}"
    raise AssertionError(f"seed {seed}: not finished after 16 attempts")
