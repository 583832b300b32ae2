"""Our keyed work queue: what waits to be reconciled, each key once, each key by one worker at a time.

Why not kopf's own queues: they merge nothing, run a run's and its pod's handlers at once, and keep a task per object. Here a
key costs one entry however many events arrive; what a worker needs it reads anew when it starts.

Two layers: `KeyQueue` is the bookkeeping, pure and given the time; `WorkQueue` adds workers on an asyncio loop.

    urgent lane   events and due timers              a key sits in one lane; urgent wins
    calm lane     the resync of every run            every CALM_EVERYth turn is the calm lane's, so that neither starves
    timers        add_after: earliest wins, one per key; dropped when a worker takes the key, since it decides anew
    backoff       retry: exponential with jitter, until forget
"""

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

from everstep.clock import Clock

K = TypeVar("K", bound=Hashable)

CALM_EVERY: Final = 4
_HEAP_SLACK: Final = 64
"""Replaced timers stay in the heap until they outnumber the live ones by this much; then it is rebuilt."""

log = logging.getLogger(__name__)


def jitter_of(clock: Clock) -> Callable[[], float]:
    """A source of jitter, 0 … 1."""
    return lambda: int.from_bytes(clock.random_bytes(4), "big") / 2**32


class KeyQueue(Generic[K]):
    """Bookkeeping of waiting, running and delayed keys. Memory grows with the number of keys alone, not of events.

    Not thread-safe; no method awaits. `now_s` is any clock that never goes back; `jitter` returns 0 … 1.
    """

    def __init__(self, *, base_s: float, max_s: float, jitter: Callable[[], float], gap_s: float = 0.0) -> None:
        self._base_s, self._max_s, self._jitter, self._gap_s = base_s, max_s, jitter, gap_s
        self._urgent: deque[K] = deque()
        self._calm: deque[K] = deque()
        self._waiting: dict[K, tuple[bool, float]] = {}
        """Keys that should run: (urgent, since when they wait)."""
        self._running: dict[K, float] = {}
        self._timers: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._failures: dict[K, int] = {}
        self._resting: dict[K, float] = {}
        self._rests: deque[tuple[float, K]] = deque()
        """Keys that ran within the last gap_s, and the same in order of time, to forget them."""
        self._ticket = 0
        self._turn = 0

    def add(self, key: K, now_s: float, *, urgent: bool = True) -> None:
        """The key should run. One that waits already keeps its place (a calm one may become urgent); one that runs will run
        once more afterwards, since what it observed may be older than this event."""
        known = self._waiting.get(key)
        if known is not None and (known[0] or not urgent):
            return
        rest_until = self._resting.get(key, now_s)
        if rest_until > now_s:
            self.add_after(key, rest_until - now_s, now_s)
            return
        self._waiting[key] = (urgent, known[1] if known else now_s)
        if key not in self._running:
            (self._urgent if urgent else self._calm).append(key)

    def add_after(self, key: K, delay_s: float, now_s: float) -> None:
        """The key should run in `delay_s`; an earlier timer of the same key wins."""
        due = now_s + max(0.0, delay_s)
        if self._timers.get(key, due + 1) <= due:
            return
        self._timers[key] = due
        self._ticket += 1
        heapq.heappush(self._heap, (due, self._ticket, key))
        if len(self._heap) > 2 * len(self._timers) + _HEAP_SLACK:
            self._heap = [entry for entry in self._heap if self._timers.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)

    def retry(self, key: K, now_s: float, *, at_least_s: float = 0.0) -> float:
        """Delay a key that failed: base x 2^failures up to the maximum, halved by up to 50 % jitter so that an outage does not
        end in a stampede; never sooner than `at_least_s` (Retry-After). Returns the delay."""
        failures = self._failures.get(key, 0)
        self._failures[key] = min(failures + 1, 62)
        delay = min(self._max_s, self._base_s * 2.0**failures) * (1 - 0.5 * self._jitter())
        delay = max(delay, at_least_s)
        self.add_after(key, delay, now_s)
        return delay

    def forget(self, key: K) -> None:
        """The key went well: the next failure starts from the first pause again."""
        self._failures.pop(key, None)

    def take(self, now_s: float) -> K | None:
        """The next key to run, marked as running until `done`; None when nothing is due."""
        self._fire(now_s)
        self._turn += 1
        lanes = (
            ((self._calm, False), (self._urgent, True))
            if self._turn % CALM_EVERY == 0
            else ((self._urgent, True), (self._calm, False))
        )
        for lane, urgent in lanes:
            while lane:
                key = lane.popleft()
                waits = self._waiting.get(key)
                if waits is None or waits[0] is not urgent or key in self._running:
                    continue  # it moved to the other lane, or was taken from there
                del self._waiting[key]
                self._timers.pop(key, None)
                self._running[key] = now_s
                return key
        return None

    def done(self, key: K, now_s: float) -> None:
        """The worker is finished with the key; it runs again if it was added meanwhile, but not within `gap_s`: an object that
        is edited a hundred times a second costs a bounded number of reconciles."""
        self._running.pop(key, None)
        if self._gap_s > 0:
            self._resting[key] = now_s + self._gap_s
            self._rests.append((now_s + self._gap_s, key))
        while self._rests and self._rests[0][0] <= now_s:
            until, rested = self._rests.popleft()
            if self._resting.get(rested) == until:
                del self._resting[rested]
        waits = self._waiting.get(key)
        if waits is None:
            return
        if self._gap_s > 0:
            del self._waiting[key]
            self.add_after(key, self._gap_s, now_s)
        else:
            (self._urgent if waits[0] else self._calm).append(key)

    def next_due_s(self) -> float | None:
        """When the earliest timer falls due; None without timers."""
        while self._heap and self._timers.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def is_due_within(self, key: K, within_s: float, now_s: float) -> bool:
        """Whether the key will be looked at in that time without anybody's help: it waits, or its timer falls due."""
        return key in self._waiting or self._timers.get(key, now_s + within_s + 1) <= now_s + within_s

    def depth(self) -> int:
        """Keys that wait for a worker."""
        return len(self._waiting)

    def delayed(self) -> int:
        """Keys with a timer: parked runs are no more than that."""
        return len(self._timers)

    def running(self) -> int:
        return len(self._running)

    def oldest_wait_s(self, now_s: float) -> float:
        """How long the longest-waiting key has waited: 0 when none does. Linear in the depth; for /healthz."""
        return max((now_s - since for _, since in self._waiting.values()), default=0.0)

    def _fire(self, now_s: float) -> None:
        while (due := self.next_due_s()) is not None and due <= now_s:
            _, _, key = heapq.heappop(self._heap)
            del self._timers[key]
            self.add(key, now_s)


Outcome = float | None
"""What a worker says of a key: seconds until it wants to look again, or None for never (an event brings it back)."""


class WorkQueue(Generic[K]):
    """Runs `work(key)` with a fixed number of workers over a KeyQueue.

    `work` returns when to look again; an exception means retry with backoff, reported through `on_error(key, error)`, which
    returns the least delay in seconds (Retry-After, else 0).
    """

    def __init__(
        self,
        keys: KeyQueue[K],
        work: Callable[[K], Awaitable[Outcome]],
        on_error: Callable[[K, Exception], float],
        *,
        workers: int,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._keys, self._work, self._on_error = keys, work, on_error
        self._workers, self._now = workers, monotonic_s
        self._wake = asyncio.Event()
        self._last_done_s = monotonic_s()

    def add(self, key: K, *, urgent: bool = True) -> None:
        """See KeyQueue.add. From the loop's own thread only; kopf's handlers run there."""
        self._keys.add(key, self._now(), urgent=urgent)
        self._wake.set()

    def add_after(self, key: K, delay_s: float) -> None:
        self._keys.add_after(key, delay_s, self._now())
        self._wake.set()

    def is_due_within(self, key: K, within_s: float) -> bool:
        """See KeyQueue.is_due_within."""
        return self._keys.is_due_within(key, within_s, self._now())

    def depth(self) -> int:
        return self._keys.depth()

    def delayed(self) -> int:
        return self._keys.delayed()

    def oldest_wait_s(self) -> float:
        return self._keys.oldest_wait_s(self._now())

    def stuck_s(self) -> float:
        """How long keys have waited while no worker finished anything. A long queue alone is not stuck: in an outage of the API
        server every reconcile runs into its time-out, and restarting the operator would not shorten it."""
        return min(self.oldest_wait_s(), self._now() - self._last_done_s)

    async def run(self) -> None:
        """Serve until cancelled. A worker in mid-work is cancelled with it: every step of `work` may be cut anywhere."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._workers):
                group.create_task(self._serve(), name=f"worker-{number}")

    async def _serve(self) -> None:
        while True:
            key = self._keys.take(self._now())
            if key is None:
                await self._sleep()
                continue
            try:
                again_s = await self._work(key)
                self._keys.forget(key)
                if again_s is not None:
                    self._keys.add_after(key, again_s, self._now())
            except Exception as e:  # whatever went wrong with one key must not end the worker
                self._keys.retry(key, self._now(), at_least_s=self._on_error(key, e))
            finally:
                self._last_done_s = self._now()
                self._keys.done(key, self._last_done_s)
                self._wake.set()

    async def _sleep(self) -> None:
        self._wake.clear()
        due = self._keys.next_due_s()
        timeout = None if due is None else max(0.0, due - self._now())
        try:
            async with asyncio.timeout(timeout):
                await self._wake.wait()
        except TimeoutError:
            pass
