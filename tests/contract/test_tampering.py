"""Somebody with full access to the store changes a journal: verification says so and names the first record that does not fit."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from everstep.errors import JournalLost, JournalTampered
from everstep.ids import Attempt, JournalId, RecordHash, Seq
from everstep.journal.chain import Chain
from everstep.journal.records import Intent, encode
from everstep.journal.store import AppendAnswer, FenceAnswer, Head, Sealed, Store, Stored
from everstep.journal.verify import Verdict, VerifyReport, verify
from tests.contract.stores import KEY, OWNER, Bench, RedisBench, Tale, begin

RECORDS = 12
Open = Callable[[Bench], Store]


async def check(tale: Tale, anchor: Head | None = None, *, upto: Head | None = None) -> VerifyReport:
    return await verify(tale.store, tale.chain, tale.journal, anchor=anchor, upto=upto)


async def begun(store: Store, *, key: bytes | None = KEY) -> tuple[Tale, Head]:
    """A journal of 12 records and an anchor at 8."""
    tale = await begin(store, "j", key=key, records=8)
    anchor = tale.head
    await tale.write(RECORDS - 8)
    return tale, anchor


def relinked(chain: Chain, entries: list[Stored], since: int) -> list[Stored]:
    """Entries with hashes computed anew from place `since` on, under a given chain."""
    done = entries[: since - 1]
    prev = done[-1].hash if done else chain.genesis()
    for e in entries[since - 1 :]:
        done.append(e._replace(prev_hash=prev, hash=chain.link(prev, e.record)))
        prev = done[-1].hash
    return done


@pytest.mark.parametrize("key", [KEY, None], ids=["keyed", "plain"])
async def test_untouched(store: Store, key: bytes | None) -> None:
    tale, anchor = await begun(store, key=key)
    for told in (None, tale.head):
        report = await check(tale, anchor, upto=told)
        assert (report.verdict, report.head, report.bad_seq) == (Verdict.WHOLE, tale.head, None)
        assert report.require_whole() is report
        assert report.notes == ("a tail newer than the anchor at 8 may be missing; that cannot be proved",)
    kept = await verify(store, tale.chain, tale.journal, keep=True)
    assert [r.seq for r in kept.records] == list(range(1, RECORDS + 1))


@pytest.mark.parametrize("key", [KEY, None], ids=["keyed", "plain"])
async def test_each_record_altered(store: Store, bench: Bench, key: bytes | None) -> None:
    """One bit of a record, of its hash, or of the previous hash beside it."""
    tale, anchor = await begun(store, key=key)
    good = bench.entries(tale.journal)
    for n in range(RECORDS):
        e = good[n]
        raw = bytearray(e.record)
        raw[raw.index(b"xxx")] ^= 1
        flipped = RecordHash(("0" if e.hash[0] != "0" else "1") + e.hash[1:])
        before = RecordHash(("0" if e.prev_hash[0] != "0" else "1") + e.prev_hash[1:])
        for bad in (
            e._replace(record=bytes(raw)),
            e._replace(record=b""),
            e._replace(hash=flipped),
            e._replace(prev_hash=before),
            e._replace(hash=RecordHash("zz"), prev_hash=RecordHash("")),
        ):
            bench.rewrite(tale.journal, [*good[:n], bad, *good[n + 1 :]])
            report = await check(tale, anchor)
            assert report.bad_seq == n + 1, (n, bad)
            assert report.verdict in (Verdict.ALTERED, Verdict.FOREIGN)
            assert report.head.seq == n
            with pytest.raises(JournalTampered) as raised:
                report.require_whole()
            assert raised.value.bad_seq == n + 1
    bench.rewrite(tale.journal, good)
    assert (await check(tale, anchor)).whole


async def test_altered_record_is_said_in_plain_words(store: Store, bench: Bench) -> None:
    tale, anchor = await begun(store)
    good = bench.entries(tale.journal)
    bench.rewrite(tale.journal, [*good[:4], good[4]._replace(record=good[4].record.replace(b"x", b"y")), *good[5:]])
    assert (await check(tale, anchor)).message == "record 5 was changed after it was written"


@pytest.mark.parametrize("key", [KEY, None], ids=["keyed", "plain"])
async def test_each_pair_of_neighbours_swapped(store: Store, bench: Bench, key: bytes | None) -> None:
    """Whole entries, and only their record bytes."""
    tale, anchor = await begun(store, key=key)
    good = bench.entries(tale.journal)
    for n in range(RECORDS - 1):
        a, b = good[n], good[n + 1]
        for pair in (
            [b._replace(seq=a.seq), a._replace(seq=b.seq)],
            [a._replace(record=b.record), b._replace(record=a.record)],
        ):
            bench.rewrite(tale.journal, [*good[:n], *pair, *good[n + 2 :]])
            report = await check(tale, anchor)
            assert (report.verdict, report.bad_seq) == (Verdict.SWAPPED, n + 1)


@pytest.mark.parametrize("key", [KEY, None], ids=["keyed", "plain"])
async def test_each_record_dropped(store: Store, bench: Bench, key: bytes | None) -> None:
    tale, anchor = await begun(store, key=key)
    good = bench.entries(tale.journal)
    for n in range(RECORDS - 1):
        bench.rewrite(tale.journal, [*good[:n], *good[n + 1 :]])
        report = await check(tale, anchor)
        assert (report.verdict, report.bad_seq) == (Verdict.DROPPED, n + 1)
        shifted = [*good[:n], *(e._replace(seq=Seq(e.seq - 1)) for e in good[n + 1 :])]
        bench.rewrite(tale.journal, shifted)
        report = await check(tale, anchor)
        assert (report.verdict, report.bad_seq) == (Verdict.SWAPPED, n + 1), "dropped, and the rest moved up"


async def test_each_record_spliced_in_from_another_run(store: Store, bench: Bench) -> None:
    """A record that is genuine elsewhere, at its own seq: another run has another key."""
    tale, anchor = await begun(store)
    other = await begin(store, "other", key=b"\x08" * 32, records=RECORDS)
    good, foreign = bench.entries(tale.journal), bench.entries(other.journal)
    for n in range(RECORDS):
        bench.rewrite(tale.journal, [*good[:n], foreign[n], *good[n + 1 :]])
        report = await check(tale, anchor)
        assert (report.verdict, report.bad_seq) == (Verdict.FOREIGN, n + 1)


async def test_a_whole_other_run_in_its_place(store: Store, bench: Bench) -> None:
    """Records and meta of another run under the same operator key: each run has its own."""
    tale, anchor = await begun(store)
    other = await begin(store, "other", key=b"\x08" * 32, records=RECORDS)
    bench.rewrite(tale.journal, bench.entries(other.journal))
    bench.set_head(tale.journal, other.head)
    report = await check(tale, anchor)
    assert (report.verdict, report.bad_seq) == (Verdict.FOREIGN, 1)
    assert "another chain" in report.message


async def test_records_of_another_history_of_the_same_run(store: Store, bench: Bench) -> None:
    """Two histories of one run under one key (a fork after an old dump): neither can be mixed into the other."""
    tale, anchor = await begun(store)
    good = bench.entries(tale.journal)
    fork = replace(tale, head=Head(good[5].seq, good[5].hash))
    theirs = [Stored(s.seq, s.record, s.prev_hash, s.hash, Attempt(1)) for s in fork.seal(6, size_bytes=9)]
    bench.rewrite(tale.journal, [*good[:8], *theirs[2:]])
    report = await check(tale, anchor)
    assert (report.verdict, report.bad_seq) == (Verdict.FOREIGN, 9)
    bench.rewrite(tale.journal, [*good[:6], *theirs])
    bench.set_head(tale.journal, Head(theirs[-1].seq, theirs[-1].hash))
    report = await check(tale, anchor)
    assert (report.verdict, report.bad_seq) == (Verdict.ANCHOR, 8), "the fork is genuine, but not what was anchored"
    with pytest.raises(JournalTampered, match="not the one the anchor was taken of"):
        report.require_whole()


async def test_each_record_altered_and_hashes_recomputed_without_the_key(store: Store, bench: Bench) -> None:
    """Hashes, previous hashes and meta all fit together, but were made with plain SHA-256."""
    tale, anchor = await begun(store)
    good = bench.entries(tale.journal)
    for n in range(1, RECORDS + 1):
        forged = [e._replace(record=e.record.replace(b"xx", b"yy")) if e.seq == n else e for e in good]
        forged = relinked(Chain(tale.journal), forged, n)
        bench.rewrite(tale.journal, forged)
        bench.set_head(tale.journal, Head(forged[-1].seq, forged[-1].hash))
        report = await check(tale, anchor)
        assert (report.verdict, report.bad_seq) == (Verdict.RECOMPUTED, n)
    bench.rewrite(tale.journal, relinked(Chain(tale.journal), good, 1))
    report = await check(tale, anchor)
    assert (report.verdict, report.bad_seq) == (Verdict.RECOMPUTED, 1)


async def test_recomputed_plain_chain_is_caught_by_the_anchor_alone(store: Store, bench: Bench) -> None:
    """Local mode has no key: who can write the file can recompute all of it, up to the anchor kept elsewhere."""
    tale, anchor = await begun(store, key=None)
    good = bench.entries(tale.journal)
    forged = [e._replace(record=e.record.replace(b"xx", b"yy")) if e.seq == 3 else e for e in good]
    forged = relinked(tale.chain, forged, 3)
    bench.rewrite(tale.journal, forged)
    bench.set_head(tale.journal, Head(forged[-1].seq, forged[-1].hash))
    report = await check(tale, anchor)
    assert (report.verdict, report.bad_seq) == (Verdict.ANCHOR, 8)
    assert (await store.fence(tale.journal, Attempt(2), anchor, {})).answer is FenceAnswer.TAMPERED
    assert (await check(tale, None)).whole, "without an anchor nothing can be told; the page on guarantees says so"


async def test_meta_recomputed(store: Store, bench: Bench) -> None:
    tale, anchor = await begun(store)
    good = bench.entries(tale.journal)
    bench.set_head(tale.journal, Head(tale.head.seq, RecordHash("ab" * 32)))
    report = await check(tale, anchor)
    assert (report.verdict, report.bad_seq) == (Verdict.META, 12)
    bench.set_head(tale.journal, Head(good[9].seq, good[9].hash))
    report = await check(tale, anchor)
    assert (report.verdict, report.bad_seq) == (Verdict.META, 11)
    with pytest.raises(JournalTampered):
        report.require_whole()
    reply = await store.append(tale.journal, Attempt(1), OWNER, tale.head, tale.seal(1))
    assert reply.answer is AppendAnswer.GAP


async def test_claimed_head_is_another(store: Store) -> None:
    tale, anchor = await begun(store)
    report = await check(tale, anchor, upto=Head(tale.head.seq, RecordHash("ab" * 32)))
    assert report.verdict is Verdict.META


async def test_cut_behind_the_anchor(store: Store, bench: Bench) -> None:
    """With meta left alone, and with meta recomputed to fit."""
    tale, anchor = await begun(store)
    good = bench.entries(tale.journal)
    for keep in range(8):
        bench.rewrite(tale.journal, good[:keep])
        for head in (tale.head, Head(Seq(keep), good[keep - 1].hash if keep else tale.chain.genesis())):
            bench.set_head(tale.journal, head)
            report = await check(tale, anchor)
            assert (report.verdict, report.bad_seq, report.head.seq) == (Verdict.LOST, keep + 1, keep)
            with pytest.raises(JournalLost) as raised:
                report.require_whole()
            assert (raised.value.have, raised.value.anchor) == (keep, 8)
            assert (await store.fence(tale.journal, Attempt(2), anchor, {})).answer is FenceAnswer.LOST


async def test_cut_after_the_anchor(store: Store, bench: Bench) -> None:
    """Reported apart from a cut behind the anchor: meta tells of more, but meta proves nothing."""
    tale, anchor = await begun(store)
    good = bench.entries(tale.journal)
    for keep in range(8, RECORDS):
        bench.rewrite(tale.journal, good[:keep])
        report = await check(tale, anchor)
        assert (report.verdict, report.bad_seq) == (Verdict.TAIL_CUT, keep + 1)
        assert "newer than the anchor" in report.message
        with pytest.raises(JournalLost) as raised:
            (await check(tale, anchor, upto=tale.head)).require_whole()
        assert (raised.value.have, raised.value.anchor) == (keep, 12)


async def test_cut_after_the_anchor_with_meta_recomputed_cannot_be_proved(store: Store, bench: Bench) -> None:
    """The limit of promise 4: the report is whole, and says what it could not prove."""
    tale, anchor = await begun(store)
    good = bench.entries(tale.journal)
    bench.rewrite(tale.journal, good[:10])
    bench.set_head(tale.journal, Head(good[9].seq, good[9].hash))
    report = await check(tale, anchor)
    assert report.whole
    assert report.notes == ("a tail newer than the anchor at 8 may be missing; that cannot be proved",)
    reply = await store.append(tale.journal, Attempt(1), OWNER, tale.head, tale.seal(1))
    assert reply.answer is AppendAnswer.GAP, "its writer, while it lives, notices"


async def test_old_dump_restored(store: Store, bench: Bench) -> None:
    """A backup from before the anchor: lost. From after it: whole, as nothing outside the store says otherwise."""
    tale = await begin(store, "j", records=4)
    old = bench.dump(tale.journal)
    await tale.write(4)
    anchor = tale.head
    newer = bench.dump(tale.journal)
    await tale.write(4)
    bench.restore(tale.journal, old)
    report = await check(tale, anchor)
    assert (report.verdict, report.bad_seq) == (Verdict.LOST, 5)
    assert (await store.fence(tale.journal, Attempt(2), anchor, {})).answer is FenceAnswer.LOST
    reply = await store.append(tale.journal, Attempt(1), OWNER, tale.head, tale.seal(1))
    assert reply.answer is AppendAnswer.GAP
    bench.restore(tale.journal, newer)
    assert (await check(tale, anchor)).whole


async def test_extra_record_after_the_head(store: Store, bench: Bench) -> None:
    tale, anchor = await begun(store)
    extra = tale.seal(1)[0]
    forged = Stored(extra.seq, b'{"kind":"finished"}', extra.prev_hash, extra.hash, Attempt(1))
    bench.rewrite(tale.journal, [*bench.entries(tale.journal), forged])
    report = await check(tale, anchor)
    assert (report.verdict, report.bad_seq) == (Verdict.ALTERED, 13)
    reply = await store.append(tale.journal, Attempt(1), OWNER, tale.head, tale.seal(1))
    assert reply.answer is AppendAnswer.GAP


async def test_extra_entry_between_two_records(redis_bench: RedisBench, opened: Open) -> None:
    """A stream has room for `5-1` between `5-0` and `6-0`."""
    store = opened(redis_bench)
    tale, anchor = await begun(store)
    good = redis_bench.entries(tale.journal)
    with redis_bench.client() as c:
        key = redis_bench.keys(tale.journal).journal
        c.delete(key)
        for e in good:
            c.xadd(key, {"r": e.record, "p": e.prev_hash, "h": e.hash, "a": e.attempt}, id=f"{e.seq}-0")
            if e.seq == 5:
                c.xadd(key, {"r": b"{}", "p": e.prev_hash, "h": e.hash, "a": 1}, id="5-1")
    report = await check(tale, anchor)
    assert (report.verdict, report.bad_seq) == (Verdict.FOREIGN, 6)


async def test_garbage_in_meta_and_entries_is_a_finding_and_no_crash(redis_bench: RedisBench, opened: Open) -> None:
    store = opened(redis_bench)
    tale, anchor = await begun(store)
    keys = redis_bench.keys(tale.journal)
    with redis_bench.client() as c:
        c.hset(keys.meta, mapping={"seq": "many", "hash": b"\xff\xfe"})
    assert (await check(tale, anchor)).verdict is Verdict.META
    with redis_bench.client() as c:
        c.delete(keys.journal)
        c.xadd(keys.journal, {"other": "fields"}, id="1-0")
    report = await check(tale, anchor)
    assert (report.verdict, report.bad_seq) == (Verdict.FOREIGN, 1)


async def test_journal_that_is_not_there(store: Store) -> None:
    chain = Chain(JournalId("none"), KEY)
    report = await verify(store, chain, JournalId("none"), anchor=None)
    assert (report.verdict, report.message) == (Verdict.LOST, "there is no such journal")
    report = await verify(store, chain, JournalId("none"), anchor=Head(Seq(3), RecordHash("ab" * 32)))
    assert report.verdict is Verdict.LOST


async def test_wrong_key(store: Store) -> None:
    tale, anchor = await begun(store)
    report = await verify(store, Chain(tale.journal, b"\x09" * 32), tale.journal, anchor=anchor)
    assert (report.verdict, report.bad_seq) == (Verdict.FOREIGN, 1)
    assert "the key is not this run's" in report.message


async def test_proved_records_must_say_their_own_place_and_attempt(store: Store) -> None:
    """A writer with the key but wrong about itself: seq, attempt, and attempts that go back."""
    tale = await begin(store, "j")

    async def write(seq: int, attempt: int, place: int) -> None:
        raw = encode(Intent(seq=seq, attempt=attempt, time=0, effect="read", input="", idem=""))
        link = tale.chain.link(tale.head.hash, raw)
        sealed = Sealed(Seq(place), raw, tale.head.hash, link)
        reply = await store.append(tale.journal, tale.attempt, OWNER, tale.head, [sealed])
        assert reply.answer is AppendAnswer.OK
        tale.head = Head(Seq(place), link)

    await write(1, 1, 1)
    await write(7, 1, 2)
    report = await check(tale)
    assert (report.verdict, report.bad_seq) == (Verdict.SWAPPED, 2)
    await store.sweep(tale.journal)
    tale = await begin(store, "j")
    await write(1, 2, 1)
    report = await check(tale)
    assert (report.verdict, report.bad_seq) == (Verdict.ALTERED, 1)


async def test_attempts_never_go_back(store: Store, bench: Bench) -> None:
    """Every link right, but a record of attempt 1 after one of attempt 2."""
    tale = await begin(store, "j", records=3)
    entries = []
    for e, attempt in zip(bench.entries(tale.journal), (1, 2, 1), strict=True):
        raw = e.record.replace(b'"attempt":1', b'"attempt":%d' % attempt)
        entries.append(e._replace(record=raw, attempt=Attempt(attempt)))
    entries = relinked(tale.chain, entries, 1)
    bench.rewrite(tale.journal, entries)
    bench.set_head(tale.journal, Head(entries[-1].seq, entries[-1].hash))
    report = await check(tale)
    assert (report.verdict, report.bad_seq) == (Verdict.ALTERED, 3)
