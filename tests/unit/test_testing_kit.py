"""everstep.testing: what agent authors rely on when they crash their agents in a test."""

import everstep
from everstep.testing import MemoryRun

_tidied: list[str] = []


@everstep.step(effect="read")
async def look(n: int) -> int:
    return n


@everstep.agent
async def tidies(goal: str) -> int:
    try:
        return await look(1)
    finally:
        _tidied.append("tidied")
        await look(2)


def test_a_simulated_crash_lets_no_clean_up_reach_the_journal() -> None:
    """A killed process runs no `finally`; one that runs in a test because of the exception must not count."""
    moment = 1
    while (run := MemoryRun[int](tidies, "go")).attempt(crash_at=f"any:{moment}").kind == "crashed":
        assert "intent 1" not in run.kinds() or "result 0" in run.kinds(), (moment, run.kinds())
        assert run.attempt().value == 1, moment
        moment += 1
    assert moment > 10
