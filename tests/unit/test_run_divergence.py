"""Changed code under a running run: stopped at the first difference, told from both sides, with not one more record."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import everstep
from everstep.errors import Diverged, Fenced, JournalLost, JournalTampered, JournalUnavailable, JournalUnreadable
from everstep.ids import Attempt, Owner, Seq
from everstep.journal.records import Intent, Result
from everstep.journal.store import Head
from everstep.journal.writer import JournalWriter
from everstep.run.agents import Agent
from everstep.testing import MemoryRun


@everstep.step(effect="read")
async def look(n: int) -> int:
    return n


@everstep.step(effect="read")
async def other(n: int) -> int:
    return -n


@everstep.step(effect="read", name="look")
async def same_name(n: int, more: int = 0) -> int:
    return n


def agent_of(body: Callable[[], Any]) -> Agent[..., Any]:
    @everstep.agent
    async def changing(goal: str) -> Any:
        return await body()

    return changing


async def original() -> int:
    a = await look(1)
    await asyncio.sleep(60)
    b, c = await asyncio.gather(look(2), look(3))
    return a + b + c + int(everstep.random() * 0) + await look(4)


async def renamed() -> int:
    return await other(1)


async def other_arguments() -> int:
    return await look(1) + await look(99)


async def another_argument() -> int:
    return await same_name(1, more=2)


async def other_kind() -> int:
    await asyncio.sleep(60)
    return await look(1)


async def reordered() -> int:
    a = await look(1)
    await asyncio.sleep(60)
    b = await look(2)
    return a + b


async def shorter() -> int:
    return await look(1)


async def longer() -> int:
    a = await look(1)
    await asyncio.sleep(60)
    b, c, d = await asyncio.gather(look(2), look(3), other(5))
    return a + b + c + d


async def no_value() -> int:
    a = await look(1)
    await asyncio.sleep(60)
    b, c = await asyncio.gather(look(2), look(3))
    return a + b + c + await look(4)


async def waits_elsewhere() -> int:
    await look(1)
    await asyncio.sleep(60)
    await asyncio.sleep(60)
    return 0


CHANGES = {
    renamed: ("step look was called at '0'", "calls step other at '0'"),
    other_arguments: ("a timer was set", "calls step look at '1'"),
    another_argument: ("arguments with digest", "arguments with digest"),
    other_kind: ("step look was called at '0'", "sets a timer"),
    reordered: ("step look was called at 't0/0'", "calls step look at '1'"),
    shorter: ("a timer was set (asyncio.sleep, timeout, wait_for) at '~0'", "the agent has returned"),
    longer: ("everstep.random() was called at 'v0'", "calls step other at 't2/0'"),
    no_value: ("everstep.random() was called at 'v0'", "calls step look at '1'"),
    waits_elsewhere: ("step look was called at 't0/0'", "sets a timer"),
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_c4_c8_another_way_than_the_record_is_refused_and_nothing_is_written(change: Callable[[], Any]) -> None:
    run: MemoryRun[Any] = MemoryRun(agent_of(original), "go", park_linger_s=1e9)
    run.attempt(crash_at="before_finished")
    length = len(run.records)
    run.agent = agent_of(change)
    for _ in range(2):
        ended = run.attempt()
        assert isinstance(ended.error, Diverged), ended
        recorded, does = CHANGES[change]
        assert recorded in ended.message
        assert does in ended.message
        assert "start a new run" in ended.message
        assert len(run.records) == length
    assert sum(run.bodies.values()) == 4


def test_the_same_code_goes_on_after_a_divergence() -> None:
    run: MemoryRun[Any] = MemoryRun(agent_of(original), "go", park_linger_s=1e9)
    run.attempt(crash_at="before_finished")
    run.agent = agent_of(renamed)
    run.attempt()
    run.agent = agent_of(original)
    assert run.run() == 10


def planted(run: MemoryRun[Any], make: Callable[[Seq], Any]) -> None:
    """Append a record as a buggy writer would: with a whole chain."""
    run.number += 1

    async def write() -> None:
        meta = await run.store.meta(run.journal_id)
        head = meta.head if meta else Head(Seq(0), run.chain.genesis())
        await run.store.fence(run.journal_id, Attempt(run.number), head, {})
        await run.store.claim(run.journal_id, Attempt(run.number), Owner("planter"))
        writer = JournalWriter(
            run.store, run.journal_id, Attempt(run.number), Owner("planter"), run.chain, head=head, clock=run.clock
        )
        writer.put(make)
        await writer.drain()

    asyncio.run(write())


def test_c4_a_foreign_outcome_is_not_taken_for_this_step() -> None:
    run: MemoryRun[Any] = MemoryRun(agent_of(original), "go", park_linger_s=1e9)
    run.attempt(crash_at="before_finished")
    run.cut(1)
    run.bodies.clear()
    planted(
        run,
        lambda seq: Intent(
            seq=seq, key="0", name="other", attempt=run.number, time=1, effect="read", input="f" * 64, idem="", tries=1
        ),
    )
    planted(run, lambda seq: Result(seq=seq, key="0", name="other", attempt=run.number, time=1, value=666))
    ended = run.attempt()
    assert isinstance(ended.error, Diverged)
    assert "step other was called at '0'" in ended.message
    assert "calls step look at '0'" in ended.message
    assert not run.bodies


def test_an_outcome_nothing_waits_for_is_named() -> None:
    run: MemoryRun[Any] = MemoryRun(agent_of(original), "go", park_linger_s=1e9)
    run.attempt(crash_at="before_append:1")
    planted(run, lambda seq: Result(seq=seq, key="7", name="ghost", attempt=run.number, time=1, value=1))
    ended = run.attempt()
    assert isinstance(ended.error, Diverged)
    assert "'7'" in ended.message


@pytest.mark.parametrize("what", ["goal", "inputs"])
def test_goal_and_inputs_are_pinned(what: str) -> None:
    @everstep.agent
    async def pinned(goal: str, n: int = 0) -> int:
        return await look(n)

    run: MemoryRun[int] = MemoryRun(pinned, "go", {"n": 1})
    run.attempt(crash_at="after_result")
    if what == "goal":
        run.goal = "another"
    else:
        run.inputs = {"n": 2}
    ended = run.attempt()
    assert isinstance(ended.error, Diverged)
    assert f"another {what}" in ended.message


def test_c7_four_kinds_of_trouble_have_four_names() -> None:
    def stopped(spoil: Callable[[MemoryRun[Any]], None]) -> BaseException | None:
        run: MemoryRun[Any] = MemoryRun(agent_of(original), "go", park_linger_s=1e9)
        run.attempt(crash_at="before_finished")
        if spoil is cut:  # behind the fence, which would notice
            return run.attempt(on_point=lambda point: spoil(run) if point == "after_claim" else None).error
        spoil(run)
        return run.attempt().error

    def change_code(run: MemoryRun[Any]) -> None:
        run.agent = agent_of(renamed)

    def alter(run: MemoryRun[Any]) -> None:
        records = run.store.journals_by_id[run.journal_id].records
        at = next(i for i, s in enumerate(records) if b'"value":1' in s.record)
        records[at] = records[at]._replace(record=records[at].record.replace(b'"value":1', b'"value":2'))

    def cut(run: MemoryRun[Any]) -> None:
        del run.store.journals_by_id[run.journal_id].records[5:]

    def newer(run: MemoryRun[Any]) -> None:
        planted(run, lambda seq: Result(v=99, seq=seq, key="0", attempt=run.number, time=1))

    def unreachable(run: MemoryRun[Any]) -> None:
        async def read(*_: object, **__: object) -> None:
            raise JournalUnavailable("no answer")

        run.store.claim = read  # type: ignore[assignment]  # a store that went away

    assert isinstance(stopped(change_code), Diverged)
    assert isinstance(stopped(alter), JournalTampered)
    assert isinstance(stopped(cut), JournalLost)
    assert isinstance(stopped(newer), JournalUnreadable)
    assert isinstance(stopped(unreachable), JournalUnavailable)


def test_a_newer_attempt_fences_at_the_next_append_and_no_further_body_begins() -> None:
    run: MemoryRun[Any] = MemoryRun(agent_of(original), "go", park_linger_s=1e9)

    def fence(point: str) -> None:
        if point == "after_effect":
            run.store.journals_by_id[run.journal_id].attempt = Attempt(9)

    ended = run.attempt(on_point=fence)
    assert isinstance(ended.error, Fenced)
    assert sum(run.bodies.values()) == 1


def test_a_fenced_idle_process_notices_by_its_report() -> None:
    run: MemoryRun[Any] = MemoryRun(agent_of(original), "go", park_linger_s=1e9)

    def fence(point: str) -> None:
        if point == "after_result":
            loop = asyncio.get_running_loop()
            loop.call_later(5, lambda: setattr(run.store.journals_by_id[run.journal_id], "attempt", Attempt(9)))

    ended = run.attempt(on_point=fence)
    assert isinstance(ended.error, Fenced)
    assert run.clock.monotonic_s() < 30  # it slept for 60 s, and told of itself every 10 s
