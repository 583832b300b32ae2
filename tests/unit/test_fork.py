"""Forks: a new run that begins with the proved prefix of another. Effects before the cut happen no more; later ones are new."""

import asyncio
from collections import Counter
from typing import Any

import pytest

import everstep
from everstep import NOT_DONE, Budget, ConfigError, Probed, Reserve, errors
from everstep.journal.records import Intent, RunStarted
from everstep.journal.spend import Spend
from everstep.testing import MemoryRun

done: list[str] = []  # effects, `name key`
models: list[str] = []


@pytest.fixture(autouse=True)
def _fresh_world() -> None:
    done.clear()
    models.clear()


def counted() -> Counter[str]:
    return Counter(line.split()[0] for line in done)


@everstep.step(effect="idempotent", reserve=Reserve(tokens=10))
async def act(name: str) -> str:
    done.append(f"{name} {everstep.idempotency_key()}")
    await asyncio.sleep(1 if name.startswith("slow") else 0.1)
    everstep.report_usage(input_tokens=7)
    return name.upper()


@everstep.step(effect="at_most_once")
async def mail(name: str) -> str:
    done.append(f"{name} {everstep.idempotency_key()}")
    await asyncio.sleep(0.1)
    return name


@everstep.agent
async def line(goal: str, model: str = "a") -> list[str]:
    out = [await act("one"), await act("two")]
    models.append(model)
    out.append(await act(f"three-{model}"))
    return [*out, await act("four"), goal]


def test_what_comes_before_the_step_is_kept_and_what_follows_is_new() -> None:
    first: MemoryRun[list[str]] = MemoryRun(line, "go")
    assert first.run() == ["ONE", "TWO", "THREE-a".upper(), "FOUR", "go"]
    keys = dict(entry.split() for entry in done)
    second = first.fork("2", inputs={"model": "b"}, goal="again")
    done.clear()
    assert second.run() == ["ONE", "TWO", "THREE-B", "FOUR", "again"]
    assert counted() == {"three-b": 1, "four": 1}
    assert dict(entry.split() for entry in done)["four"] != keys["four"], "effects after the cut are new ones"
    second.replay()
    first.replay()
    started = second.records[0]
    assert isinstance(started, RunStarted)
    assert started.lineage is not None
    source = first.records[started.lineage["seq"] - 1]
    assert (source.kind, source.key, started.lineage["step"]) == ("result", "1", "2")
    assert started.lineage["hash"] == first.store.journals_by_id[first.journal_id].records[source.seq - 1].hash
    assert started.lineage["journal"] == first.journal_id


@pytest.mark.parametrize("step", ["0", "#1", "two", "3", "end"])
def test_every_cut_gives_the_same_result_as_the_source(step: str) -> None:
    first: MemoryRun[list[str]] = MemoryRun(line, "go")
    wanted = first.run()
    second = first.fork("1" if step == "two" else step)
    done.clear()
    assert second.run() == wanted
    assert sum(counted().values()) == {"0": 4, "#1": 3, "two": 3, "3": 1, "end": 0}[step]


def test_a_fork_of_a_fork() -> None:
    first: MemoryRun[list[str]] = MemoryRun(line, "go")
    wanted = first.run()
    third = first.fork("2").fork("1")
    assert third.run() == wanted
    again = third.fork("3")
    done.clear()
    assert again.run() == wanted
    assert counted() == {"four": 1}


def test_a_keyed_chain_is_sealed_again_under_its_own_key() -> None:
    first: MemoryRun[list[str]] = MemoryRun(line, "go", key=b"k" * 32)
    first.run()
    second = first.fork("2")
    assert second.raw_records[0] != first.raw_records[0]
    assert second.run()[:2] == ["ONE", "TWO"]


@everstep.agent
async def parallel(goal: str) -> list[Any]:
    slow = asyncio.create_task(act("slow"))
    await asyncio.sleep(0)
    quick = await act("quick")
    cut = await act("cut")
    return [quick, cut, await slow]


def test_a_step_in_flight_at_the_cut_brings_its_outcome_along() -> None:
    first: MemoryRun[list[Any]] = MemoryRun(parallel, "go")
    wanted = first.run()
    cut = next(r.key for r in first.records if isinstance(r, Intent) and r.seq == 4 + 1)
    for key in ("1", cut):
        second = first.fork(key)
        done.clear()
        assert second.run() == wanted
        assert counted()["slow"] == 0, "its effect must not happen again"
        second.replay()


def test_a_step_that_is_still_in_flight_keeps_its_key() -> None:
    first: MemoryRun[list[Any]] = MemoryRun(parallel, "go")
    assert first.attempt(crash_at="after_effect:2").kind == "crashed"
    second = first.fork("1")
    assert second.run() == ["QUICK", "CUT", "SLOW"]
    keys = {entry.split()[1] for entry in done if entry.startswith("slow")}
    assert (len(keys), counted()["slow"]) == (1, 2), "in flight in the source and again here, under one key"
    assert counted()["cut"] <= 2
    second.replay()


def test_c38_a_fork_before_an_answered_wait_asks_again() -> None:
    @everstep.agent
    async def run(goal: str) -> list[str]:
        first = await act("one")
        sent = asyncio.create_task(mail("letter"))
        await asyncio.sleep(0)
        second = await act("two")
        return [first, second, await sent, await act("three")]

    there: MemoryRun[list[str]] = MemoryRun(run, "go")
    there.attempt(crash_at="in_body:3", predecessor_dead=False)
    parked = there.attempt(predecessor_dead=False)
    assert [w.kind for w in parked.waits] == ["uncertain"]
    there.settle(parked.waits[0].key, "done", "letter")
    assert there.run(predecessor_dead=False) == ["ONE", "TWO", "letter", "THREE"]
    two = next(r.key for r in there.records if isinstance(r, Intent) and r.seq and r.name == "act" and r.key == "1")
    forked = there.fork(two)
    done.clear()
    ended = forked.attempt()
    assert ended.kind == "parked"
    assert [(w.kind, w.key) for w in ended.waits] == [("uncertain", parked.waits[0].key)]
    assert counted()["letter"] == 0, "it asks; it does not send again on its own"
    forked.settle(ended.waits[0].key, "done", "other")
    assert forked.run() == ["ONE", "TWO", "other", "THREE"]
    kept = there.fork("2")
    assert kept.run() == ["ONE", "TWO", "letter", "THREE"], "an answer before the cut is a part of the prefix"


def test_timers_are_kept_and_later_decisions_of_the_agent_are_not() -> None:
    @everstep.agent
    async def run(goal: str, patient: bool = False) -> str:
        await act("one")
        slow = asyncio.create_task(act("slow"))
        await asyncio.sleep(0.05)
        await act("two")
        if not patient:
            slow.cancel()
            return "gave up"
        return await slow

    there: MemoryRun[str] = MemoryRun(run, "go")
    assert there.run() == "gave up"
    forked = there.fork("1", inputs={"patient": True})
    done.clear()
    assert forked.run() == "SLOW"
    assert counted() == {"two": 1, "slow": 1}, "the source gave it up after the cut; here it runs again under its key"
    forked.replay()


def test_large_values_come_along() -> None:
    @everstep.step(effect="read")
    async def fetch(n: int) -> str:
        done.append(f"fetch {n}")
        return "x" * n

    @everstep.agent
    async def run(goal: str) -> int:
        return len(await fetch(100_000)) + len(await act("one"))

    there: MemoryRun[int] = MemoryRun(run, "go")
    assert there.run() == 100_003
    forked = there.fork("1")
    done.clear()
    assert forked.run() == 100_003
    assert counted() == {"one": 1}


def test_other_code_that_takes_another_way_before_the_cut_is_refused() -> None:
    @everstep.agent
    async def other(goal: str, model: str = "a") -> list[str]:
        return [await act("one"), await act("TWO")]

    there: MemoryRun[list[str]] = MemoryRun(line, "go")
    there.run()
    ended = there.fork("3", agent=other).attempt()
    assert isinstance(ended.error, errors.Diverged)
    done.clear()
    fits = there.fork("1", agent=other)
    assert fits.run() == ["ONE", "TWO"]
    assert counted() == {"TWO": 1}


def test_only_proved_records_are_used() -> None:
    there: MemoryRun[list[str]] = MemoryRun(line, "go")
    there.run()
    journal = there.store.journals_by_id[there.journal_id]
    bad = next(r.seq for r in there.records if r.kind == "result" and r.key == "2")
    stored = journal.records[bad - 1]
    journal.records[bad - 1] = type(stored)(
        stored.seq, stored.record.replace(b"THREE", b"FREE!"), stored.prev_hash, stored.hash, stored.attempt
    )
    for step in ("3", "end", "nothing"):
        with pytest.raises(errors.JournalTampered):
            there.fork(step)
    forked = there.fork("2")
    done.clear()
    assert forked.run() == ["ONE", "TWO", "THREE-A", "FOUR", "go"]
    assert counted() == {"three-a": 1, "four": 1}


def test_a_step_that_is_not_there_or_not_clear_is_refused() -> None:
    there: MemoryRun[list[str]] = MemoryRun(line, "go")
    there.run()
    with pytest.raises(ConfigError, match="has no step 9"):
        there.fork("9")
    with pytest.raises(ConfigError, match="more than once; name one call by its key: #0, #1, #2, #3"):
        there.fork("act")


def test_no_fork_of_a_clean_up() -> None:
    @everstep.agent
    async def run(goal: str) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await act("clean")

    there: MemoryRun[None] = MemoryRun(run, "go")
    there.attempt()
    there.cancel()
    there.attempt()
    with pytest.raises(ConfigError, match="after the run was cancelled"):
        there.fork("0")


def _spend(run: MemoryRun[Any]) -> Spend:
    spend = Spend()
    for record in run.records:
        spend.add(record)
    return spend


def test_c14_a_fork_begins_with_what_its_prefix_spent() -> None:
    """C59: limits are for the whole way to the result, and downtime of the source is no active time of the fork."""
    there: MemoryRun[list[str]] = MemoryRun(line, "go")
    there.attempt(crash_at="in_body:2", budget=Budget(max_tokens=60))
    there.sleep(10_000)
    there.run()
    told = _spend(there)
    assert (told.tokens, told.lost_tokens) == (4 * 7 + 10, 10)
    forked = there.fork("2")
    begun = _spend(forked)
    assert (begun.tokens, begun.lost_tokens, begun.steps) == (2 * 7 + 10, 10, 2)
    assert begun.active_ms() < 1000
    assert forked.run() == ["ONE", "TWO", "THREE-A", "FOUR", "go"]
    assert _spend(forked).tokens == told.tokens
    assert _spend(forked).active_ms() < 2000
    poor = there.fork("2")
    poor.set_budget({"maxTokens": 30})
    assert poor.attempt().kind == "parked"


def test_a_step_the_budget_held_back_is_open_in_the_fork() -> None:
    there: MemoryRun[list[str]] = MemoryRun(line, "go")
    ended = there.attempt(budget=Budget(max_steps=2, on_exceeded="fail"))
    assert ended.kind == "failed"
    forked = there.fork("2")
    assert forked.attempt(budget=Budget()).value == ["ONE", "TWO", "THREE-A", "FOUR", "go"]
    assert counted() == {"one": 1, "two": 1, "three-a": 1, "four": 1}


def test_sync_agents_fork_alike() -> None:
    @everstep.step(effect="read")
    def read(n: int) -> int:
        done.append(f"read-{n} -")
        return n

    @everstep.agent
    def run(goal: str, plus: int = 0) -> int:
        return read(1) + read(2) + read(3 + plus)

    there: MemoryRun[int] = MemoryRun(run, "go", real_time=True)
    assert there.run() == 6
    forked = there.fork("2", inputs={"plus": 4})
    done.clear()
    assert forked.run() == 10
    assert counted() == {"read-7": 1}


@everstep.agent
async def epochs(goal: str, batch: int = 0) -> list[str]:
    """Two segments, a snapshot after each second step of each."""
    state = everstep.restored(list[str])
    if state is None:
        state = [await act(f"start-{batch}")]
    while len(state) < 5:
        state.append(await act(f"{batch}-{len(state)}"))
        if len(state) % 2:
            everstep.snapshot(state)
    if batch == 0:
        everstep.continue_as_new(batch=1)
    return [*state, await act("last")]


def test_forks_of_long_runs_begin_in_the_epoch_of_their_step() -> None:
    first: MemoryRun[list[str]] = MemoryRun(epochs, "go")
    wanted = first.run()
    steps = [r for r in first.records if isinstance(r, Intent)]
    assert {r.key.split("/")[0] for r in steps} >= {"0", "@1", "@3", "@4", "@5"}
    for number, step in enumerate(steps):
        forked = first.fork(step.key, goal="other")
        done.clear()
        assert forked.run() == wanted, step.key
        assert sum(counted().values()) == len(steps) - number, f"from {step.key} on, and nothing before"
        forked.replay()
        assert _spend(forked).tokens == _spend(first).tokens
        again = forked.fork("end")
        done.clear()
        assert again.run() == wanted
        assert not done


def test_a_step_in_flight_in_a_later_epoch_keeps_its_key() -> None:
    first: MemoryRun[list[str]] = MemoryRun(epochs, "go")
    assert first.attempt(crash_at="after_effect:8").kind == "crashed"
    assert first.records[-1].key.startswith("@3/")
    held = done[-1]
    forked = first.fork("end")
    assert forked.run()[-1] == "LAST"
    assert done.count(held) == 2, "again, under its own key"


def test_an_at_most_once_step_in_flight_asks_even_if_its_probe_denies_it() -> None:
    """A process of the source may still be at it: only the fork's own predecessors are proved dead."""

    async def not_sent(name: str) -> Probed[str]:
        return NOT_DONE

    @everstep.step(effect="at_most_once", probe=not_sent)
    async def probed(name: str) -> str:
        done.append(f"{name} {everstep.idempotency_key()}")
        return name

    @everstep.agent
    async def run(goal: str) -> list[str]:
        return [await act("one"), await probed("letter")]

    there: MemoryRun[list[str]] = MemoryRun(run, "go")
    there.attempt(crash_at="in_body:2")
    forked = there.fork("end")
    ended = forked.attempt(predecessor_dead=True)
    assert ended.kind == "parked"
    assert "in flight when run memory-run was forked" in ended.waits[0].reason
    forked.settle(ended.waits[0].key, "again")
    assert forked.run() == ["ONE", "letter"]
    assert counted()["letter"] == 1
    forked.replay()


def test_a_licence_to_run_again_is_not_used_twice() -> None:
    @everstep.agent
    async def run(goal: str) -> list[str]:
        sent = asyncio.create_task(mail("letter"))
        first = await act("one")
        return [first, await act("two"), await sent]

    there: MemoryRun[list[str]] = MemoryRun(run, "go")
    there.attempt(crash_at="after_effect:1", predecessor_dead=False)
    parked = there.attempt(predecessor_dead=False)
    assert [w.kind for w in parked.waits] == ["uncertain"]
    there.settle(parked.waits[0].key, "again")
    there.attempt(crash_at="after_effect:1", predecessor_dead=False)
    sent = counted()["letter"]
    ended = there.fork("end").attempt()
    assert [w.kind for w in ended.waits] == ["uncertain"]
    assert counted()["letter"] == sent
