"""The live stream on every store: positions without gaps, a cap, a fence (C18), and gone with its journal (C49, C50)."""

import asyncio

import pytest

from everstep.ids import Attempt, JournalId, Owner
from everstep.journal import live
from everstep.journal.live import LiveEntry, LiveStore, follow_live, read_live
from everstep.journal.store import ClaimAnswer, Store
from tests.contract.stores import OWNER, RedisBench, begin

WITH_CLUSTER = True


def entry(text: str, **more: object) -> bytes:
    return LiveEntry("text", "0", "ask", 1, text=text, **more).to_bytes()  # type: ignore[arg-type]  # fields of any type


def test_every_store_has_one(store: Store) -> None:
    assert isinstance(store, LiveStore)


async def test_what_is_added_is_read_in_order_and_from_any_position(store: Store) -> None:
    assert isinstance(store, LiveStore)
    tale = await begin(store, "j")
    assert [e async for e in read_live(store, tale.journal)] == []
    for batch in (["a"], ["b", "ü — €"], ["d"]):
        reply = await store.live_add(tale.journal, Attempt(1), OWNER, [entry(t) for t in batch])
        assert (reply.answer, reply.head) == (ClaimAnswer.OK, tale.head)
    read = [e async for e in read_live(store, tale.journal)]
    assert [(e.position, e.text) for e in read] == [(1, "a"), (2, "b"), (3, "ü — €"), (4, "d")]
    assert read[0] == LiveEntry("text", "0", "ask", 1, text="a", position=1)
    assert [e.text async for e in read_live(store, tale.journal, 2)] == ["ü — €", "d"]
    assert [e async for e in read_live(store, tale.journal, 4)] == []
    meta = await store.meta(tale.journal)
    assert meta is not None
    assert meta.head == tale.head, "it is no part of the journal"


async def test_the_dead_do_not_speak(store: Store) -> None:
    assert isinstance(store, LiveStore)
    tale = await begin(store, "j", records=2)
    other = await store.live_add(tale.journal, Attempt(1), Owner("somebody"), [entry("x")])
    assert other.answer is ClaimAnswer.TAKEN
    await store.fence(tale.journal, Attempt(2), tale.head, {})
    late = await store.live_add(tale.journal, Attempt(1), OWNER, [entry("x")])
    assert (late.answer, late.attempt) == (ClaimAnswer.FENCED, 2)
    unclaimed = await store.live_add(tale.journal, Attempt(2), OWNER, [entry("x")])
    assert unclaimed.answer is ClaimAnswer.FENCED
    missing = await store.live_add(JournalId("none"), Attempt(1), OWNER, [entry("x")])
    assert missing.answer is ClaimAnswer.FENCED
    assert [e async for e in read_live(store, tale.journal)] == []


async def test_only_the_newest_are_kept_and_a_late_reader_is_told(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(store, LiveStore)
    tale = await begin(store, "j")
    total = live.CAP_ENTRIES + 1200
    for at in range(0, total, 400):
        await store.live_add(tale.journal, Attempt(1), OWNER, [entry(str(n)) for n in range(at, at + 400)])
    read = [e async for e in read_live(store, tale.journal)]
    assert read[0].kind == "gap"
    assert read[0].position == read[1].position - 1 > 0
    assert live.CAP_ENTRIES <= len(read) - 1 < total, "the store may keep a few more"
    assert [e.text for e in read[1:]] == [str(e.position - 1) for e in read[1:]]
    assert read[-1].position == total


async def test_following_from_the_last_position_loses_and_repeats_nothing(store: Store) -> None:
    """C55: reconnect by offset, again and again, while somebody writes."""
    assert isinstance(store, LiveStore)
    tale = await begin(store, "j")
    over = False

    async def write() -> None:
        nonlocal over
        for n in range(60):
            await store.live_add(tale.journal, Attempt(1), OWNER, [entry(str(n))])
            await asyncio.sleep(0)
        over = True

    writing = asyncio.create_task(write())
    seen: list[LiveEntry] = []
    while not over or not seen or seen[-1].position < 60:
        after = seen[-1].position if seen else 0
        async for e in follow_live(store, tale.journal, after, until=lambda: over, poll_s=0.005):
            seen.append(e)
            if len(seen) % 7 == 0:
                break  # the connection is lost
    await writing
    assert [e.text for e in seen] == [str(n) for n in range(60)]


async def test_whatever_is_in_there_is_data(store: Store) -> None:
    """Nobody proves it, so nothing in it breaks a reader."""
    assert isinstance(store, LiveStore)
    tale = await begin(store, "j")
    planted = [b"not json", b"[1]", b'{"kind": 3, "attempt": "x", "more": {}}', b"\xff\xfe", entry("ok")]
    await store.live_add(tale.journal, Attempt(1), OWNER, planted)
    read = [e async for e in read_live(store, tale.journal)]
    assert [e.position for e in read] == [1, 2, 3, 4, 5]
    assert read[-1].text == "ok"


async def test_it_goes_with_its_journal(store: Store, bench: object) -> None:
    assert isinstance(store, LiveStore)
    tale = await begin(store, "j", records=2)
    await store.live_add(tale.journal, Attempt(1), OWNER, [entry("x")])
    await store.sweep(tale.journal)
    assert [e async for e in read_live(store, tale.journal)] == []
    if isinstance(bench, RedisBench):
        assert await store.journals() == []
