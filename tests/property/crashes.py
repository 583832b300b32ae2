"""One run of a random program on one of three stores, on a clock that a crash turns back.

Where latencies are fixed, a lost process is as if it had stopped right after its last durable record: the clock goes back to
that record's time, and the outside answers as it would have. So a crashed run must give what an undisturbed one gives.
"""

import asyncio
import contextvars
import functools
import logging
import random
from collections.abc import Callable
from typing import Any

from everstep.clock import Clock
from everstep.ids import EpochMs
from everstep.journal.memory import MemoryJournal, MemoryStore
from everstep.journal.store import Store
from everstep.run.body import BodyRun
from everstep.run.loop import AgentLoop
from everstep.run.scope import BODY
from everstep.run.virtual import START_EPOCH_MS, VirtualClock, VirtualSelector
from everstep.testing import MemoryRun
from tests.property import agents, outside
from tests.property.outside import Outside
from tests.property.trees import Node

NEVER_S = 1e9
"""How often an idle process reads its inbox and tells of itself: not while a program runs."""


class Clockwork(VirtualClock):
    """Whole milliseconds, so that the same moment is the same number after every detour; without a bound."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.ms = 0

    def advance(self, seconds: float) -> None:
        self.ms += max(1, round(seconds * 1000))

    def rewind(self, epoch_ms: int) -> None:
        self.ms = epoch_ms - START_EPOCH_MS

    def now_epoch_ms(self) -> EpochMs:
        return EpochMs(START_EPOCH_MS + self.ms)

    def monotonic_s(self) -> float:
        return self.ms / 1000


class Busy:
    """A store whose calls are counted while they are on their way: virtual time stands still meanwhile."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.calls = 0

    def __getattr__(self, name: str) -> Any:  # any method of the store
        method = getattr(self._store, name)
        if name == "append_soon":
            return functools.partial(self._soon, method)
        if not asyncio.iscoroutinefunction(method):
            return self._reading if name == "read" else method

        async def counted(*args: Any, **kwargs: Any) -> Any:  # as the method
            self.calls += 1
            try:
                return await method(*args, **kwargs)
            finally:
                self.calls -= 1

        return counted

    def _soon(
        self, append_soon: Callable[..., bool], *args: Any, answered: Any, **kwargs: Any
    ) -> bool:  # as the store's
        def back(reply: object) -> None:
            self.calls -= 1
            answered(reply)

        self.calls += 1
        if append_soon(*args, answered=back, **kwargs):
            return True
        self.calls -= 1
        return False

    async def _reading(self, *args: Any, **kwargs: Any) -> Any:  # as `read`
        self.calls += 1
        try:
            async for stored in self._store.read(*args, **kwargs):
                yield stored
        finally:
            self.calls -= 1


class Slow:
    """A store in memory whose calls take their time, on the way there and on the way back, so that records queue up."""

    def __init__(self, store: MemoryStore, rng: random.Random) -> None:
        self._store = store
        self._rng = rng

    def __getattr__(self, name: str) -> Any:  # any other method of the store
        if name in ("append_now", "append_soon"):
            raise AttributeError(name)
        return getattr(self._store, name)

    async def append(self, *args: Any, **kwargs: Any) -> Any:  # as the store's
        await asyncio.sleep(self._rng.choice([0, 0.01, 30, 600]))
        reply = await self._store.append(*args, **kwargs)
        await asyncio.sleep(self._rng.choice([0, 0.01, 30, 600]))
        return reply


class CrashRun(MemoryRun[dict[str, Any]]):
    """`open_real` gives the store of one attempt; what it holds is mirrored in memory, where the checks look."""

    def __init__(self, tree: Node, seed: int, *, fixed: bool, linger_s: float, open_real: Callable[[], Store] | None):
        agent: Any = getattr(agents, tree[0])  # of any signature
        super().__init__(agent, "any", {"tree": tree}, seed=seed, park_linger_s=linger_s)
        self.clock: Clockwork = Clockwork(seed)
        self.world = outside.world = Outside(seed, self.clock.now_epoch_ms, fixed=fixed)
        self.open_real = open_real
        self.slow = not fixed and seed % 2 == 0
        self.compact = tree[0] == "rounds" and seed % 4 == 0
        self.may_be_cancelled = not fixed and open_real is None
        self.busy: Busy | None = None

    def attempt(self, **options: Any) -> Any:  # an Ended
        options = {"inbox_poll_s": NEVER_S, "report_every_s": NEVER_S, "probe_timeout_s": NEVER_S} | options
        options = {"compact": self.compact} | options
        before = self.by_seq()
        if self.open_real is None:
            ended = self._attempt_slowly(options) if self.slow else super().attempt(**options)
        else:
            mirror = self.store
            real = self.open_real()
            self.busy = Busy(real)
            self.store = self.busy  # type: ignore[assignment]  # the checks look into the mirror, never here
            try:
                ended = super().attempt(**options)
            finally:
                self.store, self.busy = mirror, None
            asyncio.run(self._mirror(self.open_real()))
        after = self.by_seq()
        kept = [seq for seq in before if not self.compact or seq >= min(after, default=1)]
        if any(after.get(seq) != before[seq] for seq in kept):
            raise AssertionError("records that were durable have changed")
        return ended

    def _attempt_slowly(self, options: dict[str, Any]) -> Any:  # as `attempt`
        memory = self.store
        self.store = Slow(memory, self.world.free)  # type: ignore[assignment]  # as above
        try:
            return super().attempt(**options)
        finally:
            self.store = memory

    def by_seq(self) -> dict[int, bytes]:
        """The journal as it is stored; an epoch that was compacted begins later than at 1."""
        journal = self.store.journals_by_id.get(self.journal_id)
        return {stored.seq: stored.record for stored in journal.records} if journal else {}

    async def _mirror(self, real: Store) -> None:
        meta = await real.meta(self.journal_id)
        if meta is not None:
            records = [stored async for stored in real.read(self.journal_id)]
            journal = MemoryJournal(meta.attempt, meta.head, meta.owner, records=records)
            self.store.journals_by_id[self.journal_id] = journal
        await real.aclose()

    def _add(self, body: Any) -> None:  # what a person says
        super()._add(body)
        if self.open_real is not None:
            entry = self.store.inboxes[self.journal_id][-1]
            asyncio.run(_send(self.open_real(), self, entry))

    def copy(self) -> "CrashRun":
        twin = super().copy()
        assert isinstance(twin, CrashRun)
        twin.open_real, twin.slow = None, False
        return twin

    def after_crash(self) -> None:
        """The process is lost, and with it what was not durable."""
        records = self.records
        self.world.forget_unrecorded(records)
        if self.world.fixed:
            self.clock.rewind(records[-1].time if records else START_EPOCH_MS)
        else:
            self.clock.advance(self.world.free.choice([0.001, 30, 4000]))

    def answer(self, waits: Any) -> None:
        """A person who can look into the world: done with what it holds, else failed."""
        from everstep.journal.records import Intent

        idem = {r.key: r.idem for r in self.records if isinstance(r, Intent)}
        for wait in waits:
            if wait.kind == "uncertain":
                done = self.world.done.get(idem[wait.key])
                self.settle(wait.key, "fail" if done is None else "done", done)

    def _make_loop(self, clock: Clock) -> AgentLoop:
        loop = AgentLoop(clock, VirtualSelector(self.clock, self._threads_busy))
        loop._clock_resolution = 1e-4  # type: ignore[attr-defined]  # a tenth of the clock's unit: sums of floats miss it
        return loop

    def _threads_busy(self) -> bool:
        if self.busy is not None and self.busy.calls:
            return True
        engine = self._last.engine if self._last is not None else None
        if engine is None:
            return False
        real = engine.bodies.in_threads > _virtual_threads
        return real or (engine.thread is not None and engine.thread.busy)


async def _send(real: Store, run: CrashRun, entry: Any) -> None:
    await real.inbox_add(run.journal_id, entry)
    await real.aclose()


# --- threads of bodies, on virtual time --------------------------------------------------------------------------

_virtual_threads = 0


def _start_thread(self: BodyRun, body: Callable[[], object], context: contextvars.Context, name: str) -> None:
    """A sync body takes virtual time and then happens at once; like a thread it cannot be cancelled."""
    global _virtual_threads  # noqa: PLW0603  # one program runs at a time
    world = outside.world
    context_of_body = context[BODY]
    assert context_of_body is not None
    due = world.due_ms(context_of_body.idempotency_key)
    _virtual_threads += 1
    self.end.add_done_callback(_ended)
    self._lane.at((due - world.now_ms()) / 1000, lambda: self.in_thread(body, context))
    self._arm()


def _ended(_end: object) -> None:
    global _virtual_threads  # noqa: PLW0603  # as above
    _virtual_threads -= 1


def install() -> None:
    """Once per worker process."""
    for name in ("asyncio", "everstep.run"):  # they tell of failed tasks and silent probes, which are meant
        logging.getLogger(name).setLevel(logging.CRITICAL)
    BodyRun.start_thread = _start_thread  # type: ignore[method-assign]  # the very point


def forget_threads() -> None:
    global _virtual_threads  # noqa: PLW0603  # as above
    _virtual_threads = 0


__all__ = ["Clockwork", "CrashRun", "forget_threads", "install"]
