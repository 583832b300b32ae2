"""docs/change.md: its Python runs as it stands, its table of rules is the code's, its claims about changes are tried."""

import re
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep.check.rules import RULES
from everstep.errors import Diverged
from everstep.run.agents import Agent
from everstep.testing import MemoryRun, RecordedRun

PAGE = Path(__file__).parents[2] / "docs" / "change.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.S)


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {"__name__": "docs"}
    assert len(BLOCKS) == 2
    exec(compile(BLOCKS[0], str(PAGE), "exec"), space)
    run: MemoryRun[str] = MemoryRun(space["run"], "why?")
    assert run.run() == "answer to summary of answer to why?"
    assert [r.name for r in run.records if r.kind == "value"] == ["patched:check-the-answer"]
    (tmp_path / "tests" / "histories").mkdir(parents=True)
    told = RecordedRun(run.raw_records, run.goal, run.inputs)
    (tmp_path / "tests" / "histories" / "a.jsonl").write_text("\n".join(told.lines()))
    exec(compile(BLOCKS[1], str(PAGE), "exec"), space)
    [mark] = space["test_running_runs_survive_this_change"].pytestmark
    [path] = mark.args[1]
    space["test_running_runs_survive_this_change"](path)


def test_every_rule_has_its_row() -> None:
    assert set(re.findall(r"^\| (ES\d{3}) \|", TEXT, re.M)) == set(RULES)


@everstep.step(effect="read")
async def look(n: int) -> int:
    return n


@everstep.step(effect="read", name="look", timeout=9, retry=everstep.Retry(max_tries=3))
async def look_again(n: int) -> int:
    return n + 0


@everstep.step(effect="at_most_once", name="look", on_uncertain="fail")
async def look_once(n: int) -> int:
    return n


@everstep.step(effect="read", name="look")
async def look_more(n: int, deep: bool = False) -> int:
    return n


def agent(step: Any, after: bool = False, before: bool = False) -> Agent[..., Any]:
    @everstep.agent
    async def changing(goal: str) -> int:
        if before:
            await look(0)
        first, second = await step(1), await look(2)
        if after:
            await look(9)
        return int(first) + second

    return changing


@pytest.mark.parametrize(
    ("change", "goes_on"),
    [
        ({"step": look_again}, True),
        ({"step": look_once}, True),
        ({"step": look, "after": True}, True),
        ({"step": look, "before": True}, False),
        ({"step": look_more}, False),
    ],
    ids=["body, timeout, retry", "effect class", "later code", "one step more", "a new parameter"],
)
def test_the_table_of_changes_is_true(change: dict[str, Any], goes_on: bool) -> None:
    run: MemoryRun[int] = MemoryRun(agent(look), "go")
    assert run.attempt(crash_at="after_append:2").kind == "crashed"
    run.agent = agent(**change)
    ended = run.attempt()
    if goes_on:
        assert ended.value == 3, ended
    else:
        assert isinstance(ended.error, Diverged)
