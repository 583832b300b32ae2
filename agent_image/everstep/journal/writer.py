"""The one writer queue of an attempt: seals records at once, writes them together, and never writes anything twice.

`put` gives a record its seq, its canonical bytes and its link of the chain, without I/O. That hash is the write's identity: made
once, outside the retry loop, so that repeating an append after a lost reply is harmless. What queued up goes in one append (at
most 64 records or 1 MiB), one in flight. A put alone starts no append: a step's result rides with the next intent. `durable`
and `flush_soon` start one.

How it ends early: a newer attempt (`Fenced`), a store that lost or changed something (`JournalConflict`), or one that stayed
away for too long (`JournalUnavailable`). Then every waiter gets that very exception, `on_stop` is told once, and each further
call raises it.
"""

import asyncio
import contextvars
import enum
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine

from everstep import faults
from everstep.clock import Clock
from everstep.errors import Fenced, Frozen, JournalConflict, JournalUnavailable, JournalUnreadable, ValueTooLarge
from everstep.ids import Attempt, JournalId, Owner, Seq
from everstep.journal.chain import Chain
from everstep.journal.records import RECORD_MAX_BYTES, Intent, Record, Result, decode, encode
from everstep.journal.store import (
    APPEND_MAX_RECORDS,
    AppendAnswer,
    AppendReply,
    Head,
    InlineStore,
    Sealed,
    SendingStore,
    Store,
)

APPEND_MAX_BYTES = 1024 * 1024
UNREACHABLE_AFTER_S = 60.0
"""How long one append is repeated before the attempt gives up (exit 69). Long enough for a failover or a restart of the
store, short enough that a run's pod does not sit idle for ever."""
RETRY_FIRST_S = 0.05
RETRY_MAX_S = 2.0

Make = Callable[[Seq], Record]
"""Builds a record once its seq is known."""


_OFTEN = (Intent, Result)
"""What every step writes, made from checked values alone. Other kinds hold words of people and of exceptions."""
_ACCEPTED = (AppendAnswer.OK, AppendAnswer.DUP)


def _went_well(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


class ParkReply(enum.StrEnum):
    """What became of a park."""

    PARKED = "PARKED"
    """The park record is durable."""
    INBOX = "INBOX"
    """An unread inbox entry exists and nothing was written: read it, then decide again."""


class JournalWriter:
    """The writer of one claimed attempt. Belongs to one event loop; not for threads.

    `head` is the head that claim answered. `inbox_position` tells the last inbox position that was read, asked at a park.
    `progress` supplies what rides along with each append. `on_stop` is called once, with the exception that ended it.
    """

    def __init__(
        self,
        store: Store,
        journal_id: JournalId,
        attempt: Attempt,
        owner: Owner,
        chain: Chain,
        *,
        head: Head,
        clock: Clock,
        inbox_position: Callable[[], str] = lambda: "",
        progress: Callable[[], bytes | None] = lambda: None,
        on_stop: Callable[[BaseException], None] = lambda _stop: None,
        unreachable_after_s: float = UNREACHABLE_AFTER_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._inline = store if isinstance(store, InlineStore) else None
        self._sending = store if isinstance(store, SendingStore) else None
        self._journal_id = journal_id
        self._attempt = attempt
        self._owner = owner
        self._chain = chain
        self._sealer = chain.sealer
        self._clock = clock
        self._inbox_position = inbox_position
        self._progress = progress
        self._on_stop = on_stop
        self._unreachable_after_s = unreachable_after_s
        self._sleep = sleep
        self._sealed = head
        self._confirmed = head
        self._queue: deque[Sealed] = deque()
        self._wanted: int = head.seq  # flush up to here
        self._flusher: asyncio.Task[None] | None = None
        self._in_flight = False
        """An append was sent without a task; `_answered` will be told."""
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._stopped: BaseException | None = None
        self._parking = False
        self._retrying = False
        self._gates: deque[tuple[int, asyncio.Task[None]]] = deque()
        self.sealed_bytes = 0
        """Of the records put so far."""
        # Appends run in the context of whoever made the writer: a step that happens to trigger one must not lend it its own.
        self._context = contextvars.copy_context()

    @property
    def sealed(self) -> Head:
        """Head of what was put, written or not."""
        return self._sealed

    @property
    def confirmed(self) -> Head:
        """Head of what the store confirmed."""
        return self._confirmed

    @property
    def unreachable(self) -> bool:
        """True while an append is being repeated because the store does not answer."""
        return self._retrying

    def put(self, make: Make) -> Seq:
        """Seal one record and queue it; gives its seq at once. Raises ValueTooLarge, TypeError, ValueError (nothing was queued),
        Frozen after `freeze`, or what ended the writer."""
        if self._parking:
            raise RuntimeError("a record was put while the run is being parked")
        sealed = self._seal(make)
        self._queue.append(sealed)
        return sealed.seq

    def hold_until(self, seq: Seq, done: asyncio.Task[None]) -> None:
        """Write neither record `seq` nor later ones before this task is done (a blob that the record names is stored). If it
        fails, the writer ends with its exception."""
        self._gates.append((seq, done))

    def flush_soon(self) -> None:
        """Start writing what is queued, without waiting."""
        if self._stopped is None and self._confirmed.seq < self._sealed.seq:
            self._want(self._sealed.seq)

    async def durable(self, seq: Seq) -> None:
        """Return once record `seq` is confirmed by the store, at once if it is. Raises what ended the writer."""
        if seq <= self._confirmed.seq:
            return
        if self._stopped is not None:
            raise self._stopped
        if seq > self._sealed.seq:
            raise ValueError(f"record {seq} was never put; the last one is {self._sealed.seq}")
        if self._inline is not None and self._flusher is None and not self._parking:
            self._wanted = max(self._wanted, seq)
            self._context.copy().run(self._flush_now, self._inline)
            if seq <= self._confirmed.seq:
                return
            if self._stopped is not None:
                raise self._stopped
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((seq, waiter))
        self._want(seq)
        await waiter

    async def drain(self) -> None:
        """Return once everything put so far is confirmed. Raises what ended the writer."""
        await self.durable(self._sealed.seq)
        if self._stopped is not None:
            raise self._stopped

    async def append_park(self, make: Make) -> ParkReply:
        """Write everything queued, then the park record, which the store refuses while an unread inbox entry exists. After
        INBOX the journal is as if park had never been asked for. Nothing may be put meanwhile."""
        await self.drain()
        before = self._sealed
        sealed = self._seal(make)
        self._parking = True
        await asyncio.shield(self._spawn(self._park(before, sealed)))
        if self._stopped is not None:
            raise self._stopped
        return ParkReply.PARKED if self._confirmed.seq == sealed.seq else ParkReply.INBOX

    def freeze(self) -> None:
        """Not one more record: further puts raise Frozen, what is queued but not yet sent is dropped. Drain before if it must
        be kept. An append in flight is not called back."""
        if self._stopped is None:
            self._stop(Frozen("the journal is frozen; nothing more is written"))

    # --- sealing -------------------------------------------------------------------------------------------------

    def _seal(self, make: Make) -> Sealed:
        if self._stopped is not None:
            raise self._stopped
        prev = self._sealed
        seq = Seq(prev.seq + 1)
        record = make(seq)
        raw = encode(record)
        if type(record) not in _OFTEN:
            self._read_back(raw, seq)
        if self._sealer is not None:
            raw = self._sealer.seal(raw)
        if len(raw) > RECORD_MAX_BYTES:
            raise ValueTooLarge(f"record {seq} takes {len(raw)} bytes; the bound is {RECORD_MAX_BYTES}")
        sealed = Sealed(seq, raw, prev.hash, self._chain.link(prev.hash, raw))
        self._sealed = Head(seq, sealed.hash)
        self.sealed_bytes += len(raw)
        return sealed

    @staticmethod
    def _read_back(raw: bytes, seq: Seq) -> None:
        """Making a record checks no types. One that could not be read again must not be written."""
        try:
            decode(raw, seq)
        except JournalUnreadable as e:
            raise TypeError(f"not written, as it could not be read back: {e}") from e

    # --- writing -------------------------------------------------------------------------------------------------

    def _want(self, seq: int) -> None:
        self._wanted = max(self._wanted, seq)
        if self._flusher is not None or self._in_flight:
            return
        if self._sending is None or not self._context.copy().run(self._send, self._sending):
            self._flusher = self._spawn(self._flush())

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        loop = asyncio.get_running_loop()
        return self._context.run(lambda: loop.create_task(work, context=self._context.copy()))

    async def _flush(self) -> None:
        try:
            while self._stopped is None and self._confirmed.seq < self._wanted:
                batch = self._next_batch()
                if not batch:
                    await self._gates[0][1]
                    continue
                if await self._append(self._confirmed, batch, None) is None:
                    return
                self._written(batch)
        except asyncio.CancelledError:
            raise
        except BaseException as e:
            self._stop(e)
        finally:
            self._flusher = None

    def _flush_now(self, store: InlineStore) -> None:
        """One try, without a task. Where the store is away, `_flush` goes on: what it repeats may be longer by then, but begins
        with the same hashes."""
        try:
            while self._stopped is None and self._confirmed.seq < self._wanted:
                batch = self._next_batch()
                if not batch:
                    return  # `_flush` waits for what the first record is held for
                faults.reach("before_append")
                reply = store.append_now(
                    self._journal_id, self._attempt, self._owner, self._confirmed, batch, progress=self._progress()
                )
                faults.reach("after_append")
                if reply.answer not in _ACCEPTED:
                    raise self._refusal(reply, batch)
                self._written(batch)
        except JournalUnavailable:
            return
        except BaseException as e:
            self._stop(e)

    def _send(self, store: SendingStore) -> bool:
        """One try, without a task. False: nothing was sent."""
        batch = self._next_batch()
        if not batch:
            return False  # the first record is held
        try:
            faults.reach("before_append")
            self._in_flight = store.append_soon(
                self._journal_id,
                self._attempt,
                self._owner,
                self._confirmed,
                batch,
                progress=self._progress(),
                answered=lambda reply: self._answered(batch, reply),
            )
        except BaseException as e:
            self._stop(e)
            return True
        return self._in_flight

    def _answered(self, batch: list[Sealed], reply: Callable[[], AppendReply]) -> None:
        """Of `_send`. Where the store is away, `_flush` goes on, as after `_flush_now`."""
        self._in_flight = False
        try:
            answer = reply()
            faults.reach("after_append")
            if answer.answer not in _ACCEPTED:
                raise self._refusal(answer, batch)
            self._written(batch)
        except JournalUnavailable:
            if self._stopped is None:
                self._flusher = self._spawn(self._flush())
        except BaseException as e:
            self._stop(e)
        else:
            if self._stopped is None and self._confirmed.seq < self._wanted:
                self._want(self._wanted)

    async def _park(self, before: Head, sealed: Sealed) -> None:
        try:
            reply = await self._append(before, [sealed], self._inbox_position())
        except asyncio.CancelledError:
            raise
        except BaseException as e:
            self._stop(e)
        else:
            if reply is AppendAnswer.INBOX:
                self._sealed = before
            elif reply is not None:
                self._confirm(sealed)
        finally:
            self._parking = False

    def _next_batch(self) -> list[Sealed]:
        while self._gates and _went_well(self._gates[0][1]):
            self._gates.popleft()
        held: float = self._gates[0][0] if self._gates else math.inf
        batch: list[Sealed] = []
        size = 0
        for sealed in self._queue:
            if sealed.seq >= held:
                break
            size += len(sealed.record)
            if batch and (size > APPEND_MAX_BYTES or len(batch) == APPEND_MAX_RECORDS):
                break
            batch.append(sealed)
        return batch

    async def _append(self, after: Head, batch: list[Sealed], park_after_inbox: str | None) -> AppendAnswer | None:
        """Write one batch, repeating the very same append while the store is away. None: the writer was stopped."""
        progress = self._progress()
        since: float | None = None
        tries = 0
        while True:
            try:
                faults.reach("before_append")
                reply = await self._store.append(
                    self._journal_id,
                    self._attempt,
                    self._owner,
                    after,
                    batch,
                    progress=progress,
                    park_after_inbox=park_after_inbox,
                )
                faults.reach("after_append")
            except JournalUnavailable as e:
                now = self._clock.monotonic_s()
                since = now if since is None else since
                if now - since >= self._unreachable_after_s:
                    raise JournalUnavailable(
                        f"the journal's store did not take records {batch[0].seq} to {batch[-1].seq} for "
                        f"{now - since:.0f} s: {e}"
                    ) from e
                self._retrying = True
                await self._sleep(self._backoff_s(tries))
                tries += 1
                if self._stopped is not None:
                    return None
                continue
            self._retrying = False
            if reply.answer in _ACCEPTED or (reply.answer is AppendAnswer.INBOX and park_after_inbox is not None):
                return reply.answer
            raise self._refusal(reply, batch)

    def _backoff_s(self, tries: int) -> float:
        """Doubles from RETRY_FIRST_S to RETRY_MAX_S, between half and the whole of it: many pods wait for one store."""
        whole: float = min(RETRY_FIRST_S * 2 ** min(tries, 16), RETRY_MAX_S)
        return whole * (0.5 + self._clock.random_bytes(1)[0] / 510)

    def _refusal(self, reply: AppendReply, batch: list[Sealed]) -> BaseException:
        if reply.answer is AppendAnswer.FENCED:
            return Fenced(f"attempt {reply.attempt} has replaced attempt {self._attempt}", reply.attempt)
        if reply.answer is AppendAnswer.TAKEN:
            return Fenced(f"another process claimed attempt {self._attempt}", reply.attempt)
        confirmed = self._confirmed
        what = {
            AppendAnswer.CONFLICT: "another record sits there",
            AppendAnswer.GAP: "records before it are missing from the store",
            AppendAnswer.NOLEASE: "the store no longer knows of this attempt's claim",
        }.get(reply.answer, f"the store answered {reply.answer}")
        return JournalConflict(
            f"record {batch[0].seq} cannot be written: {what}. The store lost or changed records after they were "
            f"confirmed; the last confirmed one is {confirmed.seq}",
            confirmed.seq,
            confirmed.hash,
        )

    # --- ends ----------------------------------------------------------------------------------------------------

    def _written(self, batch: list[Sealed]) -> None:
        self._confirm(batch[-1])
        if self._stopped is None:
            for _ in batch:
                self._queue.popleft()

    def _confirm(self, last: Sealed) -> None:
        self._confirmed = Head(last.seq, last.hash)
        if not self._waiters:
            return
        still: list[tuple[int, asyncio.Future[None]]] = []
        for seq, waiter in self._waiters:
            if seq > last.seq:
                still.append((seq, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        self._waiters = still

    def _stop(self, why: BaseException) -> None:
        if self._stopped is not None:
            return
        self._stopped = why
        self._queue.clear()
        waiters, self._waiters = self._waiters, []
        for _, waiter in waiters:
            if not waiter.done():
                waiter.set_exception(why)
        self._on_stop(why)
