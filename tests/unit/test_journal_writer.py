"""The writer queue: what goes in one append, what is repeated, and how it ends."""

import asyncio
import contextvars
from collections.abc import Awaitable
from dataclasses import dataclass, field

import pytest

from everstep.errors import Fenced, Frozen, JournalConflict, JournalUnavailable, ValueTooLarge
from everstep.ids import Attempt, EpochMs, InboxId, JournalId, Owner, RecordHash, Seq
from everstep.journal.chain import Chain
from everstep.journal.memory import MemoryStore
from everstep.journal.records import Failure, Finished, Fired, Park, Result
from everstep.journal.store import AppendAnswer, AppendReply, Head, InboxEntry, Sealed
from everstep.journal.writer import JournalWriter, Make, ParkReply

JOURNAL, ONE, OWNER = JournalId("j"), Attempt(1), Owner("o")
CHAIN = Chain(JOURNAL, b"k" * 32)
GENESIS = Head(Seq(0), CHAIN.genesis())


@dataclass
class FakeClock:
    now_s: float = 0.0
    slept: list[float] = field(default_factory=list)

    def now_epoch_ms(self) -> EpochMs:
        return EpochMs(int(self.now_s * 1000))

    def monotonic_s(self) -> float:
        return self.now_s

    def nonce(self) -> str:
        return "0" * 32

    def random_bytes(self, size_bytes: int) -> bytes:
        return b"\xff" * size_bytes

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds
        await asyncio.sleep(0)


class ScriptedStore(MemoryStore):
    """Memory, with one prepared mishap after the other: an exception before or after the write, or another answer."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[Sealed]] = []
        self.progress: list[bytes | None] = []
        self.before: list[BaseException | AppendAnswer | None] = []
        self.after: list[BaseException | None] = []
        self.gate: asyncio.Event | None = None

    async def append(self, journal, attempt, owner, after, records, *, progress=None, park_after_inbox=None):  # type: ignore[no-untyped-def]  # as the protocol's
        self.calls.append(list(records))
        self.progress.append(progress)
        if self.gate is not None:
            await self.gate.wait()
        before = self.before.pop(0) if self.before else None
        if isinstance(before, AppendAnswer):
            return AppendReply(before, attempt, None)
        if before is not None:
            raise before
        reply = await super().append(
            journal, attempt, owner, after, records, progress=progress, park_after_inbox=park_after_inbox
        )
        lost = self.after.pop(0) if self.after else None
        if lost is not None:
            raise lost
        return reply


@dataclass
class Bench:
    store: ScriptedStore
    clock: FakeClock
    writer: JournalWriter
    stops: list[BaseException]

    def put(self, count: int = 1, size_bytes: int = 0) -> Seq:
        return [self.writer.put(result("x" * size_bytes)) for _ in range(count)][-1]

    def stored(self) -> list[int]:
        return [r.seq for r in self.store.journals_by_id[JOURNAL].records]


@pytest.fixture
async def bench() -> Bench:
    store, clock, stops = ScriptedStore(), FakeClock(), list[BaseException]()
    await store.fence(JOURNAL, ONE, GENESIS, {})
    await store.claim(JOURNAL, ONE, OWNER)
    writer = JournalWriter(
        store, JOURNAL, ONE, OWNER, CHAIN, head=GENESIS, clock=clock, on_stop=stops.append, sleep=clock.sleep
    )
    return Bench(store, clock, writer, stops)


def result(value: object) -> Make:
    return lambda seq: Result(seq=seq, key=str(seq), attempt=1, time=0, value=value)


def park(seq: Seq) -> Park:
    return Park(seq=seq, attempt=1, time=0, waits=[])


async def test_a_put_alone_writes_nothing(bench: Bench) -> None:
    """A step's result rides with the next intent: one durable write per step."""
    assert bench.put() == 1
    await asyncio.sleep(0.01)
    assert bench.store.calls == []
    assert (bench.writer.sealed.seq, bench.writer.confirmed.seq) == (1, 0)
    intent = bench.put()
    await bench.writer.durable(intent)
    assert [len(c) for c in bench.store.calls] == [2]
    assert bench.writer.confirmed == bench.writer.sealed


async def test_flush_soon_writes_without_being_waited_for(bench: Bench) -> None:
    bench.writer.flush_soon()
    bench.put(3)
    bench.writer.flush_soon()
    bench.writer.flush_soon()
    await asyncio.sleep(0.01)
    assert bench.stored() == [1, 2, 3]
    assert len(bench.store.calls) == 1


async def test_one_append_in_flight_and_what_queues_up_goes_together(bench: Bench) -> None:
    bench.store.gate = asyncio.Event()
    first = asyncio.create_task(bench.writer.durable(bench.put()))
    await asyncio.sleep(0.01)
    others = [asyncio.create_task(bench.writer.durable(bench.put())) for _ in range(5)]
    await asyncio.sleep(0.01)
    assert [len(c) for c in bench.store.calls] == [1]
    bench.store.gate.set()
    await asyncio.gather(first, *others)
    assert [len(c) for c in bench.store.calls] == [1, 5]


async def test_waiters_wake_as_their_record_is_confirmed(bench: Bench) -> None:
    bench.put(64 + 10)
    early = asyncio.create_task(bench.writer.durable(Seq(3)))
    await early
    assert bench.writer.confirmed.seq == 64
    await bench.writer.durable(Seq(64))
    assert len(bench.store.calls) == 1, "what is confirmed needs no append"


@pytest.mark.parametrize(("count", "size", "appends"), [(130, 10, [64, 64, 2]), (9, 200_000, [5, 4])])
async def test_appends_are_bounded(bench: Bench, count: int, size: int, appends: list[int]) -> None:
    """64 records or 1 MiB."""
    bench.put(count, size)
    await bench.writer.drain()
    assert [len(c) for c in bench.store.calls] == appends
    assert bench.stored() == list(range(1, count + 1))


async def test_too_large_a_record_is_refused_before_anything_is_queued(bench: Bench) -> None:
    """C45: a terminal error with both sizes; the writer goes on."""
    bench.put()
    overhead = len(bench.writer._queue[0].record)
    with pytest.raises(ValueTooLarge, match=r"takes 262145 bytes; the bound is 262144"):
        bench.put(size_bytes=262145 - overhead)
    assert bench.put(size_bytes=262144 - overhead) == 2
    await bench.writer.drain()
    assert bench.stored() == [1, 2]


async def test_a_record_that_could_not_be_read_back_is_never_written(bench: Bench) -> None:
    """Say, an exception whose text is no text: the attempt ends with that, and the journal stays one that replays."""
    with pytest.raises(TypeError, match=r"could not be read back: .*message"):
        bench.writer.put(
            lambda seq: Failure(seq=seq, attempt=ONE, time=0, type="Odd", message=5)  # type: ignore[arg-type]  # the point
        )
    with pytest.raises(TypeError, match="not JSON"):
        bench.writer.put(lambda seq: Finished(seq=seq, attempt=ONE, time=0, outcome="succeeded", value=object()))
    assert bench.put() == 1
    await bench.writer.drain()
    assert bench.stored() == [1]


async def test_a_record_that_cannot_be_made_leaves_no_hole(bench: Bench) -> None:
    def broken(_seq: Seq) -> Fired:
        raise LookupError("no")

    with pytest.raises(LookupError):
        bench.writer.put(broken)
    assert bench.put() == 1


async def test_the_very_same_append_is_repeated(bench: Bench) -> None:
    """Records queued meanwhile do not join a repeated append: its hashes are the write's identity."""
    away = JournalUnavailable("away")
    bench.store.before = [away, away]
    bench.store.gate = asyncio.Event()
    bench.put(2)
    waiting = asyncio.create_task(bench.writer.drain())
    await asyncio.sleep(0.01)
    bench.put(3)
    bench.store.gate.set()
    await waiting
    await bench.writer.drain()
    assert [len(c) for c in bench.store.calls] == [2, 2, 2, 3]
    assert bench.store.calls[0] == bench.store.calls[1] == bench.store.calls[2]
    assert bench.stored() == [1, 2, 3, 4, 5]
    assert not bench.writer.unreachable


async def test_a_lost_reply_is_dup_and_dup_is_success(bench: Bench) -> None:
    bench.store.after = [JournalUnavailable("reply lost")]
    await bench.writer.durable(bench.put(3))
    assert bench.stored() == [1, 2, 3]
    assert len(bench.store.calls) == 2


async def test_backoff_grows_to_its_bound_then_the_writer_gives_up(bench: Bench) -> None:
    bench.store.before = [JournalUnavailable("away")] * 1000
    seq = bench.put(2)
    outcomes = await asyncio.gather(bench.writer.durable(seq), bench.writer.drain(), return_exceptions=True)
    assert bench.clock.slept[:7] == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0])
    assert max(bench.clock.slept) <= 2.0
    assert 60 <= bench.clock.now_s < 63
    assert all(isinstance(o, JournalUnavailable) for o in outcomes)
    assert "did not take records 1 to 2 for 6" in str(outcomes[0])
    assert len(bench.stops) == 1
    with pytest.raises(JournalUnavailable):
        bench.put()
    with pytest.raises(JournalUnavailable):
        await bench.writer.drain()
    assert bench.writer.confirmed == GENESIS


@pytest.mark.parametrize("answer", [AppendAnswer.FENCED, AppendAnswer.TAKEN])
async def test_fenced_reaches_every_waiter_and_is_never_repeated(bench: Bench, answer: AppendAnswer) -> None:
    bench.store.before = [answer]
    waiting = [asyncio.create_task(_caught(bench.writer.durable(bench.put()))) for _ in range(3)]
    assert [type(await w) for w in waiting] == [Fenced] * 3
    assert len(bench.store.calls) == 1
    assert [type(s) for s in bench.stops] == [Fenced]
    with pytest.raises(Fenced):
        bench.put()
    bench.writer.flush_soon()
    await asyncio.sleep(0.01)
    assert bench.stored() == []


async def _caught(call: Awaitable[None]) -> BaseException | None:
    try:
        await call
    except BaseException as e:
        return e
    return None


@pytest.mark.parametrize("answer", [AppendAnswer.CONFLICT, AppendAnswer.GAP, AppendAnswer.NOLEASE, AppendAnswer.INBOX])
async def test_a_store_that_changed_is_a_conflict_at_the_last_confirmed_head(
    bench: Bench, answer: AppendAnswer
) -> None:
    await bench.writer.durable(bench.put(2))
    confirmed = bench.writer.confirmed
    bench.store.before = [answer]
    bench.put()
    with pytest.raises(JournalConflict) as stopped:
        await bench.writer.drain()
    assert (stopped.value.confirmed_seq, stopped.value.confirmed_hash) == (2, confirmed.hash)
    assert "record 3 cannot be written" in str(stopped.value)
    with pytest.raises(JournalConflict):
        bench.put()
    await bench.writer.durable(Seq(2))


async def test_freeze_drops_what_is_queued_and_refuses_the_rest(bench: Bench) -> None:
    """C8: not one more record."""
    await bench.writer.durable(bench.put())
    bench.put(2)
    bench.writer.freeze()
    bench.writer.freeze()
    with pytest.raises(Frozen):
        bench.put()
    with pytest.raises(Frozen):
        await bench.writer.drain()
    with pytest.raises(Frozen):
        await bench.writer.append_park(park)
    bench.writer.flush_soon()
    await asyncio.sleep(0.01)
    assert bench.stored() == [1]


async def test_freeze_does_not_call_back_an_append_in_flight(bench: Bench) -> None:
    bench.store.gate = asyncio.Event()
    bench.put(2)
    bench.writer.flush_soon()
    await asyncio.sleep(0.01)
    bench.put(2)
    bench.writer.freeze()
    bench.store.gate.set()
    await asyncio.sleep(0.01)
    assert bench.stored() == [1, 2]
    assert bench.writer.confirmed.seq == 2


async def test_park_goes_last_and_alone(bench: Bench) -> None:
    bench.put(3)
    assert await bench.writer.append_park(park) is ParkReply.PARKED
    assert [len(c) for c in bench.store.calls] == [3, 1]
    assert bench.writer.confirmed.seq == 4


async def test_park_is_refused_while_the_inbox_is_unread_and_leaves_no_trace(bench: Bench) -> None:
    read = [""]
    writer = JournalWriter(
        bench.store, JOURNAL, ONE, OWNER, CHAIN, head=GENESIS, clock=bench.clock, inbox_position=lambda: read[0]
    )
    await bench.store.inbox_add(JOURNAL, InboxEntry(InboxId("a"), b"{}", ""))
    writer.put(result(1))
    assert await writer.append_park(park) is ParkReply.INBOX
    assert writer.sealed == writer.confirmed
    read[0] = "1"
    writer.put(result(2))
    assert await writer.append_park(park) is ParkReply.PARKED
    kinds = [b'"park"' in r.record for r in bench.store.journals_by_id[JOURNAL].records]
    assert kinds == [False, False, True]


async def test_park_whose_reply_was_lost_is_parked(bench: Bench) -> None:
    """Even if an entry came meanwhile: the park record is in the journal, the answer wakes the run."""

    async def entry_meanwhile(seconds: float) -> None:
        await bench.store.inbox_add(JOURNAL, InboxEntry(InboxId("a"), b"{}", ""))
        await bench.clock.sleep(seconds)

    bench.writer._sleep = entry_meanwhile
    bench.store.after = [JournalUnavailable("reply lost")]
    assert await bench.writer.append_park(park) is ParkReply.PARKED
    assert bench.stored() == [1]


async def test_a_cancelled_park_finishes_all_the_same(bench: Bench) -> None:
    bench.store.gate = asyncio.Event()
    parking = asyncio.create_task(bench.writer.append_park(park))
    await asyncio.sleep(0.01)
    with pytest.raises(RuntimeError, match="being parked"):
        bench.put()
    parking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await parking
    bench.store.gate.set()
    await asyncio.sleep(0.01)
    assert bench.stored() == [1]
    assert bench.put() == 2


async def test_a_cancelled_waiter_does_not_cancel_the_append(bench: Bench) -> None:
    bench.store.gate = asyncio.Event()
    waiting = asyncio.create_task(bench.writer.durable(bench.put()))
    other = asyncio.create_task(bench.writer.durable(Seq(1)))
    await asyncio.sleep(0.01)
    waiting.cancel()
    bench.store.gate.set()
    await other
    assert bench.stored() == [1]


async def test_durable_of_what_was_never_put_is_a_fault_of_the_caller(bench: Bench) -> None:
    with pytest.raises(ValueError, match="never put"):
        await bench.writer.durable(Seq(1))


async def test_progress_rides_along(bench: Bench) -> None:
    told = [b"one"]
    writer = JournalWriter(
        bench.store, JOURNAL, ONE, OWNER, CHAIN, head=GENESIS, clock=bench.clock, progress=lambda: told[0]
    )
    await writer.durable(writer.put(result(1)))
    told[0] = b"two"
    await writer.durable(writer.put(result(2)))
    assert bench.store.progress == [b"one", b"two"]


async def test_appends_run_in_the_writers_own_context(bench: Bench) -> None:
    """A step that happens to trigger an append must not lend it its scope."""
    scope: contextvars.ContextVar[str] = contextvars.ContextVar("scope", default="outside")
    seen: list[str] = []
    real = bench.store.append

    async def append(*args: object, **kwargs: object) -> AppendReply:
        seen.append(scope.get())
        reply: AppendReply = await real(*args, **kwargs)  # type: ignore[no-untyped-call]  # passed through
        return reply

    bench.store.append = append  # type: ignore[method-assign]  # watched by the test
    scope.set("agent")
    await bench.writer.durable(bench.put())
    assert seen == ["outside"]


async def test_a_fault_in_the_store_stops_the_writer_loudly(bench: Bench) -> None:
    bench.store.before = [RuntimeError("bug")]
    bench.put()
    with pytest.raises(RuntimeError, match="bug"):
        await bench.writer.drain()
    assert [type(s) for s in bench.stops] == [RuntimeError]


async def test_links_follow_the_chain(bench: Bench) -> None:
    bench.put(5)
    await bench.writer.drain()
    prev: RecordHash = GENESIS.hash
    for r in bench.store.journals_by_id[JOURNAL].records:
        assert (r.prev_hash, r.hash) == (prev, CHAIN.link(prev, r.record))
        prev = r.hash
    assert bench.writer.sealed == Head(Seq(5), prev)
