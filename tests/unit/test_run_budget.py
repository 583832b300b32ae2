"""C59, C14: a budget is a cap before each call, from the journal alone: exact over crashes, tries and parallel calls.

The scripted model counts for itself what it was asked and what it charged; the journal must say the same.
"""

import asyncio
from typing import Any

import pytest

import everstep
from everstep import Budget, BudgetExceeded, ConfigError, Reserve, Retry
from everstep.journal.records import Failure, Intent
from everstep.journal.spend import Spend
from everstep.testing import MemoryRun

calls: list[str] = []  # of the model, by idempotency key
in_flight = [0, 0]  # tokens now, at most


@pytest.fixture(autouse=True)
def _fresh_world() -> None:
    calls.clear()
    in_flight[:] = [0, 0]


@everstep.step(effect="idempotent", reserve=Reserve(tokens=30))
async def think(n: int) -> int:
    calls.append(everstep.idempotency_key())
    in_flight[0] += 30
    in_flight[1] = max(in_flight)
    await asyncio.sleep(1 + n % 3)
    in_flight[0] -= 30
    everstep.report_usage(input_tokens=10, output_tokens=n % 5)
    return n


@everstep.step(effect="read")
async def look(n: int) -> int:
    return n


@everstep.agent
async def runaway(goal: str) -> None:
    """C59: a loop without end."""
    n = 0
    while True:
        await think(n % 5)
        n += 1


def spent(run: MemoryRun[Any]) -> Spend:
    spend = Spend()
    for record in run.records:
        spend.add(record)
    return spend


def test_c59_a_runaway_loop_parks_at_its_cap_and_goes_on_when_raised() -> None:
    run: MemoryRun[None] = MemoryRun(runaway, "go")
    ended = run.attempt(budget=Budget(max_tokens=100))
    assert ended.kind == "parked"
    assert [(w.kind, w.name) for w in ended.waits] == [("budget", "think")]
    assert "the limit is 100" in ended.waits[0].reason
    assert spent(run).tokens <= 100
    assert spent(run).tokens + 30 > 100, "another call would not have fitted"
    had = len(calls)
    assert run.attempt().kind == "parked", "the limits stand in the journal"
    assert len(calls) == had
    run.set_budget({"maxTokens": 200}, by="jane")
    assert run.attempt().kind == "parked"
    assert len(calls) > had
    assert spent(run).tokens <= 200
    assert spent(run).budget.max_tokens == 200
    assert [r.by for r in run.records if r.kind == "budget_raised"] == ["jane"]
    assert len(calls) == len(set(calls)), "no recorded step ran again"


def test_c59_the_same_across_kills_at_every_point() -> None:
    """However it is killed, what was spent and what a lost try may have cost stays within the cap."""
    moment = 1
    while True:
        calls.clear()
        run: MemoryRun[None] = MemoryRun(runaway, "go")
        if run.attempt(crash_at=f"any:{moment}", budget=Budget(max_tokens=100)).kind != "crashed":
            break
        while (ended := run.attempt(budget=Budget(max_tokens=100))).kind == "crashed":
            pass
        assert ended.kind == "parked", (moment, ended)
        told = spent(run)
        assert told.spent_tokens <= 100, moment
        assert told.spent_tokens + 30 > 100, moment
        charged = dict.fromkeys(calls, 0)
        records = {r.key: r for r in run.records if isinstance(r, Intent)}
        for record in run.records:
            if record.kind == "result":
                charged[records[record.key].idem] = sum((record.usage or {}).values())
        assert told.tokens - told.lost_tokens == sum(charged.values()), "C14: the sum is the model's own count"
        assert len(calls) - len(set(calls)) <= 1, "only the try that was lost was repeated"
        moment += 1
    assert moment > 20


def test_64_parallel_calls_never_overshoot() -> None:
    @everstep.agent
    async def crowd(goal: str) -> int:
        return sum(await asyncio.gather(*(think(n) for n in range(64))))

    run: MemoryRun[int] = MemoryRun(crowd, "go")
    ended = run.attempt(budget=Budget(max_tokens=400))
    assert ended.kind == "parked"
    assert in_flight[1] <= 400
    told = spent(run)
    assert told.running_tokens == told.open_tokens == 0
    assert told.tokens <= 400 < told.tokens + 30
    assert len(ended.waits) == 64 - len(calls)
    done = len(calls)
    assert done > 400 // 30, "what running calls gave back was used"
    run.set_budget({"maxTokens": None})
    assert run.run() == sum(range(64))
    assert len(calls) == len(set(calls)) == 64
    run.replay()


def test_held_calls_keep_their_place_among_the_calls_of_the_agent() -> None:
    """The intent of a held call comes late; what the agent called after it must still find its own record."""

    @everstep.agent
    async def mixed(goal: str) -> list[Any]:
        first = asyncio.create_task(think(1))
        second = asyncio.create_task(think(2))
        await asyncio.sleep(0)
        value = everstep.random()
        third = await look(3)
        await asyncio.sleep(0.5)
        return [await first, await second, third, value, await look(4)]

    for moment in range(1, 60, 3):
        run: MemoryRun[list[Any]] = MemoryRun(mixed, "go")
        ended = run.attempt(crash_at=f"any:{moment}", budget=Budget(max_tokens=45))
        if ended.kind == "crashed":
            ended = run.attempt(budget=Budget(max_tokens=90))
        assert ended.kind == "succeeded", (moment, ended)
        run.replay()


def test_a_step_that_wants_nothing_passes_one_that_is_held() -> None:
    @everstep.agent
    async def both(goal: str) -> int:
        held = asyncio.create_task(think(1))
        await asyncio.sleep(0)
        n = await look(7)
        return n + await held

    run: MemoryRun[int] = MemoryRun(both, "go")
    assert run.attempt(budget=Budget(max_tokens=29)).kind == "parked"
    assert [r.name for r in run.records if r.kind == "result"] == ["look"]


def test_on_exceeded_fail_raises_a_typed_error_live_and_on_replay() -> None:
    @everstep.agent
    async def careful(goal: str) -> str:
        done = 0
        try:
            while True:
                await think(0)
                done += 1
        except BudgetExceeded as e:
            data: Any = e.data
            return (
                f"{done} steps, then {e.type} at {e.key} for {data['budget']['maxTokens']['limit']}: {await look(done)}"
            )

    run: MemoryRun[str] = MemoryRun(careful, "go")
    run.attempt(crash_at="after_result:3", budget=Budget(max_tokens=100, on_exceeded="fail"))
    assert run.run() == "5 steps, then BudgetExceeded at 5 for 100: 5"
    run.replay()
    assert [r.type for r in run.records if isinstance(r, Failure)] == ["BudgetExceeded"]
    assert (len(calls), len(set(calls))) == (6, 5), "the third was lost with its process, and its reserve is spent"


def test_an_agent_that_does_not_catch_it_fails_with_it() -> None:
    run: MemoryRun[None] = MemoryRun(runaway, "go")
    ended = run.attempt(budget=Budget(max_steps=3, on_exceeded="fail"))
    assert ended.kind == "failed"
    assert isinstance(ended.error, BudgetExceeded)
    assert run.records[-1].type == "BudgetExceeded"  # type: ignore[union-attr]  # a finished record
    assert len(calls) == 3


def test_steps_count_calls_not_tries() -> None:
    @everstep.step(effect="read", retry=Retry(max_tries=3, backoff_s=0.01))
    async def flaky(n: int) -> int:
        calls.append("call")
        if len(calls) % 3:
            raise ConnectionError("again")
        return n

    @everstep.agent
    async def three(goal: str) -> int:
        return sum([await flaky(n) for n in range(3)])

    run: MemoryRun[int] = MemoryRun(three, "go")
    assert run.attempt(budget=Budget(max_steps=2)).kind == "parked"
    assert len(calls) == 6
    run.set_budget({"maxSteps": 3})
    assert run.run() == 3


def test_failed_tries_cost_what_they_reported_or_else_what_they_reserved() -> None:
    @everstep.step(effect="read", retry=Retry(max_tries=4, backoff_s=0.01), reserve=Reserve(tokens=30))
    async def flaky() -> str:
        calls.append("call")
        match len(calls):
            case 1:
                everstep.report_usage(input_tokens=8)
                raise ConnectionError("paid for in part")
            case 2:
                everstep.report_usage()
                raise ConnectionError("surely not paid")
            case 3:
                raise ConnectionError("who knows")
        return "fine"

    @everstep.agent
    async def run(goal: str) -> str:
        return await flaky()

    there: MemoryRun[str] = MemoryRun(run, "go")
    assert there.attempt(budget=Budget(max_tokens=68)).kind == "succeeded"
    told = spent(there)
    assert (told.tokens, told.lost_tokens, told.usage) == (68, 60, {"inputTokens": 8})
    assert len(calls) == 4, "the last one reported nothing either, so its reserve stands"


def test_a_retry_that_does_not_fit_waits_too() -> None:
    @everstep.step(effect="read", retry=Retry(max_tries=3, backoff_s=0.01), reserve=Reserve(tokens=30))
    async def flaky() -> str:
        calls.append("call")
        if len(calls) == 1:
            raise ConnectionError("who knows")
        return "fine"

    @everstep.agent
    async def run(goal: str) -> str:
        return await flaky()

    there: MemoryRun[str] = MemoryRun(run, "go")
    ended = there.attempt(budget=Budget(max_tokens=50))
    assert (ended.kind, len(calls)) == ("parked", 1)
    there.set_budget({"maxTokens": 60})
    assert there.run() == "fine"
    there.replay()


def test_a_lost_try_counts_what_it_reserved_unless_it_surely_did_not_happen() -> None:
    async def was_done(n: int) -> everstep.Probed[int]:
        return everstep.NOT_DONE

    @everstep.step(effect="at_most_once", probe=was_done, reserve=Reserve(tokens=30))
    async def pay(n: int) -> int:
        everstep.report_usage(input_tokens=5)
        return n

    @everstep.agent
    async def run(goal: str) -> int:
        return await pay(1) + await think(1)

    there: MemoryRun[int] = MemoryRun(run, "go")
    there.attempt(crash_at="in_body:1")
    there.attempt(crash_at="in_body:2")
    there.run()
    told = spent(there)
    assert told.usage == {"inputTokens": 15, "outputTokens": 1}
    assert told.lost_tokens == 30, "of think alone: the probe said that pay did not happen"
    assert told.tokens == 46


def test_money_by_prices_and_an_unknown_model_never_counts_as_zero() -> None:
    @everstep.step(effect="read")
    async def ask(model: str) -> str:
        calls.append(model)
        everstep.report_usage(input_tokens=1000, output_tokens=100, model=model)
        return model

    @everstep.agent
    async def run(goal: str) -> list[str]:
        return [await ask(m) for m in ("small-1", "large", "small-2")]

    there: MemoryRun[list[str]] = MemoryRun(run, "go")
    ended = there.attempt(budget=Budget(max_cost_micro_usd=10_000, prices={"small-*": (0.5, 2)}))
    assert ended.kind == "parked"
    assert calls == ["small-1", "large"]
    assert "model 'large' has no price" in ended.waits[0].reason
    assert spent(there).spent_cost == 700
    there.set_budget({"prices": {"large": {"input": 10_000_000, "output": 30_000_000}}})
    ended = there.attempt()
    assert ended.kind == "parked", "13,000 micro-USD for what large used: over the limit"
    assert spent(there).spent_cost == 13_700
    there.set_budget({"maxCostMicroUSD": 20_000})
    assert there.run() == ["small-1", "large", "small-2"]
    assert spent(there).spent_cost == 14_400


def test_an_unknown_model_that_is_declared_is_stopped_before_the_call() -> None:
    @everstep.step(effect="read", reserve=lambda model: Reserve(tokens=1000, model=model))
    async def ask(model: str) -> str:
        calls.append(model)
        everstep.report_usage(input_tokens=10, model=model)
        return model

    @everstep.agent
    async def run(goal: str) -> str:
        return await ask("new")

    there: MemoryRun[str] = MemoryRun(run, "go")
    assert there.attempt(budget=Budget(max_cost_micro_usd=10_000)).kind == "parked"
    assert calls == []
    there.set_budget({"prices": {"*": {"input": 2_000_000, "output": 5_000_000}}})
    assert there.run() == "new"
    assert [r.reserve for r in there.records if isinstance(r, Intent)] == [{"tokens": 1000, "costMicroUSD": 5000}]
    assert spent(there).spent_cost == 20


def test_active_time_is_time_with_a_body_in_flight_overlaps_once() -> None:
    @everstep.agent
    async def run(goal: str) -> None:
        await asyncio.gather(think(0), think(0), think(0))  # one second together
        await asyncio.sleep(20)  # free
        await think(0)
        await think(0)

    there: MemoryRun[None] = MemoryRun(run, "go")
    assert there.attempt(budget=Budget(max_active_s=2)).kind == "parked"
    assert len(calls) == 4
    assert spent(there).active_ms() == 2000
    there.set_budget({"maxActiveSeconds": 2.5})
    there.run()
    assert len(calls) == 5


def test_a_cancelled_wait_for_the_budget_ends_and_gives_its_place_back() -> None:
    @everstep.agent
    async def run(goal: str) -> str:
        try:
            async with asyncio.timeout(5):
                await think(0)
        except TimeoutError:
            return f"gave up, {await look(1)}"
        return "?"

    there: MemoryRun[str] = MemoryRun(run, "go")
    assert there.attempt(budget=Budget(max_tokens=10)).value == "gave up, 1"
    there.replay()
    assert calls == []


def test_clean_up_after_a_cancel_is_not_held() -> None:
    @everstep.agent
    async def run(goal: str) -> None:
        try:
            await think(0)
        finally:
            await look(1)

    there: MemoryRun[None] = MemoryRun(run, "go")
    assert there.attempt(budget=Budget(max_steps=0)).kind == "parked"
    there.cancel()
    assert there.attempt().kind == "cancelled"
    assert [r.name for r in there.records if r.kind == "result"] == ["look"]


def test_a_budget_given_otherwise_at_a_start_counts_from_there() -> None:
    there: MemoryRun[None] = MemoryRun(runaway, "go")
    there.attempt(budget=Budget(max_tokens=40, max_steps=50))
    assert len(calls) == 2
    there.attempt(budget=Budget(max_tokens=52))
    assert len(calls) == 3
    assert spent(there).budget == Budget(max_tokens=52)
    before = len(there.records)
    there.attempt(budget=Budget(max_tokens=52))
    assert [r.kind for r in there.records[before:]] == ["park"], "the same again is no news"


def test_sync_agents_are_held_alike() -> None:
    @everstep.step(effect="read", reserve=Reserve(tokens=30))
    def ponder(n: int) -> int:
        calls.append(str(n))
        everstep.report_usage(input_tokens=20)
        return n

    @everstep.agent
    def run(goal: str) -> int:
        return sum(ponder(n) for n in range(4))

    there: MemoryRun[int] = MemoryRun(run, "go", real_time=True)
    assert there.attempt(budget=Budget(max_tokens=60)).kind == "parked"
    assert calls == ["0", "1"]
    there.set_budget({"maxTokens": 90})
    assert there.run() == 6
    there.replay()


def test_a_reserve_that_cannot_be_told_fails_the_run() -> None:
    @everstep.step(effect="read", reserve=lambda n: Reserve(tokens=1 // n))
    async def ask(n: int) -> int:
        calls.append("call")
        return n

    @everstep.agent
    async def run(goal: str) -> int:
        return await ask(0)

    ended = MemoryRun[int](run, "go").attempt()
    assert (ended.kind, calls) == ("failed", [])
    assert "reserve= of step ask raised ZeroDivisionError" in ended.message


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_steps": -1}, "max_steps must be a whole number"),
        ({"max_tokens": 1.5}, "max_tokens must be a whole number"),
        ({"max_active_s": -2}, "max_active_s must be a number of seconds"),
        ({"on_exceeded": "stop"}, 'on_exceeded must be "park" or "fail"'),
        ({"prices": {"m": 3}}, "price of 'm'"),
        ({"prices": {"m": {"input": -1, "output": 2}}}, "price: input must be a whole number"),
    ],
)
def test_a_wrong_budget_is_refused_by_its_field(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Budget(**fields)


def test_a_budget_survives_json() -> None:
    budget = Budget(3, 4, 5, 6.5, "fail", {"m": (1.25, 10)})
    assert Budget.from_json(budget.to_json()) == budget
    with pytest.raises(ConfigError, match="unknown field maxStep;"):
        Budget.from_json({"maxStep": 3})


def test_what_was_spent_can_be_carried_over_a_snapshot() -> None:
    run: MemoryRun[None] = MemoryRun(runaway, "go")
    run.attempt(crash_at="in_body:3", budget=Budget(max_tokens=100))
    told, again = spent(run), Spend()
    again.restore(told.carried())
    assert again.carried() == told.carried()
    assert again.spent_tokens == told.spent_tokens == told.tokens + 30 or told.running_tokens == 30
