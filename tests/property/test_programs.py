"""Ten thousand random programs per run, and the planted bugs that show what the checks are worth.

EVERSTEP_SEED and EVERSTEP_PROGRAMS choose where to begin and how many; every failure names its seed and a small program that
fails. EVERSTEP_SEED=<seed> EVERSTEP_PROGRAMS=1 runs that one alone.
"""

import os
import time

import pytest

from tests.property import pool, trees
from tests.property.planted import BUGS
from tests.support import servers

FIRST = int(os.environ.get("EVERSTEP_SEED", "1"))
PROGRAMS = int(os.environ.get("EVERSTEP_PROGRAMS", "10000"))
ENOUGH_FOR_SHARES = 1000
"""Fewer programs say nothing about how often a construct occurs."""
BUG_BOUND = 2000
LEAST_SHARE = 0.1


@pytest.mark.timeout(1800)
@pytest.mark.redis
def test_c1_c2_c3_c11_crashed_anywhere_on_any_store(capsys: pytest.CaptureFixture[str]) -> None:
    """(i) prefix, (ii) replay, (iii) starts and effects, (iv) the undisturbed result, (v) one outcome per call, (vi) any cut.
    C53: terminated and cancelled at random moments, too, it still ends and replays."""
    began = time.monotonic()
    with servers.running("redis-8") as redis:
        tally = pool.run_programs(FIRST, PROGRAMS, redis.url)
    with capsys.disabled():
        print(f"\nseeds {FIRST} to {FIRST + tally.programs - 1} in {time.monotonic() - began:.0f} s: {tally.table()}")
    assert not tally.found, "\n\n".join(map(str, tally.found))
    assert tally.programs == PROGRAMS
    if PROGRAMS >= ENOUGH_FOR_SHARES:
        rare = {name: tally.share(name) for name in trees.CONSTRUCTS if tally.share(name) < LEAST_SHARE}
        assert not rare, f"these occur in less than a tenth of the programs: {rare}"
        assert tally.fixed > PROGRAMS * 0.3
        assert tally.crashes > PROGRAMS


@pytest.mark.timeout(1800)
def test_every_planted_bug_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    caught = {c.bug: c for c in pool.spread(pool.hunt, [pool.Hunt(bug, FIRST, BUG_BOUND) for bug in BUGS])}
    with capsys.disabled():
        print(f"\nplanted bugs, and how many programs from seed {FIRST} on it took to find each:")
        for c in sorted(caught.values(), key=lambda c: c.programs):
            print(f"  {c.bug:<28} {c.programs or 'not found':>5}   {c.message[:90]}")
    assert len(caught) >= 10
    misplanted = [
        c for c in caught.values() if any(e in c.message for e in ("TypeError", "AttributeError", "NameError"))
    ]
    assert not misplanted, f"these do not fit the engine any more, which is no bug that an engine has: {misplanted}"
    missed = [c.bug for c in caught.values() if not c.programs]
    assert not missed, f"not found within {BUG_BOUND} programs from seed {FIRST} on: {missed}"


def test_a_failing_program_is_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is shown of a failure is small enough to read."""
    seed = next(s for s in range(1, 200) if _has_pay_in_gather(trees.program(s)))
    monkeypatch.setattr(pool, "breaks", lambda _seed, tree: _has_pay_in_gather(tree))
    shown = pool.found(seed, RuntimeError("boom")).program
    assert [line.split()[0] for line in shown.splitlines()] in (["agent", "gather", "pay"], ["rounds", "gather", "pay"])


def _has_pay_in_gather(tree: trees.Node) -> bool:
    return any(node[0] == "gather" and any(c[0] == "pay" for c in node[2]) for node in trees.nodes(tree))
