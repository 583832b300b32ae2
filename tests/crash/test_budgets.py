"""SIGKILL at every point of a run with a budget, on SQLite and Redis: it parks at its cap whatever happened (C59), and what
the journal says it spent is what the scripted model counted for itself (C14).

The model charges the same for each call and that is what each call reserves, so the books can be compared to the token: settled
tries are calls the model answered, and each lost try is a call that it may or may not have been asked.
"""

import asyncio
import signal
from pathlib import Path

import pytest

from everstep import contract
from everstep.ids import InboxId, JournalId
from everstep.journal.inbox import BudgetBody, make_entry
from everstep.journal.records import Intent, Park, Record, Result
from everstep.journal.spend import Spend
from tests.crash.agents_budgets import LIMIT, TOKENS
from tests.crash.driver import Driver
from tests.crash.judge import stories

# Rounds of three calls: the third round's second call does not fit, the run parks with two calls held and goes on when raised.
PLAN: dict[str, tuple[str, ...]] = {
    "after_claim": ("after_claim@1=kill", "after_claim@2=kill"),
    "before_intent": ("before_intent:2@1=kill", "before_intent:9@1=kill", "before_intent:2@2=kill"),
    "after_intent": ("after_intent:2@1=kill", "after_intent:7@1=kill", "after_intent:1@2=kill"),
    "in_body": ("in_body:2@1=kill", "in_body:7@1=kill", "in_body:1@2=kill"),
    "after_effect": ("after_effect:1@1=kill", "after_effect:6@1=kill", "after_effect:1@1=kill;after_effect:2@2=kill"),
    "after_result": ("after_result:2@1=kill", "after_result:8@1=kill", "after_result:1@2=kill"),
    "before_append": ("before_append:3@1=kill", "before_append:6@1=kill", "before_append:1@2=kill"),
    "after_append": ("after_append:3@1=kill", "after_append:6@1=kill", "after_append:1@2=kill"),
    "after_held": ("after_held:1@1=kill", "after_held:2@1=kill", "after_held:1@2=kill"),
    "after_raised": ("after_raised:1@2=kill", "after_raised:1@2=kill;after_raised:1@3=kill"),
    "before_park": ("before_park@1=kill", "before_park@2=kill"),
    "after_park": ("after_park@1=kill", "after_park@2=kill"),
    "in_replay": ("in_replay:3@2=kill", "in_replay:9@2=kill"),
}


def spent(records: list[Record]) -> Spend:
    """What the journal says."""
    spend = Spend()
    for record in records:
        spend.add(record)
    return spend


async def _until_parked(driver: Driver, faults: str) -> Park:
    """Attempt after attempt until one ends in a park."""
    while True:
        await driver.fence()
        agent = await driver.spawn(faults=faults, predecessor_dead=driver.attempt > 1)
        code = await agent.wait()
        driver.exits.append(code)
        await driver.take_anchor()
        head = await driver.last()
        if code == 0 and isinstance(head, Park):
            return head
        assert code == -signal.SIGKILL, f"exit {code}, {head}\n{agent.stderr()}"
        assert driver.attempt < 8


async def _check(driver: Driver, limit: int) -> None:
    records = await driver.records()
    told, spend = stories(records), spent(records)
    assert spend.spent_tokens <= limit, "over the cap"
    assert spend.spent_tokens + TOKENS > limit, "parked although another call fits"
    asked = [line for line in driver.lines() if not str(line["name"]).endswith("note")]
    answered = {r.key for r in records if isinstance(r, Result) and r.name == "think"}
    lost = sum(story.lost for story in told.values() if story.name == "think")
    assert spend.usage == {"inputTokens": (TOKENS - 3) * len(answered), "outputTokens": 3 * len(answered)}
    assert spend.tokens - spend.lost_tokens == TOKENS * len(answered), "each call that was answered, once"
    unsettled = sum(story.intents > 0 and story.outcomes == 0 for story in told.values() if story.name == "think")
    assert spend.lost_tokens == TOKENS * lost, "each try that was lost, once"
    assert spend.open_tokens == TOKENS * unsettled, "and those that were lost and have no room to run again"
    assert len(answered) <= len(asked) <= len(answered) + lost + unsettled, "the model's own books"
    assert TOKENS * len(asked) <= limit, "what the model charged is within the cap, whoever was killed"
    for story in told.values():
        done = [line for line in driver.lines() if line["idem"] == story.idem]
        assert len(done) <= 1 + story.lost, f"{story.name} {story.key} ran again: {done}"
    firsts = [r.key for r in records if isinstance(r, Intent) and r.tries == 1]
    assert len(firsts) == len(set(firsts))


async def _play(store_url: str, home: Path, spec: str, run_key: bytes | None) -> None:
    journal = "".join(c if c.isalnum() else "-" for c in f"budget-{spec}")
    async with Driver(
        store_url, JournalId(journal), home / journal, "tests.crash.agents_budgets:runaway", run_key=run_key,
        env={contract.ENV_BUDGET: f'{{"maxTokens": {LIMIT}}}'},
    ) as driver:  # fmt: skip
        park = await _until_parked(driver, spec)
        assert {w.kind for w in park.waits} == {"budget"}
        assert f"the limit is {LIMIT}" in park.waits[0].reason
        await _check(driver, LIMIT)
        entry = make_entry(driver.chain, InboxId("budget-1"), BudgetBody(limits={"maxTokens": 2 * LIMIT}, by="test"))
        assert await driver.store.inbox_add(driver.journal, entry)
        await _until_parked(driver, spec)
        await _check(driver, 2 * LIMIT)
        raised = [r for r in await driver.records() if r.kind == "budget_raised"]
        assert [(r.by, r.inbox) for r in raised] == [("test", "budget-1")], "taken in once"
        kills = spec.count("=kill")
        assert driver.exits.count(-signal.SIGKILL) == kills, f"{spec}: not every point was reached: {driver.exits}"


@pytest.mark.timeout(180)
@pytest.mark.parametrize("point", PLAN)
async def test_a_budget_holds_over_sigkill_at(
    point: str, store_url: str, run_key: bytes | None, tmp_path: Path
) -> None:
    outcomes = await asyncio.gather(
        *(_play(store_url, tmp_path, spec, run_key) for spec in PLAN[point]), return_exceptions=True
    )
    broken = [f"{spec}: {e!r}" for spec, e in zip(PLAN[point], outcomes, strict=True) if e is not None]
    assert not broken, "\n".join(broken)
