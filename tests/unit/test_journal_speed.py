"""The faster ways give the same bytes and the same order as the plain ones."""

import asyncio
import json
import string

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from everstep.clock import SystemClock
from everstep.ids import Seq
from everstep.journal.canonical import canonical
from everstep.journal.progress import Progress
from everstep.journal.records import BudgetRaised, Intent, Result, decode, encode
from everstep.run.lane import Lane
from everstep.run.loop import AgentLoop

PLAIN = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
TEXT = st.text(st.characters(exclude_categories=("Cs",)))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


def plainly(value: object) -> bytes:
    return PLAIN.encode(value).encode()


def test_every_character_is_written_alike() -> None:
    """Each on its own in a string long enough for the faster writer."""
    block = 1024
    for start in range(0, 0x110000, block):
        text = "".join(chr(c) for c in range(start, start + block) if not 0xD800 <= c < 0xE000)
        assert canonical(text) == plainly(text), hex(start)


@given(JSON)
def test_any_value_is_written_alike(value: object) -> None:
    assert canonical(value) == plainly(value)


@given(st.text(st.sampled_from(string.printable + "äß€😀\x00\x1f\x7f"), min_size=60, max_size=200))
def test_strings_of_any_length_are_written_alike(text: str) -> None:
    assert canonical(text) == plainly(text)


@given(key=TEXT, name=TEXT, value=JSON, time=st.integers(0, 2**70), args=st.dictionaries(TEXT, TEXT, max_size=4))
def test_records_are_written_as_their_object(
    key: str, name: str, value: object, time: int, args: dict[str, str]
) -> None:
    head = {"key": key, "name": name, "attempt": 1, "time": time}
    result = Result(seq=2, value=value, usage={"b": 1, "a": 2}, **head)
    intent = Intent(seq=1, effect="read", input="0" * 64, idem="f" * 64, args=args, **head)
    budget = BudgetRaised(seq=3, limits={"maxActiveSeconds": 1e16, "other": value, key: None}, **head)
    for record in (result, intent, budget):
        assert decode(encode(record), Seq(0)) == record
        assert encode(record) == plainly(
            {k: v for k, v in {"kind": record.kind, **structs.asdict(record)}.items() if v is not None}
        )


class Name(str):
    """Of somebody's own."""


class Number(int):
    """Likewise."""


def test_subclasses_of_json_types_are_written_as_those() -> None:
    head = {"seq": 1, "attempt": 1, "time": Number(5), "key": Name("k")}
    given = Intent(**head, name=Name("n"), effect=Name("read"), input="", idem="", reserve={"tokens": Number(5)})
    plain = structs.replace(given, time=5, key="k", name="n", effect="read", reserve={"tokens": 5})
    assert encode(given) == encode(plain)
    result = Result(**head, value={"a": [Name("x"), Number(2)]}, usage={"inputTokens": Number(3)})
    assert decode(encode(result), Seq(1)) == result


@given(TEXT, st.dictionaries(TEXT, st.integers(0), max_size=3))
def test_progress_is_read_back(name: str, usage: dict[str, int]) -> None:
    progress = Progress(1, "running", 1, 2, None, 3, "t0/1", name, "intent", 4, usage)
    assert Progress.from_bytes(progress.to_bytes()) == progress


def test_a_task_that_runs_at_once_is_a_task_like_any_other() -> None:
    """It has a current task of its own, takes turns after its first wait, and the one around it goes on as itself."""
    loop = AgentLoop(SystemClock())
    lane = Lane(loop)
    seen: list[object] = []

    async def inner(wait: bool) -> str:
        seen.append(asyncio.current_task())
        if wait:
            async with asyncio.timeout(5):
                await asyncio.sleep(0)
        seen.append(asyncio.current_task())
        return "done"

    async def outer() -> tuple[str, str]:
        me = asyncio.current_task()
        short = lane.task_now(inner(False), "short")
        assert short.done()
        assert asyncio.current_task() is me
        long = lane.task_now(inner(True), "long")
        assert not long.done()
        assert asyncio.current_task() is me
        assert not {short, long} & asyncio.all_tasks()
        assert seen == [short, short, long]
        return short.result(), await long

    try:
        assert loop.run_until_complete(lane.task(outer(), "outer")) == ("done", "done")
        assert len({id(task) for task in seen}) == 2
    finally:
        loop.close()
