"""`patched` and `deprecate_patch`: journals of old code replay under new code, of new code under what follows, crash by crash."""

import asyncio
import os
import random
from collections.abc import Callable
from typing import Any

import pytest

import everstep
from everstep import BadCall, Diverged, NotInRun
from everstep.run.agents import Agent
from everstep.testing import MemoryRun

FIRST = int(os.environ.get("EVERSTEP_SEED", "1"))
PROGRAMS = int(os.environ.get("EVERSTEP_PROGRAMS", "60"))


@everstep.step(effect="read")
async def old(n: int) -> str:
    await asyncio.sleep(0.01 * (n % 5))
    return f"old {n}"


@everstep.step(effect="read")
async def new(n: int) -> str:
    await asyncio.sleep(0.01 * (n % 3))
    return f"new {n}"


@everstep.step(effect="read")
def plain(n: int) -> str:
    return f"plain {n}"


def before() -> bool:
    return False


def patched() -> bool:
    return everstep.patched("p")


def deprecated() -> bool:
    everstep.deprecate_patch("p")
    return True


def after() -> bool:
    return True


def agent_of(way: Callable[[], bool]) -> Agent[..., Any]:
    @everstep.agent
    async def changing(goal: str) -> list[str]:
        seen = [await old(0)]
        seen.append(await new(1) if way() else await old(1))
        return [*seen, await old(2), str(everstep.random())]

    return changing


def begun(way: Callable[[], bool], crash_at: str) -> MemoryRun[Any]:
    run: MemoryRun[Any] = MemoryRun(agent_of(way), "go")
    assert run.attempt(crash_at=crash_at).kind == "crashed"
    return run


def test_a_new_run_takes_the_new_way_and_says_so_once() -> None:
    run: MemoryRun[Any] = MemoryRun(agent_of(patched), "go")
    assert run.run()[:3] == ["old 0", "new 1", "old 2"]
    assert [r.name for r in run.records if r.kind == "value"] == ["patched:p", "random"]
    assert run.replay() == run.run()


@pytest.mark.parametrize("crash_at", ["before_finished", "in_body:3", "in_body:2"])
def test_a_run_that_has_passed_the_place_keeps_to_the_old_way(crash_at: str) -> None:
    run = begun(before, crash_at)
    run.agent = agent_of(patched)
    assert run.run()[:3] == ["old 0", "old 1", "old 2"]
    assert not any(r.name == "patched:p" for r in run.records)
    run.replay()


@pytest.mark.parametrize("crash_at", ["in_body:1", "after_result:1"])
def test_a_run_that_has_not_come_by_takes_the_new_way(crash_at: str) -> None:
    run = begun(before, crash_at)
    run.agent = agent_of(patched)
    assert run.run()[:3] == ["old 0", "new 1", "old 2"]
    run.replay()


def test_one_id_is_decided_once_for_the_whole_run() -> None:
    @everstep.agent
    async def loops(goal: str, patch: bool = True) -> list[str]:
        return [await (new if patch and everstep.patched("p") else old)(n) for n in range(4)]

    run: MemoryRun[list[str]] = MemoryRun(loops, "go")
    assert run.run() == ["new 0", "new 1", "new 2", "new 3"]
    assert [r.key for r in run.records if r.kind == "value"] == ["patched:p"]

    @everstep.agent
    async def looped(goal: str) -> list[str]:
        return [await old(n) for n in range(4)]

    run = MemoryRun(looped, "go")
    run.attempt(crash_at="in_body:3")
    run.agent = loops
    assert run.run() == ["old 0", "old 1", "old 2", "old 3"]  # also where the record does not reach
    run.replay()


def test_it_works_in_child_tasks_and_two_ids_do_not_meet() -> None:
    def agent(way: Callable[[str], bool]) -> Agent[..., Any]:
        async def child(n: int) -> str:
            await old(n)
            return await (new(n) if way(f"p{n}") else old(n + 10))

        @everstep.agent
        async def gathers(goal: str) -> list[str]:
            return list(await asyncio.gather(*(child(n) for n in range(4))))

        return gathers

    for crash in range(1, 40, 3):
        run: MemoryRun[Any] = MemoryRun(agent(lambda _: False), "go")
        if run.attempt(crash_at=f"any:{crash}").kind != "crashed":
            break
        run.agent = agent(everstep.patched)
        value = run.run()
        assert all(v in (f"new {n}", f"old {n + 10}") for n, v in enumerate(value))
        assert run.replay() == value


@pytest.mark.parametrize("crash_at", ["in_body:1", "after_result:1", "in_body:2", "before_finished"])
def test_it_works_in_a_sync_agent(crash_at: str) -> None:
    def agent(way: Callable[[], bool]) -> Agent[..., Any]:
        @everstep.agent
        def syncs(goal: str) -> list[str]:
            return [plain(0), plain(100 if way() else 1), plain(2), str(everstep.random())]

        return syncs

    run: MemoryRun[Any] = MemoryRun(agent(before), "go", real_time=True)
    assert run.attempt(crash_at=crash_at).kind == "crashed"
    run.agent = agent(patched)
    passed = crash_at in ("in_body:2", "before_finished")
    assert run.run()[1] == ("plain 1" if passed else "plain 100")
    run.replay()
    run = MemoryRun(agent(deprecated), "go", real_time=True)
    assert run.attempt(crash_at=crash_at).kind == "crashed"
    assert run.run()[1] == "plain 100"
    for way in (deprecated, patched, after):
        run.agent = agent(way)
        assert run.replay()[1] == "plain 100"


@pytest.mark.parametrize(("first", "then"), [(patched, deprecated), (deprecated, patched), (deprecated, after)])
def test_what_follows_replays_what_was(first: Callable[[], bool], then: Callable[[], bool]) -> None:
    for crash in range(1, 60):
        run: MemoryRun[Any] = MemoryRun(agent_of(first), "go")
        ended = run.attempt(crash_at=f"any:{crash}")
        run.agent = agent_of(then)
        value = run.run()
        assert value[:3] == ["old 0", "new 1", "old 2"]
        assert run.replay() == value
        if ended.kind != "crashed":
            return


def test_a_marker_that_the_code_forgot_is_named() -> None:
    run = begun(patched, "before_finished")
    run.agent = agent_of(after)
    ended = run.attempt()
    assert isinstance(ended.error, Diverged)
    assert 'everstep.patched("p") was called' in ended.message
    assert 'everstep.deprecate_patch("p")' in ended.message


def test_the_old_way_gone_too_early_is_refused() -> None:
    run = begun(before, "before_finished")
    run.agent = agent_of(deprecated)
    assert isinstance(run.attempt().error, Diverged)


def test_where_it_does_not_belong() -> None:
    with pytest.raises(NotInRun, match=r"everstep.patched\(\)"):
        everstep.patched("p")

    @everstep.step(effect="read")
    async def body() -> None:
        everstep.patched("p")

    @everstep.agent
    async def agent(goal: str) -> None:
        for bad in ("", "a\nb", "x" * 201):
            with pytest.raises(BadCall, match="id must be"):
                everstep.patched(bad)
        await body()

    ended = MemoryRun(agent, "go").attempt()
    assert ended.kind == "failed"
    assert "BadCall" in ended.message or "BadCall" in str(ended.error)


# --- random programs ----------------------------------------------------------------------------------------------

Program = list[Any]


def grow(rng: random.Random, depth: int) -> Program:
    """A list of moves: step, sleep, value, a place that was changed, or branches that run at the same time."""
    moves: Program = []
    for _ in range(rng.randint(1, 4)):
        kind = rng.choices(["step", "sleep", "value", "place", "gather"], [4, 1, 1, 4, 3 if depth else 0])[0]
        if kind == "gather":
            moves.append((kind, [grow(rng, depth - 1) for _ in range(rng.randint(2, 3))]))
        else:
            moves.append((kind, rng.randint(0, 4)))
    return moves


async def perform(moves: Program, way: Callable[[str], bool]) -> list[Any]:
    seen: list[Any] = []
    for kind, what in moves:
        if kind == "step":
            seen.append(await old(what))
        elif kind == "sleep":
            await asyncio.sleep(0.01 * what)
        elif kind == "value":
            seen.append(everstep.random())
        elif kind == "gather":
            seen.append(list(await asyncio.gather(*(perform(m, way) for m in what))))
        elif way(f"p{what % 3}"):
            seen += [await new(what), everstep.random(), await new(what + 1)]
        else:
            seen.append(await old(what + 10))
    return seen


def _deprecate(id: str) -> bool:
    everstep.deprecate_patch(id)
    return True


WAYS: list[Callable[[str], bool]] = [lambda _: False, everstep.patched, _deprecate, lambda _: True]


def program_agent(moves: Program, stage: int) -> Agent[..., Any]:
    @everstep.agent
    async def programmed(goal: str) -> list[Any]:
        return await perform(moves, WAYS[stage])

    return programmed


@pytest.mark.parametrize(("first", "then"), [(0, 1), (1, 2), (2, 1), (2, 3)])
def test_random_programs_change_under_way(first: int, then: int) -> None:
    for seed in range(FIRST, FIRST + PROGRAMS):
        rng = random.Random(seed)
        moves = grow(rng, 2)
        where = f"seed {seed}, stage {first} → {then}"
        run: MemoryRun[Any] = MemoryRun(program_agent(moves, first), "go", seed=seed)
        run.attempt(crash_at=f"any:{rng.randint(1, 120)}")
        run.agent = program_agent(moves, then)
        length, crashes = 0, 1
        while True:
            assert len(run.records) >= length, where
            length = len(run.records)
            ended = run.attempt(crash_at=f"any:{rng.randint(1, 80)}" if crashes < 4 else None)
            if ended.kind != "crashed":
                break
            crashes += 1
        assert ended.kind == "succeeded", f"{where}: {ended}"
        assert max(run.bodies.values(), default=0) <= 1 + crashes, where
        assert run.replay() == ended.value, where


def test_a_snapshot_and_a_segment_begin_anew() -> None:
    """A run that keeps to the old way moves to the new one at its next epoch, and the same on every replay."""

    def agent(way: Callable[[], bool], segments: bool) -> Agent[..., Any]:
        @everstep.agent
        async def long(goal: str, n: int = 0) -> list[int]:
            if segments:
                for _ in range(2):
                    await (new if way() else old)(n)
                if n < 3:
                    everstep.continue_as_new(n=n + 1)
                return [n]
            done = everstep.restored() or 0
            assert isinstance(done, int)
            for i in range(done, 4):
                for _ in range(2):
                    await (new if way() else old)(i)
                everstep.snapshot(i + 1)
            return [n]

        return long

    for segments in (False, True):
        moved = set()
        for crash in range(1, 90, 4):
            run: MemoryRun[Any] = MemoryRun(agent(before, segments), "go", {"n": 0})
            ended = run.attempt(crash_at=f"any:{crash}")
            run.agent = agent(patched, segments)
            for n in (9, 17, 25):
                run.attempt(crash_at=f"any:{n}")
            run.run()
            by_epoch: dict[str, set[str]] = {}
            for record in run.records:
                if record.kind == "intent":
                    epoch = record.key.partition("/")[0] if record.key.startswith("@") else ""
                    by_epoch.setdefault(epoch, set()).add(record.name)
            assert all(len(names) == 1 for names in by_epoch.values()), (segments, crash, by_epoch)
            moved.add(tuple("new" in names for names in by_epoch.values()))
            if ended.kind != "crashed":
                break
        assert len(moved) > 2, moved
