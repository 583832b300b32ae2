"""Compaction on every store and server version: what is deleted, what is refused, what still works on what is left, and what
somebody with full access to the store can make of a journal that begins at a snapshot."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from everstep.errors import JournalLost, JournalTampered
from everstep.ids import Attempt, InboxId, JournalId, Owner, RecordHash, Seq
from everstep.journal.chain import Chain
from everstep.journal.records import Snapshot, encode
from everstep.journal.store import AppendAnswer, CompactAnswer, FenceAnswer, Head, InboxEntry, Sealed, Store, Stored
from everstep.journal.verify import Verdict, VerifyReport, verify
from tests.contract.stores import KEY, OWNER, Bench, RedisBench, Tale, begin

WITH_CLUSTER = True
OK, REFUSED, FENCED, TAKEN = CompactAnswer.OK, CompactAnswer.REFUSED, CompactAnswer.FENCED, CompactAnswer.TAKEN
Open = Callable[[Bench], Store]
D = "d" * 64


async def snapshot(tale: Tale, *, size_bytes: int = 10) -> Head:
    """Append a snapshot."""
    seq = Seq(tale.head.seq + 1)
    record = Snapshot(
        seq=seq, attempt=tale.attempt, time=0, value="x" * size_bytes, epoch=1, clock=0, totals={"steps": 1}, kept=[]
    )
    raw = encode(record)
    sealed = Sealed(seq, raw, tale.head.hash, tale.chain.link(tale.head.hash, raw))
    assert (
        await tale.store.append(tale.journal, tale.attempt, tale.owner, tale.head, [sealed])
    ).answer is AppendAnswer.OK
    tale.head = Head(seq, sealed.hash)
    return tale.head


async def told(store: Store, *, key: bytes | None = KEY, name: str = "j") -> tuple[Tale, list[Head], Head]:
    """Records 1-5, snapshot 6, 7-11, snapshot 12, 13-15: the journal, its snapshots, and an anchor at 14."""
    tale = await begin(store, name, key=key, records=5)
    opened = [await snapshot(tale)]
    await tale.write(5)
    opened.append(await snapshot(tale))
    await tale.write(2)
    anchor = tale.head
    await tale.write(1)
    return tale, opened, anchor


async def compact(tale: Tale, upto: int, anchor: Head, blobs: tuple[str, ...] = ()) -> CompactAnswer:
    return await tale.store.compact(tale.journal, tale.attempt, tale.owner, Seq(upto), anchor, blobs)


async def seqs(tale: Tale) -> list[int]:
    return [r.seq async for r in tale.store.read(tale.journal)]


async def check(tale: Tale, anchor: Head | None) -> VerifyReport:
    return await verify(tale.store, tale.chain, tale.journal, anchor=anchor, keep=True)


async def test_what_is_before_the_snapshot_is_gone_and_all_else_is_left(store: Store) -> None:
    tale, _, anchor = await told(store)
    other, _, _ = await told(store, name="other")
    await store.inbox_add(tale.journal, InboxEntry(InboxId("a"), b"{}", ""))
    meta = await store.meta(tale.journal)
    assert await compact(tale, 6, anchor) is OK
    assert await seqs(tale) == list(range(6, 16))
    assert await compact(tale, 12, anchor) is OK
    assert await compact(tale, 12, anchor) is OK, "again changes nothing"
    assert await seqs(tale) == list(range(12, 16))
    assert await store.meta(tale.journal) == meta
    assert [e.id for e in await store.inbox_read(tale.journal)] == ["a"]
    assert await seqs(other) == list(range(1, 16))
    last = await store.last(tale.journal)
    assert last is not None
    assert last.seq == 15


async def test_blobs_that_are_given_go_with_it_and_others_stay(store: Store, bench: Bench) -> None:
    tale, _, anchor = await told(store)
    for digest in (D, "e" * 64, "f" * 64):
        await store.blob_put(tale.journal, digest, b"v")
    await store.blob_put(JournalId("other"), D, b"v")
    assert await store.blob_ids(tale.journal) == [D, "e" * 64, "f" * 64]
    assert await compact(tale, 12, anchor, (D, "e" * 64, "0" * 64)) is OK
    assert await store.blob_ids(tale.journal) == ["f" * 64]
    assert await store.blob_get(tale.journal, D) is None
    assert await store.blob_get(tale.journal, "f" * 64) == b"v"
    assert await store.blob_get(JournalId("other"), D) == b"v"
    if isinstance(bench, RedisBench):
        with bench.client() as c:
            assert len([k for k in c.keys("*") if b"{j}" in k and b":blob:" in k]) == 1


async def test_many_blobs_at_once(store: Store) -> None:
    tale, _, anchor = await told(store)
    many = tuple(f"{n:064x}" for n in range(500))
    for digest in many:
        await store.blob_put(tale.journal, digest, b"v")
    assert await compact(tale, 12, anchor, many) is OK
    assert await store.blob_ids(tale.journal) == []


@pytest.mark.parametrize(
    ("upto", "why"),
    [(5, "a result"), (13, "a result"), (99, "nothing there"), (0, "before the first"), (-3, "nothing")],
)
async def test_only_up_to_a_snapshot(store: Store, upto: int, why: str) -> None:
    tale, _, anchor = await told(store)
    await store.blob_put(tale.journal, D, b"v")
    assert await compact(tale, upto, anchor, (D,)) is REFUSED, why
    assert await seqs(tale) == list(range(1, 16)), "a refusal changes nothing"
    assert await store.blob_ids(tale.journal) == [D]


async def test_only_up_to_the_anchor(store: Store) -> None:
    tale, opened, anchor = await told(store)
    assert await compact(tale, 12, opened[0]) is REFUSED, "the snapshot is newer than the anchor"
    assert await compact(tale, 12, Head(anchor.seq, RecordHash("ab" * 32))) is REFUSED, "another anchor"
    assert await compact(tale, 12, Head(Seq(99), anchor.hash)) is REFUSED, "an anchor ahead of the journal"
    assert await compact(tale, 12, Head(Seq(0), tale.chain.genesis())) is REFUSED
    assert await seqs(tale) == list(range(1, 16))
    assert await compact(tale, 12, opened[1]) is OK, "the anchor may be the snapshot itself"


async def test_only_for_the_owner_of_the_attempt(store: Store) -> None:
    tale, _, anchor = await told(store)
    assert await compact(replace(tale, owner=Owner("other")), 12, anchor) is TAKEN
    assert await compact(replace(tale, attempt=Attempt(2)), 12, anchor) is FENCED
    assert await compact(replace(tale, journal=JournalId("none")), 12, anchor) is FENCED
    await store.fence(tale.journal, Attempt(2), anchor, {})
    assert await compact(tale, 12, anchor) is FENCED
    assert await compact(replace(tale, attempt=Attempt(2)), 12, anchor) is FENCED, "nobody has claimed it yet"
    assert await seqs(tale) == list(range(1, 16))


async def test_fence_claim_append_and_read_go_on_without_the_prefix(store: Store) -> None:
    tale, _, anchor = await told(store)
    assert await compact(tale, 12, anchor) is OK
    after = tale.head
    batch = tale.seal(2)
    for expected in (AppendAnswer.OK, AppendAnswer.DUP):
        assert (await store.append(tale.journal, Attempt(1), OWNER, after, batch)).answer is expected
    tale.head = Head(batch[-1].seq, batch[-1].hash)
    other = replace(tale, head=after).seal(2, size_bytes=7)
    assert (await store.append(tale.journal, Attempt(1), OWNER, after, other)).answer is AppendAnswer.CONFLICT
    fence = await store.fence(tale.journal, Attempt(2), anchor, {})
    assert (fence.answer, fence.head) == (FenceAnswer.OK, tale.head)
    snapshot_head = Head(Seq(12), next(r.hash for r in [r async for r in store.read(tale.journal)]))
    assert (await store.fence(tale.journal, Attempt(3), snapshot_head, {})).answer is FenceAnswer.OK
    gone = Head(Seq(7), RecordHash("ab" * 32))
    assert (await store.fence(tale.journal, Attempt(4), gone, {})).answer is FenceAnswer.TAMPERED
    genesis = Head(Seq(0), tale.chain.genesis())
    assert (await store.fence(tale.journal, Attempt(4), genesis, {})).answer is FenceAnswer.TAMPERED
    claim = await store.claim(tale.journal, Attempt(3), OWNER)
    assert claim.head == tale.head
    assert [r.seq async for r in store.read(tale.journal, Seq(3), Seq(13))] == [12, 13]


async def test_a_full_server_lets_a_journal_shrink(redis_bench: RedisBench, opened: Open) -> None:
    store = opened(redis_bench)
    tale, _, anchor = await told(store)
    await store.blob_put(tale.journal, D, b"v" * 10_000)
    with redis_bench.client() as c:
        c.config_set("maxmemory-policy", "noeviction")
        c.config_set("maxmemory", "1")
        try:
            assert await compact(tale, 12, anchor, (D,)) is OK
        finally:
            c.config_set("maxmemory", "0")
    assert await seqs(tale) == list(range(12, 16))


# --- verification ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [KEY, None], ids=["keyed", "plain"])
async def test_a_compacted_journal_is_whole_and_says_from_where(store: Store, key: bytes | None) -> None:
    tale, _, anchor = await told(store, key=key)
    assert await compact(tale, 12, anchor) is OK
    report = await check(tale, anchor)
    assert (report.verdict, report.first, report.head) == (Verdict.WHOLE, 12, tale.head)
    assert [r.seq for r in report.records] == [12, 13, 14, 15]
    assert report.message == "whole: records 12 to 15"
    how = "its link under the run's key proves it" if key else "the anchor at 14 proves it"
    assert report.notes[0] == f"what was before record 12 was compacted, the journal begins there; {how}"
    unanchored = await check(tale, None)
    assert unanchored.whole
    assert ("neither a key nor an anchor" in unanchored.notes[0]) == (key is None)


@pytest.mark.parametrize("key", [KEY, None], ids=["keyed", "plain"])
async def test_a_prefix_cut_to_anything_else_is_found(store: Store, bench: Bench, key: bytes | None) -> None:
    tale, _, anchor = await told(store, key=key)
    good = bench.entries(tale.journal)
    for n in range(1, 15):
        bench.rewrite(tale.journal, good[n:])
        report = await check(tale, anchor)
        if n + 1 in (6, 12):
            assert report.whole, "which is what compaction does"
            continue
        assert (report.verdict, report.bad_seq) == (Verdict.DROPPED, 1), n
        with pytest.raises(JournalTampered):
            report.require_whole()


@pytest.mark.parametrize("key", [KEY, None], ids=["keyed", "plain"])
async def test_a_prefix_cut_beyond_the_anchor_is_lost(store: Store, bench: Bench, key: bytes | None) -> None:
    """The snapshot is genuine, but the anchored record is gone."""
    tale, opened, _ = await told(store, key=key)
    bench.rewrite(tale.journal, bench.entries(tale.journal)[11:])
    for anchor in (opened[0], Head(Seq(0), tale.chain.genesis())):
        report = await check(tale, anchor)
        assert report.verdict is Verdict.LOST
        with pytest.raises(JournalLost):
            report.require_whole()
        assert (await store.fence(tale.journal, Attempt(2), anchor, {})).answer is FenceAnswer.TAMPERED


@pytest.mark.parametrize("key", [KEY, None], ids=["keyed", "plain"])
async def test_a_snapshot_that_was_changed_or_made_up(store: Store, bench: Bench, key: bytes | None) -> None:
    """Its bytes, its hash, its previous hash; and all of them made to fit without the key."""
    tale, _, anchor = await told(store, key=key)
    assert await compact(tale, 12, anchor) is OK
    first, *rest = bench.entries(tale.journal)
    forged = first.record.replace(b'"value":"xx', b'"value":"yx')
    assert forged != first.record
    for bad in (
        first._replace(record=forged),
        first._replace(hash=RecordHash("ab" * 32)),
        first._replace(prev_hash=RecordHash("ab" * 32)),
        first._replace(prev_hash=RecordHash("zz")),
    ):
        bench.rewrite(tale.journal, [bad, *rest])
        report = await check(tale, anchor)
        assert (report.verdict, report.bad_seq, report.head.seq) == (Verdict.FOREIGN, 12, 0), bad
        with pytest.raises(JournalTampered):
            report.require_whole()
    plain = Chain(tale.journal)
    bench.rewrite(tale.journal, relinked(plain, [first._replace(record=forged), *rest]))
    head = bench.entries(tale.journal)[-1]
    bench.set_head(tale.journal, Head(head.seq, head.hash))
    report = await check(tale, anchor)
    assert not report.whole
    assert report.verdict is (Verdict.FOREIGN if key else Verdict.ANCHOR)
    assert (await check(tale, None)).whole == (key is None), (
        "without key and anchor nothing can be told, and the note says so"
    )


def relinked(chain: Chain, entries: list[Stored]) -> list[Stored]:
    done: list[Stored] = []
    prev = entries[0].prev_hash
    for e in entries:
        done.append(e._replace(prev_hash=prev, hash=chain.link(prev, e.record)))
        prev = done[-1].hash
    return done


@pytest.mark.parametrize("key", [KEY, None], ids=["keyed", "plain"])
async def test_the_other_snapshot_in_its_place(store: Store, bench: Bench, key: bytes | None) -> None:
    """An older genuine snapshot at the place of the newer one, and before its successors."""
    tale, _, anchor = await told(store, key=key)
    good = bench.entries(tale.journal)
    old, new, rest = good[5], good[11], good[12:]
    for entries in ([old._replace(seq=new.seq), *rest], [old, *rest], [old, new, *rest]):
        bench.rewrite(tale.journal, entries)
        report = await check(tale, anchor)
        assert not report.whole
        with pytest.raises(JournalTampered):
            report.require_whole()


@pytest.mark.parametrize("key", [KEY, None], ids=["keyed", "plain"])
async def test_an_older_copy_from_before_is_lost(store: Store, bench: Bench, key: bytes | None) -> None:
    """A backup that begins at the older snapshot and ends before the anchor."""
    tale, _, anchor = await told(store, key=key)
    good = bench.entries(tale.journal)
    bench.rewrite(tale.journal, good[5:10])
    bench.set_head(tale.journal, Head(good[9].seq, good[9].hash))
    report = await check(tale, anchor)
    assert report.verdict is Verdict.LOST
    assert (await store.fence(tale.journal, Attempt(2), anchor, {})).answer is FenceAnswer.LOST


async def test_a_snapshot_spliced_in_from_another_run(store: Store, bench: Bench) -> None:
    """Genuine elsewhere, under another run's key: as the beginning alone, and with all that follows it."""
    tale, _, anchor = await told(store)
    other, _, _ = await told(store, key=b"\x08" * 32, name="other")
    good, foreign = bench.entries(tale.journal), bench.entries(other.journal)
    for entries in ([foreign[11], *good[12:]], foreign[11:]):
        bench.rewrite(tale.journal, entries)
        report = await check(tale, anchor)
        assert (report.verdict, report.bad_seq) == (Verdict.FOREIGN, 12)


async def test_a_plain_snapshot_of_another_run_is_caught_by_the_anchor(store: Store, bench: Bench) -> None:
    tale, _, anchor = await told(store, key=None)
    other, _, _ = await told(store, key=None, name="other")
    bench.rewrite(tale.journal, bench.entries(other.journal)[11:])
    bench.set_head(tale.journal, other.head)
    report = await check(tale, anchor)
    assert not report.whole
