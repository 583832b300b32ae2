"""One suite for every store: memory, SQLite, Redis 7.0, Redis 8, Valkey 8, Valkey 9, and a three-node cluster (C50: every call's
keys lie in one slot). Each answer of each call."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from everstep.ids import Attempt, InboxId, JournalId, Owner, RecordHash, Seq
from everstep.journal.store import AppendAnswer, ClaimAnswer, FenceAnswer, Head, InboxEntry, Sealed, Store
from tests.contract.stores import OWNER, Bench, RedisBench, begin

WITH_CLUSTER = True
FENCE, CLAIM, APPEND = FenceAnswer, ClaimAnswer, AppendAnswer
OTHER = Owner("pod-uid-2:nonce")
Open = Callable[[Bench], Store]


def at(seq: int, digest: str = "00" * 32) -> Head:
    return Head(Seq(seq), RecordHash(digest))


# --- fence ---------------------------------------------------------------------------------------------------------


async def test_first_fence_makes_the_journal(store: Store) -> None:
    tale = await begin(store, "j")
    meta = await store.meta(tale.journal)
    assert meta is not None
    assert (meta.attempt, meta.owner, meta.head) == (1, OWNER, tale.genesis)
    assert meta.fields == {"schema": "1", "name": "tale"}
    assert await store.journals() == ["j"]
    assert await store.last(tale.journal) is None
    assert [r async for r in store.read(tale.journal)] == []


async def test_fence_without_a_journal_needs_the_empty_anchor(store: Store) -> None:
    reply = await store.fence(JournalId("j"), Attempt(4), at(7), {})
    assert (reply.answer, reply.head) == (FENCE.LOST, None)
    assert await store.meta(JournalId("j")) is None


async def test_fence_of_a_higher_attempt_removes_the_owner(store: Store) -> None:
    tale = await begin(store, "j", records=3)
    reply = await store.fence(tale.journal, Attempt(2), tale.head, {"keyId": "k2"})
    assert (reply.answer, reply.attempt, reply.head) == (FENCE.OK, 2, tale.head)
    meta = await store.meta(tale.journal)
    assert meta is not None
    assert (meta.attempt, meta.owner, meta.head) == (2, None, tale.head)
    assert meta.fields == {"schema": "1", "name": "tale", "keyId": "k2"}


async def test_fence_of_the_same_attempt_changes_nothing(store: Store) -> None:
    tale = await begin(store, "j", records=3)
    before = await store.meta(tale.journal)
    reply = await store.fence(tale.journal, Attempt(1), tale.genesis, {"name": "other"})
    assert (reply.answer, reply.attempt, reply.head) == (FENCE.OK, 1, tale.head)
    assert await store.meta(tale.journal) == before


async def test_fence_of_a_lower_attempt_is_refused(store: Store) -> None:
    tale = await begin(store, "j", records=3)
    await store.fence(tale.journal, Attempt(5), tale.head, {})
    reply = await store.fence(tale.journal, Attempt(4), tale.head, {"name": "other"})
    assert (reply.answer, reply.attempt, reply.head) == (FENCE.FENCED, 5, tale.head)
    meta = await store.meta(tale.journal)
    assert meta is not None
    assert (meta.attempt, meta.fields["name"]) == (5, "tale")


async def test_fence_checks_the_anchor(store: Store) -> None:
    tale = await begin(store, "j")
    written = await tale.write(5)
    good = Head(written[2].seq, written[2].hash)
    assert (await store.fence(tale.journal, Attempt(2), good, {})).answer is FENCE.OK
    assert (await store.fence(tale.journal, Attempt(3), at(6), {})).answer is FENCE.LOST
    assert (await store.fence(tale.journal, Attempt(3), at(3), {})).answer is FENCE.TAMPERED
    assert (await store.fence(tale.journal, Attempt(3), at(5), {})).answer is FENCE.TAMPERED
    assert (await store.fence(tale.journal, Attempt(3), at(0), {})).answer is FENCE.TAMPERED
    meta = await store.meta(tale.journal)
    assert meta is not None
    assert meta.attempt == 2, "a refused fence must change nothing"


async def test_fence_of_an_empty_journal_checks_the_genesis(store: Store) -> None:
    tale = await begin(store, "j")
    assert (await store.fence(tale.journal, Attempt(2), at(0), {})).answer is FENCE.TAMPERED


async def test_fence_sees_a_tail_that_is_gone_although_meta_is_not(store: Store, bench: Bench) -> None:
    tale = await begin(store, "j", records=5)
    bench.rewrite(tale.journal, bench.entries(tale.journal)[:3])
    assert (await store.fence(tale.journal, Attempt(2), tale.head, {})).answer is FENCE.LOST


async def test_fence_sees_meta_set_back_behind_the_anchor(store: Store, bench: Bench) -> None:
    tale = await begin(store, "j", records=5)
    entries = bench.entries(tale.journal)
    bench.set_head(tale.journal, Head(entries[2].seq, entries[2].hash))
    assert (await store.fence(tale.journal, Attempt(2), tale.head, {})).answer is FENCE.LOST


async def test_fence_sees_a_record_missing_at_the_anchor(store: Store, bench: Bench) -> None:
    tale = await begin(store, "j", records=5)
    entries = bench.entries(tale.journal)
    bench.rewrite(tale.journal, entries[:2] + entries[3:])
    anchor = Head(entries[2].seq, entries[2].hash)
    assert (await store.fence(tale.journal, Attempt(2), anchor, {})).answer is FENCE.TAMPERED


async def test_fence_does_not_start_anew_over_records_without_meta(redis_bench: RedisBench, opened: Open) -> None:
    """Only Redis can hold the one without the other."""
    store = opened(redis_bench)
    tale = await begin(store, "j", records=5)
    redis_bench.drop_meta(tale.journal)
    assert (await store.fence(tale.journal, Attempt(2), tale.genesis, {})).answer is FENCE.LOST


# --- claim and report ------------------------------------------------------------------------------------------------


async def test_claim_answers(store: Store) -> None:
    journal = JournalId("j")
    none = await store.claim(journal, Attempt(1), OWNER)
    assert (none.answer, none.head) == (CLAIM.FENCED, None)
    tale = await begin(store, "j", records=2)
    again = await store.claim(journal, Attempt(1), OWNER)
    assert (again.answer, again.attempt, again.head) == (CLAIM.OK, 1, tale.head)
    taken = await store.claim(journal, Attempt(1), OTHER)
    assert (taken.answer, taken.head) == (CLAIM.TAKEN, tale.head)
    assert (await store.claim(journal, Attempt(2), OWNER)).answer is CLAIM.FENCED
    await store.fence(journal, Attempt(2), tale.head, {})
    old = await store.claim(journal, Attempt(1), OWNER)
    assert (old.answer, old.attempt) == (CLAIM.FENCED, 2)
    assert (await store.claim(journal, Attempt(2), OTHER)).answer is CLAIM.OK


async def test_report_answers(store: Store) -> None:
    journal = JournalId("j")
    assert (await store.report(journal, Attempt(1), OWNER, b"{}")).answer is CLAIM.FENCED
    tale = await begin(store, "j", records=1)
    told = await store.report(journal, Attempt(1), OWNER, b'{"state":"waiting"}')
    assert (told.answer, told.head) == (CLAIM.OK, tale.head)
    assert (await store.report(journal, Attempt(1), OTHER, b"no")).answer is CLAIM.TAKEN
    await store.fence(journal, Attempt(2), tale.head, {})
    assert (await store.report(journal, Attempt(1), OWNER, b"no")).answer is CLAIM.FENCED
    assert (await store.report(journal, Attempt(2), OWNER, b"no")).answer is CLAIM.FENCED, "nobody claimed it yet"
    meta = await store.meta(journal)
    assert meta is not None
    assert meta.progress == b'{"state":"waiting"}'


# --- append ----------------------------------------------------------------------------------------------------------


async def test_append_keeps_bytes_order_and_progress(store: Store) -> None:
    tale = await begin(store, "j")
    batch = tale.seal(3)
    odd = b'{"seq":4,"attempt":1,"x":"\xe2\x82\xac \\u0000"}\r\n\x00'
    batch += [
        batch[0]._replace(seq=Seq(4), record=odd, prev_hash=batch[2].hash, hash=tale.chain.link(batch[2].hash, odd))
    ]
    reply = await store.append(tale.journal, Attempt(1), OWNER, tale.genesis, batch, progress=b"\x00p")
    assert (reply.answer, reply.attempt, reply.head) == (APPEND.OK, 1, Head(Seq(4), batch[3].hash))
    back = [r async for r in store.read(tale.journal)]
    assert [(r.seq, r.record, r.prev_hash, r.hash) for r in back] == [
        (s.seq, s.record, s.prev_hash, s.hash) for s in batch
    ]
    assert {r.attempt for r in back} == {1}
    assert await store.last(tale.journal) == back[-1]
    meta = await store.meta(tale.journal)
    assert meta is not None
    assert (meta.head, meta.progress) == (reply.head, b"\x00p")
    tale.head = Head(Seq(4), batch[3].hash)
    await tale.write(1)
    meta = await store.meta(tale.journal)
    assert meta is not None
    assert meta.progress == b"\x00p", "an append without progress leaves the old one"


async def test_append_of_the_same_call_is_dup(store: Store) -> None:
    tale = await begin(store, "j", records=2)
    after = tale.head
    batch = await tale.write(3)
    for _ in range(2):
        reply = await store.append(tale.journal, Attempt(1), OWNER, after, batch)
        assert (reply.answer, reply.head) == (APPEND.DUP, tale.head)
    await tale.write(4)
    late = await store.append(tale.journal, Attempt(1), OWNER, after, batch)
    assert (late.answer, late.head) == (APPEND.DUP, tale.head)
    assert [r.seq async for r in store.read(tale.journal)] == list(range(1, 10))


async def test_append_skips_what_landed_and_writes_the_rest(store: Store) -> None:
    tale = await begin(store, "j", records=2)
    batch = tale.seal(6)
    await store.append(tale.journal, Attempt(1), OWNER, tale.head, batch[:4])
    reply = await store.append(tale.journal, Attempt(1), OWNER, tale.head, batch)
    assert (reply.answer, reply.head) == (APPEND.OK, Head(batch[5].seq, batch[5].hash))
    assert [r.hash async for r in store.read(tale.journal, Seq(2))] == [s.hash for s in batch]


async def test_append_conflicts(store: Store) -> None:
    tale = await begin(store, "j", records=3)
    other = replace(tale, head=at(3, "11" * 32))
    reply = await store.append(tale.journal, Attempt(1), OWNER, other.head, other.seal(2))
    assert (reply.answer, reply.head) == (APPEND.CONFLICT, tale.head), "the head's hash differs"
    after = tale.head
    await tale.write(2)
    reply = await store.append(tale.journal, Attempt(1), OWNER, after, replace(tale, head=after).seal(2, size_bytes=9))
    assert (reply.answer, reply.head) == (APPEND.CONFLICT, tale.head), "other records sit there"
    mixed = replace(tale, head=after).seal(4, size_bytes=9)
    reply = await store.append(tale.journal, Attempt(1), OWNER, after, mixed)
    assert reply.answer is APPEND.CONFLICT, "other records sit at the first places"
    assert len([r async for r in store.read(tale.journal)]) == 5


async def test_append_gap(store: Store, bench: Bench) -> None:
    tale = await begin(store, "j", records=3)
    ahead = replace(tale, head=at(4))
    assert (await store.append(tale.journal, Attempt(1), OWNER, ahead.head, ahead.seal(1))).answer is APPEND.GAP
    bench.rewrite(tale.journal, bench.entries(tale.journal)[:2])
    reply = await store.append(tale.journal, Attempt(1), OWNER, tale.head, tale.seal(1))
    assert reply.answer is APPEND.GAP, "the stream's last id is not meta.seq"


async def test_append_gap_where_newer_entries_were_deleted(redis_bench: RedisBench, opened: Open) -> None:
    """A stream remembers its last id: what was deleted from its end cannot be written again behind meta's back."""
    store = opened(redis_bench)
    tale = await begin(store, "j", records=5)
    entries = redis_bench.entries(tale.journal)
    with redis_bench.client() as c:
        c.xdel(redis_bench.keys(tale.journal).journal, "4-0", "5-0")
    cut = replace(tale, head=Head(entries[2].seq, entries[2].hash))
    redis_bench.set_head(tale.journal, cut.head)
    reply = await store.append(tale.journal, Attempt(1), OWNER, cut.head, cut.seal(2, size_bytes=9))
    assert (reply.answer, reply.head) == (APPEND.GAP, cut.head)
    assert len(redis_bench.entries(tale.journal)) == 3


async def test_append_nolease(store: Store, bench: Bench) -> None:
    journal = JournalId("j")
    tale = await begin(store, "other")
    none = await store.append(journal, Attempt(1), OWNER, tale.head, tale.seal(1))
    assert (none.answer, none.head) == (APPEND.NOLEASE, None)
    tale = await begin(store, "j", records=2)
    future = await store.append(journal, Attempt(2), OWNER, tale.head, tale.seal(1))
    assert future.answer is APPEND.NOLEASE, "our own fence is gone: the store went back in time"
    bench.drop_owner(journal)
    assert (await store.append(journal, Attempt(1), OWNER, tale.head, tale.seal(1))).answer is APPEND.NOLEASE
    bench.drop_meta(journal)
    assert (await store.append(journal, Attempt(1), OWNER, tale.head, tale.seal(1))).answer is APPEND.NOLEASE


async def test_append_fenced_and_taken(store: Store) -> None:
    tale = await begin(store, "j", records=2)
    taken = await store.append(tale.journal, Attempt(1), OTHER, tale.head, tale.seal(1))
    assert (taken.answer, taken.attempt) == (APPEND.TAKEN, 1)
    await store.fence(tale.journal, Attempt(2), tale.head, {})
    fenced = await store.append(tale.journal, Attempt(1), OWNER, tale.head, tale.seal(1))
    assert (fenced.answer, fenced.attempt, fenced.head) == (APPEND.FENCED, 2, tale.head)
    await store.claim(tale.journal, Attempt(2), OTHER)
    after = tale.head
    landed = replace(tale, attempt=Attempt(2), owner=OTHER)
    batch = await landed.write(1)
    reply = await store.append(tale.journal, Attempt(1), OWNER, after, batch)
    assert reply.answer is APPEND.FENCED, "not even a repetition counts once fenced"


async def test_append_that_parks_is_refused_while_the_inbox_is_unread(store: Store) -> None:
    tale = await begin(store, "j", records=2)
    after, park = tale.head, tale.seal(1)
    await store.inbox_add(tale.journal, InboxEntry(InboxId("a"), b"{}", "m"))
    reply = await store.append(tale.journal, Attempt(1), OWNER, after, park, park_after_inbox="")
    assert (reply.answer, reply.head) == (APPEND.INBOX, after)
    [entry] = await store.inbox_read(tale.journal)
    await store.inbox_add(tale.journal, InboxEntry(InboxId("b"), b"{}", "m"))
    reply = await store.append(tale.journal, Attempt(1), OWNER, after, park, park_after_inbox=entry.position)
    assert reply.answer is APPEND.INBOX
    [_, entry] = await store.inbox_read(tale.journal)
    reply = await store.append(tale.journal, Attempt(1), OWNER, after, park, park_after_inbox=entry.position)
    assert reply.answer is APPEND.OK
    await store.inbox_add(tale.journal, InboxEntry(InboxId("c"), b"{}", "m"))
    reply = await store.append(tale.journal, Attempt(1), OWNER, after, park, park_after_inbox=entry.position)
    assert reply.answer is APPEND.DUP, "the park landed before the new entry came: a lost reply, not a refusal"


async def test_append_of_no_chain_is_a_fault_of_the_caller(store: Store) -> None:
    tale = await begin(store, "j")
    batch = tale.seal(66)
    for bad in (
        [],
        batch[:65],
        batch[1:3],
        [batch[0], batch[2]],
        [batch[0], batch[1]._replace(prev_hash=RecordHash("00"))],
    ):
        with pytest.raises(ValueError, match=r"record|append"):
            await store.append(tale.journal, Attempt(1), OWNER, tale.genesis, bad)
    assert await store.last(tale.journal) is None


# --- read ------------------------------------------------------------------------------------------------------------


async def test_read_bounds_and_pages(store: Store) -> None:
    tale = await begin(store, "j", records=2500)
    assert [r.seq async for r in store.read(tale.journal)] == list(range(1, 2501))
    assert [r.seq async for r in store.read(tale.journal, Seq(1990), Seq(2010))] == list(range(1991, 2011))
    assert [r.seq async for r in store.read(tale.journal, Seq(2499))] == [2500]
    assert [r.seq async for r in store.read(tale.journal, Seq(2500))] == []
    assert [r.seq async for r in store.read(tale.journal, Seq(0), Seq(1))] == [1]
    assert [r async for r in store.read(JournalId("none"))] == []


async def test_large_records_are_read_whole(store: Store) -> None:
    tale = await begin(store, "j")
    written: list[Sealed] = []
    for _ in range(20):
        batch = tale.seal(4, size_bytes=200_000)
        await store.append(tale.journal, Attempt(1), OWNER, tale.head, batch)
        tale.head = Head(batch[-1].seq, batch[-1].hash)
        written += batch
    assert [r.hash async for r in store.read(tale.journal)] == [s.hash for s in written]


# --- inbox, blobs, fields, sweep -------------------------------------------------------------------------------------


async def test_inbox_adds_each_id_once_in_order(store: Store) -> None:
    tale = await begin(store, "j")
    for n in range(1, 13):
        assert await store.inbox_add(tale.journal, InboxEntry(InboxId(f"e{n}"), b"{%d}" % n, f"m{n}"))
    assert not await store.inbox_add(tale.journal, InboxEntry(InboxId("e3"), b"other", "other"))
    entries = await store.inbox_read(tale.journal)
    assert [e.id for e in entries] == [f"e{n}" for n in range(1, 13)]
    assert (entries[2].body, entries[2].mac) == (b"{3}", "m3")
    places = [(len(e.position), e.position) for e in entries]
    assert places == sorted(set(places)), "positions grow in order of (length, text)"
    assert [e.id for e in await store.inbox_read(tale.journal, entries[9].position)] == ["e11", "e12"]
    assert await store.inbox_read(tale.journal, entries[-1].position) == []
    assert await store.inbox_read(JournalId("none")) == []


async def test_inbox_takes_entries_for_a_fenced_journal_without_owner(store: Store) -> None:
    tale = await begin(store, "j")
    await store.fence(tale.journal, Attempt(2), tale.head, {})
    assert await store.inbox_add(tale.journal, InboxEntry(InboxId("a"), b"{}", ""))


async def test_blobs(store: Store) -> None:
    tale = await begin(store, "j")
    value = bytes(range(256)) * 400
    for _ in range(2):
        await store.blob_put(tale.journal, "d1", value)
    assert await store.blob_get(tale.journal, "d1") == value
    assert await store.blob_get(tale.journal, "d2") is None
    assert await store.blob_get(JournalId("other"), "d1") is None


async def test_fields_are_set_only_on_a_journal_that_exists(store: Store) -> None:
    await store.set_fields(JournalId("none"), {"deletedAt": "1"})
    assert await store.meta(JournalId("none")) is None
    tale = await begin(store, "j")
    await store.set_fields(tale.journal, {"deletedAt": "17", "name": "x"})
    await store.set_fields(tale.journal, {})
    meta = await store.meta(tale.journal)
    assert meta is not None
    assert meta.fields == {"schema": "1", "name": "x", "deletedAt": "17"}


async def test_sweep_leaves_nothing_of_one_journal_and_all_of_the_others(store: Store, bench: Bench) -> None:
    """C49: swept whole."""
    for name in ("j", "j2"):
        tale = await begin(store, name, records=5)
        await store.inbox_add(tale.journal, InboxEntry(InboxId("a"), b"{}", ""))
        await store.blob_put(tale.journal, "d", b"v")
    await store.sweep(JournalId("j"))
    await store.sweep(JournalId("j"))
    assert await store.journals() == ["j2"]
    assert await store.meta(JournalId("j")) is None
    assert [r async for r in store.read(JournalId("j"))] == []
    assert await store.inbox_read(JournalId("j")) == []
    assert await store.blob_get(JournalId("j"), "d") is None
    assert len([r async for r in store.read(JournalId("j2"))]) == 5
    assert await store.blob_get(JournalId("j2"), "d") == b"v"
    if isinstance(bench, RedisBench):
        with bench.client() as c:
            assert not [k for k in c.keys("*") if b"{j}" in k]
    await begin(store, "j", records=1)


async def test_no_key_of_a_journal_ever_expires(redis_bench: RedisBench, opened: Open) -> None:
    """C49: no TTL on a live run, looked for after every kind of write."""
    store = opened(redis_bench)
    tale = await begin(store, "j", records=3)
    await store.report(tale.journal, Attempt(1), OWNER, b"p")
    await store.inbox_add(tale.journal, InboxEntry(InboxId("a"), b"{}", ""))
    await store.blob_put(tale.journal, "d", b"v")
    await store.set_fields(tale.journal, {"deletedAt": "1"})
    await store.fence(tale.journal, Attempt(2), tale.head, {})
    with redis_bench.client() as c:
        keys = c.keys("*")
        assert len(keys) == 6
        assert {c.ttl(k) for k in keys} == {-1}


# --- several writers -------------------------------------------------------------------------------------------------


async def test_fifty_concurrent_appends_lose_nothing(bench: Bench, opened: Open) -> None:
    """C13: journals written side by side through several clients."""
    stores = [opened(bench) for _ in range(5)]
    tales = [await begin(stores[n % 5], f"j{n}") for n in range(50)]
    await asyncio.gather(*(tale.write(3) for tale in tales))
    for tale in tales:
        assert [r.seq async for r in tale.store.read(tale.journal)] == [1, 2, 3]


async def test_fifty_concurrent_writers_of_one_place_leave_one_record(bench: Bench, opened: Open) -> None:
    """C13: one journal, fifty different records for the same place: exactly one lands, the others learn it."""
    stores = [opened(bench) for _ in range(5)]
    tale = await begin(stores[0], "j", records=4)
    batches = [tale.seal(1, size_bytes=n + 1) for n in range(50)]
    replies = await asyncio.gather(
        *(stores[n % 5].append(tale.journal, Attempt(1), OWNER, tale.head, b) for n, b in enumerate(batches))
    )
    assert sorted(r.answer for r in replies) == [APPEND.CONFLICT] * 49 + [APPEND.OK]
    assert [r.seq async for r in stores[0].read(tale.journal)] == [1, 2, 3, 4, 5]


async def test_two_owners_interleaved_at_every_call(bench: Bench, opened: Open) -> None:
    """C19: however the calls of two claimants interleave, one of them is refused and the history never forks."""
    first, second = opened(bench), opened(bench)
    for order in ("ABab", "ABba", "AaBb", "BAab", "BAba", "BbAa"):
        journal = f"j-{order}"
        tale = await begin(first, journal)
        await first.fence(tale.journal, Attempt(2), tale.head, {})
        claims: dict[str, ClaimAnswer] = {}
        appends: dict[str, AppendAnswer] = {}
        for move in order:
            who, store, owner = move.upper(), first if move in "Aa" else second, Owner(move.upper())
            if move.isupper():
                claims[who] = (await store.claim(tale.journal, Attempt(2), owner)).answer
            else:
                mine = replace(tale, store=store, owner=owner, attempt=Attempt(2))
                batch = mine.seal(1, size_bytes=1 if who == "A" else 2)
                appends[who] = (await store.append(tale.journal, Attempt(2), owner, tale.genesis, batch)).answer
        winner = order[0]
        loser = "B" if winner == "A" else "A"
        assert claims == {winner: CLAIM.OK, loser: CLAIM.TAKEN}, order
        assert appends == {winner: APPEND.OK, loser: APPEND.TAKEN}, order
        assert len([r async for r in first.read(tale.journal)]) == 1


async def test_another_client_sees_what_was_confirmed(bench: Bench, opened: Open) -> None:
    tale = await begin(opened(bench), "j", records=7)
    other = opened(bench)
    meta = await other.meta(tale.journal)
    assert meta is not None
    assert meta.head == tale.head
    assert len([r async for r in other.read(tale.journal)]) == 7
