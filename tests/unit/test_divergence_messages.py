"""What a person reads when code and journal part, word for word: the two sides, the line, what agreed, the cause, what helps."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep.contract import StopReason, Termination
from everstep.errors import Diverged
from everstep.ids import Attempt
from everstep.journal.records import Intent
from everstep.run.agents import Agent
from everstep.testing import MemoryRun

HELP = """\
What helps:
  the same code  run what wrote the journal: the old file or the old image (repin RUN --image OLD)
  a guard        if the change is meant: if everstep.patched("some-id"): the new way, else: the old one
  a fork         a new run that keeps what comes before: fork RUN --from-step '{key}'
  or start a new run for the changed code. Nothing was written and no step ran."""
CHANGED = (
    "Likely the code has changed, or a branch hangs on a clock, randomness, the environment or a file: agent code may only "
    "depend on its inputs, step results, everstep.now(), uuid4() and random()."
)


@everstep.step(effect="read")
async def look(n: int) -> int:
    return n


@everstep.step(effect="read")
async def file(title: str, stamp: object, tags: list[str]) -> str:
    return title


@everstep.step(effect="read", name="file")
async def file_with_more(title: str, stamp: object, urgent: bool = False) -> str:
    return title


@everstep.step(effect="read")
async def tag(tags: list[str]) -> int:
    return len(tags)


@everstep.step(effect="read")
def look_there(n: int) -> int:
    return n


def agent(
    *, stamp: object = 1.5, tags: tuple[str, ...] = ("a", "b"), order: tuple[int, ...] = (1, 2), how: str = ""
) -> Agent[..., Any]:
    @everstep.agent
    async def changing(goal: str) -> str:
        await look(0)
        if how == "short":
            return ""
        await asyncio.gather(*(look(n) for n in order))
        if how == "sleep":
            await asyncio.sleep(3)
        if how == "signature":
            return await file_with_more("t", stamp)
        return await file("t", stamp, list(tags)) + str(await tag(list(tags)))

    return changing


def said(**change: Any) -> str:
    run: MemoryRun[Any] = MemoryRun(agent(), "go")
    run.attempt(crash_at="before_finished")
    length = len(run.records)
    run.agent = agent(**change)
    ended = run.attempt()
    assert isinstance(ended.error, Diverged), ended
    assert len(run.records) == length
    # the termination message of a pod holds 2048 characters of it
    assert Termination(StopReason.DIVERGED, ended.message, Attempt(2)).message == ended.message
    assert len(ended.message) < 2048
    return re.sub(r"[0-9a-f]{12}…", "D…", re.sub(r"(\.py):\d+", r"\1:N", ended.message))


HERE = "tests/unit/test_divergence_messages.py:N"
FILE_CALL = (
    f"calls step file at '1' in {HERE}: `return await file(\"t\", stamp, list(tags)) + str(await tag(list(tags)))`"
)
GATHER = "`await asyncio.gather(*(look(n) for n in order))`"

CASES: dict[str, tuple[dict[str, Any], str]] = {
    "clock": (
        {"stamp": 1796082519.3},
        f"""\
step file was called with other arguments than the journal tells.
  the record:  record 8: step file was called at '1', arguments with digest D…
  the code:    {FILE_CALL}, arguments with digest D…
    stamp: changed: now a number that reads as a time (recorded 875c9bba, now d50df2c8)
    tags, title: as recorded
  agreed last: record 5: step look was called at 't1/0'
  then tells:  record 10: step tag was called at '2'
Likely a clock: stamp reads as a time. Take the time from everstep.now(), which is recorded.
""",
    ),
    "random": (
        {"stamp": "7f8a1c90-1f1e-4b57-9d0a-1df1f7d8a001"},
        f"""\
step file was called with other arguments than the journal tells.
  the record:  record 8: step file was called at '1', arguments with digest D…
  the code:    {FILE_CALL}, arguments with digest D…
    stamp: changed: now a text of 36 characters that reads as a random id (recorded 875c9bba, now bea7f9b3)
    tags, title: as recorded
  agreed last: record 5: step look was called at 't1/0'
  then tells:  record 10: step tag was called at '2'
Likely randomness: stamp reads as a random id or number. Take it from everstep.uuid4() or everstep.random().
""",
    ),
    "set order in an argument": (
        {"tags": ("b", "a")},
        f"""\
step file was called with other arguments than the journal tells.
  the record:  record 8: step file was called at '1', arguments with digest D…
  the code:    {FILE_CALL}, arguments with digest D…
    tags: changed: a list of 2, the same elements in another order (recorded 3dc99cd5, now 0e673811)
    stamp, title: as recorded
  agreed last: record 5: step look was called at 't1/0'
  then tells:  record 10: step tag was called at '2'
Likely the order of a set, os.listdir or a glob: tags holds the same elements in another order. Use sorted(…).
""",
    ),
    "set order of calls": (
        {"order": (2, 1)},
        f"""\
step look was called with other arguments than the journal tells.
  the record:  record 4: step look was called at 't0/0', arguments with digest D…
  the code:    calls step look at 't0/0' in {HERE}: {GATHER}, arguments with digest D…
    n: changed: now a number
  agreed last: record 2: step look was called at '0'
  then tells:  record 5: step look was called at 't1/0'; record 8: step file was called at '1'; \
record 10: step tag was called at '2'
Likely the order: the record tells of this very call as well, at another turn. A set, os.listdir or a glob iterates in \
another order in each process (use sorted(…)), or lines were moved.
""",
    ),
    "changed parameters": (
        {"how": "signature"},
        f"""\
step file was called with other arguments than the journal tells.
  the record:  record 8: step file was called at '1', arguments with digest D…
  the code:    calls step file at '1' in {HERE}: `return await file_with_more("t", stamp)`, arguments with digest D…
    tags: recorded, but not passed now
    urgent: new: the record has no such argument
    stamp, title: as recorded
  agreed last: record 5: step look was called at 't1/0'
  then tells:  record 10: step tag was called at '2'
Likely the step's parameters have changed: tags, urgent. New ones change every call, even with a default.
""",
    ),
    "another call": (
        {"how": "sleep"},
        f"""\
the code took another way than the journal tells.
  the record:  record 8: step file was called at '1'
  the code:    sets a timer (asyncio.sleep, timeout, wait_for) at '~0' in {HERE}: `await asyncio.sleep(3)`
  agreed last: record 5: step look was called at 't1/0'
  then tells:  record 10: step tag was called at '2'
{CHANGED}
""",
    ),
    "one call more": (
        {"order": (1, 2, 3)},
        f"""\
the code took another way than the journal tells.
  the record:  record 8: step file was called at '1'
  the code:    calls step look at 't2/0' in {HERE}: {GATHER}
  agreed last: record 5: step look was called at 't1/0'
  then tells:  record 10: step tag was called at '2'
{CHANGED}
""",
    ),
    "stopped short": (
        {"how": "short"},
        f"""\
the code stopped short of what the journal tells.
  the record:  record 4: step look was called at 't0/0'
  the code:    the agent has returned
  agreed last: record 2: step look was called at '0'
  then tells:  record 5: step look was called at 't1/0'; record 8: step file was called at '1'; \
record 10: step tag was called at '2'
{CHANGED}
""",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_message_word_for_word(case: str) -> None:
    change, expected = CASES[case]
    key = re.search(r" at '([^']+)'", expected)
    assert key is not None
    assert said(**change) == expected + HELP.format(key=key[1])


def test_the_line_is_the_line() -> None:
    run: MemoryRun[Any] = MemoryRun(agent(), "go")
    run.attempt(crash_at="before_finished")
    run.agent = agent(how="sleep")
    match = re.search(r"messages\.py:(\d+): `await asyncio.sleep\(3\)`", run.attempt().message)
    assert match is not None
    assert "await asyncio.sleep(3)" in Path(__file__).read_text(encoding="utf-8").splitlines()[int(match[1]) - 1]


@pytest.mark.parametrize("crash_at", ["before_finished", "after_intent:2"])
def test_a_lone_argument_is_told_by_the_whole_digest_and_a_sync_agent_by_its_line(crash_at: str) -> None:
    def syncs(n: int) -> Agent[..., Any]:
        @everstep.agent
        def syncs(goal: str) -> int:
            return look_there(1) + look_there(n)

        return syncs

    run: MemoryRun[Any] = MemoryRun(syncs(2), "go", real_time=True)
    run.attempt(crash_at=crash_at)
    run.agent = syncs(1796082519)
    message = run.attempt().message
    assert "`return look_there(1) + look_there(n)`" in message
    assert "n: changed: now a number that reads as a time" in message
    assert "Likely a clock" in message


def test_no_text_of_an_argument_is_told() -> None:
    """The message travels to the status of the run."""
    assert "sesame" not in said(stamp="open sesame").replace("stamp, list", "")


def test_a_lone_argument_costs_nothing_and_others_some_bytes() -> None:
    run: MemoryRun[Any] = MemoryRun(agent(), "go")
    run.run()
    intents = [r for r in run.records if isinstance(r, Intent)]
    assert [i.args for i in intents if i.name in ("look", "tag")] == [None] * 4
    [args] = [i.args for i in intents if i.name == "file"]
    assert args is not None
    assert sorted(args) == ["stamp", "tags", "title"]
    assert all(re.fullmatch("[0-9a-f]{8}", digest) for digest in args.values())
