"""docs/steps.md: its Python runs, its tables name every option with its default, its table of outcomes is what happens."""

import asyncio
import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep import BadCall, Retry, StepFailed
from everstep.testing import MemoryRun

PAGE = Path(__file__).parents[2] / "docs" / "steps.md"
TEXT = PAGE.read_text(encoding="utf-8")
CLASSES = ("read", "idempotent", "at_most_once")
EVENTS = ("lost", "timeout", "raises", "cancelled")


def section(title: str) -> str:
    return TEXT.split(f"## {title}", 1)[1].split("\n## ", 1)[0]


def first_cells(text: str) -> str:
    return " ".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))


def test_the_example_runs() -> None:
    [block] = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    rows: list[int] = []

    async def send_row(table: str, row: int, key: str) -> None:
        rows.append(row)

    async def ask_weather(city: str, unit: str) -> str:
        return f"{city} {unit}"

    space: dict[str, Any] = {"__name__": "docs", "send_row": send_row, "ask_weather": ask_weather}
    exec(compile(block, str(PAGE), "exec"), space)
    run: MemoryRun[list[str]] = MemoryRun(space["run"], "go", {"cities": ["Rome", "Oslo"]})
    assert run.run() == ["5 rows", "Rome F", "Oslo F", "Rome C"]
    assert rows == [0, 1, 2, 3, 4]
    run.replay()


def test_every_option_has_its_row() -> None:
    cells = first_cells(section("Options of `@everstep.step`"))
    options = [name for name in inspect.signature(everstep.step).parameters if name != "fn"]
    assert set(re.findall(r"`(\w+)`", cells)) == set(options)


def test_every_retry_option_has_its_row_with_its_default() -> None:
    text = section("Options of `Retry`")
    assert set(re.findall(r"`(\w+)`", first_cells(text))) == {f.name for f in dataclasses.fields(Retry)}
    said = {line.split("|")[1].strip(): line.split("|")[3] for line in text.splitlines() if line.startswith("| `")}
    default = Retry()
    assert said["`max_tries`"].strip() == str(default.max_tries)
    assert said["`backoff_s`, `factor`, `backoff_max_s`"].strip() == (
        f"{default.backoff_s:g} s, {default.factor:g}, {default.backoff_max_s:g} s"
    )
    assert said["`jitter`"].strip().startswith(str(default.jitter))
    assert said["`retry_after_max_s`"].strip().startswith(f"{default.retry_after_max_s:g}")
    assert said["`on_exhausted`"].strip() == f'`"{default.on_exhausted}"`'


def said_of(effect: str, event: str) -> str:
    row = next(line for line in section("What becomes of a step").splitlines() if line.startswith(f"| `{effect}`"))
    return row.split("|")[2 + EVENTS.index(event)].strip()


def what_happens(effect: str, event: str) -> str:
    """In the words of the table."""
    bodies: list[int] = []

    @everstep.step(
        effect=effect,  # type: ignore[arg-type]  # one of the three
        timeout=5 if event == "timeout" else None,
        retry=Retry(max_tries=2, backoff_s=0),
        name="work",
    )
    async def work() -> str:
        bodies.append(1)
        if len(bodies) > 1:
            return "second"
        if event == "raises":
            raise ConnectionError("no")
        await asyncio.sleep(60)
        return "first"

    @everstep.agent
    async def agent(goal: str) -> str:
        try:
            async with asyncio.timeout(10 if event == "cancelled" else None):
                return await work()
        except TimeoutError:
            return "gave up"
        except StepFailed as e:
            return f"failed {e.type}"

    run: MemoryRun[str] = MemoryRun(agent, "go")
    if event == "lost":
        assert run.attempt(crash_at="after_effect").kind == "crashed"
    ended = run.attempt()
    kinds = [r.kind for r in run.records if r.key == "0"]
    if ended.kind == "parked":
        assert "uncertain" in kinds
        assert len(bodies) == 1
        return "settled"
    if ended.value == "second":
        return "tried again" if "try_failed" in kinds else "runs again"
    return "abandoned" if "abandoned" in kinds else ended.value.split()[0] if ended.value else "?"


@pytest.mark.parametrize("effect", CLASSES)
@pytest.mark.parametrize("event", EVENTS)
def test_the_table_of_outcomes(effect: str, event: str) -> None:
    assert said_of(effect, event) == what_happens(effect, event)


def test_steps_inside_steps_are_refused_with_a_cure() -> None:
    @everstep.step(effect="read")
    async def inner(n: int) -> int:
        return n

    @everstep.step(effect="read")
    async def outer(n: int) -> int:
        for call in (lambda: inner(n), lambda: inner.map([n]), lambda: everstep.first(asyncio.sleep(0))):
            with pytest.raises(BadCall, match="inside the body of step outer"):
                call()
        return int(await inner.fn(n))

    @everstep.agent
    async def run(goal: str) -> int:
        return await outer(3)

    there: MemoryRun[int] = MemoryRun(run, "go")
    assert there.run() == 3
    assert [k for k in there.kinds() if k.startswith("intent")] == ["intent 0"]
